"""What fills one device: bytes per parameter, activations in flight, and what offload moves."""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.memory import (
    AtRest,
    BesideTensors,
    Moment,
    ShardDegrees,
    StageState,
    at_peak,
    fullest,
    host_bytes,
    memory_use,
    needed_bytes,
    norm_bytes,
    shard_degrees,
    shard_padding,
    stage_moments,
    weighed_rows_bytes,
)
from meshwright.cost.parts import MemoryPart, MemoryUse, StepPhase, StepTime, TimePart
from meshwright.cost.pipeline import PipelinePrice
from meshwright.cost.step import host_update_s, offload_step_s, optimizer_step_s
from meshwright.graph.transformer import build_graph
from meshwright.sharding.strategy import Offload, PlanOptions, make_strategy
from meshwright.spec.system import HostLink
from meshwright.spec.workload import OptimizerPreset, SoftwareStack

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


HOST = HostLink(capacity_bytes=1e6, bandwidth_bytes_per_s=2.0, memory_bandwidth_bytes_per_s=7.0)
DEVICE_UPDATES = SoftwareStack(updates_on_host=False)
HOST_UPDATES = SoftwareStack()


def held(state, plan_options, preset=None, software=HOST_UPDATES, shards=SHARDS, **beside):
    moments = stage_moments(state, shards, plan_options, preset or ADAM, software)
    return memory_use(state, *moments, BesideTensors(**beside))


def use(stage, offload=Offload.NONE, *, updates_on_host=True, reshard_after_forward=True):
    plan_options = PlanOptions(
        zero_stage=stage, offload=offload, reshard_after_forward=reshard_after_forward
    )
    software = HOST_UPDATES if updates_on_host else DEVICE_UPDATES
    return held(STATE, plan_options, software=software, margin_bytes=600.0, buffer_bytes=7.0)


def on_host(plan_options, software=HOST_UPDATES):
    return host_bytes(STATE, SHARDS, plan_options, ADAM, software)


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
    assert found[MemoryPart.STATES] == states
    assert found[MemoryPart.GATHERED] == gathered


@pytest.mark.parametrize(("live", "gathered"), [(0, 240), (100, 240), (300, 300), (5000, 960)])
def test_full_sharding_may_leave_parameters_in_place(live, gathered):
    """Two of eight layers are 240 of 960; more than all of them there cannot be."""
    found = held(STATE, PlanOptions(zero_stage=3), ADAM.model_copy(update={"live_params": live}))
    assert found[MemoryPart.GATHERED] == 2 * gathered


def test_the_rest_is_activations_in_flight_a_transient_buffers_and_the_margin():
    found = use(1)
    assert found[MemoryPart.ACTIVATIONS] == 300
    assert found[MemoryPart.TEMPORARY] == 50
    assert found[MemoryPart.BUFFERS] == 7
    assert found[MemoryPart.MARGIN] == 600
    assert found.total_bytes == 2 * 960 + 4 * 960 + 12 * SHARD + 300 + 50 + 7 + 600


def test_offload_leaves_two_layers_behind_and_the_host_holds_the_rest():
    found = use(1, Offload.ALL)
    assert found[MemoryPart.STATES] == 0
    assert found[MemoryPart.WEIGHTS] == 0
    assert found[MemoryPart.GATHERED] == 2 * 960 * 2 / 8
    assert found[MemoryPart.ACTIVATIONS] == 100 * 2 / 8
    plan_options = PlanOptions(zero_stage=1, offload=Offload.ALL)
    # The update on the host reads FP32 gradients there.
    assert on_host(plan_options) == (12 + 4) * SHARD + 2 * 960 + 300
    assert on_host(plan_options, DEVICE_UPDATES) == 12 * SHARD + 2 * 960 + 300
    assert on_host(PlanOptions()) == 0


@pytest.mark.parametrize("offload", list(Offload))
def test_nothing_is_lost_between_device_and_host(offload):
    """What leaves the device, beyond the layers at work, stands on the host."""
    plan_options = PlanOptions(zero_stage=1, offload=offload)
    plain, less = use(1), use(1, offload, updates_on_host=False)
    at_work = less[MemoryPart.GATHERED]
    if offload.has_optimizer:
        at_work = at_work + less[MemoryPart.STATES]
    if offload.has_activations:
        at_work = at_work + less[MemoryPart.ACTIVATIONS]
    if offload.has_gradients:
        at_work = at_work + less[MemoryPart.GRADIENTS]
    gone = plain.total_bytes - less.total_bytes
    assert gone == on_host(plan_options, DEVICE_UPDATES) - at_work


