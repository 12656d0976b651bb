"""Plans of graphs over all degrees of a system."""

from dataclasses import replace

import pytest
from dataflow_graphs import mixer, mlp

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.dataflow import search
from meshwright.dataflow.degrees import DegreePricing
from meshwright.dataflow.gradient_sums import GradientSums
from meshwright.dataflow.question import load_graph
from meshwright.dataflow.roofline import CalibratedSystem, Roofline
from meshwright.dataflow.search import calibrated_system, plan_dataflow
from meshwright.dataflow.stages import StagePrice, StageTime
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Kernel, MessageKind, Operand, Unit, Weight
from meshwright.graph.kernels.workloads import fft, hpl
from meshwright.spec.collective import CollectiveKind
from meshwright_papers.studies.dfmodel.workloads import dlrm_a, gpt_layer

SMALL = (2048, 16, 128, 1024)


def machine(name):
    system = load_system(name)
    return CalibratedSystem(system, load_calibration(system.chip.family))


def plan_graph(graph, on, **fields):
    return search.plan_graph(DegreePricing(graph, on, **fields))


def inference(**fields):
    return plan_graph(gpt_layer(*SMALL, repeats=8), machine("8xA100"), num_passes=8, **fields)


def test_every_way_to_write_the_devices_is_priced_or_refused():
    found = inference()
    assert len(found.plans) + sum(found.refused.values()) == 10
    assert all(plan.tp * plan.pp * plan.dp == 8 for plan in found.plans)
    assert found.best.step_s == min(plan.step_s for plan in found.plans)
    assert found.lower_bound_s <= found.best.step_s
    assert found.gap < 1e-6


@pytest.mark.parametrize("plan", inference().plans, ids=lambda plan: str(plan.degrees))
def test_a_step_is_the_sum_of_its_parts(plan):
    passes = plan.num_passes * max(plan.stage_s, plan.send_s)
    assert plan.step_s == pytest.approx(
        passes
        + plan.parts_s["bubble_s"]
        + plan.parts_s["gradient_sums_s"]
        + plan.parts_s["update_s"]
    )
    assert plan.stage_s == pytest.approx(plan.layers_per_stage * plan.sharding.cost)
    assert plan.parts_s["bubble_s"] == pytest.approx((plan.pp - 1) * max(plan.stage_s, plan.send_s))
    assert plan.passes_per_s == pytest.approx(8 / plan.step_s)


def test_one_group_over_all_devices_costs_what_its_sharding_costs():
    plan = next(plan for plan in inference().plans if plan.degrees == (8, 1, 1))
    assert plan.step_s == pytest.approx(8 * 8 * plan.sharding.cost)


def test_collectives_beside_computation_are_never_slower():
    exposed = {plan.degrees: plan for plan in inference().plans}
    hidden = inference(hides_network=True)
    for plan in hidden.plans:
        assert plan.stage_s <= exposed[plan.degrees].stage_s * (1 + 1e-9)
    assert hidden.gap < 0.05


def test_training_counts_gradients_state_and_update():
    graph = with_backward(gpt_layer(*SMALL, repeats=8))
    optimizer = load_optimizer("megatron-adam")
    found = plan_graph(graph, machine("8xA100"), num_passes=8, optimizer=optimizer)
    plans = {plan.degrees: plan for plan in found.plans}
    assert plans[1, 1, 8].parts_s["gradient_sums_s"] > 0.0
    assert plans[8, 1, 1].parts_s["gradient_sums_s"] == 0.0
    assert all(plan.parts_s["update_s"] > 0.0 for plan in found.plans)
    for plan in found.plans:
        alone = plan.sharding.tables.cost(plan.sharding.ways)
        assert plan.stage_s == pytest.approx(plan.layers_per_stage * alone)
        assert plan.lower_bound_s <= plan.step_s
    params = 8 * 12 * 2048**2
    assert plans[1, 1, 8].held_bytes > 16 * params


