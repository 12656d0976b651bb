"""The step of a placed plan, simulated: when every device computes, sends and waits.

Messages become transfers (routes, bytes, waits), passes become tasks in the order of the pipeline
schedule, and the simulated tasks add up to the parts of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, zip_longest

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Num, number_at
from meshwright.base.errors import UnsupportedError
from meshwright.collectives.group import Group
from meshwright.collectives.registry import affine_candidates, best_algorithm, collective_algorithms
from meshwright.cost.communication import AxisNetwork, Collectives
from meshwright.cost.layer import prices_of, recomputes_of
from meshwright.cost.operator import DeviceRates
from meshwright.cost.pipeline import PipelinePrice, send_bytes
from meshwright.cost.problem import Problem
from meshwright.network.placement import Ranks
from meshwright.network.routing import Routes, default_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import (
    NONE,
    TaskGraph,
    TaskGraphBuilder,
    Timeline,
    critical_path,
    seconds_by_track,
)
from meshwright.network.traffic import Demands, placed
from meshwright.schedule.pipeline_schedules import TaskKind, schedules
from meshwright.schedule.tasks import PassTask, pass_tasks
from meshwright.sharding.dealing import dealt_layers
from meshwright.sharding.strategy import PlanOptions, ScheduleKind, Strategy, stack
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import streams
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.wafer.answer import SimulatedPlan, SimulatedStep
from meshwright.wafer.loads import (
    RowGroups,
    joins_grids,
    message_pattern,
    pair_s,
    stream_of,
    stream_rounds,
)
from meshwright.wafer.messages import (
    DATA_AXES,
    EXPERT_DATA_AXES,
    HeldParams,
    Message,
    OperatorWork,
    PiecePasses,
    Sent,
    data_messages,
    piece_passes,
)
from meshwright.wafer.price import PlacedPrice, params_of, physical_network
from meshwright.wafer.search import price_as_placed

MOST_TASKS = 150_000
"""Most tasks of a simulated step, about; layers are merged and micro-batches left out beyond it."""
MOST_TASKS_TO_RANK = 20_000
"""Most tasks of a simulated step, about, where several plans are ranked."""
TASKS_PER_PASS = 30
MOST_RUNS = 4
"""Most runs of layers that a chunk is cut into."""
COMPUTE, RESHARD = "compute", "reshard"
COMPUTED = ("compute_s", "main_memory_s", "recompute_s", "launch_s")
_PART_OF_TRACK = {"tp": "tp_comm_s", "etp": "tp_comm_s", "cp": "cp_comm_s", "ep": "ep_comm_s",
                  "tatp": "tatp_stream_s", "pp": "pp_comm_s", "dp": "dp_comm_s",
                  RESHARD: "reshard_s"}  # fmt: skip


@dataclass(frozen=True)
class PlacedExchange:
    """An exchange of the members of groups on their devices."""

    demands: Demands
    """Demands for one byte of the full tensor on one rank."""
    routes: Routes
    groups: IntArray
    """Devices that exchange with each other, (groups, members): they finish together, because steps
    and rounds wait for each other. Rows of ``demands`` come group by group."""
    fixed_s: float
    """Seconds of the steps of the algorithm besides bytes, latencies and message starts."""
    waits_s_per_byte: float = 0.0
    """Seconds for each byte of the message beyond its time on the busiest link: steps that leave
    links idle, relays that store messages whole."""
    fixed_bytes: float = 0.0
    """Bytes that the start of each message occupies a link for, where messages overlap with
    computation."""

    @cached_property
    def waits_at(self) -> IntArray:
        """A device of each group, another one for each where groups share devices."""
        found: dict[int, None] = {}
        for members in self.groups.tolist():
            free = [device for device in members if device not in found]
            found[(free or members)[0]] = None
        return np.array(list(found)) if len(found) == len(self.groups) else self.groups[:, 0]

    def num_bytes(self, message_bytes: float, times: float) -> FloatArray:
        """Return the bytes of each row for a message that is sent several times [bytes]."""
        sizes: FloatArray = times * (self.demands.num_bytes * message_bytes + self.fixed_bytes)
        return sizes

    def waits_s(self, message_bytes: float, times: float) -> float:
        """Return the seconds that a device waits after its last byte has come."""
        return times * (self.fixed_s + self.waits_s_per_byte * message_bytes)


class Exchanges:
    """The exchanges of one placed strategy, worked out once each."""

    def __init__(
        self, plan_options: PlanOptions, groups: AxisNetwork, ranks: Ranks, network: Network,
        launch_s: float,
    ) -> None:  # fmt: skip
        self.plan_options, self.groups, self.ranks = plan_options, RowGroups(groups), ranks
        self.network, self.launch_s = network, launch_s
        self._by_algorithm: dict[tuple[object, ...], PlacedExchange] = {}
        self._of: dict[tuple[Message, int], PlacedExchange] = {}
        self._between: dict[tuple[int, int], PlacedExchange] = {}

    def of(self, message: Message, stage: int) -> PlacedExchange:
        """Return the exchange of a message among the devices of one pipeline stage.

        Messages that differ in their bytes alone share one where they take the same algorithm.
        """
        if (message, stage) not in self._of:
            group = self.groups.of(message.axis)
            name = stream_of(self.plan_options, group) if message.is_stream else best_algorithm(
                message.kind, message.num_bytes, group
            )  # fmt: skip
            key = (message.axis, message.kind, name, stage, message.num_chunks)
            if key not in self._by_algorithm:
                self._by_algorithm[key] = self._make(message, name, group, stage)
            self._of[message, stage] = self._by_algorithm[key]
        return self._of[message, stage]

    def _make(self, message: Message, name: str, group: Group[float], stage: int) -> PlacedExchange:
        """Return the exchange of a message by an algorithm or a stream."""
        pattern = message_pattern(
            message,
            self.plan_options,
            group,
            is_side_by_side=joins_grids(self.groups.network.levels),
        )
        groups = self.ranks.groups(message.axis)
        groups = groups.reshape(len(groups), -1)
        groups = groups[np.isin(groups[:, 0], self.stages[stage])]
        demands = placed(pattern, groups, 1.0, message.axis)
        if message.is_stream:
            rounds = stream_rounds(streams[name], group, message.num_chunks)
            fixed_s, s_per_byte, fixed_bytes = rounds
        else:
            fixed_s, s_per_byte = map(float, collective_algorithms[name].affine(group))
            fixed_s, fixed_bytes = fixed_s + self.launch_s, 0.0
        waits_s_per_byte = max(0.0, float(s_per_byte) - float(pair_s(pattern, group).max()))
        routes = default_routes(self.network, demands)
        return PlacedExchange(
            demands, routes, groups, float(fixed_s), waits_s_per_byte, fixed_bytes
        )

    def between(self, stage: int, other: int) -> PlacedExchange:
        """Return the exchange of one message from each device of a stage to the other stage."""
        if (stage, other) not in self._between:
            source, there = self.pipelines[:, stage], self.pipelines[:, other]
            demands = Demands(
                source, there, np.ones(len(source)), np.arange(len(source)),
                np.zeros(len(source), dtype=np.int64), ("pp",),
            )  # fmt: skip
            group = self.groups.of("pp")
            fixed_s = affine_candidates(CollectiveKind.SEND, group)[0][1] + self.launch_s
            groups = np.stack((there, source), axis=1)
            routes = default_routes(self.network, demands)
            self._between[stage, other] = PlacedExchange(demands, routes, groups, float(fixed_s))
        return self._between[stage, other]

    @cached_property
    def pipelines(self) -> IntArray:
        """The devices of every pipeline in the order of its stages, (pipelines, stages)."""
        members = self.ranks.groups("pp")
        order = self.ranks.visit(
            "pp",
            closes=self.plan_options.wraps,
            is_side_by_side=joins_grids(self.groups.network.levels),
        )
        pipelines: IntArray = members.reshape(len(members), -1)[:, order]
        return pipelines

    @cached_property
    def stages(self) -> tuple[IntArray, ...]:
        """The devices of each pipeline stage, ascending."""
        return tuple(np.unique(devices) for devices in self.pipelines.T)


@dataclass(frozen=True)
class DataMessages:
    """Data-parallel messages of the parameters of a stage."""

    before_step: tuple[Message, ...] = ()
    """They bring the parameters for a step."""
    before_forward: tuple[Message, ...] = ()
    """They bring the parameters for each forward pass; the next field for each backward pass."""
    before_backward: tuple[Message, ...] = ()
    after_backward: tuple[Message, ...] = ()
    """They carry the gradients of each backward pass."""
    after_last_backward: tuple[Message, ...] = ()
    """They carry the gradients of the step, after a run's last backward pass."""


