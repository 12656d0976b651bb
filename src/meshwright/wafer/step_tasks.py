"""Messages of a placed plan as transfers that a simulation can run: routes, bytes and waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.group import Group
from meshwright.collectives.registry import affine_candidates, best_algorithm, collective_algorithms
from meshwright.cost.communication import AxisNetwork
from meshwright.network.placement import Ranks
from meshwright.network.routing import Routes, default_routes
from meshwright.network.simulation.tasks import NONE, TaskGraph, TaskGraphBuilder
from meshwright.network.traffic import Demands, placed
from meshwright.schedule.pipeline_schedules import Task, TaskKind
from meshwright.sharding.strategy import PlanOptions
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import TensorStream, streams
from meshwright.topology.network import Network
from meshwright.wafer.contention import (
    joins_grids,
    message_pattern,
    pair_s,
    scalar_group,
    stream_of,
)
from meshwright.wafer.passes import Message, PiecePasses, Work


@dataclass(frozen=True)
class Exchange:
    """One message pattern on some devices; bytes are linear in those of the message."""

    demands: Demands
    """For one byte of the full tensor on one rank."""
    routes: Routes
    fixed_s: float
    """What the steps of the algorithm take besides bytes, latencies and message starts [s]."""
    waits_s_per_byte: float
    """What a byte of the message takes beyond its time on the busiest link: steps that leave links
    idle, relays that store messages whole [s]."""
    fixed_bytes: float
    """What each message start occupies a link for, where messages overlap with computation."""
    groups: IntArray
    """Devices that exchange with each other, (groups, members): they are done together, as steps
    and rounds that wait for each other are. Rows of ``demands`` come group by group."""

    @property
    def rows(self) -> IntArray:
        """Rows of ``demands`` of each group, (groups, rows)."""
        return np.arange(len(self.demands)).reshape(len(self.groups), -1)

    def num_bytes(self, message_bytes: float, times: float) -> FloatArray:
        """Return the bytes of each row for a message that is sent several times [bytes]."""
        sizes: FloatArray = times * (self.demands.num_bytes * message_bytes + self.fixed_bytes)
        return sizes

    def waits_s(self, message_bytes: float, times: float) -> float:
        """Return what a device waits for after its last byte has come [s]."""
        return times * (self.fixed_s + self.waits_s_per_byte * message_bytes)


class Exchanges:
    """The exchanges of one placed strategy, worked out once each."""

    def __init__(
        self, structure: PlanOptions, groups: AxisNetwork, ranks: Ranks, network: Network,
        launch_s: float,
    ) -> None:  # fmt: skip
        self.structure, self.groups, self.ranks, self.network = structure, groups, ranks, network
        self.launch_s = launch_s
        self._known: dict[tuple[object, ...], Exchange] = {}
        self._of: dict[tuple[Message, int], Exchange] = {}

    def of(self, message: Message, stage: int) -> Exchange:
        """Return the exchange of a message among the devices of one pipeline stage."""
        if (message, stage) not in self._of:
            self._of[message, stage] = self._find(message, stage)
        return self._of[message, stage]

    def _find(self, message: Message, stage: int) -> Exchange:
        """Return the exchange of a message; those that differ in their bytes alone share one."""
        group = scalar_group(self.groups.group(message.axis))
        name = stream_of(self.structure, group) if message.is_stream else best_algorithm(
            message.kind, message.num_bytes, group
        )  # fmt: skip
        key = (message.axis, message.kind, name, stage)
        if key not in self._known:
            self._known[key] = self._make(message, name, group, stage)
        return self._known[key]

    @cached_property
    def pipelines(self) -> IntArray:
        """The devices of every pipeline in the order of its stages, (pipelines, stages)."""
        members = self.ranks.groups("pp")
        order = self.ranks.visit(
            "pp",
            closes=self.structure.wraps,
            is_side_by_side=joins_grids(self.groups.levels),
        )
        pipelines: IntArray = members.reshape(len(members), -1)[:, order]
        return pipelines

    @cached_property
    def stages(self) -> tuple[IntArray, ...]:
        """The devices of each pipeline stage, ascending."""
        return tuple(np.sort(devices) for devices in self.pipelines.T)

    def partners(self, stage: int, other: int) -> IntArray:
        """Return the device of another stage that each device of a stage hands its work to."""
        partner = np.full(self.network.num_devices, -1, dtype=np.int64)
        partner[self.pipelines[:, stage]] = self.pipelines[:, other]
        return partner

    def between(self, stage: int, other: int) -> Exchange:
        """Return the exchange of one message from each device of a stage to the other stage."""
        key = ("between", stage, other)
        if key not in self._known:
            source, there = self.pipelines[:, stage], self.pipelines[:, other]
            demands = Demands(
                source, there, np.ones(len(source)), np.arange(len(source)),
                np.zeros(len(source), dtype=np.int64), ("pp",),
            )  # fmt: skip
            group = scalar_group(self.groups.group("pp"))
            fixed_s = affine_candidates(CollectiveKind.SEND, group)[0][1] + self.launch_s
            groups = np.stack((there, source), axis=1)
            self._known[key] = self._exchange(demands, groups, float(fixed_s))
        return self._known[key]

    def _exchange(
        self, demands: Demands, groups: IntArray, fixed_s: float, waits_s_per_byte: float = 0.0,
        fixed_bytes: float = 0.0,
    ) -> Exchange:  # fmt: skip
        """Return the exchange of placed demands."""
        routes = default_routes(self.network, demands)
        return Exchange(demands, routes, fixed_s, waits_s_per_byte, fixed_bytes, groups)

    def _make(self, message: Message, name: str, group: Group[float], stage: int) -> Exchange:
        """Return the exchange of a message."""
        pattern = message_pattern(
            message, self.structure, group, is_side_by_side=joins_grids(self.groups.levels)
        )
        groups = self.ranks.groups(message.axis)
        groups = groups.reshape(len(groups), -1)
        groups = groups[np.isin(groups[:, 0], self.stages[stage])]
        demands = placed(pattern, groups, 1.0, message.axis)
        busiest_s_per_byte = float(pair_s(pattern, group).max())
        if message.is_stream:
            fixed_s, s_per_byte, fixed_bytes = _rounds(streams[name], group)
        else:
            fixed_s, s_per_byte = map(float, collective_algorithms[name].affine(group))
            fixed_s, fixed_bytes = fixed_s + self.launch_s, 0.0
        waits_s_per_byte = max(0.0, float(s_per_byte) - busiest_s_per_byte)
        return self._exchange(demands, groups, float(fixed_s), waits_s_per_byte, fixed_bytes)


def _rounds(stream: TensorStream, group: Group[float]) -> tuple[float, float, float]:
    """Return what N - 1 rounds of a stream take: fixed [s], for each byte [s], and fixed bytes.

    Latencies and message starts of one hop keep the link; those of further hops are waited for,
    and each of them takes the sub-tensor as long as the first, because it is stored whole.
    """
    crossed = [span for span in group.spans if span.size > 1]
    members = prod(span.size for span in crossed)
    slowest = min(span.bandwidth_bytes_per_s for span in crossed)
    start_s = max(s.message_half_bytes / s.bandwidth_bytes_per_s + s.latency_s for s in crossed)
    rounds, hops = members - 1.0, float(stream.num_hops(members))
    s_per_byte = rounds * hops / (members * float(stream.num_parts(members)) * slowest)
    return rounds * (hops - 1.0) * start_s, s_per_byte, rounds * start_s * slowest


COMPUTE = "compute"


@dataclass(frozen=True)
class Run:
    """Some equal layers, or an edge, that pass as one."""

    passes: PiecePasses
    num_layers: float
    data_share: float
    """Of the parameters of its stage [1]."""


@dataclass(frozen=True)
class StepWork:
    """What the stages of a pipeline do in a step."""

    runs: Sequence[Sequence[Sequence[Run]]]
    """Of each stage and chunk, in the order of the forward pass."""
    orders: Sequence[Sequence[Task]]
    """Of each stage, from the schedule."""
    send: Message | None
    before_step: tuple[Message, ...]
    """Data-parallel messages that bring the parameters of a stage for a step."""
    before_forward: tuple[Message, ...]
    """The same before each forward pass, and before each backward pass."""
    before_backward: tuple[Message, ...]
    after_backward: tuple[Message, ...]
    """Those that carry the gradients of each backward pass."""
    after_last_backward: tuple[Message, ...]
    """Those that carry the gradients of the step, once a run has had its last backward pass."""
    overlaps_data: bool
    """Data-parallel messages overlap with computation; otherwise it waits for them."""
    speed: IntArray
    """By device: its row in the seconds of a computation, which has one for each speed."""


def step_tasks(work: StepWork, exchanges: Exchanges) -> TaskGraph:
    """Return the tasks of a step; raises ``ValueError`` where the orders wait for each other."""
    builder = _StepBuilder(work, exchanges)
    builder.run()
    return builder.tasks.build()


class _StepBuilder:
    """State of one enumeration: the last task of every device, and what has been sent."""

    def __init__(self, work: StepWork, exchanges: Exchanges) -> None:
        self.work, self.exchanges = work, exchanges
        self.tasks = TaskGraphBuilder(exchanges.network)
        num = exchanges.network.num_devices
        self.last = np.full(num, NONE, dtype=np.int64)
        self.data: dict[CollectiveKind, IntArray] = {}
        """The last data-parallel message of each device, by kind. Those of a kind go one after the
        other; parameters need not wait for gradients that are not ready."""
        self.begun = self.last.copy()
        """The last task of each device before the run that is at work: parameters of the next
        run may be asked for from then on."""
        self.arrived: dict[tuple[TaskKind, int, int], list[IntArray]] = {}
        self.gathered: dict[tuple[int, int, int], tuple[list[IntArray], list[IntArray]]] = {}
        self.num_stages = len(work.orders)
        self.num_chunks = len(work.runs[0])
        counts = [[t.micro_batch for t in order] for order in work.orders]
        self.last_micro_batch = max(max(count) for count in counts)

    def run(self) -> None:
        """Advance every stage as far as it can until all are done."""
        self._gather_for_step()
        at = [0] * self.num_stages
        moved = True
        while moved:
            moved = False
            for stage, order in enumerate(self.work.orders):
                while at[stage] < len(order) and self._is_ready(order[at[stage]], stage):
                    self._task(order[at[stage]], stage)
                    at[stage] += 1
                    moved = True
        if any(at[s] < len(order) for s, order in enumerate(self.work.orders)):
            raise ValueError("the orders of the pipeline wait for each other")

    def _position(self, task: Task, stage: int) -> int:
        return task.chunk * self.num_stages + stage

    def _is_ready(self, task: Task, stage: int) -> bool:
        """Return whether what a task needs of other stages has been enumerated."""
        position = self._position(task, stage)
        if task.kind is TaskKind.FORWARD:
            return position == 0 or (TaskKind.FORWARD, task.micro_batch, position) in self.arrived
        is_last = position == self.num_stages * self.num_chunks - 1
        if task.kind is TaskKind.BACKWARD_WEIGHT:
            return True
        return is_last or (TaskKind.BACKWARD, task.micro_batch, position) in self.arrived

    def _task(self, task: Task, stage: int) -> None:
        """Enumerate one chunk of one micro-batch, and what it hands on."""
        is_forward = task.kind is TaskKind.FORWARD
        if task.kind is TaskKind.BACKWARD_WEIGHT:
            self._weight_gradients(task, stage)
            return
        position = self._position(task, stage)
        kind = TaskKind.FORWARD if is_forward else TaskKind.BACKWARD
        waits = self.arrived.pop((kind, task.micro_batch, position), [])
        runs = list(enumerate(self.work.runs[stage][task.chunk]))
        for index, run in runs if is_forward else reversed(runs):
            first, rest = self._before(run, stage, task, index, is_forward)
            is_whole = task.kind is TaskKind.BACKWARD
            sums = self._sums(task.micro_batch) if is_whole else ()
            share = self._share_of_first(run)
            if self.work.overlaps_data:
                self._data(sums, run, stage, 1.0 - share, [self.last])
            works = run.passes.forward if is_forward else run.passes.backward
            if task.kind is TaskKind.BACKWARD_INPUT:
                works = tuple(replace(w, compute_s=w.compute_s - w.later_s) for w in works)
            self._pass(works, run, stage, waits + first, rest)
            if self.work.overlaps_data:
                self._data(sums, run, stage, share, [self.last])
            waits = []
        self._hand_on(stage, position, task.micro_batch, is_forward)
        if task.kind is TaskKind.BACKWARD and not self.work.overlaps_data:
            self._sum_and_wait(task, stage)

    def _weight_gradients(self, task: Task, stage: int) -> None:
        """Enumerate the weight gradients that were put off, and their sums over replicas."""
        devices = self.exchanges.stages[stage]
        for run in self.work.runs[stage][task.chunk][::-1]:
            later_s = sum(work.later_s for work in run.passes.backward)
            self.last[devices] = self.tasks.compute(
                devices, self._seconds(later_s, run, devices), after=[self.last[devices]],
                track=COMPUTE, name="weight gradients",
            )  # fmt: skip
            if self.work.overlaps_data:
                self._data(self._sums(task.micro_batch), run, stage, 1.0, [self.last])
        if not self.work.overlaps_data:
            self._sum_and_wait(task, stage)

    def _sum_and_wait(self, task: Task, stage: int) -> None:
        """Enumerate the gradients of a backward pass after it, and let the stage wait for them."""
        sent = [
            wait
            for run in self.work.runs[stage][task.chunk][::-1]
            for wait in self._data(self._sums(task.micro_batch), run, stage, 1.0, [self.last])
        ]
        if sent:
            self._wait_for(self.exchanges.stages[stage], sent)

    def _share_of_first(self, run: Run) -> float:
        """Return the share of the parameters of a run without which it cannot begin or end.

        Those of one layer, where the others travel while it computes.
        """
        return 1.0 / run.num_layers if self.work.overlaps_data else 1.0

    def _pass(
        self, works: Sequence[Work], run: Run, stage: int, waits: list[IntArray],
        at_end: list[IntArray],
    ) -> None:  # fmt: skip
        """Enumerate one run in one direction; ``at_end`` must have come before it is done."""
        devices = self.exchanges.stages[stage]
        self.begun[devices] = self.last[devices]
        for work in self._in_rounds(merged(works)):
            for message in work.messages:
                if not message.overlaps:
                    waits += self._send(message, stage, run.num_layers, waits)
            beside = [
                self._send(message, stage, run.num_layers, waits)
                for message in work.messages
                if message.overlaps
            ]
            seconds = self._seconds(work.compute_s, run, devices)
            after = [self.last[devices], *(wait[devices] for wait in waits)]
            ended = self.tasks.compute(devices, seconds, after=after, track=COMPUTE,
                                       name=work.name)  # fmt: skip
            self.last[devices] = ended
            waits = [entry for sent in beside for entry in sent]
        if waits or at_end:
            self._wait_for(devices, waits + at_end)

    def _seconds(self, compute_s: Any, run: Run, devices: IntArray) -> FloatArray:
        """Return what the layers of a run take on each device, in one operator [s]."""
        seconds: FloatArray = np.atleast_1d(compute_s)[self.work.speed[devices]] * run.num_layers
        return seconds

    def _in_rounds(self, works: Sequence[Work]) -> Iterator[Work]:
        """Yield works with the last round of those that stream apart: nothing overlaps with it.

        Where sub-tensors come while sums leave, something overlaps with every round.
        """
        for work in works:
            streamed = [m for m in work.messages if m.is_stream and m.overlaps]
            if len({message.kind for message in streamed}) != 1:
                yield work
                continue
            last = 1.0 / self.exchanges.ranks.groups(streamed[0].axis)[0].size
            yield work.share(1.0 - last, work.messages)
            yield work.share(last)

    def _wait_for(self, devices: IntArray, waits: Sequence[IntArray]) -> None:
        """Let devices wait for messages before they go on."""
        after = [self.last[devices], *(wait[devices] for wait in waits)]
        self.last[devices] = self.tasks.compute(devices, 0.0, after=after, track=COMPUTE,
                                                name="wait")  # fmt: skip

    def _send(
        self, message: Message, stage: int, times: float, waits: Sequence[IntArray]
    ) -> list[IntArray]:
        """Enumerate a message, and return what each device waits for."""
        exchange = self.exchanges.of(message, stage)
        return [self._exchange(exchange, message, times, [self.last, *waits], message.axis)]

    def _exchange(
        self, exchange: Exchange, message: Message, times: float, after: Sequence[IntArray],
        track: str,
    ) -> IntArray:  # fmt: skip
        """Enumerate transfers and what groups wait for, and return what each device waits for."""
        source = exchange.demands.source
        sent = self.tasks.transfer(
            exchange.routes,
            exchange.num_bytes(message.num_bytes, times),
            after=[wait[source] for wait in after],
            track=track,
            name=str(message.kind),
        )
        ended = self.tasks.compute(
            exchange.groups[:, 0], exchange.waits_s(message.num_bytes, times),
            after=sent[exchange.rows].T, track=f"{track} latency", name=f"{message.kind} latency",
        )  # fmt: skip
        done = np.full(len(self.last), NONE, dtype=np.int64)
        done[exchange.groups] = ended[:, None]
        return done

    def _hand_on(self, stage: int, position: int, micro_batch: int, is_forward: bool) -> None:
        """Send activations or gradients to the stage of the next or the previous chunk."""
        after = position + (1 if is_forward else -1)
        if self.work.send is None or not 0 <= after < self.num_stages * self.num_chunks:
            return
        kind = TaskKind.FORWARD if is_forward else TaskKind.BACKWARD
        here = self.exchanges.stages[stage]
        exchange = self.exchanges.between(stage, after % self.num_stages)
        done = self._exchange(exchange, self.work.send, 1.0, [self.last], "pp")
        self.arrived[kind, micro_batch, after] = [done]
        if not self.exchanges.structure.wraps:
            partners = self.exchanges.partners(stage, after % self.num_stages)
            received = np.full(len(self.last), NONE, dtype=np.int64)
            received[here] = done[partners[here]]
            self._wait_for(here, [received])

    def _gather_for_step(self) -> None:
        """Bring parameters before the first forward pass, run by run."""
        for stage, chunks in enumerate(self.work.runs):
            for chunk, runs in enumerate(chunks):
                for index, run in enumerate(runs):
                    first, rest = self._gather(self.work.before_step, run, stage, [])
                    self.gathered[stage, chunk, index] = first, rest
                    if first and not self.work.overlaps_data:
                        self._wait_for(self.exchanges.stages[stage], first)

    def _before(
        self, run: Run, stage: int, task: Task, index: int, is_forward: bool
    ) -> tuple[list[IntArray], list[IntArray]]:
        """Return what a run waits for before it begins and before it ends: its parameters."""
        messages = self.work.before_forward if is_forward else self.work.before_backward
        none: tuple[list[IntArray], list[IntArray]] = ([], [])
        key = (stage, task.chunk, index)
        known = self.gathered.pop(key, none) if is_forward else none
        after = self.begun if self.work.overlaps_data else self.last
        asked = self._gather(messages, run, stage, [after])
        return known[0] + asked[0], known[1] + asked[1]

    def _gather(
        self, messages: Sequence[Message], run: Run, stage: int, after: Sequence[IntArray]
    ) -> tuple[list[IntArray], list[IntArray]]:
        """Return the parameters of the first layer of a run, and those of the others."""
        share = self._share_of_first(run)
        first = self._data(messages, run, stage, share, after)
        return first, self._data(messages, run, stage, 1.0 - share, after)

    def _sums(self, micro_batch: int) -> Sequence[Message]:
        """Return the messages that carry the gradients of a backward pass."""
        is_last = micro_batch == self.last_micro_batch
        last = self.work.after_last_backward if is_last else ()
        return (*self.work.after_backward, *last)

    def _data(
        self, messages: Sequence[Message], run: Run, stage: int, share: float,
        after: Sequence[IntArray],
    ) -> list[IntArray]:  # fmt: skip
        """Enumerate data-parallel messages of a part of a run: one after the other."""
        sent: list[IntArray] = []
        for message in messages if run.data_share * share > 0 else ():
            num_bytes = message.num_bytes * run.data_share * share
            part = Message(message.axis, message.kind, num_bytes)
            exchange = self.exchanges.of(part, stage)
            before = self.data.get(message.kind, np.full_like(self.last, NONE))
            done = self._exchange(exchange, part, 1.0, [before, *sent[-1:], *after], "dp")
            self.data[message.kind] = np.where(done != NONE, done, before)
            sent.append(done)
        return sent


def merged(works: Sequence[Work]) -> list[Work]:
    """Return the works of a pass with those that send nothing added to the one before.

    What overlaps with an operator belongs to that operator.
    """
    merged_works: list[Work] = []
    for work in works:
        before = merged_works[-1] if merged_works else None
        is_alone = before is None or any(message.overlaps for message in before.messages)
        if before is None or is_alone or work.messages:
            merged_works.append(work)
        else:
            merged_works[-1] = replace(before, compute_s=before.compute_s + work.compute_s)
    return merged_works