def test_training_without_an_optimizer_is_refused():
    graph = with_backward(gpt_layer(*SMALL))
    with pytest.raises(SpecError) as caught:
        plan_graph(graph, machine("8xA100"), num_passes=0)
    assert len(caught.value.faults) == 2


def test_what_fits_in_no_way_says_why():
    graph = gpt_layer(12288, 96, 128, 2048, repeats=96)
    with pytest.raises(InfeasibleError, match="memory: 1"):
        plan_graph(graph, machine("1xA100"), num_passes=1)


def test_a_stage_may_be_priced_by_others():
    asked = []

    def stage_time(work):
        asked.append(work)
        return None if work.tp == 1 else StagePrice(1.0 / work.tp, 0.5 / work.tp)

    found = inference(
        stage_time=StageTime(stage_time, lambda *_: 0.0, lambda seconds: seconds.compute_s)
    )
    assert found.best.degrees == (8, 1, 1)
    assert found.best.stage_s == 1 / 8
    assert found.refused == {"memory of a chip": 4}
    assert found.gap == pytest.approx(1.0)
    eight = next(work for work in asked if work.tp == 8)
    changed = sum(change.cost for change in eight.sharding.changes)
    assert sum(eight.network_s.values()) == pytest.approx(changed)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "most"), [("8xSN10", 0.05), ("16xSN40L", 0.06)])
def test_fused_stages_count_the_network_in_their_bound(system, most):
    """On links of 4 GB/s sums of tensors take longer than products."""
    plans = plan_dataflow(load_graph("gpt3-175b-layer"), calibrated_system(system))
    assert 0.0 < plans.gap < most


def test_a_bound_of_fused_stages_holds_the_move_that_every_split_needs():
    """An all-gather of 4096 x 4096 numbers takes 2.8 times the products at their peak."""
    on = calibrated_system("8xSN10")
    plans = plan_dataflow(mixer(4096), on, allowed={"tp": (8,)})
    sent_s = on.links(1, 8).time_s(CollectiveKind.ALL_GATHER, 2.0 * 4096**2)
    assert plans.lower_bound_s == pytest.approx(sent_s, rel=1e-5)
    assert plans.lower_bound_s > 2.5 * mixer(4096).flops / on.peak_flops_per_s(mixer(4096))
    assert plans.best.step_s < 1.25 * sent_s


def test_a_graph_that_stands_once_is_cut_into_stages():
    graph = gpt_layer(12288, 96, 128, 2048)
    found = plan_graph(graph, machine("4xA100"), num_passes=64)
    cut = [plan for plan in found.plans if plan.stages]
    assert cut or found.refused["slower by its bound"]
    for plan in cut:
        kernels = [kernel for stage in plan.stages for kernel in stage.kernels]
        assert sorted(kernels) == list(range(18))
        assert max(plan.stage_s, plan.send_s) == max(stage.cost for stage in plan.stages)


def test_stages_of_a_training_graph_by_hand():
    """Three products of a size in three stages: each has its product and both gradients.

    Eight passes take 7 of the slowest stage and one of each. The middle stage holds most: 2^22
    parameters of 18 bytes, its output, the gradient that it sends back, and what arrived for two
    passes in flight: 8 MiB each.
    """
    graph, on = with_backward(mixer(2048)), machine("4xA100")
    preset = load_optimizer("megatron-adam")
    plan = DegreePricing(graph, on, 8, preset).priced(1, 3, 1)
    names = [{graph.kernels[n].name for n in stage.kernels} for stage in plan.stages]
    assert names == [
        {"up", "up.grad.x", "up.grad.weight"},
        {"mix", "mix.grad.up", "mix.grad.weight"},
        {"down", "down.grad.mix", "down.grad.weight"},
    ]
    roofline = Roofline(graph, on, 1)
    alone = [sum(roofline.kernel_s(n, None) for n in stage.kernels) for stage in plan.stages]
    assert plan.parts_s["passes_s"] == pytest.approx(8 * max(alone))
    assert plan.parts_s["bubble_s"] == pytest.approx(sum(alone) - max(alone))
    assert plan.parts_s["update_s"] == pytest.approx(
        2**22 * preset.step_traffic_bytes_per_param / float(on.engine(graph).memory_bytes_per_s)
    )
    assert plan.held_bytes == (4 * 18 + 4 * 8) * 2**20
    assert plan.lower_bound_s == pytest.approx(plan.step_s)