def messages_of_data(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy, params: HeldParams[float]
) -> DataMessages:
    """Return the data-parallel messages of some parameters on one device."""
    gather, reduce_, sums = (
        tuple(message.of() for message in messages)
        for messages in data_messages(problem, plan_options, strategy, params)
    )
    is_whole, scatters = plan_options.zero_stage == 3, plan_options.zero_stage >= 2
    return DataMessages(
        before_step=gather if plan_options.zero_stage in (1, 2) else (),
        before_forward=gather if is_whole else (),
        before_backward=gather if is_whole and plan_options.reshard_after_forward else (),
        after_backward=reduce_ if scatters else (),
        after_last_backward=sums if scatters else (*reduce_, *sums),
    )


@dataclass(frozen=True)
class Handed:
    """A tensor that passes from one layout to another."""

    exchange: PlacedExchange
    num_bytes: float
    times: float


@dataclass(frozen=True)
class LayerRun:
    """Some equal layers, some of their operators, or an edge, that pass as one."""

    passes: PiecePasses
    num_layers: float
    data_share: float
    """Share of the parameters of ``data`` [1]."""
    data: DataMessages
    exchanges: Exchanges
    arrives: tuple[Handed, ...] = ()
    """Tensors that its forward pass reads in another layout than they were made in."""
    arrives_again: tuple[Handed, ...] = ()
    """Those that recomputation brings back before its backward pass."""
    returns: tuple[Handed, ...] = ()
    """Gradients of the tensors that it read."""


