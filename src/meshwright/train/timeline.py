"""A training step over time: the tasks of each pipeline stage, and its memory.

Passes take their priced time, each stage with its own layers, and are played in the order of the
schedule. Data-parallel communication that shows in a pass comes with it; communication that shows
once, at the first pass or after the last one of a stage; then, on all stages at once, the parts
with no place in time: update, host traffic, slowdown by overlap, jitter. Nothing is drawn or
written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, number_at, read_only
from meshwright.base.records import Brief, Rows, Shown
from meshwright.cost.communication import EXPOSED_PART, AxisNetwork
from meshwright.cost.layer import (
    LayerCost,
    price_layers,
    prices_of,
    recomputes_of,
    split_backward,
)
from meshwright.cost.memory import StageState, shard_degrees, step_memory
from meshwright.cost.parts import TimePart
from meshwright.cost.pipeline import send_bytes
from meshwright.cost.problem import Problem
from meshwright.cost.step import GradientSync, Priced, price_one, step_collectives, step_sync
from meshwright.schedule.pipeline_schedules import TaskKind, schedules
from meshwright.schedule.tasks import KINDS, PassTimeline, StageTimes, build_timeline
from meshwright.sharding.dealing import dealt_layers
from meshwright.sharding.strategy import PlanOptions, ScheduleKind
from meshwright.train.answer import Plan


class StepTask(StrEnum):
    """Kind of task of a stage."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Gradients of inputs and weights in one pass."""
    BACKWARD_INPUT = "input gradient"
    BACKWARD_WEIGHT = "weight gradient"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    LAUNCH = "launch"
    """Waiting for the host to launch kernels."""
    TP = "TP communication"
    CP = "CP communication"
    EP = "EP communication"
    TATP = "TATP streams"
    PP = "PP communication"
    DP = "DP communication"
    OFFLOAD = "host traffic"
    OVERLAP_SLOWDOWN = "slowdown by overlap"
    JITTER = "jitter"
    THROTTLE = "throttle"

    @property
    def is_communication(self) -> bool:
        """Whether the device waits for a link, not for its arithmetic."""
        return self in _COMMUNICATION


_COMMUNICATION = frozenset(
    {StepTask.TP, StepTask.CP, StepTask.EP, StepTask.TATP, StepTask.PP, StepTask.DP,
     StepTask.OFFLOAD}
)  # fmt: skip
TASKS = tuple(StepTask)
_PASS = {
    TaskKind.FORWARD: StepTask.FORWARD, TaskKind.BACKWARD: StepTask.BACKWARD,
    TaskKind.BACKWARD_INPUT: StepTask.BACKWARD_INPUT,
    TaskKind.BACKWARD_WEIGHT: StepTask.BACKWARD_WEIGHT,
}  # fmt: skip
_OF_PART = {
    TimePart.TP_COMM: StepTask.TP, TimePart.CP_COMM: StepTask.CP, TimePart.EP_COMM: StepTask.EP,
    TimePart.TATP_STREAM: StepTask.TATP, TimePart.PP_COMM: StepTask.PP,
}  # fmt: skip
_AT_END = {
    TimePart.OFFLOAD: StepTask.OFFLOAD, TimePart.OPTIMIZER: StepTask.OPTIMIZER,
    TimePart.OVERLAP_SLOWDOWN: StepTask.OVERLAP_SLOWDOWN, TimePart.JITTER: StepTask.JITTER,
    TimePart.THROTTLE: StepTask.THROTTLE,
}  # fmt: skip
PASSES = tuple(TASKS.index(task) for task in _PASS.values())
"""Numbers of the tasks that take a micro-batch through the layers of a chunk."""
_RELEASES = (TaskKind.BACKWARD, TaskKind.BACKWARD_WEIGHT)


@dataclass(frozen=True)
class StageMemory(Brief):
    """Memory of one device of a stage over a step, constant between changes."""

    at_s: FloatArray
    """Times of the changes, from 0 on [s]."""
    total_bytes: FloatArray
    """Memory of the stage from each time on [bytes]."""
    resident_bytes: float
    """Constant part of the memory: all but activations of micro-batches in flight [bytes]."""

    @property
    def peak_bytes(self) -> float:
        """Peak memory [bytes]."""
        return float(self.total_bytes.max())


@dataclass(frozen=True)
class StageTimeline(Brief):
    """Tasks and memory of a stage in a step."""

    busy_s: float
    idle_s: float
    by_task_s: Mapping[str, float]
    memory_peak_bytes: float
    memory_resident_bytes: float