@pytest.mark.parametrize("offload", list(Offload))
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("reshard", [True, False])
def test_every_byte_lies_on_the_device_or_on_its_host(stage, offload, reshard):
    """Weights, gradients and state of a rank, and the whole stage where it stays gathered."""
    plan_options = PlanOptions(zero_stage=stage, offload=offload, reshard_after_forward=reshard)
    found = use(stage, offload, reshard_after_forward=reshard)
    least = 2 * (SHARD if stage == 3 else 960) + 12 * (SHARD if stage else 960)
    least += 4 * (SHARD if stage >= 2 else 960)
    kept = found.total_bytes - found[MemoryPart.GATHERED] - 7 - 600 - 50
    assert kept + on_host(plan_options) >= least + 300
    gathered = found[MemoryPart.GATHERED]
    if stage == 3 and not reshard:
        assert gathered == 2 * 960
    elif stage == 3 or offload.has_weights:
        assert gathered == 2 * 960 * 2 / 8
    else:
        assert gathered == 0


def test_deepspeed_takes_24_bytes_of_host_memory_for_each_parameter():
    """State 12, gradients 4, half as much again of buffers: of 32.5e9 parameters 780 GB."""
    software = load_framework("deepspeed").stack(family="ampere", precision="bf16")
    plan_options = PlanOptions(zero_stage=3, offload=Offload.GRADIENTS)
    assert on_host(plan_options, software) == 1.5 * (12 + 4) * SHARD
    both = PlanOptions(zero_stage=3, offload=Offload.STATE)
    assert on_host(both, software) == 1.5 * (12 + 4 + 2) * SHARD


def test_the_fullest_stage_is_taken_whole():
    small = MemoryUse(dict.fromkeys(MemoryPart, 1.0))
    large = small.plus({MemoryPart.ACTIVATIONS: 5.0})
    assert fullest((small, large, small)) == (large, 1.0)
    assert fullest((large, large, small)) == (large, 0.0)


def pipeline(**given):
    known = {entry.name: 0.0 for entry in fields(PipelinePrice)}
    known["time"] = StepTime(
        {p: given.pop(p, 0.0) for p in TimePart if p.phase == StepPhase.PASSES}
    )
    return PipelinePrice(**(known | {"num_micro_batches": 5.0, "num_layers": 8.0} | given))


@pytest.mark.parametrize(("stage", "params"), [(0, 960), (1, SHARD), (2, SHARD), (3, SHARD)])
def test_optimizer_moves_28_bytes_for_each_parameter_of_the_shard(stage, params):
    rates = SimpleNamespace(memory_bytes_per_s=14.0, logits_flops_per_s=1.0)
    time_s = optimizer_step_s(STATE, SHARDS, PlanOptions(zero_stage=stage), ADAM, rates)
    assert time_s == 28 * params / 14


def offload_s(offload, *, stage=1, reshard=True, updates_on_host=True, **given):
    plan_options = PlanOptions(zero_stage=stage, offload=offload, reshard_after_forward=reshard)
    return offload_step_s(
        STATE, SHARDS, pipeline(**given), plan_options, ADAM, HOST, updates_on_host=updates_on_host
    )


UPDATE_S = 28 * SHARD / 7
"""By the processors of the host: 28 bytes for each parameter of the shard, at 7 bytes/s."""


def test_optimizer_state_is_updated_on_the_host_with_nothing_beside_it():
    """Gradients of 4 bytes leave before, weights of 2 come back after it."""
    copied_s = (4 + 2) * SHARD / 2
    assert offload_s(Offload.OPTIMIZER, forward_window_s=1e9).exposed_s == copied_s + UPDATE_S
    assert offload_s(Offload.STATE, backward_window_s=1e99).exposed_s >= UPDATE_S
    assert offload_s(Offload.NONE).exposed_s == 0