@dataclass(frozen=True)
class StepWork:
    """Work of the stages of a pipeline in a step."""

    runs: Sequence[Sequence[Sequence[LayerRun]]]
    """Runs of each stage and chunk, in the order of the forward pass."""
    tasks: Sequence[PassTask]
    """Passes of all stages, from the schedule."""
    send: Message | None
    overlaps_data: bool
    """Data-parallel messages overlap with computation; otherwise it waits for them."""
    speed: IntArray
    """Row of each device in the seconds of a computation, which has one row for each speed."""


Waits = list[IntArray]
"""Tasks that are waited for: each entry has one task for each device, or ``NONE``."""


class _StepBuilder:
    """State of one enumeration: the last task of every device, and the messages already sent."""

    def __init__(self, work: StepWork, exchanges: Exchanges) -> None:
        self.work, self.exchanges = work, exchanges
        self.tasks = TaskGraphBuilder(exchanges.network)
        num = exchanges.network.num_devices
        self.last = np.full(num, NONE, dtype=np.int64)
        self.data: dict[CollectiveKind, IntArray] = {}
        """The last data-parallel message of each device, by kind. Those of a kind go one after the
        other; parameters need not wait for gradients that are not ready."""
        self.begun = self.last.copy()
        """The last task of each device before the current run: parameters of the next run may be
        requested from then on."""
        self.sent: dict[int, IntArray] = {}
        """Messages between stages that have not been received, by the number of their task."""
        self.parts: dict[tuple[int, TaskKind], list[tuple[OperatorWork, Sent]]] = {}
        """Parts of the works of each piece in each kind of pass."""
        self.gathered: dict[tuple[int, int, int], tuple[Waits, Waits]] = {}
        self.last_micro_batch = max(task.micro_batch for task in work.tasks)

    def run(self) -> None:
        """Enumerate the parameters of a step, then all passes."""
        # Parameters come before the first forward pass, run by run.
        for stage, chunks in enumerate(self.work.runs):
            for chunk, runs in enumerate(chunks):
                for index, run in enumerate(runs):
                    first, rest = self._gather(run.data.before_step, run, stage, [])
                    self.gathered[stage, chunk, index] = first, rest
                    if first and not self.work.overlaps_data:
                        self._wait_for(self.exchanges.stages[stage], first)
        for number, task in enumerate(self.work.tasks):
            self._task(number, task)

    def _task(self, number: int, task: PassTask) -> None:
        """Enumerate one chunk of one micro-batch, and its message to the next stage."""
        work, stage = self.work, task.stage
        runs = list(enumerate(work.runs[stage][task.chunk]))
        if task.kind is TaskKind.BACKWARD_WEIGHT:
            # The weight gradients that were put off.
            sent: Waits = []
            for _, run in reversed(runs):
                self._run(task.kind, run, stage, [], [])
                if work.overlaps_data:
                    sums = self._sums(run, task.micro_batch)
                    sent += self._data(sums, run, stage, 1.0, [self.last])
        else:
            sent = self._pass(task, runs)
        if sent and len(work.runs[stage]) == 1:
            # Gradients that leave in a backward pass have come before the next pass begins; of
            # several chunks the passes of the others hide them.
            self._wait_for(self.exchanges.stages[stage], sent)
        if task.receiver != NONE and work.send is not None:
            self._hand_on(number, stage, task.receiver % len(work.runs), work.send)
        if not work.overlaps_data and task.kind in (TaskKind.BACKWARD, TaskKind.BACKWARD_WEIGHT):
            # The stage waits for the gradients of the backward pass.
            sent = [
                wait
                for _, run in reversed(runs)
                for wait in self._data(
                    self._sums(run, task.micro_batch), run, stage, 1.0, [self.last]
                )
            ]
            if sent:
                self._wait_for(self.exchanges.stages[stage], sent)

    def _pass(self, task: PassTask, runs: Sequence[tuple[int, LayerRun]]) -> Waits:
        """Enumerate one pass of a micro-batch through the runs of a chunk; return its gradients."""
        sent: Waits = []
        overlaps_data, is_forward = self.work.overlaps_data, task.kind is TaskKind.FORWARD
        stage = task.stage
        waits = [self.sent.pop(task.sender)] if task.sender in self.sent else []
        is_whole = task.kind is TaskKind.BACKWARD
        for index, run in runs if is_forward else reversed(runs):
            messages = run.data.before_forward if is_forward else run.data.before_backward
            sums = self._sums(run, task.micro_batch) if is_whole else ()
            # A run waits for the parameters of its first layer before it begins, and for the
            # others before it ends.
            known: tuple[Waits, Waits] = ([], [])
            if is_forward:
                known = self.gathered.pop((stage, task.chunk, index), known)
            begun = self.begun if overlaps_data else self.last
            first, rest = self._gather(messages, run, stage, [begun])
            share = self._share_of_first(run)
            if overlaps_data:
                sent += self._data(sums, run, stage, 1.0 - share, [self.last])
            arrived = self._handed(run.arrives if is_forward else run.arrives_again)
            self._run(task.kind, run, stage, waits + arrived + known[0] + first, known[1] + rest)
            if not is_forward and run.returns:
                self._wait_for(self.exchanges.stages[stage], self._handed(run.returns))
            if overlaps_data:
                sent += self._data(sums, run, stage, share, [self.last])
            waits = []
        return sent

    def _run(self, kind: TaskKind, run: LayerRun, stage: int, waits: Waits, at_end: Waits) -> None:
        """Enumerate one run in one direction; messages of ``at_end`` arrive before it ends."""
        devices = self.exchanges.stages[stage]
        self.begun[devices] = self.last[devices]
        if (id(run.passes), kind) not in self.parts:
            self.parts[id(run.passes), kind] = list(in_rounds(merged(run.passes.works(kind))))
        for work, sent in self.parts[id(run.passes), kind]:
            for message, _ in sent:
                if not message.overlaps:
                    waits.append(self._send(run, message, stage, run.num_layers, waits))
            overlapped = [
                self._send(run, message, stage, run.num_layers * share, waits)
                for message, share in sent
                if message.overlaps
            ]
            seconds = self._seconds(work.compute_s, run, devices)
            after = [self.last[devices], *(wait[devices] for wait in waits)]
            self.last[devices] = self.tasks.compute(devices, seconds, after=after, track=COMPUTE,
                                                    name=work.name)  # fmt: skip
            waits = overlapped
        if waits or at_end:
            self._wait_for(devices, waits + at_end)

    def _seconds(self, compute_s: Num, run: LayerRun, devices: IntArray) -> FloatArray:
        """Return the seconds of the layers of a run on each device, in one operator [s]."""
        seconds: FloatArray = np.atleast_1d(compute_s)[self.work.speed[devices]] * run.num_layers
        return seconds

    def _wait_for(self, devices: IntArray, waits: Waits) -> None:
        """Let devices wait for messages before they go on."""
        after = [self.last[devices], *(wait[devices] for wait in waits)]
        self.last[devices] = self.tasks.compute(devices, 0.0, after=after, track=COMPUTE,
                                                name="wait")  # fmt: skip

    def _send(
        self, run: LayerRun, message: Message, stage: int, times: float, waits: Waits
    ) -> IntArray:
        """Enumerate a message, and return the tasks that each device waits for."""
        exchange = run.exchanges.of(message, stage)
        return self._exchange(exchange, message, times, [self.last, *waits], message.axis)

    def _handed(self, tensors: Sequence[Handed]) -> Waits:
        """Enumerate tensors that pass one after the other, and return the waits for the last."""
        waits: Waits = []
        for one in tensors:
            message = Message(RESHARD, CollectiveKind.SEND, one.num_bytes)
            waits = [self._exchange(one.exchange, message, one.times, [self.last, *waits], RESHARD)]
        return waits

    def _exchange(
        self, exchange: PlacedExchange, message: Message, times: float, after: Waits, track: str
    ) -> IntArray:
        """Enumerate transfers and the waits of groups, and return the waits of each device."""
        source, groups = exchange.demands.source, exchange.groups
        sent = self.tasks.transfer(
            exchange.routes,
            exchange.num_bytes(message.num_bytes, times),
            after=[wait[source] for wait in after],
            track=track,
            name=str(message.kind),
        )
        ended = self.tasks.compute(
            exchange.waits_at, exchange.waits_s(message.num_bytes, times),
            after=sent.reshape(len(groups), -1).T, track=f"{track} latency",
            name=f"{message.kind} latency",
        )  # fmt: skip
        done = np.full(len(self.last), NONE, dtype=np.int64)
        done[groups] = ended[:, None]
        # A device that hosts several ranks waits for all of their groups.
        for group, end in zip(groups, ended.tolist(), strict=True):
            others = group[done[group] != end]
            if len(others):
                after = [done[others], np.full(len(others), end)]
                done[others] = self.tasks.compute(others, 0.0, after=after, track=f"{track} hosted")
        return done

    def _hand_on(self, number: int, stage: int, other: int, send: Message) -> None:
        """Send the activations or gradients of a task to the stage of its receiver."""
        exchange = self.exchanges.between(stage, other)
        done = self._exchange(exchange, send, 1.0, [self.last], "pp")
        self.sent[number] = done
        if not self.exchanges.plan_options.wraps:
            pipelines = self.exchanges.pipelines
            received = np.full(len(self.last), NONE, dtype=np.int64)
            received[pipelines[:, stage]] = done[pipelines[:, other]]
            self._wait_for(self.exchanges.stages[stage], [received])

    def _share_of_first(self, run: LayerRun) -> float:
        """Return the share of the parameters of a run that it needs to begin or to end.

        Those of one layer, where the parameters of the others travel while it computes.
        """
        return 1.0 / run.num_layers if self.work.overlaps_data else 1.0

    def _gather(
        self, messages: Sequence[Message], run: LayerRun, stage: int, after: Waits
    ) -> tuple[Waits, Waits]:
        """Return the parameters of the first layer of a run, and those of the others."""
        share = self._share_of_first(run)
        first = self._data(messages, run, stage, share, after)
        return first, self._data(messages, run, stage, 1.0 - share, after)

    def _sums(self, run: LayerRun, micro_batch: int) -> Sequence[Message]:
        """Return the messages that carry the gradients of a backward pass."""
        is_last = micro_batch == self.last_micro_batch
        last = run.data.after_last_backward if is_last else ()
        return (*run.data.after_backward, *last)

    def _data(
        self, messages: Sequence[Message], run: LayerRun, stage: int, share: float, after: Waits
    ) -> Waits:
        """Enumerate data-parallel messages of a part of a run: one after the other."""
        sent: Waits = []
        for message in messages if run.data_share * share > 0 else ():
            num_bytes = message.num_bytes * run.data_share * share
            part = Message(message.axis, message.kind, num_bytes)
            exchange = run.exchanges.of(part, stage)
            before = self.data.get(message.kind, np.full_like(self.last, NONE))
            done = self._exchange(exchange, part, 1.0, [before, *sent[-1:], *after], "dp")
            self.data[message.kind] = np.where(done != NONE, done, before)
            sent.append(done)
        return sent


