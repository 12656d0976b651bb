"""What fills one device: bytes per parameter, activations in flight, and what offload moves."""

from dataclasses import fields, replace

import pytest

from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.memory import (
    ShardDegrees,
    StageState,
    fullest,
    host_bytes,
    memory_use,
)
from meshwright.cost.parts import MemoryPart, MemoryUse, Phase, StepTime, TimePart
from meshwright.cost.pipeline import PipelinePrice
from meshwright.cost.step import offload_step_s, optimizer_step_s
from meshwright.sharding.strategy import Offload, PlanOptions
from meshwright.spec.workload import OptimizerPreset

ADAM = OptimizerPreset(
    name="adam", weight_bytes_per_param=2, gradient_bytes_per_param=4, state_bytes_per_param=12
)
"""Moves 28 bytes for each parameter in a step, and gathers weights of 2."""
STATE = StageState(
    dense_params=800.0, expert_params=160.0, kept_bytes=100.0, in_flight=3.0, working_bytes=50.0,
    num_layers=8.0,
)  # fmt: skip
SHARDS = ShardDegrees(dense=8.0, expert=2.0)
SHARD = 800 / 8 + 160 / 2
"""Parameters of one shard: 100 dense and 80 of experts."""


def use(stage, offload=Offload.NONE, **changes):
    return memory_use(
        replace(STATE, **changes), SHARDS, PlanOptions(zero_stage=stage, offload=offload), ADAM,
        capacity_bytes=10_000.0, margin_fraction=0.06, buffer_bytes=7.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "states", "gathered"),
    [
        (0, 2 * 960, 4 * 960, 12 * 960, 0),
        (1, 2 * 960, 4 * 960, 12 * SHARD, 0),
        (2, 2 * 960, 4 * SHARD, 12 * SHARD, 0),
        (3, 2 * SHARD, 4 * SHARD, 12 * SHARD, 2 * 960 * 2 / 8),  # two of eight layers whole
    ],
)
def test_each_zero_stage_shards_one_thing_more(stage, weights, gradients, states, gathered):
    found = use(stage)
    assert found[MemoryPart.WEIGHTS] == weights
    assert found[MemoryPart.GRADIENTS] == gradients
    assert found[MemoryPart.OPTIMIZER] == states
    assert found[MemoryPart.GATHERED_WEIGHTS] == gathered


@pytest.mark.parametrize(("live", "gathered"), [(0, 240), (100, 240), (300, 300), (5000, 960)])
def test_full_sharding_may_leave_parameters_in_place(live, gathered):
    """Two of eight layers are 240 of 960; more than all of them there cannot be."""
    found = memory_use(
        STATE, SHARDS, PlanOptions(zero_stage=3), ADAM.model_copy(update={"live_params": live}),
        capacity_bytes=10_000.0, margin_fraction=0.06, buffer_bytes=7.0,
    )  # fmt: skip
    assert found[MemoryPart.GATHERED_WEIGHTS] == 2 * gathered


def test_the_rest_is_activations_in_flight_a_transient_buffers_and_the_margin():
    found = use(1)
    assert found[MemoryPart.ACTIVATIONS] == 300
    assert found[MemoryPart.WORKING] == 50
    assert found[MemoryPart.BUFFERS] == 7
    assert found[MemoryPart.MARGIN] == 600
    assert found.total_bytes == 2 * 960 + 4 * 960 + 12 * SHARD + 300 + 50 + 7 + 600


def test_offload_leaves_two_layers_behind_and_the_host_holds_the_rest():
    found = use(1, Offload.ALL)
    assert found[MemoryPart.OPTIMIZER] == 0
    assert found[MemoryPart.WEIGHTS] == 0
    assert found[MemoryPart.GATHERED_WEIGHTS] == 2 * 960 * 2 / 8
    assert found[MemoryPart.ACTIVATIONS] == 100 * 2 / 8
    structure = PlanOptions(zero_stage=1, offload=Offload.ALL)
    assert host_bytes(STATE, SHARDS, structure, ADAM) == 12 * SHARD + 2 * 960 + 300
    assert host_bytes(STATE, SHARDS, PlanOptions(), ADAM) == 0


