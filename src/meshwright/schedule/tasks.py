"""The passes of a step as tasks: the one enumeration of a step, and when each of them runs.

Players, pictures and traces of a step read it; they add messages and links of their own. Played
with given durations no network is simulated: a send is a delay (beside the computation) or a part
of the pass that it follows (blocking).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.base.errors import MeshwrightError
from meshwright.schedule.pipeline_schedules import PipelineSchedule, TaskKind

NONE = -1
"""Number of no task."""


class PassTask(NamedTuple):
    """One pass of a micro-batch through a chunk of a stage."""

    stage: int
    kind: TaskKind
    micro_batch: int
    chunk: int
    position: int
    """Place of its layers in the model: chunk x stages + stage."""
    needs: tuple[int, ...]
    """Numbers of the tasks that it waits for, besides the task before it on its stage."""
    sender: int
    """Number of the task in ``needs`` that sends its input from a neighbouring position."""
    receiver: int
    """Position that it sends its output to."""


def pass_tasks(
    schedule: type[PipelineSchedule], num_stages: int, num_virtual_stages: int,
    num_micro_batches: int,
) -> list[PassTask]:  # fmt: skip
    """Return the tasks of a step, each after the tasks that it needs; those of a stage in order.

    A forward pass needs that of the layers before, an input gradient that of the layers behind and
    its own forward pass, a weight gradient its input gradient.

    Raises
    ------
    MeshwrightError
        When the orders wait for each other (deadlock); the message names the missing pass.
    """
    shape = (num_stages, num_virtual_stages, num_micro_batches)
    orders = [schedule.order(stage, *shape) for stage in range(num_stages)]
    last = num_stages * num_virtual_stages - 1
    tasks: list[PassTask] = []
    outputs: dict[tuple[bool, int, int], int] = {}
    """Task by whether it is forward, micro-batch and position."""
    at = [0] * num_stages
    before = -1
    while before < len(tasks):
        before = len(tasks)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, micro_batch, chunk = order[at[stage]]
                position = chunk * num_stages + stage
                is_forward = kind is TaskKind.FORWARD
                ahead = position + (1 if is_forward else -1)
                behind = position - (1 if is_forward else -1)
                sends = kind is not TaskKind.BACKWARD_WEIGHT
                receives = sends and 0 <= behind <= last
                inputs = [] if is_forward else [(sends, micro_batch, position)]
                inputs += [(is_forward, micro_batch, behind)] * receives
                needs = tuple(outputs.get(key, NONE) for key in inputs)
                if NONE in needs:
                    break
                if sends:
                    outputs[is_forward, micro_batch, position] = len(tasks)
                sender = needs[-1] if receives else NONE
                receiver = ahead if sends and 0 <= ahead <= last else NONE
                tasks.append(
                    PassTask(stage, kind, micro_batch, chunk, position, needs, sender, receiver)
                )
                at[stage] += 1
    stuck = [stage for stage, order in enumerate(orders) if at[stage] < len(order)]
    if stuck:
        kind, micro_batch, chunk = orders[stuck[0]][at[stuck[0]]]
        raise MeshwrightError(
            f"the pipeline order deadlocks: stages {stuck} wait; stage {stuck[0]} cannot start "
            f"{kind} of micro-batch {micro_batch}, chunk {chunk}"
        )
    return tasks


Seconds = float | Sequence[float] | FloatArray
"""Seconds of one micro-batch through a stage: one value, or one for each stage, split evenly over
its chunks; or one for each chunk, (stages, chunks)."""


KINDS = tuple(TaskKind)


@dataclass(frozen=True)
class StageTimes:
    """Durations of one micro-batch through the layers of a stage [s]."""

    forward_s: Seconds
    backward_input_s: Seconds
    backward_weight_s: Seconds
    send_s: float = 0.0
    """Seconds to hand one micro-batch to the neighbouring stage."""
    blocking_sends: bool = False
    """The stage waits while it sends; otherwise sends run beside the computation."""
    paired_forward_s: Seconds = 0.0
    """Seconds saved by each forward pass of a stage but the first, which runs beside an opposite
    pass of another micro-batch."""
    paired_backward_s: Seconds = 0.0
    """Seconds saved by each backward pass of a stage but the last, for the same reason."""


@dataclass(frozen=True)
class PassTimeline:
    """One row for each pass, stage by stage in their order; read-only columns."""

    stage: IntArray
    kind: IntArray
    """Index in ``KINDS``."""
    micro_batch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray
    """Blocking sends included."""

    @property
    def makespan_s(self) -> float:
        """Time from the first start to the last end [s]."""
        return float(self.end_s.max() - self.start_s.min())


def build_timeline(
    schedule: type[PipelineSchedule],
    num_stages: int,
    num_virtual_stages: int,
    num_micro_batches: int,
    times: StageTimes,
) -> PassTimeline:
    """Play the tasks of all stages and return when each pass runs.

    A pass starts when its stage is free and its inputs have arrived.

    Raises
    ------
    MeshwrightError
        When the orders wait for each other (deadlock); the message names the missing pass.
    """
    tasks = pass_tasks(schedule, num_stages, num_virtual_stages, num_micro_batches)
    by_stage = sorted(range(len(tasks)), key=lambda number: tasks[number].stage)
    stage, kind, micro_batch, chunk = np.array(
        [(task.stage, KINDS.index(task.kind), task.micro_batch, task.chunk)
         for task in (tasks[number] for number in by_stage)], dtype=np.int64,
    ).T  # fmt: skip
    durations_s = _durations_s(times, num_stages, num_virtual_stages)[kind, stage, chunk]
    durations_s = durations_s - _paired_s(times, stage, kind, chunk, num_virtual_stages)
    delay_s = 0.0 if times.blocking_sends or num_stages == 1 else times.send_s
    seconds = np.empty(len(tasks))
    seconds[by_stage] = durations_s
    start_s = np.array(_starts_s(tasks, seconds.tolist(), delay_s))[by_stage]
    columns = (stage, kind, micro_batch, chunk, start_s, start_s + durations_s)
    return PassTimeline(*(read_only(np.ascontiguousarray(column)) for column in columns))


def _durations_s(times: StageTimes, num_stages: int, num_virtual_stages: int) -> FloatArray:
    """Return the time of one chunk, blocking sends included, (kinds, stages, chunks) [s]."""
    blocked_s = times.send_s if times.blocking_sends and num_stages > 1 else 0.0
    forward_s, input_s, weight_s = (
        _by_chunk(seconds, num_stages, num_virtual_stages)
        for seconds in (times.forward_s, times.backward_input_s, times.backward_weight_s)
    )
    by_kind = {
        TaskKind.FORWARD: forward_s + blocked_s,
        TaskKind.BACKWARD: input_s + weight_s + blocked_s,
        TaskKind.BACKWARD_INPUT: input_s + blocked_s,
        TaskKind.BACKWARD_WEIGHT: weight_s,
    }
    return np.stack([by_kind[kind] for kind in KINDS])


def _by_chunk(seconds: Seconds, num_stages: int, num_virtual_stages: int) -> FloatArray:
    """Return the time of each chunk, (stages, chunks) [s]."""
    values = np.asarray(seconds, dtype=np.float64)
    if values.ndim == 2:
        return values
    of_stage = np.broadcast_to(values, (num_stages,)) / num_virtual_stages
    return np.repeat(of_stage[:, None], num_virtual_stages, axis=1)


def _paired_s(
    times: StageTimes, stage: IntArray, kind: IntArray, chunk: IntArray, num_virtual_stages: int
) -> FloatArray:
    """Return the seconds that each pass saves because it runs beside an opposite one."""
    num_stages = int(stage[-1]) + 1
    forward_s, backward_s = (
        _by_chunk(seconds, num_stages, num_virtual_stages)[stage, chunk]
        for seconds in (times.paired_forward_s, times.paired_backward_s)
    )
    is_forward = kind == KINDS.index(TaskKind.FORWARD)
    is_backward = ~is_forward & (kind != KINDS.index(TaskKind.BACKWARD_WEIGHT))
    # Of each stage the first forward pass and the last backward pass have no partner.
    forward, backward = np.flatnonzero(is_forward), np.flatnonzero(is_backward)
    is_forward[forward[np.diff(stage[forward], prepend=-1) > 0]] = False
    is_backward[backward[np.diff(stage[backward], append=num_stages) > 0]] = False
    saved_s: FloatArray = forward_s * is_forward + backward_s * is_backward
    return saved_s


def _starts_s(tasks: Sequence[PassTask], seconds: Sequence[float], delay_s: float) -> list[float]:
    """Return when each task starts [s]."""
    free_s = [0.0] * (1 + max(task.stage for task in tasks))
    starts, ends = [], list[float]()
    for task, length_s in zip(tasks, seconds, strict=True):
        ready_s = [ends[need] + delay_s * (need == task.sender) for need in task.needs]
        starts.append(max(free_s[task.stage], *ready_s, 0.0))
        ends.append(starts[-1] + length_s)
        free_s[task.stage] = ends[-1]
    return starts