def step_tasks(work: StepWork, exchanges: Exchanges) -> TaskGraph:
    """Return the tasks of a step on devices and links."""
    builder = _StepBuilder(work, exchanges)
    builder.run()
    return builder.tasks.build()


def in_rounds(works: Sequence[OperatorWork]) -> Iterator[tuple[OperatorWork, Sent]]:
    """Yield parts of works, each with its messages during computation and their shares.

    A work is cut where a message that overlaps with it begins or ends; messages that it waits for
    come with its first part, and parts without computation follow it where messages end later.
    """
    for work in works:
        overlapping = [message for message in work.messages if message.overlaps]
        edges = {0.0, 1.0}
        for message in overlapping:
            edges |= {round(message.since, 9), round(message.until, 9)}
        for begin, end in pairwise(sorted(edges)):
            sent = [
                (message, 1.0) for message in work.messages if not message.overlaps and not begin
            ]
            for message in overlapping:
                share = min(end, message.until) - max(begin, message.since)
                if share > ROUNDING:
                    sent.append((message, share / (message.until - message.since)))
            yield work.share(max(0.0, min(end, 1.0) - begin)), sent


ROUNDING = 1e-8
"""Share of a computation below which two ends are the same [1]."""


def merged(works: Sequence[OperatorWork]) -> list[OperatorWork]:
    """Return the works of a pass; works that send nothing are added to the one before.

    A message that overlaps with an operator belongs to that operator.
    """
    merged_works: list[OperatorWork] = []
    for work in works:
        before = merged_works[-1] if merged_works else None
        is_alone = before is None or any(message.overlaps for message in before.messages)
        if before is None or is_alone or work.messages:
            merged_works.append(work)
        else:
            merged_works[-1] = replace(before, compute_s=before.compute_s + work.compute_s)
    return merged_works