def test_an_update_of_35_3e9_parameters_of_a_host_takes_1_6_s():
    """28 bytes each over 614.4 GB/s, shared by eight devices; 4 and 2 bytes over eight links."""
    state = replace(STATE, dense_params=35.3e9, expert_params=0.0)
    host = HostLink(
        capacity_bytes=1e12, bandwidth_bytes_per_s=50e9, memory_bandwidth_bytes_per_s=614.4e9 / 8
    )
    plan_options = PlanOptions(zero_stage=3, offload=Offload.OPTIMIZER)
    update_s = host_update_s(state, SHARDS, plan_options, ADAM, host)
    assert update_s == pytest.approx(1.6087 + 0.5295, abs=1e-3)


def test_state_travels_both_ways_where_the_device_updates_it():
    moved_s = 2 * 12 * SHARD / 2
    assert offload_s(Offload.OPTIMIZER, updates_on_host=False).exposed_s == moved_s


def test_weights_arrive_for_each_pass_and_activations_come_back():
    # 2 bytes x 960 in each of two passes of five micro-batches, at 2 bytes/s; new ones go back.
    assert offload_s(Offload.WEIGHTS).exposed_s == 5 * 2 * 960 + 960
    assert offload_s(Offload.ACTIVATIONS).exposed_s == 5 * 2 * 100 / 2


def test_gradients_on_the_host_leave_two_layers_behind():
    """Of eight layers, whole: 4 bytes x 960 x 2/8; activations stay with the device."""
    found = use(3, Offload.STATE)
    assert found[MemoryPart.GRADIENTS] == 4 * 960 * 2 / 8
    assert found[MemoryPart.ACTIVATIONS] == 300
    assert found[MemoryPart.WEIGHTS] == found[MemoryPart.STATES] == 0
    assert use(2, Offload.GRADIENTS)[MemoryPart.WEIGHTS] == 2 * 960
    assert use(1, Offload.OPTIMIZER)[MemoryPart.GRADIENTS] == 4 * 960
    plan_options = PlanOptions(zero_stage=3, offload=Offload.STATE)
    assert on_host(plan_options) == (2 + 4 + 12) * SHARD


def test_gradients_leave_in_each_backward_pass():
    """Whole ones of 4 bytes under ZeRO 1, added up on the host; one layer of eight shows."""
    moved_s = 5 * 4 * 960 / 2 + 4 * 3 * 4 * 960 / 7
    update_s = UPDATE_S + 2 * SHARD / 2
    assert offload_s(Offload.GRADIENTS).exposed_s == pytest.approx(moved_s + update_s)
    behind = offload_s(Offload.GRADIENTS, backward_window_s=1e9)
    assert behind.exposed_s == pytest.approx(moved_s / 8 + update_s)


def test_under_zero_3_a_rank_brings_in_its_shard_of_the_weights():
    """For each pass, or once for both where they stay gathered; new ones go back."""
    once_s = 2 * SHARD / 2
    assert offload_s(Offload.WEIGHTS, stage=3).exposed_s == (5 * 2 + 1) * once_s
    assert offload_s(Offload.WEIGHTS, stage=3, reshard=False).exposed_s == (5 + 1) * once_s


def test_one_layer_of_host_traffic_always_shows():
    hidden = offload_s(Offload.WEIGHTS, forward_window_s=1e9, backward_window_s=1e9)
    assert hidden.exposed_s == 5 * 2 * 960 / 8 + 960
    assert hidden.hidden_s == 5 * 2 * 960 * 7 / 8


def test_the_allocator_holds_more_than_the_tensors_and_each_axis_has_communicators():
    tensors = held(
        replace(STATE, num_communicators=3.0), PlanOptions(zero_stage=1), buffer_bytes=7.0,
        communicator_bytes=5.0, allocator_factor=1.1,
    )  # fmt: skip
    plain = use(1)
    in_tensors = plain.total_bytes - plain[MemoryPart.BUFFERS] - plain[MemoryPart.MARGIN]
    assert tensors[MemoryPart.FRAGMENTATION] == pytest.approx(0.1 * in_tensors)
    assert tensors.allocator_bytes == pytest.approx(1.1 * in_tensors)
    assert tensors[MemoryPart.BUFFERS] == 7.0 + 3 * 5.0