def test_a_model_with_tables_puts_them_beside_dense_layers():
    found = plan_graph(dlrm_a(), machine("128xA100"))
    plans = {plan.degrees: plan for plan in found.plans}
    assert found.best.degrees == (32, 1, 4)
    assert found.best.batch_parts == 4
    kinds = [(c.producer, c.change.kind) for c in plans[128, 1, 1].sharding.changes]
    assert kinds == [("pooled", CollectiveKind.ALL_TO_ALL)]
    assert found.gap < 1e-6


def test_dims_of_samples_pass_a_graph_alone():
    """Tokens meet in attention, rows and columns in a transform; samples never meet."""
    assert dlrm_a().batch_dims == ("samples",)
    assert with_backward(replace(dlrm_a(), repeats=1)).batch_dims == ("samples",)
    assert gpt_layer(*SMALL).batch_dims == ()
    assert fft(64, 64).batch_dims == ()
    assert mlp(64).batch_dims == ("batch",)
    assert with_backward(mlp(64)).batch_dims == ("batch",)


@pytest.mark.parametrize("passes", [1, 2])
def test_replicas_share_the_batch_of_a_pass(passes):
    """A part of the batch is a pass of a smaller graph: eight of 8 samples, for one of 64."""
    optimizer, on = load_optimizer("megatron-adam"), machine("8xA100")

    def best(batch, number):
        pricing = DegreePricing(with_backward(mlp(batch)), on, number, optimizer)
        return pricing.priced(1, 1, 8)

    whole, parts = best(64, passes), best(64 * passes // 8, 8)
    assert whole.batch_parts == 8 // passes
    assert whole.num_passes == 1
    assert (whole.step_s, whole.held_bytes) == (parts.step_s, parts.held_bytes)
    assert whole.lower_bound_s <= whole.step_s * (1 + 1e-12)
    assert whole.passes_per_s == pytest.approx(passes / whole.step_s)


def test_replicas_that_share_no_batch_evenly_are_refused():
    found = plan_graph(mlp(4), machine("8xA100"), num_passes=1)
    assert {plan.dp for plan in found.plans} == {1, 2, 4}
    assert found.refused["more replicas than passes"] == 1
    found = plan_graph(mlp(64), machine("8xA100"), num_passes=3)
    assert {plan.dp for plan in found.plans} == {1, 2}


class PlainLinks:
    """Links with a second for each parameter, and some for a message."""

    def __init__(self, start_s):
        self.start_s = start_s

    def time_s(self, _, num_bytes):
        return self.start_s + num_bytes


@pytest.mark.parametrize(
    ("start_s", "window_s", "expected_s"),
    [
        (0.0, 0.0, 8.0),  # nothing to hide behind
        (0.0, 5.0, 3.5),  # eight buckets: 3 s exposed, 5 s hidden at a tenth each
        (0.0, 100.0, 1.7),  # the last of eight is exposed: 1 + 0.1 7
        (2.0, 100.0, 5.1),  # eight of 3 s: 3 + 0.1 21; four of 4 s take 5.2
    ],
)
def test_gradients_are_summed_in_buckets_beside_the_backward_pass(start_s, window_s, expected_s):
    sums = GradientSums(PlainLinks(start_s), 1.0, most_buckets=8, slowdown=0.1)
    found = sums.time_s(8.0, window_s)
    assert found == pytest.approx(expected_s)
    for bound in sums.bounds:
        assert bound.least_s(8.0) - bound.hidden * window_s <= found


def test_a_transform_sends_three_all_to_alls():
    found = plan_graph(fft(2**14, 2**14), machine("8xA100"))
    assert found.best.degrees == (8, 1, 1)
    kinds = [change.change.kind for change in found.best.sharding.changes]
    assert kinds == [CollectiveKind.ALL_TO_ALL] * 3


def test_a_factorisation_sends_its_messages():
    graph = hpl(4096, 1024, grid_columns=8, word_bytes=2.0)
    quiet = replace(graph, kernels=tuple(replace(k, messages=()) for k in graph.kernels))
    steps = []
    for each in (graph, quiet):
        plans = {plan.degrees: plan for plan in plan_graph(each, machine("8xA100")).plans}
        steps.append(plans[8, 1, 1].step_s)
    links = machine("8xA100").links(1, 8)
    kinds = {MessageKind.SEND: CollectiveKind.SEND, MessageKind.BROADCAST: CollectiveKind.BROADCAST}
    sent_s = sum(
        links.time_s(kinds[m.kind], m.num_bytes) for k in graph.kernels for m in k.messages
    )
    assert steps[0] - steps[1] == pytest.approx(sent_s)


def test_a_graph_that_is_too_wide_for_stages_says_so_and_keeps_its_bound():
    """Twelve products side by side have 4096 order ideals."""
    dims = ("tokens", "in")
    kernels = tuple(
        Kernel(
            f"k{n}", Unit.MATRIX, ("tokens", "out"), (Operand("x", dims),),
            (Weight(f"k{n}.weight", ("in", "out")),), flops_per_point=2.0,
        )
        for n in range(12)
    )  # fmt: skip
    sizes = {"tokens": 8192, "in": 8192, "out": 8192}
    outputs = tuple(kernel.name for kernel in kernels)
    graph = DataflowGraph("wide", kernels, sizes, {"x": dims}, outputs, "tokens")
    refused = DegreePricing(graph, machine("4xA100"), 8, None, False, None).priced(2, 2, 1)
    assert refused.reason == "too many branches side by side for stages"
    work_s = graph.flops / (2 * 312e12)
    assert refused.lower_bound_s >= work_s


def test_words_without_a_rate_are_refused():
    with pytest.raises(SpecError, match="TPU-v4 has no rate for fp64"):
        plan_graph(hpl(2048, 1024), machine("4xTPU-v4"))
    with pytest.raises(SpecError, match="no rate for products of 3-byte numbers"):
        plan_graph(hpl(2048, 1024, word_bytes=3.0), machine("8xA100"))
    with pytest.raises(SpecError, match="TPU-v4 has no rate for numbers of 8 bytes"):
        plan_graph(fft(256, 256), machine("4xTPU-v4"))
    with pytest.raises(SpecError, match="A100 has no rate for numbers of 16 bytes"):
        plan_graph(fft(256, 256, word_bytes=32.0), machine("4xA100"))


def test_complex_words_are_computed_in_numbers_of_half_their_width():
    chip = machine("8xA100")
    double, single = fft(256, 256), fft(256, 256, word_bytes=8.0)
    assert chip.vector_flops_per_s(double) == 9.7e12
    assert chip.vector_flops_per_s(single) == 19.5e12
    assert chip.peak_flops_per_s(double) == 8 * 9.7e12


@pytest.mark.parametrize("num_passes", [1, 2, 8, 64])
@pytest.mark.parametrize("network", ["8xA100", "4xTPU-v4"])
def test_what_is_left_out_for_its_bound_was_not_the_best(network, num_passes):
    graph, on = gpt_layer(*SMALL, repeats=8), machine(network)
    whole = plan_graph(graph, on, num_passes=num_passes)
    short = plan_graph(graph, on, num_passes=num_passes, only_best=True)
    assert short.best.step_s == whole.best.step_s
    assert short.lower_bound_s <= short.best.step_s
    assert len(short.plans) <= len(whole.plans)
