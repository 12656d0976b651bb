"""The step of a placed plan, simulated: when every device computes, sends and waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.base.compiled import as_written
from meshwright.base.errors import UnsupportedError
from meshwright.catalog.flow_files import FlowFile, FlowScenario, read_flow_file
from meshwright.cost.communication import AxisNetwork, Collectives
from meshwright.cost.pipeline import run_lengths, send_bytes
from meshwright.cost.problem import Problem
from meshwright.network.placement import Choice, Ranks
from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import run_tasks, simulate_tasks
from meshwright.network.simulation.tasks import TaskGraph, flow_graph
from meshwright.network.simulation.timeline import Timeline, critical_path, seconds_by_track
from meshwright.schedule.pipeline_schedules import schedules
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.train.question import problem_of
from meshwright.wafer.answer import price_as_placed
from meshwright.wafer.passes import Message, PiecePasses, Work, piece_passes
from meshwright.wafer.price import (
    DATA_AXES,
    PlacedPrice,
    choice_network,
    data_messages,
    dense_params,
    only,
    physical_network,
)
from meshwright.wafer.step_tasks import COMPUTE, Exchanges, Run, StepWork, step_tasks

MOST_TASKS = 150_000
"""Tasks of a simulated step, about; layers are merged and micro-batches left out beyond it."""
TASKS_PER_PASS = 30
MOST_RUNS = 4
"""Runs of layers that a chunk is cut into at most."""
COMPUTED = ("compute_s", "recompute_s", "launch_s")
_PART_OF_TRACK = {"tp": "tp_comm_s", "etp": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s",
                  "tatp": "tatp_stream_s", "pp": "pp_comm_s", "dp": "dp_comm_s"}  # fmt: skip


@dataclass(frozen=True)
class SimulatedStep:
    """A step that was played, and what it adds up to."""

    step_time_s: float
    time_parts_s: Mapping[str, float]
    """Along the critical path; what is not played is as priced: sums of single numbers and of tied
    or shared parameters after the last pass, update, offload, slowdown by overlap, jitter."""
    graph: TaskGraph
    timeline: Timeline
    num_micro_batches: int
    """Those that were played; the others repeat the last ones."""


def simulate_step(
    problem: Problem,
    structure: PlanOptions,
    strategy: Strategy,
    price: PlacedPrice,
    physical: Network,
) -> SimulatedStep:
    """Return a simulated step of a placed plan.

    Where a step has more micro-batches than can be played, two shorter steps are, and the time
    between them is the time of each micro-batch that was left out.
    """
    laid = Choice(price.ranks.axes, price.ranks.shapes)
    network = choice_network(problem, strategy, [laid])
    # Latencies and message starts are part of the exchanges, which know the algorithm.
    bare = replace(
        physical,
        latency_s=np.zeros(physical.num_links),
        message_half_bytes=np.zeros(physical.num_links),
    )
    launch_s = float(np.asarray(problem.calibration.collective_launch_s))
    exchanges = Exchanges(structure, network, price.ranks, bare, launch_s)
    speeds, speed = _speeds(physical, price.ranks)
    passes = _columns(
        [
            piece_passes(problem, structure, strategy, network, problem.rates_at(factor))
            for factor in speeds
        ]
    )
    total = round(only(price.closed_form.pipeline.num_micro_batches))
    num_runs, played = _extent(strategy, total)

    def play(num_micro_batches: int) -> tuple[TaskGraph, Timeline]:
        work = _step_work(problem, structure, strategy, price, passes, speed, num_runs,
                          num_micro_batches)  # fmt: skip
        graph = step_tasks(work, exchanges)
        return graph, simulate_tasks(graph, bare)

    graph, timeline = play(played)
    pipeline_s = timeline.makespan_s
    if played < total:
        fewer = played - int(strategy.pp)
        each_s = (pipeline_s - play(fewer)[1].makespan_s) / (played - fewer)
        pipeline_s += (total - played) * each_s
    once_s = _once_s(problem, structure, network, price)
    parts = _parts(price, graph, timeline, pipeline_s, once_s)
    return SimulatedStep(sum(parts.values()), parts, graph, timeline, played)


def _speeds(physical: Network, ranks: Ranks) -> tuple[list[float], IntArray]:
    """Return the speed factors of the devices in use, the least first, and each one's number."""
    factors = np.minimum(physical.speed_factor, 1.0)
    used = np.unique(factors[ranks.device])
    return used.tolist(), np.clip(np.searchsorted(used, factors), 0, len(used) - 1)