@pytest.mark.parametrize(("sums_before_scatter", "waiting"), [(0.0, 0.0), (1.0, 4.0 * 960)])
def test_gathered_weights_through_a_pipeline_have_whole_gradients(sums_before_scatter, waiting):
    kept = PlanOptions(zero_stage=3, reshard_after_forward=False)
    found = held(replace(STATE, sums_before_scatter=sums_before_scatter), kept)
    assert found[MemoryPart.GATHERED] == 2 * 960
    assert found[MemoryPart.GRADIENTS] == 4 * SHARD + waiting


@pytest.mark.parametrize(("replicas", "copied"), [(1.0, 0.0), (8.0, 500.0)])
def test_a_bucket_is_copied_where_there_is_somebody_to_send_it_to(replicas, copied):
    preset = ADAM.model_copy(update={"bucket_params": 500.0, "update_bytes_per_param": 4.0})
    shards = ShardDegrees(dense=replicas, expert=2.0)
    found = held(STATE, PlanOptions(zero_stage=0), preset, shards=shards)
    assert found[MemoryPart.GRADIENTS] == 4 * 960 + copied * preset.reduced_gradient_bytes_per_param
    assert found[MemoryPart.STATES] == (12 + 4) * 960


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


UNITS = SoftwareStack(shards_by_unit=True, whole_in_pipelines=True, update_copies=1.0)
FSDP = OptimizerPreset(
    name="fsdp", weight_bytes_per_param=4, gradient_bytes_per_param=4, state_bytes_per_param=8
)
"""Weights and whole gradients of 2 bytes, messages of 4."""
UNIT_STATE = StageState(
    dense_params=300.0, expert_params=0.0, kept_bytes=400.0, in_flight=1.0, working_bytes=30.0,
    num_layers=2.0, entry_bytes=10.0, loss_bytes=90.0, logit_bytes=20.0, layer_params=100.0,
    embedding_params=50.0, head_params=50.0, first_block_bytes=7.0, other_blocks_params=60.0,
    other_blocks_kept_bytes=240.0,
)  # fmt: skip
"""Layers of two blocks, the second with 60 of 100 parameters and 120 of 200 bytes."""
TEN = ShardDegrees(dense=10.0, expert=1.0)


def ends_of_units(*asked):
    """Return the moments of a step, those inside of layers left out."""
    return [one for one in stage_moments(*asked)[1] if not np.all(one.temporary == 7.0)]


def moments(state=UNIT_STATE, software=UNITS, **options):
    plan_options = PlanOptions(zero_stage=3, **options)
    found = ends_of_units(state, TEN, plan_options, FSDP, software)
    parts = ((m.activations, m.logits + m.temporary, m.gradients, m.gathered) for m in found)
    return [tuple(map(float, each)) for each in parts]


def test_other_blocks_have_gradients_and_keep_nothing_when_the_first_block_goes_backward():
    """The last layer: the message of the head, 2 bytes each of 60 parameters, 120 bytes gone."""
    _, found = stage_moments(UNIT_STATE, TEN, PlanOptions(zero_stage=3), FSDP, UNITS)
    inside = next(one for one in found if one.temporary == 7.0)
    assert inside.gradients == 4 * 50 + 20 + 2 * 60
    assert (inside.activations, inside.gathered) == (400 - 120, 2 * (100 + 100))


def test_a_norm_in_steps_of_fp32_goes_backward_in_five_tensors():
    """20 bytes of each of 8,192 x 16,384 elements; a single kernel has two narrow gradients."""
    local = SimpleNamespace(rows_of=lambda op: 8192.0, width=lambda tensor: 16384.0)
    model = load_model("llama3.1-405b")
    stepwise, alone = (
        build_graph(model, norms_in_steps=in_steps).layers[0].ops[0] for in_steps in (True, False)
    )
    assert norm_bytes(stepwise, local, 2.0) == 20 * 8192 * 16384
    assert norm_bytes(alone, local, 2.0) == 2 * 2 * 8192 * 16384


def test_a_last_unit_that_stays_is_there_at_the_loss_and_not_copied_again():
    """A head of 50 parameters in 2 bytes, kept from its forward pass on."""
    *_, loss, copy, product = moments(software=UNITS.model_copy(update={"keeps_last_unit": True}))[
        :8
    ]
    assert loss == (400, 90, 0, 2 * 50)
    assert copy == (400, 20, 0, 2 * 50)
    assert product == (400, 20, 2 * 50, 2 * (50 + 100))