@dataclass(frozen=True)
class StepTimeline(Shown):
    """A step as columns: one row for each task of a stage; tasks of one stage never overlap."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "plan": "plan.best.text", "fidelity": "fidelity", "step_time_s": "step_time_s",
        "priced_s": "priced_s", "num_micro_batches": "num_micro_batches",
        "num_tasks": "num_tasks", "stages": "stages",
    }  # fmt: skip
    plan: Plan
    stage: IntArray
    task: IntArray
    """Index in ``TASKS``."""
    micro_batch: IntArray
    """Micro-batch of each task; -1: none."""
    chunk: IntArray
    in_pass: IntArray
    """Index in ``TASKS`` of the pass around each task; -1: none."""
    start_s: FloatArray
    end_s: FloatArray
    memory: tuple[StageMemory, ...]
    """Memory of each stage; a stage between the ends has that of the fullest of them."""
    priced_s: float
    """Step time of the price, which takes all stages besides the slowest as their mean [s]."""
    fidelity: str
    """Fidelity of passes and links: ``closed_form`` or ``contended``. The order is simulated."""
    memory_capacity_bytes: float
    num_micro_batches: int

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline."""
        return len(self.memory)

    @property
    def step_time_s(self) -> float:
        """End of the last task [s]."""
        return float(self.end_s.max())

    @property
    def difference(self) -> float:
        """Time that playing the schedule adds to the priced step time, as a fraction."""
        return self.step_time_s / self.priced_s - 1.0

    @cached_property
    def busy_s(self) -> FloatArray:
        """Busy time of each stage [s]."""
        seconds: FloatArray = np.bincount(
            self.stage, self.end_s - self.start_s, self.num_stages
        ).astype(np.float64)
        return seconds

    @property
    def bubble_s(self) -> FloatArray:
        """Idle time of each stage [s]."""
        idle_s: FloatArray = self.step_time_s - self.busy_s
        return idle_s

    def seconds_by_task(self) -> dict[StepTask, FloatArray]:
        """Return the busy time of each stage by kind of task, for the kinds that occur [s]."""
        at = self.stage * len(TASKS) + self.task
        seconds = np.bincount(at, self.end_s - self.start_s, self.num_stages * len(TASKS))
        table: FloatArray = seconds.reshape(self.num_stages, len(TASKS)).astype(np.float64)
        return {
            task: table[:, number] for number, task in enumerate(TASKS) if table[:, number].any()
        }

    @property
    def num_tasks(self) -> int:
        """Number of tasks of all stages."""
        return len(self.stage)

    @property
    def stages(self) -> tuple[StageTimeline, ...]:
        """Tasks and memory of each stage, summed over the step."""
        seconds = self.seconds_by_task()
        return tuple(
            StageTimeline(
                float(self.busy_s[stage]),
                float(self.bubble_s[stage]),
                {str(task): float(each[stage]) for task, each in seconds.items()},
                memory.peak_bytes,
                memory.resident_bytes,
            )
            for stage, memory in enumerate(self.memory)
        )

    def rows(self) -> Rows:
        """Return the tasks, stage by stage in the order of time."""
        names = [str(task) for task in TASKS]
        rows = zip(self.stage.tolist(), self.task.tolist(), self.micro_batch.tolist(),
                   self.chunk.tolist(), self.start_s.tolist(), self.end_s.tolist(),
                   strict=True)  # fmt: skip
        return [
            {"stage": stage, "task": names[task], "micro_batch": None if batch < 0 else batch,
             "chunk": None if chunk < 0 else chunk, "start_s": start_s, "end_s": end_s}
            for stage, task, batch, chunk, start_s, end_s in rows
        ]  # fmt: skip


def plan_timeline(plan: Plan) -> StepTimeline:
    """Return the step of the best candidate of a plan over time, in closed form."""
    problem, best = plan.problem, plan.best
    priced = price_one(problem, best.plan_options, best.strategy)
    network = problem.network(priced.plan_options.axis_order, priced.strategy)
    return step_timeline(plan, problem, priced, network, fidelity="closed_form")