def _columns(by_speed: Sequence[Sequence[PiecePasses]]) -> list[PiecePasses]:
    """Return the passes of each piece with columns of seconds, and the messages of the slowest.

    Waiting for launches comes last, and not at every speed.
    """

    def joined(passes: Sequence[Sequence[Work]]) -> tuple[Work, ...]:
        rows = zip_longest(*passes, fillvalue=Work("launch", 0.0))
        return tuple(
            replace(
                works[0],
                compute_s=np.array([work.compute_s for work in works]),
                later_s=np.array([work.later_s for work in works]),
            )
            for works in rows
        )

    return [
        PiecePasses(joined([p.forward for p in pieces]), joined([p.backward for p in pieces]))
        for pieces in zip(*by_speed, strict=True)
    ]


def _extent(strategy: Strategy, num_micro_batches: int) -> tuple[int, int]:
    """Return the runs of a chunk and the micro-batches to play."""
    per_run = strategy.num_devices * TASKS_PER_PASS * 2 * strategy.num_virtual_stages
    stages = int(strategy.pp)
    least = min(num_micro_batches, max(2 * stages, 2))
    runs = int(max(1, min(MOST_RUNS, MOST_TASKS // (per_run * least))))
    most = max(least, int(MOST_TASKS // (per_run * runs)) // stages * stages)
    return runs, min(num_micro_batches, most)


def _step_work(
    problem: Problem, structure: PlanOptions, strategy: Strategy, price: PlacedPrice,
    passes: Sequence[PiecePasses], speed: IntArray, num_runs: int, num_micro_batches: int,
) -> StepWork:  # fmt: skip
    """Return what the stages do in a step of some number of micro-batches."""
    stages, chunks = int(strategy.pp), int(strategy.num_virtual_stages)
    schedule = schedules[structure.schedule]
    gather, reduce_, sums = data_messages(problem, structure, strategy, dense_params(price))
    is_whole = structure.zero_stage == 3
    return StepWork(
        runs=_runs(problem, passes, stages, chunks, num_runs),
        orders=[schedule.order(s, stages, chunks, num_micro_batches) for s in range(stages)],
        send=_send(problem, structure, strategy),
        before_step=gather if structure.zero_stage in (1, 2) else (),
        before_forward=gather if is_whole else (),
        before_backward=gather if is_whole and structure.reshard_after_forward else (),
        after_backward=reduce_ if structure.zero_stage >= 2 else (),
        after_last_backward=sums if structure.zero_stage >= 2 else (*reduce_, *sums),
        overlaps_data=structure.overlap_data_parallel,
        speed=speed,
    )


def _send(problem: Problem, structure: PlanOptions, strategy: Strategy) -> Message | None:
    if strategy.pp == 1:
        return None
    num_bytes = only(send_bytes(problem, structure, stack([strategy])))
    return Message("pp", CollectiveKind.SEND, num_bytes)


def _runs(
    problem: Problem, passes: Sequence[PiecePasses], stages: int, chunks: int, num_runs: int
) -> list[list[list[Run]]]:
    """Return the runs of each stage and chunk, edges included."""
    pattern = problem.model.layer_pattern
    lengths = run_lengths(len(pattern), stages * chunks)
    starts = np.concatenate(([0], np.cumsum(lengths))).tolist()
    of_stage = [sum(lengths[stage::stages]) for stage in range(stages)]
    table: list[list[list[Run]]] = [[[] for _ in range(chunks)] for _ in range(stages)]
    for number in range(stages * chunks):
        layers = pattern[starts[number] : starts[number + 1]]
        stage, chunk = number % stages, number // stages
        table[stage][chunk] = list(_merged_layers(passes, layers, num_runs, of_stage[stage]))
    embedding, head = (Run(piece, 1.0, 0.0) for piece in passes[-2:])
    table[0][0].insert(0, embedding)
    table[-1][-1].append(head)
    return table


def _merged_layers(
    passes: Sequence[PiecePasses], layers: Sequence[int], num_runs: int, of_stage: int
) -> Iterator[Run]:
    """Yield the layers of a chunk as at most that many runs of each kind."""
    for part in np.array_split(np.array(layers, dtype=np.int64), min(num_runs, len(layers))):
        for kind in np.unique(part).tolist():
            count = float((part == kind).sum())
            yield Run(passes[kind], count, count / of_stage)


def _parts(
    price: PlacedPrice, graph: TaskGraph, timeline: Timeline, pipeline_s: float, once_s: float
) -> dict[str, float]:
    """Return the parts of a step: simulated ones in the shares of the critical path.

    What the device computes in all is compute; what the path computes beyond that, on other
    stages, is the bubble.

    Parameters
    ----------
    pipeline_s
        What was played, with the micro-batches that were left out [s].
    once_s
        Data-parallel communication that is as priced [s].
    """
    time, pipeline = price.contended.step.time, price.contended.pipeline
    priced = time.row()
    own = _at_most({name: priced[name] for name in COMPUTED}, pipeline_s)
    scale = pipeline_s / timeline.makespan_s
    waits = dict.fromkeys(_PART_OF_TRACK.values(), 0.0)
    for track, seconds in seconds_by_track(graph, timeline, critical_path(graph, timeline)).items():
        axis = track.split(" ")[0].split("/")[0]
        if axis != COMPUTE:
            waits[_PART_OF_TRACK[axis]] += seconds * scale
    waits = _at_most(waits, pipeline_s - sum(own.values()))
    waits["bubble_s"] = max(0.0, pipeline_s - sum(own.values()) - sum(waits.values()))
    waits["tp_comm_s"] += only(pipeline.tp_per_step_s)
    waits["dp_comm_s"] += once_s
    parts = priced | own | waits
    after = ("jitter_s", "throttle_s")
    rest = sum(seconds for name, seconds in parts.items() if name not in after)
    return parts | {"jitter_s": rest * only(pipeline.jitter)}


def _at_most(parts: Mapping[str, float], limit_s: float) -> dict[str, float]:
    """Return parts as they are, or in the same shares where they sum to more than a limit."""
    total_s = sum(parts.values())
    share = max(limit_s, 0.0) / total_s if total_s > limit_s else 1.0
    return {name: seconds * share for name, seconds in parts.items()}


def _once_s(
    problem: Problem, structure: PlanOptions, network: AxisNetwork, price: PlacedPrice
) -> float:
    """Return what data-parallel axes send once a step after all else, as priced [s].

    The number for the gradient norm, and the gradient of a tied embedding.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    shards, replicas, everyone = DATA_AXES
    sums = [(CollectiveKind.REDUCE_SCATTER, shards), (CollectiveKind.ALL_GATHER, shards),
            (CollectiveKind.ALL_REDUCE, replicas)]  # fmt: skip
    if structure.zero_stage == 0:
        sums = [(CollectiveKind.ALL_REDUCE, everyone)]
    norm_s = sum(only(collectives.time_s(kind, axis, 0.0)) for kind, axis in sums)
    return norm_s + only(price.contended.pipeline.tied_sync_s)


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan whose step was played on its network."""

    plan: Plan
    network: Network
    step: SimulatedStep


def simulate(plan: Plan) -> SimulatedPlan:
    """Return the step of the best candidate of a plan, played on its devices and links.

    Raises
    ------
    UnsupportedError
        The plan has no placement: its system is no grid of devices, or too large a one. Or it
        splits the vocabulary over the stages.
    """
    problem, entry = problem_of(plan), plan.best
    if entry.placement is None:
        raise UnsupportedError(
            f"the plan for {plan.system.name} has no placement to simulate: that takes a mesh or "
            "a torus of devices, such as wafer-6x8 or tpu-v5p-4x4x4"
        )
    if entry.structure.vocabulary_parallel:
        raise UnsupportedError("embedding and logits on all stages are priced, but not simulated")
    physical = physical_network(problem)
    price = price_as_placed(problem, entry, physical)
    if price is None:
        raise UnsupportedError("the placement of the plan does not fit the devices of its system")
    step = simulate_step(problem, entry.structure, entry.strategy, price, physical)
    return SimulatedPlan(plan, physical, step)


SMALL = 2000
"""Hops of all flows that plain Python plays in a fraction of a second; compiling takes longer."""


def load_flows(path: str | Path) -> FlowFile:
    """Return the scenarios of a flow file."""
    return read_flow_file(Path(path))


def simulate_flows(scenario: FlowScenario) -> Timeline:
    """Return when each flow of a scenario ends; flow i is task i of the timeline."""
    routes = make_routes(scenario.routes)
    latency_s = np.array([scenario.latency_s[list(route)].sum() for route in scenario.routes])
    graph = flow_graph(routes, scenario.num_bytes, latency_s, scenario.start_s)
    with as_written() if len(routes.links) <= SMALL else nullcontext():
        return run_tasks(graph, scenario.bandwidth_bytes_per_s)
