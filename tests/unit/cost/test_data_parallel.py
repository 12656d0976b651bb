"""Synchronisation of gradients and weights: what each ZeRO stage sends, and what of it shows."""

from dataclasses import fields, replace

import pytest
from hand_made_plans import build

from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.systems import load_system
from meshwright.cost.communication import CollectiveTime, overlapped, plain, slowdown_s
from meshwright.cost.memory import StageState
from meshwright.cost.parts import StepPhase, StepTime, TimePart
from meshwright.cost.pipeline import PipelinePrice, head_sync_counts, sync_counts
from meshwright.cost.problem import Problem
from meshwright.cost.step import (
    NO_SOFTWARE,
    DataParallelLinks,
    gradient_sync,
    price_one,
    sharding_copies_s,
    step_time,
)
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.sharding.strategy import PlanOptions, ScheduleKind
from meshwright.spec.workload import OptimizerPreset, SoftwareStack

MICRO_BATCHES, BUCKETS, DEVICES = 5.0, 4.0, 8.0
PARAMS = 1_000.0
ADAM = OptimizerPreset(
    name="adam", weight_bytes_per_param=2, gradient_bytes_per_param=4, state_bytes_per_param=12
)
"""Reduces gradients of 4 bytes, gathers weights of 2."""
FROZEN = OptimizerPreset(
    name="frozen", weight_bytes_per_param=2, gradient_bytes_per_param=0, state_bytes_per_param=0,
    reduced_gradient_bytes_per_param=0,
)  # fmt: skip
RING = CollectiveTime(((0.0, (DEVICES - 1) / DEVICES),))
"""A ring without latency at 1 byte/s: (d - 1) / d seconds for each byte."""
NOTHING = CollectiveTime(((0.0, 0.0),))
LINKS = DataParallelLinks(
    reduce_scatter=RING,
    all_gather=RING,
    replicate_all_reduce=NOTHING,
    all_reduce=CollectiveTime(((0.0, 2 * (DEVICES - 1) / DEVICES),)),
    degrees=DEVICES,
)


def counts(plan_options, software=NO_SOFTWARE, stages=1.0, chunks=1.0, number=MICRO_BATCHES):
    gathers = schedules[plan_options.schedule].num_gathers(stages, chunks, number)
    return sync_counts(plan_options, software, stages, gathers, number)


def pipeline(**given):
    """Return a pipeline that takes no time but what is given."""
    known = {entry.name: 0.0 for entry in fields(PipelinePrice)}
    known["time"] = StepTime(
        {p: given.pop(p, 0.0) for p in TimePart if p.phase == StepPhase.PASSES}
    )
    known |= {"num_micro_batches": MICRO_BATCHES, "num_layers": BUCKETS}
    known["num_stages"] = 1.0
    return PipelinePrice(**(known | given))


def exposed_s(
    stage, *, reshard=True, windows=(0.0, 0.0), split_s=None, overlap=True, kinds=None, links=LINKS,
    optimizer=ADAM,
):  # fmt: skip
    plan_options = PlanOptions(
        zero_stage=stage, reshard_after_forward=reshard, overlap_data_parallel=overlap
    )
    forward_s, backward_s = windows
    work = pipeline(
        forward_window_s=forward_s,
        backward_window_s=backward_s,
        gradient_window_s=backward_s if split_s is None else split_s,
    )
    return gradient_sync(kinds or [(PARAMS, links)], work, plan_options, optimizer).total


def test_transfer_is_the_fastest_form_and_pays_each_message():
    transfer = CollectiveTime(((10.0, 1.0), (0.0, 3.0)))
    assert transfer.time_s(4.0, 1.0) == 12.0  # 0 + 3 x 4 against 10 + 4
    assert transfer.time_s(100.0, 2.0) == 120.0  # 2 x 10 + 100 against 300


@pytest.mark.parametrize(
    ("transfer_s", "window_s", "exposed"),
    [(8.0, 0.0, 8.0), (8.0, 5.0, 3.0), (8.0, 7.0, 2.0), (8.0, 100.0, 2.0)],
)
def test_the_last_of_four_pieces_is_always_exposed(transfer_s, window_s, exposed):
    exposure = overlapped(transfer_s, window_s, 4.0)
    assert (exposure.exposed_s, exposure.hidden_s) == (exposed, transfer_s - exposed)