def step_timeline(
    plan: Plan, problem: Problem, priced: Priced, network: AxisNetwork, *, fidelity: str
) -> StepTimeline:
    """Return the step of the best candidate of a plan over time.

    Parameters
    ----------
    problem
        The question at the pace of the devices.
    priced
        Columns of one row.
    network
        The groups of its axes, as they were priced.
    """
    plan_options, strategy = priced.plan_options, priced.strategy
    stages, chunks = int(number_at(strategy.pp)), int(number_at(strategy.num_virtual_stages))
    num_micro_batches = round(number_at(priced.pipeline.num_micro_batches))
    tables = price_layers(
        problem, plan_options, network, recomputes_of(plan_options),
        uses_tatp=bool((strategy.tatp > 1).any()),
    )  # fmt: skip
    layers = split_backward(prices_of(plan_options, tables), plan_options)
    links = step_collectives(problem, network)
    send_s = number_at(links.send.time_s(send_bytes(problem, plan_options, strategy), 1.0))
    overlaps_sends = problem.workload.software.overlaps_sends
    shards = shard_degrees(problem, strategy)
    sync = step_sync(problem, plan_options, shards, priced.pipeline, links.sync)
    passes = _pass_parts(
        layers, _counts(problem, plan_options, stages, chunks), sync,
        splits=plan_options.schedule is ScheduleKind.ZERO_BUBBLE,
    )  # fmt: skip
    is_blocking = not (plan_options.schedule is ScheduleKind.INTERLEAVED and overlaps_sends)
    hidden: Mapping[TaskKind, FloatArray] = {
        kind: 0.0 * seconds for kind, seconds in passes.paired_s.items()
    }
    if plan_options.overlap_expert_parallel:
        hidden = passes.paired_s
    line = build_timeline(
        schedules[plan_options.schedule], stages, chunks, num_micro_batches,
        StageTimes(
            passes.total_s(TaskKind.FORWARD), passes.total_s(TaskKind.BACKWARD_INPUT),
            passes.total_s(TaskKind.BACKWARD_WEIGHT), send_s * (stages > 1),
            blocking_sends=is_blocking, paired_forward_s=hidden[TaskKind.FORWARD],
            paired_backward_s=hidden[TaskKind.BACKWARD],
        ),
    )  # fmt: skip
    first_s = number_at(sync.first_forward.exposed_s)
    rows = _Rows()
    rows.add_each(StepTask.DP, np.zeros(stages), first_s)
    _add_passes(rows, line, passes, hidden, first_s, send_s * (is_blocking and stages > 1))
    ends_s = np.zeros(stages)
    np.maximum.at(ends_s, line.stage, line.end_s + first_s)
    _add_end(rows, priced, sync, ends_s)
    return StepTimeline(
        plan,
        **rows.columns(),
        memory=_memory(problem, priced, line, first_s, chunks),
        priced_s=number_at(priced.step.time.total_s),
        fidelity=fidelity,
        memory_capacity_bytes=problem.system.chip.main_memory.capacity_bytes,
        num_micro_batches=num_micro_batches,
    )


def _counts(problem: Problem, plan_options: PlanOptions, stages: int, chunks: int) -> FloatArray:
    """Return the pieces of the model in each chunk, (stages, chunks, pieces) [1]."""
    pattern, num_kinds = problem.model.layer_pattern, len(problem.graph.layers)
    counts = np.zeros((stages * chunks, num_kinds * plan_options.kinds_of_recomputation + 2))
    for chunk, kinds in enumerate(dealt_layers(pattern, num_kinds, len(counts), plan_options)):
        np.add.at(counts[chunk], kinds, 1.0)
    everywhere = stages if plan_options.vocabulary_parallel else 1
    counts[:everywhere, -2] = 1.0
    counts[-everywhere:, -1] = 1.0
    # Chunk c of the model belongs to stage c mod ``stages``.
    dealt: FloatArray = counts.reshape(chunks, stages, -1).swapaxes(0, 1)
    return dealt


class _Passes(NamedTuple):
    """The parts of each kind of pass, in order: seconds of each chunk, (stages, chunks) [s]."""

    parts: Mapping[TaskKind, Sequence[tuple[StepTask, FloatArray]]]
    paired_s: Mapping[TaskKind, FloatArray]
    """Communication of experts in a forward and in a backward pass that another pass could hide
    [s]."""

    def total_s(self, kind: TaskKind) -> FloatArray:
        """Return the seconds of a pass."""
        total: FloatArray = np.sum([seconds for _, seconds in self.parts[kind]], axis=0)
        return total