@dataclass(frozen=True)
class PlayedStep:
    """A step that was played, and the seconds of the pipeline with all of its micro-batches."""

    graph: TaskGraph
    timeline: Timeline
    num_micro_batches: int
    pipeline_s: float
    once_s: float = 0.0
    """Data-parallel communication that is as priced [s]."""


def simulate_step(problem: Problem, price: PlacedPrice, physical: Network) -> SimulatedStep:
    """Return a simulated step of a placed plan.

    Where a step has more micro-batches than can be played, two shorter steps are, and the time
    between them is the time of each micro-batch that was left out. Runs of layers that are
    recomputed together are played layer by layer, in equal time.
    """
    played = _played(problem, price, physical, MOST_TASKS)
    graph, timeline = played.graph, played.timeline
    parts = _parts(price, played, on_path_s(graph, timeline, played.pipeline_s))
    return SimulatedStep(sum(parts.values()), parts, graph, timeline, played.num_micro_batches)


def simulated_step_s(problem: Problem, price: PlacedPrice, physical: Network) -> float:
    """Return the seconds of a simulated step, from fewer tasks: to rank placed plans [s]."""
    played = _played(problem, price, physical, MOST_TASKS_TO_RANK)
    return sum(_parts(price, played, {}).values())


def on_path_s(graph: TaskGraph, timeline: Timeline, pipeline_s: float) -> dict[str, float]:
    """Return the seconds of the critical path by track, where all that was played takes so long."""
    scale = pipeline_s / timeline.makespan_s
    by_track = seconds_by_track(graph, timeline, critical_path(graph, timeline))
    return {track: seconds * scale for track, seconds in by_track.items()}