@pytest.mark.parametrize(
    ("transfer_s", "alone_s", "window_s", "exposed"),
    [
        (8.0, 4.0, 2.0, 4.0),  # others take 4 s: nothing of it in the window of 2 s
        (8.0, 4.0, 5.0, 3.0),  # 1 s is left to it within the window
        (8.0, 4.0, 8.0, 1.0),  # all but the last of four pieces
        (4.0, 4.0, 3.0, 1.0),
        (0.0, 0.0, 3.0, 0.0),
    ],
)
def test_links_that_are_shared_slow_what_the_window_hides_alone(
    transfer_s, alone_s, window_s, exposed
):
    exposure = overlapped(transfer_s, window_s, 4.0, alone_s)
    assert exposure.exposed_s == pytest.approx(exposed)
    assert exposure.hidden_s == overlapped(transfer_s, window_s, 4.0).hidden_s


def test_plain_hides_nothing():
    assert (plain(3.0).exposed_s, plain(3.0).hidden_s) == (3.0, 0.0)


def test_computation_slows_only_while_both_run():
    assert slowdown_s(4.0, 10.0, 0.25) == 1.0
    assert slowdown_s(40.0, 10.0, 0.25) == 2.5


# Each bytes count is 4 or 2 per parameter; (d - 1) / d = 7 / 8 of it moves in each half of a ring.
REDUCE_S, GATHER_S = 4 * PARAMS * 7 / 8, 2 * PARAMS * 7 / 8


@pytest.mark.parametrize(
    ("stage", "reshard", "expected_s"),
    [
        (0, True, 2 * REDUCE_S),
        (1, True, REDUCE_S + GATHER_S),
        (2, True, MICRO_BATCHES * REDUCE_S + GATHER_S),
        (3, True, MICRO_BATCHES * (2 * GATHER_S + REDUCE_S)),
        (3, False, MICRO_BATCHES * (GATHER_S + REDUCE_S)),
    ],
)
def test_each_zero_stage_sends_what_its_definition_says(stage, reshard, expected_s):
    synced = exposed_s(stage, reshard=reshard)
    assert synced.exposed_s == pytest.approx(expected_s, rel=1e-14)
    assert synced.hidden_s == 0.0


def test_a_split_backward_pass_hides_gradients_under_its_second_part_alone():
    """Of a backward pass of 100 x the scatter, gradients see the last 0.4 x."""
    window_s = 100.0 * REDUCE_S
    whole = exposed_s(1, windows=(0.0, window_s))
    split = exposed_s(1, windows=(0.0, window_s), split_s=0.4 * REDUCE_S)
    assert whole.exposed_s == pytest.approx(REDUCE_S / BUCKETS + GATHER_S)
    assert split.exposed_s == pytest.approx(0.6 * REDUCE_S + GATHER_S)
    # What is gathered for the same pass may hide under all of it.
    gathered = exposed_s(3, windows=(0.0, window_s), split_s=0.4 * REDUCE_S)
    assert gathered.exposed_s == pytest.approx(MICRO_BATCHES * (GATHER_S + 0.6 * REDUCE_S))


def test_zero_3_with_equal_words_is_m_times_three_shares_of_the_ring():
    words = ADAM.model_copy(update={"reduced_gradient_bytes_per_param": 2.0})
    synced = gradient_sync([(PARAMS, LINKS)], pipeline(), PlanOptions(zero_stage=3), words).total
    bytes_of_weights = 2 * PARAMS
    assert synced.exposed_s == pytest.approx(MICRO_BATCHES * 3 * 7 / 8 * bytes_of_weights)


def test_one_bucket_shows_however_long_the_computation():
    synced = exposed_s(1, windows=(1e9, 1e9))
    assert synced.exposed_s == pytest.approx((REDUCE_S + GATHER_S) / BUCKETS)
    assert synced.hidden_s == pytest.approx((REDUCE_S + GATHER_S) * (1 - 1 / BUCKETS))
    assert exposed_s(1, windows=(1e9, 1e9), overlap=False).exposed_s == REDUCE_S + GATHER_S


def test_gradients_summed_whole_travel_twice_as_far_under_zero_1_alone():
    whole, sharded = (
        [
            gradient_sync(
                [(PARAMS, LINKS)], pipeline(), PlanOptions(zero_stage=stage), ADAM, software
            ).total.exposed_s
            for stage in (1, 2)
        ]
        for software in (SoftwareStack(sums_whole_gradients=True), NO_SOFTWARE)
    )
    assert whole[0] == pytest.approx(2 * REDUCE_S + GATHER_S, rel=1e-14)
    assert whole[1] == sharded[1]


def test_updated_weights_are_broadcast_in_their_own_type_and_hide_under_nothing():
    """A window that would hide a gather hides no broadcast: 4 bytes of each weight, whole."""
    software = SoftwareStack(broadcasts_updates=True)
    links = replace(LINKS, broadcast=CollectiveTime(((0.0, 1.0),)))
    work = pipeline(forward_window_s=1e9)
    synced = gradient_sync([(PARAMS, links)], work, PlanOptions(zero_stage=1), ADAM, software)
    assert synced.first_forward.exposed_s == ADAM.weight_bytes_per_param * PARAMS