def _pass_parts(
    layers: Sequence[LayerCost], counts: FloatArray, sync: GradientSync, *, splits: bool
) -> _Passes:
    """Return the parts of the passes of each chunk.

    The part of a pass that is no computation is known; its share of each axis is taken from both
    passes together.

    Parameters
    ----------
    splits
        Whether weight gradients are a separate pass.
    """
    num_chunks = counts.shape[1]

    def of(name: str) -> FloatArray:
        summed: FloatArray = counts @ np.array([number_at(getattr(c, name)) for c in layers])
        return summed

    total_s, forward_total_s, forward_s = of("total_s"), of("forward_total_s"), of("forward_s")
    input_s, weight_s, recompute_s = (
        of(name) for name in ("input_gradient_s", "weight_gradient_s", "recompute_s")
    )
    waits, weight_launch_s = {StepTask.LAUNCH: of("launch_s")}, splits * of("weight_launch_s")
    waits |= {_OF_PART[part]: of(name) for name, part in EXPOSED_PART.items()}
    waits_s = np.sum(list(waits.values()), axis=0)
    forward_waits_s = forward_total_s - forward_s

    def shares(seconds: FloatArray) -> list[tuple[StepTask, FloatArray]]:
        share = np.divide(seconds, waits_s, out=np.zeros_like(seconds), where=waits_s > 0)
        return [(task, share * both_s) for task, both_s in waits.items()]

    def synced(seconds: float) -> FloatArray:
        return np.full_like(total_s, seconds / num_chunks)

    copied_s = number_at(sync.copies.exposed_s) / max(number_at(sync.num_micro_batches), 1.0)
    before_s = synced(number_at(sync.each_forward.exposed_s))
    after_s = synced(number_at(sync.each_backward.exposed_s) + copied_s)
    forward_waits, backward_waits = shares(forward_waits_s), shares(waits_s - forward_waits_s)
    input_waits = shares(waits_s - forward_waits_s - weight_launch_s)
    ep_s, paired_s = waits[StepTask.EP], of("paired_s")
    paired = {
        kind: np.divide(dict(shown)[StepTask.EP] * paired_s, ep_s, out=0.0 * ep_s, where=ep_s > 0)
        for kind, shown in (
            (TaskKind.FORWARD, forward_waits), (TaskKind.BACKWARD, backward_waits),
        )
    }  # fmt: skip
    ahead = [(StepTask.RECOMPUTE, recompute_s)]
    return _Passes(
        {
            TaskKind.FORWARD: [
                (StepTask.DP, before_s), (StepTask.FORWARD, forward_s), *forward_waits
            ],
            TaskKind.BACKWARD: [
                *ahead, (StepTask.BACKWARD, input_s + weight_s), *backward_waits,
                (StepTask.DP, after_s),
            ],
            TaskKind.BACKWARD_INPUT: [
                *ahead, (StepTask.BACKWARD_INPUT, input_s), *input_waits,
                *([] if splits else [(StepTask.DP, after_s)]),
            ],
            TaskKind.BACKWARD_WEIGHT: [
                (StepTask.BACKWARD_WEIGHT, weight_s), (StepTask.LAUNCH, weight_launch_s),
                *([(StepTask.DP, after_s)] if splits else []),
            ],
        },
        paired,
    )  # fmt: skip


class _Rows:
    """Columns of tasks while they are collected."""

    def __init__(self) -> None:
        self._whole: list[tuple[IntArray, ...]] = []
        self._times: list[tuple[FloatArray, FloatArray]] = []

    def add(
        self, task: StepTask, stage: IntArray, micro_batch: IntArray, chunk: IntArray,
        start_s: FloatArray, seconds: FloatArray, in_pass: int = -1,
    ) -> None:  # fmt: skip
        """Add tasks of one kind; tasks without time are left out."""
        kept = seconds > 0
        kind, whole = (np.full(int(kept.sum()), n) for n in (TASKS.index(task), in_pass))
        self._whole.append((stage[kept], kind, micro_batch[kept], chunk[kept], whole))
        self._times.append((start_s[kept], (start_s + seconds)[kept]))

    def add_each(self, task: StepTask, start_s: FloatArray, seconds: float) -> None:
        """Add one task without a micro-batch on each stage."""
        stage = np.arange(len(start_s))
        none = np.full(len(stage), -1)
        self.add(task, stage, none, none, start_s, np.full(len(stage), seconds))

    def columns(self) -> dict[str, Any]:
        """Return the columns by name, stage by stage in order of time; read-only."""
        names = ("stage", "task", "micro_batch", "chunk", "in_pass", "start_s", "end_s")
        joined = [np.concatenate(column) for block in (self._whole, self._times)
                  for column in zip(*block, strict=True)]  # fmt: skip
        order = np.lexsort((joined[5], joined[0]))
        return {name: read_only(c[order]) for name, c in zip(names, joined, strict=True)}