@pytest.mark.parametrize("offload", list(Offload))
def test_nothing_is_lost_between_device_and_host(offload):
    """What leaves the device, beyond the layers at work, stands on the host."""
    structure = PlanOptions(zero_stage=1, offload=offload)
    on_host = host_bytes(STATE, SHARDS, structure, ADAM)
    plain, less = use(1), use(1, offload)
    at_work = less[MemoryPart.GATHERED_WEIGHTS]
    if offload in (Offload.ACTIVATIONS, Offload.ALL):
        at_work = at_work + less[MemoryPart.ACTIVATIONS]
    if offload in (Offload.GRADIENTS, Offload.STATE):
        at_work = at_work + less[MemoryPart.GRADIENTS]
    assert plain.total_bytes - less.total_bytes == on_host - at_work


def test_the_fullest_stage_is_taken_whole():
    small = MemoryUse(dict.fromkeys(MemoryPart, 1.0))
    large = small.plus({MemoryPart.ACTIVATIONS: 5.0})
    assert fullest((small, large, small)) == (large, 1.0)
    assert fullest((large, large, small)) == (large, 0.0)


def pipeline(**given):
    known = {entry.name: 0.0 for entry in fields(PipelinePrice)}
    known["time"] = StepTime({p: given.pop(p, 0.0) for p in TimePart if p.phase == Phase.PASSES})
    return PipelinePrice(**(known | {"num_micro_batches": 5.0, "num_layers": 8.0} | given))


@pytest.mark.parametrize(("stage", "params"), [(0, 960), (1, SHARD), (2, SHARD), (3, SHARD)])
def test_optimizer_moves_28_bytes_for_each_parameter_of_the_shard(stage, params):
    time_s = optimizer_step_s(STATE, SHARDS, PlanOptions(zero_stage=stage), ADAM, 14.0)
    assert time_s == 28 * params / 14


def offload_s(offload, **given):
    structure = PlanOptions(zero_stage=1, offload=offload)
    return offload_step_s(STATE, SHARDS, pipeline(**given), structure, ADAM, 2.0)


def test_optimizer_state_travels_both_ways_with_nothing_beside_it():
    assert offload_s(Offload.OPTIMIZER, forward_window_s=1e9).exposed_s == 2 * 12 * SHARD / 2
    assert offload_s(Offload.NONE).exposed_s == 0


def test_weights_arrive_for_each_pass_and_activations_come_back():
    # 2 bytes x 960 in each of two passes of five micro-batches, at 2 bytes/s.
    assert offload_s(Offload.WEIGHTS).exposed_s == 5 * 2 * 960
    assert offload_s(Offload.ACTIVATIONS).exposed_s == 5 * 2 * 100 / 2


def test_gradients_on_the_host_leave_two_layers_behind():
    """Of eight layers, whole: 4 bytes x 960 x 2/8; activations stay with the device."""
    found = use(3, Offload.STATE)
    assert found[MemoryPart.GRADIENTS] == 4 * 960 * 2 / 8
    assert found[MemoryPart.ACTIVATIONS] == 300
    assert found[MemoryPart.WEIGHTS] == found[MemoryPart.OPTIMIZER] == 0
    assert use(2, Offload.GRADIENTS)[MemoryPart.WEIGHTS] == 2 * 960
    assert use(1, Offload.OPTIMIZER)[MemoryPart.GRADIENTS] == 4 * 960
    on_host = host_bytes(STATE, SHARDS, PlanOptions(zero_stage=3, offload=Offload.STATE), ADAM)
    assert on_host == (2 + 4 + 12) * SHARD


def test_gradients_leave_in_each_backward_pass():
    """Whole ones of 4 bytes under ZeRO 1, behind the backward pass but for one layer of eight."""
    moved_s = 5 * 4 * 960 / 2
    optimizer_s = 2 * 12 * SHARD / 2
    assert offload_s(Offload.GRADIENTS).exposed_s == moved_s + optimizer_s
    behind = offload_s(Offload.GRADIENTS, backward_window_s=1e9)
    assert behind.exposed_s == moved_s / 8 + optimizer_s