IN_PIPELINES = SoftwareStack(whole_in_pipelines=True)
HEAD_IN_LOSS = SoftwareStack(whole_in_pipelines=True, head_in_loss=True, logit_tiles=8)


@pytest.mark.parametrize(
    ("software", "stage", "reshards", "stages", "expected"),
    [
        (HEAD_IN_LOSS, 3, True, 1.0, (16, 8, 8)),
        (HEAD_IN_LOSS, 3, False, 1.0, (15, 8, 8)),
        (HEAD_IN_LOSS, 2, True, 4.0, (8, 8, 8)),
        (HEAD_IN_LOSS, 3, True, 4.0, (9, 8, 8)),
        (SoftwareStack(keeps_last_unit=True), 3, True, 1.0, (8, 0, 8)),
        (IN_PIPELINES, 2, True, 4.0, (1, 0, 1)),
    ],
)
def test_a_head_is_gathered_where_its_loss_multiplies_by_it(
    software, stage, reshards, stages, expected
):
    """Eight micro-batches, as dry runs of torchtitan and Accelerate count them."""
    plan_options = PlanOptions(zero_stage=stage, reshard_after_forward=reshards)
    units = counts(plan_options, software, stages, number=8.0)
    found = head_sync_counts(units, plan_options, software, stages, 8.0)
    assert (found.forward_gathers, found.backward_gathers, found.scatters) == expected


@pytest.mark.parametrize(
    ("stage", "schedule", "chunks", "gathers"),
    [
        (2, "1f1b", 1.0, (1, 0)),
        (3, "1f1b", 1.0, (4, 5)),
        (3, "gpipe", 1.0, (8, 1)),
        (3, "interleaved", 2.0, (7, 2)),
    ],
)
def test_pipelines_that_sum_whole_gradients_scatter_once(stage, schedule, chunks, gathers):
    """Four stages, eight micro-batches: each backward pass leaves the weights to the next one."""
    plan_options = PlanOptions(zero_stage=stage, schedule=ScheduleKind(schedule))
    found = counts(plan_options, IN_PIPELINES, 4.0, chunks, 8.0)
    assert (found.forward_gathers, found.backward_gathers) == gathers
    assert (found.scatters, found.replica_sums, found.at_end) == (1, 1, 1)
    alone = counts(plan_options, IN_PIPELINES, number=8.0)
    assert (alone.scatters, alone.at_end) == (8, 0)


def test_a_pipeline_shows_the_sum_of_its_gradients():
    """Windows hide all gathers but one of four buckets, and nothing of the scatter at the end."""
    plan_options = PlanOptions(zero_stage=3)
    windows = {"forward_window_s": 1e9, "backward_window_s": 1e9, "gradient_window_s": 1e9}
    work = pipeline(num_stages=4.0, forward_gathers=4.0, backward_gathers=2.0, **windows)
    synced = gradient_sync([(PARAMS, LINKS)], work, plan_options, ADAM, IN_PIPELINES)
    assert synced.last_backward.exposed_s == REDUCE_S
    gathers = (MICRO_BATCHES + 1) * GATHER_S
    assert synced.total.exposed_s == pytest.approx(gathers / BUCKETS + REDUCE_S, rel=1e-14)
    assert synced.total.hidden_s == pytest.approx(gathers * (1 - 1 / BUCKETS), rel=1e-14)


def test_replicas_that_sum_in_each_pass_sum_m_times():
    links = replace(LINKS, replicate_all_reduce=CollectiveTime(((0.0, 1.0),)))
    plan_options, software = PlanOptions(zero_stage=3), SoftwareStack(sums_replicas_each_pass=True)
    once, often = (
        gradient_sync([(PARAMS, links)], pipeline(), plan_options, ADAM, s).total.exposed_s
        for s in (NO_SOFTWARE, software)
    )
    shard_s = 4 * PARAMS / DEVICES
    assert often - once == pytest.approx((MICRO_BATCHES - 1) * shard_s)
    assert counts(plan_options, software).replica_sums == MICRO_BATCHES
    last = software.model_copy(update={"sums_in_last_pass": True})
    assert counts(plan_options, last).replica_sums == counts(plan_options, last).scatters == 1


def test_dense_and_expert_gradients_spend_one_window():
    """Each alone would hide behind the whole window; together they are longer than it."""
    window_s = REDUCE_S
    both = exposed_s(0, windows=(0.0, window_s), kinds=[(PARAMS, LINKS)] * 2)
    assert both.exposed_s == pytest.approx(2 * 2 * REDUCE_S - window_s)