def _parts(
    price: PlacedPrice, played: PlayedStep, waits_s: Mapping[str, float]
) -> dict[str, float]:
    """Return the parts of a played step."""
    pipeline, priced = price.contended.pipeline, price.contended.step.time.row()
    return simulated_parts(priced, pipeline, waits_s, played.pipeline_s, played.once_s)


def _played(problem: Problem, price: PlacedPrice, physical: Network, most_tasks: int) -> PlayedStep:
    """Return a step of at most so many tasks, about, as it was played."""
    plan_options = replace(price.plan_options, recompute_run=1)
    strategy, network = price.strategy, price.groups(problem)
    # Latencies and message starts are part of the exchanges, which know the algorithm.
    none = np.zeros(physical.num_links)
    bare = replace(physical, latency_s=none, message_half_bytes=none.copy())
    launch_s = float(np.asarray(problem.calibration.collective_launch_s))
    exchanges = Exchanges(plan_options, network, price.ranks, bare, launch_s)
    # Devices differ in speed and work: seconds are columns with a row for each, slowest first.
    # All stream the tensors that the last one is fastest with.
    kinds, speed = _kinds(price, physical.num_devices)
    paced = problem.at_pace(price.work.pace, price.work.most_work, price.work.states)
    passes = _columns(
        [
            _passes(paced, plan_options, network, problem.rates_at(pace, work))
            for pace, work in kinds
        ],
        [work > LEAST_WORK for _, work in kinds],
    )
    stages, chunks = int(strategy.pp), int(strategy.num_virtual_stages)
    data = messages_of_data(problem, plan_options, strategy, params_of(price.closed_form))
    total = round(number_at(price.closed_form.pipeline.num_micro_batches))
    num_runs, played = extent(strategy, plan_options, total, most_tasks)
    work = StepWork(
        runs=_runs(problem, passes, stages, chunks, num_runs, data, exchanges),
        tasks=(),
        send=sent_on(problem, plan_options, strategy),
        overlaps_data=plan_options.overlap_data_parallel,
        speed=speed,
    )

    once_s = once_a_step_s(problem, plan_options, network, price.contended.pipeline)
    return replace(play(work, exchanges, strategy, total, played), once_s=once_s)


def play(
    work: StepWork, exchanges: Exchanges, strategy: Strategy, num_micro_batches: int, played: int
) -> PlayedStep:
    """Return some micro-batches of a step as they were played.

    The others take the pace of the last ones that were.
    """
    stages, chunks = int(strategy.pp), int(strategy.num_virtual_stages)
    schedule = schedules[exchanges.plan_options.schedule]

    def enumerated(number: int) -> tuple[TaskGraph, Timeline]:
        tasks = pass_tasks(schedule, stages, chunks, number)
        graph = step_tasks(replace(work, tasks=tasks), exchanges)
        return graph, simulate_tasks(graph, exchanges.network)

    graph, timeline = enumerated(played)
    pipeline_s = timeline.makespan_s
    if played < num_micro_batches:
        fewer = played - stages
        each_s = (pipeline_s - enumerated(fewer)[1].makespan_s) / (played - fewer)
        pipeline_s += (num_micro_batches - played) * each_s
    return PlayedStep(graph, timeline, played, pipeline_s)


