"""A simulated step against the price of the same placement, and against pipelines by hand.

What waits for its messages agrees to the last digits: collectives and streams alone take what their
closed forms say. What runs beside computation lies between nothing hidden and all hidden; where
exactly is what is simulated.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from placed_problems import (
    ROOM,
    drawn,
    grid_problem,
    grid_system,
    groups_of,
    placed,
    simulated,
    step_s,
)
from small_problems import chip, model, problem

from meshwright.base.arrays import number_at
from meshwright.cost.parts import TimePart
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import critical_path, seconds_by_track
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.schedule.tasks import StageTimes, build_timeline, pass_tasks
from meshwright.sharding.strategy import (
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    StreamForm,
    make_strategy,
)
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import MemoryLevel
from meshwright.wafer import simulation as simulated_module
from meshwright.wafer.messages import Message, OperatorWork, PiecePasses, piece_passes
from meshwright.wafer.price import physical_network
from meshwright.wafer.simulation import (
    COMPUTE,
    DataMessages,
    Exchanges,
    LayerRun,
    StepWork,
    in_rounds,
    step_tasks,
)

EXACT = {"rel": 1e-9}
FAST_MEMORY = chip(
    ROOM, memories=(MemoryLevel(name="hbm", capacity_bytes=ROOM, bandwidth_bytes_per_s=1e16),)
)
WAITS = PlanOptions(overlap_data_parallel=False)


def real_problem(*sides, **fields):
    """Return a problem with launches, latencies and jitter."""
    return problem(on=grid_system(*sides, latency_s=1e-6), **fields)


def agrees(asked, strategy, plan_options):
    price, step = simulated(asked, strategy, plan_options)
    assert step.step_time_s == pytest.approx(step_s(price.contended), **EXACT)
    return price, step


@pytest.mark.parametrize("recompute", list(Recompute))
@pytest.mark.parametrize("make", [grid_problem, real_problem])
def test_one_device_takes_what_it_computes(make, recompute):
    price, step = agrees(make(2, 2), make_strategy(), PlanOptions(recompute=recompute))
    priced = {name: number_at(price.contended.step.time[name]) for name in TimePart}
    assert step.time_parts_s == pytest.approx(priced, abs=1e-15)


@pytest.mark.parametrize("sides", [(2, 1), (3, 1), (2, 2), (4, 2)])
def test_collectives_that_are_waited_for_take_their_closed_form(sides):
    """tp without sequence parallelism: sums of activations before the next operator."""
    tp = sides[0] * sides[1]
    plan_options = PlanOptions(sequence_parallel=False)
    agrees(real_problem(*sides), make_strategy(tp=tp), plan_options)
    agrees(grid_problem(*sides), make_strategy(tp=tp), plan_options)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("sides", "degree"), [((2, 1), 2), ((4, 1), 4), ((4, 2), 8)])
def test_data_parallel_messages_that_are_waited_for_take_their_closed_form(
    sides, degree, zero_stage
):
    plan_options = replace(WAITS, zero_stage=zero_stage)
    agrees(grid_problem(*sides), make_strategy(dp_shard=degree), plan_options)


@pytest.mark.parametrize("bandwidth", [1e10, 1e11])
@pytest.mark.parametrize("sides", [(2, 1), (2, 2), (4, 2)])
def test_input_streams_on_a_cycle_take_their_rounds(sides, bandwidth):
    """Without waits for the main memory: rounds of compute and links, the last one without link."""
    asked = grid_problem(*sides, chip=FAST_MEMORY, bandwidth=bandwidth)
    strategy = make_strategy(tatp=sides[0] * sides[1])
    agrees(asked, strategy, PlanOptions(streamed=Streamed.INPUTS))


@pytest.mark.slow
@pytest.mark.parametrize("form", list(StreamForm))
@pytest.mark.parametrize("streamed", [Streamed.WEIGHTS, Streamed.INPUTS])
@pytest.mark.parametrize("sides", [(4, 1), (2, 2), (4, 2)])
def test_streams_agree_within_a_seventh(sides, streamed, form):
    """Faster: rounds that wait for memory are not played. Slower: waits of items and of sums on a
    ring follow each other."""
    plan_options = PlanOptions(streamed=streamed, stream_form=form)
    strategy = make_strategy(tatp=sides[0] * sides[1])
    price, step = simulated(grid_problem(*sides), strategy, plan_options)
    assert 0.86 < step.step_time_s / step_s(price.contended) < 1.07


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [1e10, 1e11])
@pytest.mark.parametrize(("sides", "tp", "tatp"), [((2, 2), 2, 2), ((4, 2), 4, 2)])
def test_both_streams_agree_within_a_ninth(sides, tp, tatp, bandwidth):
    """Faster for the reasons above; rows and columns share no link, in either."""
    asked = grid_problem(*sides, bandwidth=bandwidth)
    strategy, plan_options = make_strategy(tp=tp, tatp=tatp), PlanOptions(streamed=Streamed.BOTH)
    price, step = simulated(asked, strategy, plan_options)
    assert set(price.contention.slowdown) >= {"tp", "tatp"}
    assert max(price.contention.slowdown.values()) == pytest.approx(1.0)
    assert 0.89 < step.step_time_s / step_s(price.contended) <= 1.0


def beside_s(asked, strategy, plan_options, price):
    """Return the seconds of all messages that run beside operators, if nothing hid them [s]."""
    groups = groups_of(asked, strategy, price)
    physical = physical_network(asked)
    exchanges = Exchanges(plan_options, groups, price.ranks, physical, 0.0)
    total_s = 0.0
    pattern = asked.model.layer_pattern
    passes = piece_passes(asked, plan_options, groups)
    for index, piece in enumerate(passes):
        times = pattern.count(index) if index < len(passes) - 2 else 1
        for work in (*piece.forward, *piece.backward):
            for message in work.messages:
                if message.overlaps:
                    exchange = exchanges.of(message, 0)
                    sizes = exchange.num_bytes(message.num_bytes, 1.0)
                    load = exchange.routes.link_load_bytes(sizes, physical)
                    busiest_s = (load / physical.bandwidth_bytes_per_s).max()
                    total_s += times * (busiest_s + exchange.waits_s(message.num_bytes, 1.0))
    return total_s * number_at(price.closed_form.pipeline.num_micro_batches)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("sides", [(2, 1), (4, 1), (4, 2)])
def test_sequence_parallelism_differs_by_what_runs_beside_at_most(sides, overlaps):
    """A gathered input hides under its own operator; the price gives it a share of the layer."""
    asked, strategy = grid_problem(*sides), make_strategy(tp=sides[0] * sides[1])
    plan_options = PlanOptions(overlap_tensor_parallel=overlaps)
    price, step = simulated(asked, strategy, plan_options)
    beside = beside_s(asked, strategy, plan_options, price)
    assert beside > 0.0
    assert abs(step.step_time_s - step_s(price.contended)) <= beside
    assert step.step_time_s == pytest.approx(step_s(price.contended), rel=0.08)


@pytest.mark.parametrize(
    "zero_stage", [*(pytest.param(z, marks=pytest.mark.slow) for z in range(3)), 3]
)
@pytest.mark.parametrize("degrees", [{"dp_shard": 8}, {"dp_shard": 4, "dp_replicate": 2},
                                     {"dp_shard": 2, "tp": 4}, {"dp_shard": 2, "pp": 4},
                                     {"dp_shard": 4, "tatp": 2}])  # fmt: skip
def test_data_parallel_messages_beside_computation_are_never_waited_for_longer(degrees, zero_stage):
    asked, strategy = grid_problem(4, 2), make_strategy(**degrees)
    beside = PlanOptions(zero_stage=zero_stage, sequence_parallel=False)
    waited = replace(beside, overlap_data_parallel=False)
    price = placed(asked, strategy, beside)
    step_beside = simulated(asked, strategy, beside, price)[1]
    step_waited = simulated(asked, strategy, waited, price)[1]
    nothing_s = step_waited.step_time_s - step_waited.time_parts_s["dp_comm_s"]
    assert step_beside.step_time_s <= step_waited.step_time_s * (1 + 1e-9)
    assert step_beside.step_time_s >= 0.9 * nothing_s
    assert step_beside.time_parts_s["dp_comm_s"] > 0.0


def test_the_last_gradients_of_a_layer_show_by_hand():
    """Two replicas without ZeRO, one layer: its gradients leave when the whole layer is done, and
    the embedding, which comes last, hides what it takes to compute."""
    asked = grid_problem(2, 1, spec=model(num_layers=1), global_batch_size=2)
    strategy, plan_options = make_strategy(dp_shard=2), PlanOptions(zero_stage=0)
    price, step = simulated(asked, strategy, plan_options)
    layer, embedding, _ = piece_passes(asked, plan_options, groups_of(asked, strategy, price))
    hidden_s = sum(work.compute_s for work in embedding.backward)
    params = number_at(price.closed_form.pipeline.heaviest.dense_params)
    sent_s = params * asked.workload.optimizer.reduced_gradient_bytes_per_param / 1e11
    assert step.time_parts_s["dp_comm_s"] == pytest.approx(sent_s - hidden_s, rel=1e-9)
    assert layer.forward


def of_stages(
    num_stages, chunks, forward_s, backward_s, send_bytes, schedule, num_micro_batches, later_s=0.0
):
    """Return the step of a pipeline whose stages take given times, on a snake of a mesh.

    ``later_s`` is the part of a backward pass that the schedule may put off.
    """
    sides = {2: (2, 1), 3: (3, 1), 4: (2, 2)}[num_stages]
    asked = grid_problem(*sides)
    strategy = make_strategy(pp=num_stages, num_virtual_stages=chunks)
    plan_options = PlanOptions(schedule=schedule)
    price = placed(asked, strategy, plan_options)
    physical = physical_network(asked)
    exchanges = Exchanges(
        plan_options, groups_of(asked, strategy, price), price.ranks, physical, 0.0
    )

    def runs(stage):
        passes = PiecePasses(
            (OperatorWork("forward", forward_s[stage] / chunks),),
            (OperatorWork("backward", backward_s[stage] / chunks, later_s=later_s),),
        )
        return [[LayerRun(passes, 1.0, 0.0, DataMessages(), exchanges)] for _ in range(chunks)]

    work = StepWork(
        runs=[runs(stage) for stage in range(num_stages)],
        tasks=pass_tasks(schedules[schedule], num_stages, chunks, num_micro_batches),
        send=Message("pp", CollectiveKind.SEND, send_bytes),
        overlaps_data=True,
        speed=np.zeros(physical.num_devices, dtype=np.int64),
    )  # fmt: skip
    return simulate_tasks(step_tasks(work, exchanges), physical).makespan_s


def blocking(forward_s, backward_s, send_s):
    """Return stage times in which a stage waits for the sends that it really has."""
    last = len(forward_s) - 1
    forward = [t + send_s * (stage < last) for stage, t in enumerate(forward_s)]
    backward = [t + send_s * (stage > 0) for stage, t in enumerate(backward_s)]
    return StageTimes(forward, backward, 0.0)


@pytest.mark.parametrize("schedule", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
@pytest.mark.parametrize("seed", range(5))
def test_a_pipeline_takes_what_its_timeline_says(seed, schedule):
    chance = random.Random(seed)
    stages, count = chance.choice([2, 3, 4]), chance.randint(1, 9)
    forward_s = [chance.uniform(0.5, 2.0) for _ in range(stages)]
    backward_s = [chance.uniform(1.0, 3.0) for _ in range(stages)]
    send_s = chance.choice([0.0, 0.25, 3.0])
    found = of_stages(stages, 1, forward_s, backward_s, send_s * 1e11, schedule, count)
    times = blocking(forward_s, backward_s, send_s)
    expected = build_timeline(schedules[schedule], stages, 1, count, times)
    assert found == pytest.approx(expected.makespan_s, **EXACT)


@pytest.mark.parametrize("seed", [68, 71])
def test_chunks_without_layers_are_passed_through(seed):
    """Of four layers in six chunks the last two have none, and only pass their input on."""
    asked, plan_options, strategy = drawn(seed)
    assert (asked.model.num_layers, strategy.pp * strategy.num_virtual_stages) == (4, 6)
    price, step = simulated(asked, strategy, plan_options)
    assert step.step_time_s == pytest.approx(price.time_s, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_an_interleaved_pipeline_takes_what_its_timeline_says(seed):
    """Sends run beside the next chunk; on a cycle of four no two of them share a link."""
    chance = random.Random(seed)
    stages, chunks = 4, chance.choice([2, 3])
    count = stages * chance.randint(1, 3)
    forward_s = [chance.uniform(2.0, 3.0) for _ in range(stages)]
    backward_s = [chance.uniform(3.0, 5.0) for _ in range(stages)]
    send_s = chance.choice([0.0, 0.1, 0.5])
    kind = ScheduleKind.INTERLEAVED
    found = of_stages(stages, chunks, forward_s, backward_s, send_s * 1e11, kind, count)
    times = StageTimes(forward_s, backward_s, 0.0, send_s=send_s)
    expected = build_timeline(schedules[kind], stages, chunks, count, times)
    assert found == pytest.approx(expected.makespan_s, **EXACT)


def test_weight_gradients_that_are_put_off_are_computed_by_hand():
    """Two stages, two micro-batches, 1 s for each of F, BI and BW.

    The first stage runs F0 F1 . BI0 BW0 BI1 BW1, the second . F0 BI0 F1 BI1 BW0 BW1: both end
    after 7 s. 1F1B takes (2 + 1) (1 + 2) = 9 s.
    """
    times = ([1.0, 1.0], [2.0, 2.0], 0.0)
    assert of_stages(2, 1, *times, ScheduleKind.ZERO_BUBBLE, 2, later_s=1.0) == pytest.approx(7.0)
    assert of_stages(2, 1, *times, ScheduleKind.ONE_F_ONE_B, 2, later_s=1.0) == pytest.approx(9.0)


@pytest.mark.parametrize("schedule", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B])
@pytest.mark.parametrize("speeds", [{}, {1: 0.5}, {0: 0.5, 1: 0.8}])
def test_the_pipeline_of_a_plan_with_slow_devices(speeds, schedule):
    """A stage computes at the rate of its own device; the price lets the slowest set the pace."""
    asked = grid_problem(2, 1, speed_factors=speeds)
    strategy, plan_options = make_strategy(pp=2), PlanOptions(schedule=schedule)
    price, step = simulated(asked, strategy, plan_options)
    groups = groups_of(asked, strategy, price)

    def stage_s(direction, stage):
        rates = asked.rates_at(speeds.get(stage, 1.0))
        layer, *edges = piece_passes(asked, plan_options, groups, rates)
        works = [*getattr(layer, direction) * 2, *getattr(edges[stage], direction)]
        return sum(work.compute_s for work in works)

    forward_s = [stage_s("forward", 0), stage_s("forward", 1)]
    backward_s = [stage_s("backward", 0), stage_s("backward", 1)]
    send_s = asked.rates.activation_bytes * 64 * 64 / 1e11
    count = int(number_at(price.closed_form.pipeline.num_micro_batches))
    times = blocking(forward_s, backward_s, send_s)
    expected_s = build_timeline(schedules[schedule], 2, 1, count, times).makespan_s
    assert step.timeline.makespan_s == pytest.approx(expected_s, **EXACT)
    update_s = number_at(price.contended.step.time[TimePart.OPTIMIZER])
    assert step.step_time_s == pytest.approx(expected_s + update_s, **EXACT)
    assert price.ranks.device.reshape(-1).tolist() == [0, 1]
    if speeds:
        assert step.step_time_s < step_s(price.contended)


def test_members_of_a_group_wait_for_the_slow_one():
    """tp on two devices of which one runs at half rate: the same as if both did."""
    plan_options = PlanOptions(sequence_parallel=False)
    one = agrees(grid_problem(2, 1, speed_factors={1: 0.5}), make_strategy(tp=2), plan_options)
    both = agrees(
        grid_problem(2, 1, speed_factors={0: 0.5, 1: 0.5}), make_strategy(tp=2), plan_options
    )
    assert one[1].step_time_s == pytest.approx(both[1].step_time_s, **EXACT)


def test_a_slow_device_that_no_rank_runs_on_slows_nothing_that_is_played():
    plan_options, strategy = PlanOptions(sequence_parallel=False), make_strategy(tp=2)
    slow = simulated(grid_problem(3, 1, speed_factors={2: 0.25}), strategy, plan_options)[1]
    fast = simulated(grid_problem(3, 1), strategy, plan_options)[1]
    assert slow.timeline.makespan_s == pytest.approx(fast.timeline.makespan_s, **EXACT)
    assert sum(slow.time_parts_s.values()) == pytest.approx(slow.step_time_s, **EXACT)
    assert slow.step_time_s == pytest.approx(fast.step_time_s, **EXACT)


MIXED = [
    ({"tp": 2, "pp": 2, "dp_shard": 2}, PlanOptions(zero_stage=3, recompute=Recompute.FULL)),
    ({"tatp": 4, "dp_shard": 2}, PlanOptions(zero_stage=2, sequence_parallel=False)),
    ({"cp": 2, "pp": 4}, PlanOptions(schedule=ScheduleKind.GPIPE, sequence_parallel=False)),
    ({"pp": 4, "dp_shard": 2, "num_virtual_stages": 2},
     PlanOptions(schedule=ScheduleKind.INTERLEAVED, sequence_parallel=False, zero_stage=0)),
    ({"dp_shard": 4, "dp_replicate": 2}, replace(WAITS, zero_stage=3, sequence_parallel=False)),
]  # fmt: skip


@pytest.fixture(params=range(len(MIXED)), scope="module")
def played(request):
    degrees, plan_options = MIXED[request.param]
    spec = model(num_layers=8)
    asked = grid_problem(4, 2, spec=spec, global_batch_size=8, speed_factors={3: 0.7})
    return (asked, *simulated(asked, make_strategy(**degrees), plan_options))


def test_links_carry_every_message_over_all_of_its_hops(played):
    asked, _, step = played
    physical, graph = physical_network(asked), step.graph
    expected = graph.routes.link_load_bytes(graph.num_bytes, physical)
    np.testing.assert_allclose(step.timeline.carried_bytes(physical.num_links), expected, rtol=1e-6)
    assert expected.max() > 0


def test_no_device_computes_two_things_at_once(played):
    _, price, step = played
    graph, timeline = step.graph, step.timeline
    computes = graph.track == graph.tracks.index(COMPUTE)
    for device in price.ranks.device.reshape(-1).tolist():
        mine = np.flatnonzero(computes & (graph.device == device))
        order = mine[np.argsort(timeline.start_s[mine], kind="stable")]
        ends, starts = timeline.end_s[order][:-1], timeline.start_s[order][1:]
        assert (starts >= ends - 1e-15).all()
        assert len(mine)
    used = set(graph.device[computes].tolist())
    assert used == set(price.ranks.device.reshape(-1).tolist())


def test_the_critical_path_sums_to_the_makespan(played):
    _, _, step = played
    path = critical_path(step.graph, step.timeline)
    seconds = seconds_by_track(step.graph, step.timeline, path)
    assert sum(seconds.values()) == pytest.approx(step.timeline.makespan_s, **EXACT)
    ends, starts = step.timeline.end_s[path], step.timeline.start_s[path]
    np.testing.assert_allclose(starts[:-1], ends[1:], atol=1e-15)


def test_parts_sum_to_the_step_and_none_is_negative(played):
    _, price, step = played
    assert tuple(step.time_parts_s) == tuple(TimePart)
    assert sum(step.time_parts_s.values()) == pytest.approx(step.step_time_s, **EXACT)
    assert min(step.time_parts_s.values()) >= 0.0
    assert step.step_time_s >= step.timeline.makespan_s
    assert 0.6 < step.step_time_s / step_s(price.contended) < 1.2


@pytest.mark.parametrize(("degrees", "plan_options", "rel"), [
    ({"tp": 4}, PlanOptions(sequence_parallel=False), 1e-9),
    ({"tp": 4}, PlanOptions(), 1e-9),
    ({"pp": 2}, PlanOptions(sequence_parallel=False), 1e-9),
    ({"pp": 4}, PlanOptions(schedule=ScheduleKind.GPIPE, sequence_parallel=False), 1e-9),
    ({"pp": 2}, PlanOptions(schedule=ScheduleKind.ZERO_BUBBLE, sequence_parallel=False), 1e-9),
    ({"pp": 4}, PlanOptions(schedule=ScheduleKind.ZERO_BUBBLE, sequence_parallel=False), 1e-9),
    ({"pp": 2, "dp_shard": 2}, PlanOptions(sequence_parallel=False), 0.02),
    ({"dp_shard": 2, "tp": 2}, PlanOptions(zero_stage=3, sequence_parallel=False), 0.02),
])  # fmt: skip
def test_few_micro_batches_stand_for_all_of_them(monkeypatch, degrees, plan_options, rel):
    """Each one that is left out repeats the last ones; layers of a stage pass as one run then, so
    what travels layer by layer hides a little less or more."""
    asked = grid_problem(2, 2, global_batch_size=24)
    strategy = make_strategy(**degrees)
    price, everything = simulated(asked, strategy, plan_options)
    monkeypatch.setattr(simulated_module, "MOST_TASKS", 1)
    few = simulated(asked, strategy, plan_options, price)[1]
    assert few.num_micro_batches < everything.num_micro_batches
    assert everything.num_micro_batches == 24 / strategy.dp
    assert few.step_time_s == pytest.approx(everything.step_time_s, rel=rel)


def test_what_streams_is_sent_in_its_rounds_by_hand():
    """Of four rounds items come in the first three and sums leave in the last three; of six rounds
    of attention on a line of four the last two compute nothing."""
    items = Message("tatp", CollectiveKind.ALL_GATHER, 1.0, True, True, until=0.75)
    sums = Message("tatp", CollectiveKind.REDUCE_SCATTER, 1.0, True, True, since=0.25)
    first = Message("tp", CollectiveKind.ALL_GATHER, 1.0)
    played = list(in_rounds([OperatorWork("product", 8.0, (first, items, sums), later_s=4.0)]))
    assert [work.compute_s for work, _ in played] == [2.0, 4.0, 2.0]
    assert [work.later_s for work, _ in played] == [1.0, 2.0, 1.0]
    third = pytest.approx(1 / 3)
    assert [sent for _, sent in played] == [
        [(first, 1.0), (items, third)],
        [(items, pytest.approx(2 / 3)), (sums, pytest.approx(2 / 3))],
        [(sums, third)],
    ]
    sums = replace(sums, since=0.75, until=1.5)
    played = list(in_rounds([OperatorWork("attention", 8.0, (items, sums))]))
    assert [work.compute_s for work, _ in played] == [6.0, 2.0, 0.0]
    shares = [sent[0][1] for _, sent in played]
    assert shares == [pytest.approx(1.0), third, pytest.approx(2 / 3)]


def test_a_dead_link_makes_a_step_longer():
    """Four replicas on 2x2 whose wire 0-1 is dead: messages go round, and share the others."""
    strategy, plan_options = make_strategy(dp_shard=4), replace(WAITS, zero_stage=1)
    whole = simulated(grid_problem(2, 2), strategy, plan_options)
    cut = simulated(grid_problem(2, 2, dead_links=((0, 1),)), strategy, plan_options)
    assert cut[1].step_time_s > whole[1].step_time_s
    assert cut[0].contention.num_rerouted > 0
    assert max(cut[0].contention.slowdown.values()) > 1.0
    assert cut[1].step_time_s == pytest.approx(step_s(cut[0].contended), rel=0.15)