def test_replicas_of_shards_sum_one_shard_each():
    links = DataParallelLinks(RING, RING, CollectiveTime(((0.0, 1.0),)), NOTHING, DEVICES)
    alone_s = exposed_s(1).exposed_s
    assert exposed_s(1, links=links).exposed_s - alone_s == pytest.approx(4 * PARAMS / DEVICES)


def test_messages_and_the_gradient_norm_pay_their_start():
    """Four buckets of each collective and one more of each for the norm, one second to start."""
    start = CollectiveTime(((1.0, 0.0),))
    links = DataParallelLinks(start, start, start, start, DEVICES)
    assert exposed_s(0, links=links).exposed_s == BUCKETS + 1
    assert exposed_s(1, links=links).exposed_s == 2 * BUCKETS + 1 + 3


def test_step_slows_by_everything_hidden_and_jitters_as_a_whole():
    work = pipeline(
        compute_s=100.0, computation_s=100.0, hidden_s=10.0,
        tied_sync_s=2.0, jitter=0.1,
    )  # fmt: skip
    synced, hosted = overlapped(8.0, 6.0, 4.0), overlapped(4.0, 3.0, 4.0)
    time = step_time(work, synced, 5.0, hosted, sigma=0.5)
    # Hidden: 10 + 6 + 3 of a window of 5 x 20. Before jitter: 100 + (2 + 2) + 9.5 + 5 + 1.
    assert time[TimePart.OVERLAP_SLOWDOWN] == 9.5
    assert time[TimePart.DP_COMM] == 4.0
    assert (time[TimePart.OPTIMIZER], time[TimePart.OFFLOAD]) == (5.0, 1.0)
    assert time[TimePart.JITTER] == pytest.approx(11.95)
    assert time.total_s == pytest.approx(131.45)


def test_copies_of_full_sharding_by_hand():
    state = StageState(10.0, 2.0, 0.0, 1.0, 0.0, 4.0)
    again = counts(PlanOptions(zero_stage=3))
    assert sharding_copies_s(state, again, ADAM, 7.0) == MICRO_BATCHES * 12 * 14 / 7
    kept = counts(PlanOptions(zero_stage=3, reshard_after_forward=False))
    assert sharding_copies_s(state, kept, ADAM, 5.0) == MICRO_BATCHES * 12 * 10 / 5
    assert sharding_copies_s(state, kept, FROZEN, 5.0) == MICRO_BATCHES * 12 * 4 / 5


def test_frozen_weights_are_gathered_by_zero_3_alone():
    gather_s = PARAMS * 2.0 * (DEVICES - 1) / DEVICES
    assert exposed_s(0, optimizer=FROZEN).exposed_s == 0.0
    assert exposed_s(1, optimizer=FROZEN).exposed_s == 0.0
    assert exposed_s(2, optimizer=FROZEN).exposed_s == 0.0
    assert exposed_s(3, optimizer=FROZEN).exposed_s == MICRO_BATCHES * 2.0 * gather_s


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_nothing_hides_what_sharding_sends_on_cpus(stage):
    """FSDP waits for each of its collectives there; sums of whole gradients hide as on GPUs."""

    def dp_comm_s(vendor, overlap):
        system = load_system("8xH100")
        system = system.model_copy(
            update={"chip": system.chip.model_copy(update={"vendor": vendor})}
        )
        plan = build({"dp_shard" if stage else "dp_replicate": 8}, system="8xH100", batch=8)
        problem = Problem(plan.model, system, plan.workload, load_calibration("hopper", DEFAULT))
        options = PlanOptions(zero_stage=stage, overlap_data_parallel=overlap)
        priced = price_one(problem, options, plan.best.strategy)
        return priced.step.time[TimePart.DP_COMM]

    hidden, shown = dp_comm_s("NVIDIA", True), dp_comm_s("NVIDIA", False)
    assert hidden < shown
    assert dp_comm_s("CPU", True) == pytest.approx(shown if stage else hidden)


@pytest.mark.parametrize(("casts", "word_bytes"), [(True, 4.0), (False, 2.0)])
def test_whole_weights_under_autocast_sum_gradients_in_their_own_type(casts, word_bytes):
    optimizer = ADAM.model_copy(
        update={"gradient_bytes_per_param": 4.0, "reduced_gradient_bytes_per_param": 2.0}
    )
    links = replace(LINKS, all_reduce=CollectiveTime(((0.0, 1.0),)))
    software = SoftwareStack(autocasts_whole_weights=casts)
    synced = gradient_sync([(PARAMS, links)], pipeline(), PlanOptions(zero_stage=0), optimizer,
                           software)  # fmt: skip
    assert synced.last_backward.exposed_s == word_bytes * PARAMS