def test_units_of_full_sharding_are_whole_one_after_the_other():
    """Weights of 2 bytes, messages of 4, shards of 4 / 10; layers of 100 between ends of 50."""
    first, layer, last, head_copy, _, loss, copy, product, *found = moments()
    # A copy of a unit beside its message, and the message of the unit before.
    assert first == (0, 0, 0, 2 * 2 * 50)
    assert layer == (0, 0, 0, 2 * 50 + 2 * 2 * 100)
    assert last == (200, 0, 0, 3 * 2 * 100)
    assert head_copy == (400, 0, 0, 2 * 100 + 2 * 2 * 50)
    assert copy == (400, 20, 0, 2 * 2 * 50)
    last, last_end, head, *_ = found
    copy, made, embedding = found[9:12]
    assert loss == (400, 90, 0, 0)
    assert product == (400, 20, 2 * 50, 2 * (50 + 100))
    assert last == (400, 30, 4 * 50 + 20, 2 * (100 + 100))
    assert last_end == (200, 10, 4 * 50 + 20 + 2 * 100, 2 * (100 + 100))
    assert head == (400, 0, (2 + 4) * 50 + 20, 2 * 100)
    # The first layer: the message of the other one, and the embedding on its way.
    assert moments()[15] == (200, 30, 4 * 100 + 4 * 150 / 10, 2 * (100 + 50))
    assert copy == (0, 0, 4 * 100 + 4 * 250 / 10, 2 * 2 * 50)
    assert made == (0, 0, 4 * 100 + 4 * 250 / 10 + 2 * 50, 2 * 50)
    assert embedding == (0, 0, (2 + 4) * 50 + 4 * 300 / 10, 0)
    assert moments()[-1] == (0, 4 * 300 / 10, 4 * 300 / 10, 0)  # the update: one FP32 copy


def test_whole_gradients_of_several_micro_batches_wait_for_the_last_pass():
    """Sums of 4 x 300 beside the last backward pass; a shard of 4 / 10 is left of each 4."""
    state = replace(UNIT_STATE, later_micro_batches=2.0, sums_in_last_pass=1.0)
    _, layer, *_, loss, _, product, last, last_end, head = moments(state)[:11]
    # The forward pass of another micro-batch goes beside the sums.
    assert layer == (0, 0, 1200, 2 * 50 + 2 * 2 * 100)
    assert loss == (400, 90, 1200, 0)
    assert product == (400, 20, 1200 + 2 * 50, 2 * (50 + 100))
    # The head is reduced: 50 sums become a shard, and their message travels.
    assert last == (400, 30, 1200 - 4 * 50 + 20 + 4 * 50, 400)
    assert last_end == (200, 10, last[2] + 2 * 100, 400)
    # Sums go into a message, and a shard comes beside it.
    assert head == (400, 0, 1200 + 4 * 50 + 20, 2 * 100)
    made, embedding = moments(state)[18:20]
    assert made == (0, 0, 4 * 50 + 2 * 50 + 4 * 100 + 4 * 250 / 10, 2 * 50)
    assert embedding == (0, 0, (4 + 4) * 50 + 4 * 300 / 10, 0)
    # Another pass adds to all sums; the first pass makes that of the embedding.
    assert moments(state)[-3] == (0, 0, 1200 + 2 * 50, 2 * 50)
    two = moments(replace(state, later_micro_batches=1.0))
    assert two[-3] == (0, 0, 1200 - 4 * 50 + 2 * 50, 2 * 50)
    assert two[:20] == moments(state)[:20]


def test_gradients_of_the_type_of_their_sums_are_added_one_by_one():
    """In 2 bytes both: no gradients of the last layer stand beside 2 x 300 of sums."""
    narrow = FSDP.model_copy(update={"reduced_gradient_bytes_per_param": 2.0})
    assert narrow.reduced_gradient_bytes_per_param == narrow.gathered_weight_bytes_per_param == 2
    state = replace(UNIT_STATE, later_micro_batches=2.0, sums_in_last_pass=1.0)
    found = ends_of_units(state, TEN, PlanOptions(zero_stage=3), narrow, UNITS)
    assert found[9].gradients == found[8].gradients == 2 * 300 + 20


