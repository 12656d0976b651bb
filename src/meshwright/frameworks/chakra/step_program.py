"""The training step of a plan as one program for each rank, and the files that hold them.

Ranks run the tasks of their pipeline stage in the order of the schedule. Parameters are gathered
and gradients summed layer by layer, by the stage of ZeRO; the update comes last. Not included:
launches, the all-reduce of the gradient norm, and traffic to a host.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from meshwright.base.arrays import IntArray, Num, ceil_div, number_at
from meshwright.cost.memory import parameters_on_device
from meshwright.cost.pipeline import micro_batches, send_bytes
from meshwright.cost.problem import Problem
from meshwright.frameworks.chakra.groups import PIPELINE_ENDS, RankMesh
from meshwright.frameworks.chakra.recorder import Form, TraceRecorder, write_stream
from meshwright.frameworks.chakra.steps import Pieces, RankExchange, RankWork, Step
from meshwright.frameworks.chakra.wire import Groups, Node, SharedTrace
from meshwright.schedule.pipeline_schedules import TaskKind, schedules
from meshwright.schedule.tasks import NONE, PassTask, pass_tasks
from meshwright.sharding.dealing import dealt_layers
from meshwright.sharding.local_sizes import degree_of
from meshwright.sharding.strategy import PlanOptions, Recompute, Strategy, StreamForm
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import enumerate_rounds, streams
from meshwright.wafer.messages import (
    DATA_AXES,
    EXPERT_DATA_AXES,
    HeldParams,
    MessageOf,
    data_messages,
)

PARTNER_AXES = ("pp", "tatp")
"""Axes with messages between ranks."""


class DataParallelState:
    """Collectives that keep the parameters of replicas equal, under one stage of ZeRO."""

    def __init__(self, problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> None:
        self.problem, self.plan_options, self.strategy = problem, plan_options, strategy
        self.optimizer = problem.workload.optimizer
        self.exchanges = tuple(map(self._exchanges, range(len(problem.pieces))))
        """All-gathers of parameters, reduce-scatters and sums of gradients of each piece."""

    def held(self, index: int) -> HeldParams[float]:
        """Return the parameters of a piece on one device."""
        piece = self.problem.pieces[index]
        dense, expert = parameters_on_device(piece, self.plan_options, self.strategy)
        is_second = piece is self.problem.graph.head and self.strategy.pp == 1
        if self.problem.graph.tied and is_second:
            dense = dense - self.table_params
        return HeldParams(float(dense), float(expert))

    @property
    def table_params(self) -> float:
        """Parameters of the token table on one device [1]."""
        rows = ceil_div(self.problem.model.vocab_size, self.strategy.tp * self.strategy.tatp)
        return float(rows * self.problem.model.hidden_size)

    def _exchanges(self, index: int) -> tuple[list[RankExchange], ...]:
        held = self.held(index)
        parts = data_messages(self.problem, self.plan_options, self.strategy, held)
        return tuple([_of_state(message) for message in part if message.num_bytes]
                     for part in parts)  # fmt: skip

    def tied_sum(self) -> RankExchange:
        """Return the sum of the gradient of a tied table over both ends of the pipeline."""
        kind = CollectiveKind.ALL_REDUCE
        word = self.optimizer.reduced_gradient_bytes_per_param
        return RankExchange(f"table gradient {kind}", kind, PIPELINE_ENDS, self.table_params * word)

    def update(self, indices: Sequence[int]) -> RankWork:
        """Return the update of the parameters of some pieces: the traffic of the optimizer."""
        is_sharded = self.plan_options.zero_stage > 0
        params = sum(
            held / (degree_of(shard, self.strategy) if is_sharded else 1.0)
            for piece in map(self.held, indices)
            for held, shard in ((piece.dense, DATA_AXES[0]), (piece.expert, EXPERT_DATA_AXES[0]))
        )
        traffic_bytes = params * self.optimizer.step_traffic_bytes_per_param
        seconds = traffic_bytes / float(self.problem.rates.memory_bytes_per_s)
        return RankWork("update", 0.0, traffic_bytes, seconds)


def _of_state(message: MessageOf[Num]) -> RankExchange:
    """Return a message of parameters or of their gradients as a collective."""
    what = "expert weights" if message.axis in EXPERT_DATA_AXES else "weights"
    is_gather = message.kind is CollectiveKind.ALL_GATHER
    name = f"{what} {'' if is_gather else 'gradient '}{message.kind}"
    size = number_at(message.num_bytes)
    return RankExchange(name, message.kind, message.axis, size, is_early=is_gather)


class StepProgram:
    """The programs of all ranks; each is made when it is asked for."""

    def __init__(self, problem: Problem, plan_options: PlanOptions, strategy: Strategy) -> None:
        self.problem, self.plan_options, self.strategy = problem, plan_options, strategy
        self.mesh = RankMesh(strategy, plan_options.axis_order)
        self.pieces = Pieces(problem, plan_options, strategy)
        self.kept = Pieces(problem, replace(plan_options, recompute=Recompute.NONE), strategy)
        """Layers without recomputation, where others recompute."""
        self.state = DataParallelState(problem, plan_options, strategy)
        self.num_stages = int(strategy.pp)
        self.num_runs = self.num_stages * int(strategy.num_virtual_stages)
        self.num_micro_batches = int(micro_batches(problem, strategy))
        self.send_bytes = float(send_bytes(problem, plan_options, strategy))
        self._recorded: set[int] = set()
        """Stages with known groups."""

    @property
    def num_ranks(self) -> int:
        """Ranks 0 to n - 1."""
        return int(self.strategy.num_devices)

    @property
    def groups(self) -> Groups:
        """Ranks of each group that any rank names."""
        for rank in self.mesh.along(0, "pp"):
            if self.mesh.coordinate(rank, "pp") not in self._recorded:
                self.nodes(rank)
        return {name: members for members, name in self.mesh.names.items()}

    def program_of(self, rank: int) -> tuple[object, ...]:
        """Return the stage and the place in a stream, by which ranks run the same program."""
        return tuple(self.mesh.coordinate(rank, axis) for axis in PARTNER_AXES)

    def partners(self, rank: int) -> list[int]:
        """Return the ranks that a rank exchanges messages with, itself among them."""
        return [partner for axis in PARTNER_AXES for partner in self.mesh.along(rank, axis)]

    @cached_property
    def tasks(self) -> list[PassTask]:
        """Passes of all stages, from the schedule."""
        return pass_tasks(
            schedules[self.plan_options.schedule], self.num_stages,
            self.num_runs // self.num_stages, self.num_micro_batches,
        )  # fmt: skip

    @cached_property
    def layers(self) -> list[IntArray]:
        """Kinds of the layers of each run of the pipeline."""
        pattern, num_kinds = self.problem.model.layer_pattern, len(self.problem.graph.layers)
        return dealt_layers(pattern, num_kinds, self.num_runs, self.plan_options)

    @cached_property
    def kept_layers(self) -> frozenset[str]:
        """Names of layers without recomputation, where others of their chunk recompute."""
        if not self.plan_options.recomputes_some:
            return frozenset()
        num_kinds = len(self.problem.graph.layers)
        kept = np.flatnonzero(np.concatenate(self.layers) >= num_kinds).tolist()
        return frozenset(f"L{number}" for number in kept)

    def steps(self, place: str, index: int, kind: TaskKind) -> tuple[Step, ...]:
        """Return the steps of a device in a task with the layer or edge at a place."""
        pieces = self.kept if place in self.kept_layers else self.pieces
        return pieces.steps(index, kind)

    @cached_property
    def places(self) -> list[list[tuple[str, int]]]:
        """Name and piece of the layers and edges of each run of the pipeline, first to last."""
        pattern, num_kinds = self.problem.model.layer_pattern, len(self.problem.graph.layers)
        layers = iter([(f"L{number}", kind) for number, kind in enumerate(pattern)])
        runs = [list(islice(layers, count)) for count in map(len, self.layers)]
        runs[0].insert(0, ("embedding", num_kinds))
        runs[-1].append(("head", num_kinds + 1))
        return runs

    @cached_property
    def form(self) -> Form | None:
        """The form of the tensor streams, as it was priced; None without tatp."""
        links = self.pieces.links
        if links is None:
            return None
        chosen = self.plan_options.stream_form
        if chosen in (StreamForm.AUTO, StreamForm.CYCLE):
            other = StreamForm.RING if chosen is StreamForm.CYCLE else StreamForm.LINE_STREAM
            chosen = StreamForm.CYCLE if links.num_parts > 1 else other
        return Form(enumerate_rounds(streams[str(chosen)], int(self.strategy.tatp)))

    def nodes(self, rank: int) -> list[Node]:
        """Return the program of a rank."""
        self._recorded.add(self.mesh.coordinate(rank, "pp"))
        return _RankWriter(self, rank).nodes()


class _RankWriter:
    """Writes the program of one rank."""

    def __init__(self, program: StepProgram, rank: int) -> None:
        self.program, self.state = program, program.state
        self.recorder = TraceRecorder(rank, program.mesh)
        self.pipeline = program.mesh.along(rank, "pp")
        self.stage = self.pipeline.index(rank)
        self.zero_stage = program.plan_options.zero_stage
        self.complete_gradients: list[int] = []
        """Numbers of the nodes that complete the gradients of streams in the last micro-batch."""

    def nodes(self) -> list[Node]:
        """Return all nodes, task by task."""
        program = self.program
        order = [task for task in program.tasks if task.stage == self.stage]
        last = {task.chunk: n for n, task in enumerate(order) if task.kind in _COMPLETE}
        for number, task in enumerate(order):
            if task.kind is TaskKind.FORWARD:
                self._forward(task)
            else:
                self._backward(task, is_last=last[task.chunk] == number)
        self._end()
        return self.recorder.nodes

    def _forward(self, task: PassTask) -> None:
        """Write down a forward pass through a run of layers, with its receives and sends."""
        self._receive(task, task.position - 1, self.stage - 1, "activations")
        for place, index in self.program.places[task.position]:
            label = f"F{task.micro_batch} {place}"
            self.recorder.begin_piece()
            if self.zero_stage == 3 or (self.zero_stage > 0 and task.micro_batch == 0):
                self._exchange(label, self.state.exchanges[index][0])
            self._play(label, self.program.steps(place, index, TaskKind.FORWARD))
        self._send(task, task.position, "activations")

    def _backward(self, task: PassTask, *, is_last: bool) -> None:
        """Write down a backward pass, or one half of it, and the sums of its gradients."""
        sends = task.kind is not TaskKind.BACKWARD_WEIGHT
        gathers = sends and self.zero_stage == 3 and self.program.plan_options.reshard_after_forward
        self._receive(task, task.position, self.stage + 1, "gradients")
        for place, index in reversed(self.program.places[task.position]):
            label = f"{task.kind}{task.micro_batch} {place}"
            self.recorder.begin_piece()
            if gathers:
                self._exchange(label, self.state.exchanges[index][0])
            self._play(label, self.program.steps(place, index, task.kind))
            if task.kind in _COMPLETE:
                self._sum_gradients(label, index, is_last=is_last)
        self._send(task, task.position - 1, "gradients")

    def _play(self, label: str, steps: Iterable[Step]) -> None:
        """Write down the steps of a pass."""
        for step in steps:
            if isinstance(step, RankWork):
                self.recorder.compute(f"{step.name} {label}", step)
            elif isinstance(step, RankExchange):
                self.recorder.exchange(f"{step.name} {label}", step)
            elif self.program.form is not None:
                name = f"{step.work.name} {label}"
                home = write_stream(self.recorder, self.program.form, name, step)
                self.recorder.arrived += home

    def _exchange(
        self, label: str, steps: Iterable[RankExchange], *, holds_up: bool = True
    ) -> None:
        for step in steps:
            self.recorder.exchange(f"{step.name} {label}", step, holds_up=holds_up)

    def _sum_gradients(self, label: str, index: int, *, is_last: bool) -> None:
        """Write down the sums over data axes: after each backward pass, or after the last one."""
        _, scatters, sums = self.state.exchanges[index]
        software = self.program.problem.workload.software
        is_whole = software.whole_in_pipelines and len(self.pipeline) > 1
        sums_last = self.zero_stage == 3 and software.sums_in_last_pass
        waits = self.zero_stage == 1 or sums_last or is_whole
        if self.zero_stage and (is_last or not waits):
            self._exchange(label, scatters, holds_up=False)
        if is_last:
            self._exchange(label, sums, holds_up=False)
            self.complete_gradients += self.recorder.arrived

    def _receive(self, task: PassTask, boundary: int, stage: int, what: str) -> None:
        """Write down the receive over the boundary behind a run, if there is one."""
        if task.sender != NONE:
            source = self.pipeline[stage % len(self.pipeline)]
            name = f"{what} {task.kind}{task.micro_batch}"
            tag = self._tag(task, boundary)
            self.recorder.receive(name, source, self.program.send_bytes, tag)

    def _send(self, task: PassTask, boundary: int, what: str) -> None:
        """Write down the send over a boundary, if there is one."""
        if task.receiver != NONE:
            target = self.pipeline[task.receiver % len(self.pipeline)]
            name = f"{what} {task.kind}{task.micro_batch}"
            tag = self._tag(task, boundary)
            self.recorder.send(name, target, self.program.send_bytes, tag)

    def _tag(self, task: PassTask, boundary: int) -> int:
        """Return a number for each boundary, direction and micro-batch."""
        is_backward = task.kind is not TaskKind.FORWARD
        return (task.micro_batch * self.program.num_runs + boundary) * 2 + is_backward

    def _end(self) -> None:
        """Write down the sums of the step over other axes, and the update."""
        program = self.program
        mine = [
            place
            for run in range(self.stage, program.num_runs, program.num_stages)
            for place in program.places[run]
        ]
        for place, index in mine:
            self._exchange(f"end {place}", program.pieces.sums(index), holds_up=False)
        ends = (0, program.num_stages - 1)
        if program.problem.graph.tied and program.num_stages > 1 and self.stage in ends:
            self._exchange("end", [self.state.tied_sum()], holds_up=False)
        update = self.state.update([index for _, index in mine])
        self.recorder.finish(update, self.complete_gradients)


_COMPLETE = (TaskKind.BACKWARD, TaskKind.BACKWARD_WEIGHT)
"""Tasks that complete the gradients of a micro-batch."""


PREFIX = "step"
"""Stem of the names of traces, followed by the rank and ``et``."""
GROUPS = "comm_groups.json"
LEVEL = 6
"""Level of the compression; readers know compressed traces by their first bytes, not by name."""


class TraceFiles(Mapping[str, bytes]):
    """Content of each file by name, made when it is asked for, as all may be large.

    Ranks that run the same program come one after the other; their common part is made once.
    """

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        by_program: dict[tuple[object, ...], list[int]] = {}
        for rank in range(program.num_ranks):
            by_program.setdefault(program.program_of(rank), []).append(rank)
        self._first = {rank: ranks[0] for ranks in by_program.values() for rank in ranks}
        self._ranks = {f"{PREFIX}.{rank}.et": rank for rank in self._first}
        self._made: tuple[int, SharedTrace] | None = None
        """The last program that was made, with its first rank."""

    def __getitem__(self, name: str) -> bytes:
        if name == GROUPS:
            groups = {str(group): members for group, members in self._program.groups.items()}
            return (json.dumps(groups, indent=1) + "\n").encode()
        program, rank = self._program, self._ranks[name]
        first = self._first[rank]
        if self._made is None or self._made[0] != first:
            self._made = first, SharedTrace(program.nodes(first))
        partners = zip(program.partners(first), program.partners(rank), strict=True)
        trace = self._made[1].of(program.mesh.groups_as(first, rank), dict(partners))
        return gzip.compress(trace, LEVEL, mtime=0)

    def __iter__(self) -> Iterator[str]:
        yield from self._ranks
        yield GROUPS

    def __len__(self) -> int:
        return len(self._ranks) + 1
