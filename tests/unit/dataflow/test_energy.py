"""What a plan moves and draws, by hand."""

import json

import pytest

from meshwright.catalog.design import Design, build
from meshwright.cli.main import main
from meshwright.dataflow.energy import power_parts_w, total_w
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright_papers.studies.dfmodel.workloads import gpt_layer

MIB = 2**20


def design(chip: str, devices: int, memory: str | None = "DDR5"):
    made = build(Design(chip, "fat-tree", ("PCIe5",), devices, memory))
    return calibrated_system(made, "uncalibrated")


def test_a_transform_moves_its_points_eight_times_and_sends_them_three_times():
    """256 MiB: loaded and stored, in and out of the chip for both sides, and where they meet."""
    system = design("A100", 8)
    found = plan_dataflow(load_graph("fft-4096x4096"), system, allowed={"tp": (8,)})
    assert found.moved.memory_bytes == 8 * 256 * MIB
    assert found.moved.link_bytes == 3 * 256 * MIB * 7 / 8


def test_watts_are_joules_of_bytes_over_the_step():
    """DDR5 takes 12 pJ/b, PCIe5 6 pJ/b; an A100 60 W idle and 400 W busy."""
    graph, system = load_graph("fft-4096x4096"), design("A100", 8)
    found = plan_dataflow(graph, system, allowed={"tp": (8,)})
    parts, step_s = power_parts_w(graph, system, found.best, found.moved), found.best.step_s
    assert parts["memory_w"] == pytest.approx(8 * 256 * MIB * 8 * 12e-12 / step_s)
    assert parts["links_w"] == pytest.approx(3 * 224 * MIB * 8 * 6e-12 / step_s)
    busy = graph.flops / step_s / system.peak_flops_per_s(graph)
    assert parts["chips_w"] == pytest.approx(8 * (60 + 340 * busy))
    assert total_w(parts) == pytest.approx(sum(parts.values()))


def test_what_is_not_stated_is_not_added_and_no_power_is_no_sum():
    graph = load_graph("fft-4096x4096")
    system = calibrated_system("8xA100")
    found = plan_dataflow(graph, system)
    parts = power_parts_w(graph, system, found.best, found.moved)
    assert (parts["memory_w"], parts["links_w"]) == (None, None)
    assert total_w(parts) == parts["chips_w"] > 8 * 60
    small, unknown = gpt_layer(2048, 16, 128, 512), design("SN30", 1)
    found = plan_dataflow(small, unknown)
    parts = power_parts_w(small, unknown, found.best, found.moved)
    assert parts["chips_w"] is None
    assert total_w(parts) is None


def test_replicas_and_stages_move_what_each_of_them_does():
    """Weights pass through memory once for each pass; two replicas do half of the passes each."""
    graph = gpt_layer(2048, 16, 128, 512, repeats=4)
    one, two, stages = (
        plan_dataflow(graph, design("A100", n), num_passes=8, allowed=allowed)
        for n, allowed in ((1, None), (2, {"dp": (2,)}), (2, {"pp": (2,)}))
    )
    assert one.moved.memory_bytes == two.moved.memory_bytes == stages.moved.memory_bytes
    assert one.moved.link_bytes == two.moved.link_bytes == 0.0
    # 512 tokens of the stream cross from stage to stage in each pass
    assert stages.moved.link_bytes == 8 * 512 * 2048 * 2


def test_training_sends_gradients_and_moves_the_state_of_the_optimizer():
    graph = gpt_layer(2048, 16, 128, 512, repeats=1)
    from meshwright.graph.kernels.backward import with_backward

    trained, system = with_backward(graph), design("A100", 2)
    one = plan_dataflow(trained, design("A100", 1), num_passes=8, optimizer="megatron-adam")
    two = plan_dataflow(
        trained, system, num_passes=8, optimizer="megatron-adam", allowed={"dp": (2,)}
    )
    params = 12 * 2048**2
    # each of two sends half of all gradients twice: sums of FP32
    assert two.moved.link_bytes == pytest.approx(2 * params * 4)
    assert two.moved.memory_bytes > one.moved.memory_bytes


@pytest.mark.parametrize("chip", ["H100", pytest.param("TEMP-die", marks=pytest.mark.slow)])
def test_no_memory_gives_more_than_its_rate(chip):
    system = design(chip, 4)
    found = plan_dataflow(gpt_layer(2048, 16, 128, 512, repeats=2), system, num_passes=8)
    full = 4 * system.spec.chip.main_memory.bandwidth_bytes_per_s * found.best.step_s
    assert 0.0 < found.moved.memory_bytes <= full


@pytest.mark.slow
def test_plan_tells_the_power(capsys):
    words = ["map", "gpt3-175b", "--on", "wafer-6x8", "--passes", "8",
             "--tp", "24", "--json"]  # fmt: skip
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)["best"]
    assert min(data["power_w"].values()) > 0.0
    assert data["moved"]["memory_bytes"] > 0.0
    assert main(words[:-1]) == 0
    assert ": chips " in capsys.readouterr().out