def test_sums_that_wait_have_their_shards_to_come():
    """120 shards to come before the last pass, 100 behind the head; a column serves."""
    waits = np.array([0.0, 1.0])
    state = replace(UNIT_STATE, later_micro_batches=2.0, sums_in_last_pass=waits)
    found = ends_of_units(state, TEN, PlanOptions(zero_stage=3), FSDP, UNITS)
    assert list(found[5].gradients) == [120, 1200]
    assert list(found[5].idle) == [300, 120 + 300]
    assert list(found[8].idle) == [300 - 200, 120 - 20 + 300 - 200]


def test_layers_that_are_not_units_have_whole_sums_too():
    sums = held(replace(STATE, sums_in_last_pass=1.0), PlanOptions(zero_stage=3))
    assert sums[MemoryPart.GRADIENTS] == 4 * SHARD + 4.0 * 960


def test_later_micro_batches_go_backward_beside_the_gradients_of_earlier_ones():
    later = moments(replace(UNIT_STATE, later_micro_batches=2.0))
    assert later[5] == (400, 90, 120, 0)
    assert later[8] == (400, 30, 120 + 4 * 50, 400)
    assert moments(reshard_after_forward=False)[5] == (400, 90, 0, 2 * 300)


def test_a_table_of_all_ranks_and_a_tied_one():
    split = moments(replace(UNIT_STATE, others_table_params=150.0))
    assert split[18] == (0, 0, 400 + 100 + 2 * (50 + 50 + 150), 100)
    tied = replace(UNIT_STATE, head_params=0.0, tied_params=50.0, dense_params=250.0)
    # The table waits from the head to the embedding, whole, with its first gradient.
    assert moments(tied)[8] == (400, 30, 2 * 50, 400 + 2 * 50)
    assert moments(tied)[18][2:] == (400 + 4 * 200 / 10 + 2 * 3 * 50, 100)
    # Both: the gradient of the product waits beside that of all words, and the table of this rank.
    both = moments(replace(tied, others_table_params=150.0))
    assert both[18][2] == 400 + 4 * 200 / 10 + 2 * (50 + 50 + 150) + 2 * 50


def test_chunks_of_one_round_are_reduced_one_after_the_other():
    """Of two chunks of a layer each one is whole, with both ends; a shard is left of the other."""
    piped = replace(UNIT_STATE, sums_before_scatter=1.0, later_micro_batches=1.0, num_chunks=2.0)
    assert moments(piped)[5][2] == 4 * 300
    in_turn = moments(replace(piped, summed_chunks=0.5))
    assert in_turn[5][2] == 4 * (100 + 2 * 50) + 4 * 100 / 10
    assert in_turn[-2][2] == in_turn[5][2] + 4 * 50 + 4 * 50 / 10


def test_pipelines_sum_whole_gradients_and_reduce_them_at_the_end():
    piped = replace(
        UNIT_STATE, sums_before_scatter=1.0, in_flight=4.0, later_micro_batches=3.0,
        output_bytes=20.0, waiting_bytes=60.0,
    )  # fmt: skip
    found = moments(piped)
    # Three in flight beside all gradients, or four in the first backward pass beside none.
    assert found[5] == (3 * 400, 90 + 20 + 2 * 60, 4 * 300, 0)
    assert found[25] == (4 * 400, 90 + 20 + 3 * 60, 0, 0)
    assert found[15] == (2 * 400 + 200, 30 + 20 + 2 * 60, 4 * 300, 2 * 300)
    assert found[-2] == (0, 0, 4 * (300 + 50) + 4 * 50 / 10, 2 * 250)


def test_a_loss_that_multiplies_by_the_head_reduces_its_gradient_first():
    """A head of 50, whole: weights of 2 bytes, sums and messages of 4, shards of 4 / 10."""
    software = UNITS.model_copy(update={"head_in_loss": True, "logit_tiles": 8})
    state = replace(UNIT_STATE, loss_stream_bytes=8.0)
    options = PlanOptions(zero_stage=3)
    found = ends_of_units(state, TEN, options, FSDP, software)
    parts = [(m.activations, m.logits + m.temporary, m.gradients, m.gathered) for m in found[5:]]
    assert parts[0] == (400, 90 + 20 + 8, 4 * 50, 2 * 50)
    assert parts[1] == (400, 2 * 20 + 8, (4 + 2) * 50, 2 * 50)
    assert parts[2] == (400, 20 + 8, (4 + 4) * 50 + 20, 2 * 50)
    # Its message is gone when the last layer goes backward; its shard is there.
    assert parts[3] == (400, 30, 20, 2 * (100 + 100))
    # In a pipeline its message waits for the next one, beside its shard and sums of the layers.
    piped = replace(state, sums_before_scatter=1.0, in_flight=2.0, later_micro_batches=3.0)
    later = ends_of_units(piped, TEN, options, FSDP, software)[6]
    assert later.gradients == 4 * 250 + 20 + (4 + 2) * 50 + (4 + 4 / 10) * 50