def test_under_zero_3_a_rank_brings_in_its_shard_of_the_weights():
    structure = PlanOptions(zero_stage=3, offload=Offload.WEIGHTS)
    moved = offload_step_s(STATE, SHARDS, pipeline(), structure, ADAM, 2.0)
    assert moved.exposed_s == 5 * 2 * 2 * SHARD / 2


def test_one_layer_of_host_traffic_always_shows():
    hidden = offload_s(Offload.WEIGHTS, forward_window_s=1e9, backward_window_s=1e9)
    assert hidden.exposed_s == 5 * 2 * 960 / 8
    assert hidden.hidden_s == 5 * 2 * 960 * 7 / 8


def test_the_allocator_holds_more_than_the_tensors_and_each_axis_has_communicators():
    tensors = memory_use(
        replace(STATE, num_communicators=3.0), SHARDS, PlanOptions(zero_stage=1), ADAM,
        capacity_bytes=10_000.0, margin_fraction=0.0, buffer_bytes=7.0, communicator_bytes=5.0,
        allocator_factor=1.1,
    )  # fmt: skip
    plain = use(1)
    in_tensors = plain.total_bytes - plain[MemoryPart.BUFFERS] - plain[MemoryPart.MARGIN]
    assert tensors[MemoryPart.FRAGMENTATION] == pytest.approx(0.1 * in_tensors)
    assert tensors.allocator_bytes == pytest.approx(1.1 * in_tensors)
    assert tensors[MemoryPart.BUFFERS] == 7.0 + 3 * 5.0


@pytest.mark.parametrize(("sums_before_scatter", "waiting"), [(0.0, 0.0), (1.0, 4.0 * 960)])
def test_gathered_weights_through_a_pipeline_have_whole_gradients(sums_before_scatter, waiting):
    kept = PlanOptions(zero_stage=3, reshard_after_forward=False)
    found = memory_use(
        replace(STATE, sums_before_scatter=sums_before_scatter), SHARDS, kept, ADAM,
        capacity_bytes=0.0, margin_fraction=0.0, buffer_bytes=0.0,
    )  # fmt: skip
    assert found[MemoryPart.GATHERED_WEIGHTS] == 2 * 960
    assert found[MemoryPart.GRADIENTS] == 4 * SHARD + waiting


@pytest.mark.parametrize(("replicas", "copied"), [(1.0, 0.0), (8.0, 500.0)])
def test_a_bucket_is_copied_where_there_is_somebody_to_send_it_to(replicas, copied):
    preset = ADAM.model_copy(update={"bucket_params": 500.0, "update_bytes_per_param": 4.0})
    found = memory_use(
        STATE, ShardDegrees(dense=replicas, expert=2.0), PlanOptions(zero_stage=0), preset,
        capacity_bytes=0.0, margin_fraction=0.0, buffer_bytes=0.0,
    )  # fmt: skip
    assert found[MemoryPart.GRADIENTS] == 4 * 960 + copied * preset.reduced_gradient_bytes_per_param
    assert found[MemoryPart.OPTIMIZER] == (12 + 4) * 960


@pytest.mark.parametrize(
    ("plain", "short"),
    [("fsdp-mixed", "fsdp-adam-8bit"), ("deepspeed-adam", "deepspeed-adam-8bit")],
)
def test_moments_of_one_byte_keep_and_move_less(plain, short):
    """Two moments of 1 byte for 4, and two FP32 scales for 2048 weights; each read and written."""
    one, other = load_optimizer(plain), load_optimizer(short)
    assert one.state_bytes_per_param - other.state_bytes_per_param == 2 * (4 - 1) - 2 * 4 / 2048
    moved = one.step_traffic_bytes_per_param - other.step_traffic_bytes_per_param
    assert moved == 2 * 2 * (4 - 1)
