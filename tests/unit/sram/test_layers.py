"""Rows of layers from a model, by hand; sends between stages; rates."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.errors import UsageError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.spec.calibration import SramConstants
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack
from meshwright.sram.price import StageSeconds, rates
from meshwright.sram.question import (
    CACHE_FRACTION,
    PartitionProblem,
    StageDevices,
    layers_of_model,
    level_of,
)
from meshwright.train.question import training

RECORDED = SoftwareStack(cuda_graphs=True)


def problem(model, system, workload, **more):
    loaded = load_system(system)
    constants = load_calibration(loaded.chip.family, "uncalibrated")
    return PartitionProblem(load_model(model), loaded, workload, constants, **more)


def decode(batch=1, **more):
    return Decode(batch_size=batch, context_length=4096, software=RECORDED, **more)


def test_a_layer_of_llama3_70b_holds_its_weights_and_its_cache():
    (row,) = layers_of_model(problem("llama3-70b", "4xWSE-3", decode(3)), [1], 3)
    assert (len(row.names), row.names[0], row.names[1], row.names[-1]) == (
        82, "embedding", "layer 0", "head",
    )  # fmt: skip
    # 8192 x (8192 + 2 x 1024) + 8192^2 of attention, 3 x 8192 x 28672 of ffn, two norms; bf16
    weights = 2 * (8192 * 10240 + 8192**2 + 3 * 8192 * 28672 + 2 * 8192)
    assert row.resident_bytes["weights"][1] == weights
    assert row.resident_bytes["weights"][0] == 2 * 128256 * 8192
    assert row.resident_bytes["kv_cache"][1] == 3 * 4096 * 2 * 8 * 128 * 2
    assert row.resident_bytes["kv_cache"][[0, -1]].tolist() == [0, 0]
    assert row.output_bytes[:-1].tolist() == [2 * 8192] * 81
    assert row.output_bytes[-1] == 4


def test_the_parts_of_a_stage_sum_to_its_load():
    (row,) = layers_of_model(problem("mixtral-8x7b", "4xWSE-3", decode(8)), [4], 8)
    for first, stop in ((0, 3), (1, 34), (33, 34)):
        parts = row.parts_bytes(first, stop, 1)
        assert sum(parts.values()) == row.loads.load_bytes(first, stop)


def test_in_training_the_state_counts_and_each_micro_batch_leaves_activations():
    work = training("8xWSE-3", sequence_length=2048, global_batch_size=8)
    (row,) = layers_of_model(problem("llama3-8b", "8xWSE-3", work), [1], 8)
    params = 4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336 + 2 * 4096
    held = [row.resident_bytes[name][1] / params for name in ("weights", "gradients", "optimizer")]
    assert held == [2, 4, 12]
    assert row.loads.load_bytes(1, 2, 3) - row.loads.load_bytes(1, 2, 1) == 2 * row.kept_bytes[1]
    assert row.kept_bytes[1] > 0


def test_narrower_weights_and_more_devices_hold_less():
    half = Precision(weight="int8")
    (wide,) = layers_of_model(problem("llama3-70b", "8xH100", decode()), [1], 1)
    (narrow,) = layers_of_model(problem("llama3-70b", "8xH100", decode(precision=half)), [1], 1)
    (split,) = layers_of_model(problem("llama3-70b", "8xH100", decode(), tensor_degree=8), [1], 1)
    weights = [row.resident_bytes["weights"][1] for row in (wide, narrow, split)]
    assert weights[1] == weights[0] / 2
    assert weights[2] == pytest.approx(weights[0] / 8, rel=1e-3)


def test_experts_are_all_resident_and_may_be_spread():
    whole = problem("mixtral-8x7b", "8xH100", decode())
    spread = problem("mixtral-8x7b", "8xH100", decode(), tensor_degree=8, expert_degree=8)
    (one,), (eighth,) = layers_of_model(whole, [1], 1), layers_of_model(spread, [1], 1)
    experts = 8 * 3 * 4096 * 14336 * 2
    assert one.resident_bytes["weights"][1] > experts
    assert eighth.resident_bytes["weights"][1] == pytest.approx(
        one.resident_bytes["weights"][1] / 8, rel=1e-2
    )
    # All ranks of the group hold all tokens: one sum brings together what their experts made.
    assert eighth.time_parts_s["ep_comm_s"].sum() == 0
    assert eighth.time_parts_s["tp_comm_s"].sum() > 0


def test_the_nearer_level_is_read_faster_and_holds_less():
    near, far = (problem("llama3-8b", "8xH100", decode(), level=level) for level in (0, 1))
    assert near.room_bytes == CACHE_FRACTION * 50 * 2**20
    assert far.room_bytes == 80 * 2**30 * 0.94 - 2 * 2**30
    memories = near.system.chip.memories
    gain = memories[0].bandwidth_bytes_per_s / memories[1].bandwidth_bytes_per_s
    (fast,), (slow,) = layers_of_model(near, [1], 1), layers_of_model(far, [1], 1)
    assert slow.layer_s.sum() / fast.layer_s.sum() == pytest.approx(gain, rel=1e-2)


def test_a_level_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"H100 has no 'l3'.*l2"):
        level_of(load_system("8xH100").chip, "l3")


def test_sends_take_the_innermost_level_that_joins_both_stages():
    system = load_system("16xH100")
    line = StageDevices(system, load_calibration("hopper", "uncalibrated"), 2)
    assert line.num_stages == 8
    assert line.devices_of(3) == (6, 7)
    assert [line.level_between(stage, stage + 1) for stage in range(7)] == [0, 0, 0, 1, 0, 0, 0]
    assert line.level_between(0, 7) == 1
    inside, between = (line.send_s(level, np.array([0.0, 1e6])) for level in (0, 1))
    assert inside[0] == between[0] == 0
    assert inside[1] < between[1]


def test_dead_devices_hold_no_stage():
    system = load_system("8xH100").model_copy(update={"dead_devices": (1,)})
    line = StageDevices(system, load_calibration("hopper", "uncalibrated"), 2)
    assert (line.num_stages, line.devices_of(0), line.devices_of(2)) == (3, (0, 2), (5, 6))


STAGES = [StageSeconds(2e-3, 0.0, 1e-3), StageSeconds(4e-3, 0.0, 1e-3)]


def test_groups_wait_for_the_slowest_stage():
    # a pass takes 8 ms; three groups take 3 x 5 ms on the second stage
    constants = load_calibration("hopper", "uncalibrated")
    for groups, waits_s in ((1, 0.0), (3, 7e-3)):
        price = rates(
            decode(6), constants, STAGES, {"work_s": 6e-3}, num_groups=groups, group_devices=1,
            replicas=2,
        )  # fmt: skip
        assert price.time_parts_s["wait_s"] == pytest.approx(waits_s)
        assert price.latency_s == pytest.approx(sum(price.time_parts_s.values()))
        assert price.tokens_per_s * price.latency_s == pytest.approx(12)
        assert price.system_time_per_token_s == pytest.approx(1 / price.tokens_per_s)


def test_prompts_count_their_tokens_and_a_step_its_micro_batches():
    constants = load_calibration("hopper", "uncalibrated")
    shared = {"parts_s": {"work_s": 6e-3}, "num_groups": 2, "group_devices": 1, "replicas": 1}
    prompts = rates(Prefill(batch_size=2, prompt_length=100), constants, STAGES, **shared)
    assert prompts.tokens_per_s == pytest.approx(200 / prompts.latency_s)
    work = training("8xH100", sequence_length=100, global_batch_size=2)
    step = rates(work, constants, STAGES, **shared)
    assert step.time_parts_s["other_groups_s"] == pytest.approx(5e-3)
    assert step.tokens_per_s == pytest.approx(200 / step.latency_s)
    assert step.tokens_per_s_per_user is None


def test_a_step_of_no_time_is_refused():
    work, constants = (
        training("8xH100", sequence_length=100, global_batch_size=2),
        load_calibration("hopper", "uncalibrated"),
    )
    shared = {"num_groups": 2, "group_devices": 1, "replicas": 1}
    for seconds in (0.0, float("nan")):
        stages = [StageSeconds(0.0, 0.0, seconds)]
        told = f"a step would take {seconds:g} s.*work_s is {seconds:g}"
        with pytest.raises(UsageError, match=told):
            rates(work, constants, stages, {"work_s": seconds}, **shared)


@pytest.mark.parametrize(
    ("model", "first", "last"),
    [("llama3-8b", 9, 9), ("mixtral-8x7b", 12, 12), ("deepseek-v3", 11, 14)],
)
def test_sums_over_the_cores_wait_for_one_another(model, first, last):
    """Counted by hand along the longest chain of the first and of the last layer.

    Llama: norm, queries, scores, normaliser, values, output, norm, up, down. A mixture has router,
    dispatch and combine in addition; DeepSeek compresses its queries, norms and expands them, and
    its first layers are dense. A lookup gathers one row, logits come behind a norm.
    """
    known, step_s = problem(model, "64xWSE-3", decode()), 1e-6
    slower = replace(known, sram=SramConstants(step_s))
    (plain,), (late,) = (layers_of_model(p, [1], 1) for p in (known, slower))
    added = (late.layer_s - plain.layer_s) / step_s
    assert added[[0, 1, -2, -1]] == pytest.approx([1, first, last, 2])
    assert late.time_parts_s["reduction_s"].sum() == pytest.approx(added.sum() * step_s)