def _passes(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork, rates: DeviceRates
) -> tuple[PiecePasses, ...]:
    """Return the passes of each kind of layer, with their recomputation, and of both edges."""
    return prices_of(plan_options, {
        recompute: piece_passes(problem, replace(plan_options, recompute=recompute), network, rates)
        for recompute in recomputes_of(plan_options)
    })  # fmt: skip


LEAST_WORK = 0.01
"""Share of an equal split of the work at which a device without any is priced [1]; it waits."""


def _kinds(price: PlacedPrice, num_devices: int) -> tuple[list[tuple[float, float]], IntArray]:
    """Return the kinds of devices, the slowest first, and the kind of each device.

    A kind is the pace of its arithmetic for its own share of the work, and that share.
    """
    hosts, work = price.ranks.is_host, price.work
    share = np.maximum(work.share[hosts], LEAST_WORK)
    table = np.stack((work.speed[hosts] / share, share), axis=1)
    kinds, kind_of = np.unique(table, axis=0, return_inverse=True)
    found = np.zeros(num_devices, dtype=np.int64)
    found[price.ranks.device[hosts]] = kind_of.reshape(-1)
    return [(float(pace), float(share)) for pace, share in kinds], found


def _columns(by_speed: Sequence[Sequence[PiecePasses]], works: Sequence[bool]) -> list[PiecePasses]:
    """Return the passes of each piece with columns of seconds, and the messages of the slowest.

    Waiting for launches comes last, and not at every speed. Devices without work compute nothing.
    """
    does = np.array(works, dtype=float)

    def joined(passes: Sequence[Sequence[OperatorWork]]) -> tuple[OperatorWork, ...]:
        rows = zip_longest(*passes, fillvalue=OperatorWork("launch", 0.0))
        return tuple(
            replace(
                row[0],
                compute_s=np.array([work.compute_s for work in row]) * does,
                later_s=np.array([work.later_s for work in row]) * does,
            )
            for row in rows
        )

    return [
        PiecePasses(joined([p.forward for p in pieces]), joined([p.backward for p in pieces]))
        for pieces in zip(*by_speed, strict=True)
    ]