def _add_passes(
    rows: _Rows, line: PassTimeline, passes: _Passes, hidden_s: Mapping[TaskKind, FloatArray],
    first_s: float, send_s: float,
) -> None:  # fmt: skip
    """Add the parts of each pass in a row, and the send that it waits for."""
    for number, kind in enumerate(KINDS):
        at = np.flatnonzero(line.kind == number)
        stage, micro_batch, chunk = line.stage[at], line.micro_batch[at], line.chunk[at]
        begin_s = line.start_s[at] + first_s
        parts = {task: np.zeros(len(at)) for task, _ in passes.parts[kind]}
        for task, seconds in passes.parts[kind]:
            parts[task] = parts[task] + seconds[stage, chunk]
        if kind in hidden_s:
            # Beside an opposite pass, a pass is shorter by the expert time that the other hides.
            less_s = hidden_s[kind][stage, chunk]
            missing_s = sum(parts.values()) - (line.end_s[at] - line.start_s[at])
            parts[StepTask.EP] = parts[StepTask.EP] - less_s * (missing_s + send_s > less_s / 2)
        if kind is not TaskKind.BACKWARD_WEIGHT:
            parts[StepTask.PP] = parts[StepTask.PP] + send_s
        for task, seconds in parts.items():
            rows.add(task, stage, micro_batch, chunk, begin_s, seconds, TASKS.index(_PASS[kind]))
            begin_s = begin_s + seconds


def _add_end(rows: _Rows, priced: Priced, sync: GradientSync, ends_s: FloatArray) -> None:
    """Add the work after the passes: sums of each stage, then the rest on all stages at once."""
    once = {
        StepTask.TP: priced.pipeline.tp_per_step_s,
        StepTask.DP: sync.at_end.exposed_s + priced.pipeline.tied_sync_s,
    }
    together = {task: priced.step.time[part] for part, task in _AT_END.items()}
    for task, column in (once | together).items():
        if task in together:
            ends_s = np.full_like(ends_s, ends_s.max())
        seconds = number_at(column)
        rows.add_each(task, ends_s, seconds)
        ends_s = ends_s + seconds


def _memory(
    problem: Problem, priced: Priced, line: PassTimeline, first_s: float, num_chunks: int
) -> tuple[StageMemory, ...]:
    """Return the memory of each stage: its activations come and go with its passes.

    Memory that a schedule holds beyond its passes (a barrier, a chunk at work beside another) is
    there from the first of them to the last.
    """
    stages = int(line.stage[-1]) + 1
    schedule, plan_options = schedules[priced.plan_options.schedule], priced.plan_options
    num_micro_batches = number_at(priced.pipeline.num_micro_batches)
    kind = np.array(KINDS)[line.kind]
    starts, ends = kind == TaskKind.FORWARD, np.isin(kind, _RELEASES)
    found = []
    for stage in range(stages):
        position = 0 if stage == 0 else 2 if stage == stages - 1 else 1
        state = priced.pipeline.states[position]
        full = number_at(priced.step.memory[position].total_bytes)
        empty = _bytes_in_flight(problem, plan_options, priced, state, 0.0)
        in_flight = number_at(state.in_flight)
        # Where ranks share work unequally, the bytes in flight are those of the fullest one.
        of_one = (
            _bytes_in_flight(problem, plan_options, priced, state, in_flight) - empty
        ) / in_flight
        mine = line.stage == stage
        at_s = np.concatenate((line.start_s[mine & starts], line.end_s[mine & ends])) + first_s
        change = np.repeat([1.0, -1.0], [(mine & starts).sum(), (mine & ends).sum()]) / num_chunks
        # A pass that ends frees its activations before the next one begins.
        order = np.lexsort((change, at_s))
        held = np.cumsum(change[order])
        index = min(stage, 1) if position < 2 else stages - 1
        most = number_at(schedule.peak_in_flight(index, stages, num_chunks, num_micro_batches))
        held = np.where(held > _ROUNDING, held + (in_flight - most), 0.0)
        held = np.concatenate(([0.0], np.where(held > in_flight - _ROUNDING, in_flight, held)))
        found.append(
            StageMemory(
                read_only(np.concatenate(([0.0], at_s[order]))),
                read_only(full - of_one * (in_flight - held)),
                full - of_one * in_flight,
            )
        )
    return tuple(found)


_ROUNDING = 1e-9


def _bytes_in_flight(
    problem: Problem, plan_options: PlanOptions, priced: Priced, state: StageState, in_flight: float
) -> float:
    """Return the memory of a stage with a number of micro-batches in flight [bytes]."""
    shards = shard_degrees(problem, priced.strategy)
    one = replace(state, in_flight=np.array([in_flight]))
    return number_at(step_memory(problem, plan_options, shards, [one])[0].total_bytes)