def test_places_of_other_streams_lie_idle():
    """Shards of 4 x 300 / 10 and messages of a layer and an end, 2 x 150; and logits of 20."""
    state = replace(UNIT_STATE, logit_place_bytes=20.0)
    found = ends_of_units(state, TEN, PlanOptions(zero_stage=3), FSDP, UNITS)
    assert found[5].idle == 120 + 300 + 20
    assert found[8].idle == (120 - 20) + (300 - 200)  # the message of a layer travels
    assert found[-1].idle == 300  # at the update all shards are there


@pytest.mark.parametrize("offload", [Offload.NONE, Offload.STATE, Offload.ALL])
def test_the_peak_is_one_moment_and_no_bound_is_above_it(offload):
    options = PlanOptions(zero_stage=3, offload=offload)
    rest, found = stage_moments(UNIT_STATE, TEN, options, FSDP, UNITS)
    beside = BesideTensors(allocator_factor=1.1, workspace_bytes=3.0)
    use = memory_use(UNIT_STATE, rest, found, beside)
    totals = [rest.total(moment) + moment.idle for moment in found]
    assert use.allocator_bytes == pytest.approx(1.1 * (max(totals) + 3.0))
    assert use.total_bytes == pytest.approx(needed_bytes(UNIT_STATE, rest, found, beside))
    least = stage_moments(UNIT_STATE, TEN, options, FSDP, UNITS, is_bound=True)
    assert needed_bytes(UNIT_STATE, *least, BesideTensors()) <= max(totals)


def test_each_category_has_a_peak_of_its_own():
    """8 + 1 bytes at one moment, 2 + 6 at another one: 8 and 1 at the peak, 8 and 6 at most."""
    gathered, logits = MemoryPart.GATHERED, MemoryPart.LOGITS
    rest = AtRest(0.0, 0.0, 0.0)
    held = [rest.with_moment(moment) for moment in (Moment(gathered=8.0, logits=1.0),
                                                    Moment(gathered=2.0, logits=6.0))]  # fmt: skip
    peak, most = at_peak(held)
    assert (peak[gathered], peak[logits]) == (8.0, 1.0)
    assert (most[gathered], most[logits]) == (8.0, 6.0)


def test_replicas_keep_what_they_sum_to_the_end_of_a_pass():
    """Three micro-batches: 4 x 300 / 10 of shards, and as many of what a reduction leaves."""
    shards = ShardDegrees(10.0, 1.0, np.array([1.0, 2.0]))
    state = replace(UNIT_STATE, later_micro_batches=2.0)
    for each_pass, more in ((True, 120), (False, 4 * 50 / 10)):
        software = UNITS.model_copy(update={"sums_replicas_each_pass": each_pass})
        found = ends_of_units(state, shards, PlanOptions(zero_stage=3), FSDP, software)
        alone, summed = found[19].gradients
        assert alone == 120 + (2 + 4) * 50 + 4 * 50 / 10  # one shard on its way
        assert summed == 120 + (2 + 4) * 50 + more


def test_shards_of_whole_rows_are_filled_up_to_the_longest():
    """16 rows over 15 shards: two each, 30 places; over 8 shards: 16."""
    assert list(shard_padding(16.0, np.array([15.0, 8.0, 1.0]))) == [30 / 16, 1, 1]