def sent_on(problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> Message | None:
    """Return the message of one micro-batch to the next stage; None without a pipeline."""
    if strategy.pp == 1:
        return None
    num_bytes = number_at(send_bytes(problem, plan_options, stack([strategy])))
    return Message("pp", CollectiveKind.SEND, num_bytes)


def extent(
    strategy: Strategy, plan_options: PlanOptions, num_micro_batches: int, most_tasks: int
) -> tuple[int, int]:
    """Return the runs of a chunk and the micro-batches to play.

    Micro-batches that are left out take the pace of the last ``pp`` played. Two for each stage are
    the least; with zero bubble the delayed weight gradients come in the last round, so three.
    """
    rounds = 3 if plan_options.schedule is ScheduleKind.ZERO_BUBBLE else 2
    per_run = strategy.num_devices * TASKS_PER_PASS * 2 * strategy.num_virtual_stages
    stages = int(strategy.pp)
    least = min(num_micro_batches, max(rounds * stages, 2))
    runs = int(max(1, min(MOST_RUNS, most_tasks // (per_run * least))))
    most = max(least, int(most_tasks // (per_run * runs)) // stages * stages)
    return runs, min(num_micro_batches, most)


def _runs(
    problem: Problem, passes: Sequence[PiecePasses], stages: int, chunks: int, num_runs: int,
    data: DataMessages, exchanges: Exchanges,
) -> list[list[list[LayerRun]]]:  # fmt: skip
    """Return the runs of each stage and chunk, edges included.

    The layers of a chunk are merged into at most ``num_runs`` runs of each kind.
    """
    pattern, num_kinds = problem.model.layer_pattern, len(problem.graph.layers)
    dealt = dealt_layers(pattern, num_kinds, stages * chunks, exchanges.plan_options)
    table: list[list[list[LayerRun]]] = [[[] for _ in range(chunks)] for _ in range(stages)]
    for number, layers in enumerate(dealt):
        chunk, stage = divmod(number, stages)
        of_stage = sum(map(len, dealt[stage::stages]))
        for part in np.array_split(layers, max(1, min(num_runs, len(layers)))):
            for kind in np.unique(part).tolist():
                count = float((part == kind).sum())
                share = count / of_stage
                table[stage][chunk].append(LayerRun(passes[kind], count, share, data, exchanges))
    embedding, head = (LayerRun(piece, 1.0, 0.0, data, exchanges) for piece in passes[-2:])
    table[0][0].insert(0, embedding)
    table[-1][-1].append(head)
    return table


def simulated_parts(
    priced: Mapping[str, float], pipeline: PipelinePrice, waits_s: Mapping[str, float],
    pipeline_s: float, once_s: float,
) -> dict[str, float]:  # fmt: skip
    """Return the parts of a step: simulated ones in the shares of the critical path.

    All computation of the device is compute; computation of the path beyond that, on other
    stages, is the bubble.

    Parameters
    ----------
    priced
        Parts of the step as priced; those that are not played stay.
    waits_s
        Seconds of the critical path by track; those without any are idle, and so bubble.
    pipeline_s
        Seconds played, with the micro-batches that were left out.
    once_s
        Data-parallel communication that is as priced [s].
    """
    own = _at_most({name: priced[name] for name in COMPUTED}, pipeline_s)
    waits = {part: 0.0 for part in _PART_OF_TRACK.values() if part in priced}
    for track, seconds in waits_s.items():
        axis = track.split(" ")[0].split("/")[0]
        if axis != COMPUTE:
            waits[_PART_OF_TRACK[axis]] += seconds
    waits = _at_most(waits, pipeline_s - sum(own.values()))
    waits["bubble_s"] = max(0.0, pipeline_s - sum(own.values()) - sum(waits.values()))
    waits["tp_comm_s"] += number_at(pipeline.tp_per_step_s)
    waits["dp_comm_s"] += once_s
    parts = {**priced, **own, **waits}
    after = ("jitter_s", "throttle_s")
    rest = sum(seconds for name, seconds in parts.items() if name not in after)
    return parts | {"jitter_s": rest * number_at(pipeline.jitter)}


def _at_most(parts: Mapping[str, float], limit_s: float) -> dict[str, float]:
    """Return parts as they are, or scaled in proportion where they sum to more than a limit."""
    total_s, limit_s = sum(parts.values()), max(limit_s, 0.0)
    share = limit_s / total_s if total_s > limit_s else 1.0
    return {name: seconds * share for name, seconds in parts.items()}


def once_a_step_s(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork, pipeline: PipelinePrice
) -> float:
    """Return the seconds of data-parallel messages once a step after all else, as priced.

    The number for the gradient norm, and the gradient of a tied embedding.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    sums = []
    for shards, replicas, everyone in (DATA_AXES, EXPERT_DATA_AXES)[
        : 1 + bool(problem.num_experts)
    ]:
        if plan_options.zero_stage == 0:
            sums.append((CollectiveKind.ALL_REDUCE, everyone))
            continue
        sums += [(CollectiveKind.REDUCE_SCATTER, shards), (CollectiveKind.ALL_GATHER, shards)]
        sums.append((CollectiveKind.ALL_REDUCE, replicas))
    norm_s = sum(number_at(collectives.time_s(kind, axis, 0.0)) for kind, axis in sums)
    return norm_s + number_at(pipeline.tied_sync_s)


def not_played(plan_options: PlanOptions) -> str:
    """Return the part of the plan options that is priced but not simulated; empty: none."""
    if plan_options.vocabulary_parallel:
        return "embedding and logits on all stages"
    if plan_options.overlap_expert_parallel:
        return "micro-batches that hide communication of experts of each other"
    return ""


def simulate(plan: Plan) -> SimulatedPlan:
    """Return the step of the best candidate of a plan, played on its devices and links.

    Raises
    ------
    UnsupportedError
        The plan has no placement: its system is no grid of devices, or too large a one. Or it has
        parts that are not simulated.
    """
    problem, entry = plan.problem, plan.best
    if entry.placement is None:
        raise UnsupportedError(
            f"the plan for {plan.system.name} has no placement to simulate: that takes a mesh or "
            "a torus of devices, such as wafer-6x8 or tpu-v5p-4x4x4"
        )
    if what := not_played(entry.plan_options):
        raise UnsupportedError(f"{what} are priced, but not simulated")
    physical = physical_network(problem)
    price = price_as_placed(problem, entry, physical)
    if price is None:
        raise UnsupportedError("the placement of the plan does not fit the devices of its system")
    step = simulate_step(problem, price, physical)
    return SimulatedPlan(plan, physical, step)