def test_experts_are_dealt_whole_up_to_as_many_ranks_as_there_are_experts():
    """256 experts, ep 16: 15 shards of 16 experts have two at most; 30 shards have parts of each.

    Without ep, 2 x 96 ranks of a replicated shard are fewer than 256 experts, 3 x 96 are more.
    """
    by_unit = SimpleNamespace(num_experts=256, workload=SimpleNamespace(software=UNITS))
    flat = SimpleNamespace(num_experts=256, workload=SimpleNamespace(software=HOST_UPDATES))
    for shards, replicas, ep, state, padding in (
        (240, 8, 16, 8, 30 / 16), (480, 4, 16, 30, 1), (128, 15, 16, 8, 1),
        (96, 2, 1, 256 / 3, 96 * 3 / 256), (96, 3, 1, 96, 1),
    ):  # fmt: skip
        strategy = make_strategy(dp_shard=shards, dp_replicate=replicas, ep=ep)
        found = shard_degrees(by_unit, strategy)
        assert (found.expert, found.padding) == pytest.approx((state, padding))
        assert shard_degrees(flat, strategy).expert == shards / ep


def test_messages_of_layers_carry_shards_of_experts_filled_up():
    """40 of 100 parameters of a layer are experts, sent as 60; 22 dense ones and 20 on a device.

    The first layer begins with two layers of 2 x 120 bytes, the message of the last one, 4 x 120,
    and shards of 150 parameters that are reduced, 4 x 42 / 300 each.
    """
    shards = ShardDegrees(10.0, 4.0, padding=1.5)
    state = replace(UNIT_STATE, dense_params=220.0, expert_params=80.0, layer_expert_params=40.0)
    found = ends_of_units(state, shards, PlanOptions(zero_stage=3), FSDP, UNITS)
    begins = [m for m in found if m.temporary == 30 and m.activations == 200]
    assert begins[0].gathered == 2 * 120 + 2 * 120
    assert begins[0].gradients == pytest.approx(4 * 120 + 150 * 4 * 42 / 300)


def test_stages_of_several_chunks_gather_all_units_first():
    """300 parameters of 2 bytes, and a copy of the largest unit, 100."""
    piped = replace(UNIT_STATE, sums_before_scatter=1.0, num_chunks=np.array([1.0, 2.0]))
    found = ends_of_units(piped, TEN, PlanOptions(zero_stage=3), FSDP, UNITS)
    assert list(found[4].gathered) == [0, 2 * 300 + 2 * 100]


def test_rows_that_experts_return_go_backward_in_three_fp32_copies():
    """12 bytes each of 65,536 rows of 2,048 elements; other operators make none."""
    layer = build_graph(load_model("qwen3-30b-a3b")).layers[0]
    local = SimpleNamespace(rows_of=lambda op: 65536.0, width=lambda tensor: 2048.0)
    found = {op.name: weighed_rows_bytes(op, local) for op in layer.ops}
    assert found.pop("experts.combine") == 12 * 65536 * 2048
    assert set(found.values()) == {0.0}


def test_whole_weights_have_buckets_of_gradients_and_narrow_copies():
    # 960 parameters, 100 of the embedding: buckets and sums of 4 bytes, copies of 2 but of the
    # embedding, whose gradient of 4 bytes is made beside them; 100 bytes of activations.
    state = replace(
        STATE, in_flight=1.0, later_micro_batches=1.0, embedding_params=100.0, loss_bytes=90.0,
        loss_logit_bytes=80.0, dealt_params=300.0, split_share=0.0,
    )  # fmt: skip
    fsdp, software = load_optimizer("fsdp-mixed"), load_framework("fsdp").software
    use = held(state, PlanOptions(zero_stage=0), fsdp, software)
    assert use[MemoryPart.GRADIENTS] == 4 * (960 + 960)
    assert use[MemoryPart.GATHERED] == 2 * (960 - 100)
    assert (use[MemoryPart.ACTIVATIONS], use[MemoryPart.LOGITS]) == (100, 80)
    assert use.most[MemoryPart.GRADIENTS] == 4 * (960 + 960 + 100)
    # Ranks of ZeRO 1 get whole weights: no one holds less than the state of the largest.
    assert held(state, PlanOptions(zero_stage=1), fsdp, software)[MemoryPart.STATES] == 8 * 300
    # Under tp, gradients wait for the end of a backward pass.
    split = replace(state, split_share=1.0)
    most = held(split, PlanOptions(zero_stage=0), fsdp, software).most
    assert most[MemoryPart.GRADIENTS] == 4 * (960 + 960 + 960)
