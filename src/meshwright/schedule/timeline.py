"""When each pass of a pipeline runs: the order of every stage, played with given durations.

No network is simulated: a send is a delay (beside the computation) or a part of the pass that it
follows (blocking).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.base.errors import MeshwrightError
from meshwright.schedule.pipeline_schedules import PipelineSchedule, Task, TaskKind

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
    """Play the orders of all stages and return when each pass runs.

    A pass starts when its stage is free and its inputs have arrived: a forward pass needs that of
    the layers before, an input gradient that of the layers behind and its own forward pass, a
    weight gradient its input gradient.

    Raises
    ------
    MeshwrightError
        When the orders wait for each other (deadlock); the message names the missing pass.
    """
    shape = (num_stages, num_virtual_stages, num_micro_batches)
    orders = [schedule.order(stage, *shape) for stage in range(num_stages)]
    lengths = [len(order) for order in orders]
    kind, micro_batch, chunk = np.array(
        [(KINDS.index(task.kind), task.micro_batch, task.chunk)
         for order in orders for task in order], dtype=np.int64,
    ).T  # fmt: skip
    stage = np.repeat(np.arange(num_stages), lengths)
    durations_s = _durations_s(times, num_stages, num_virtual_stages)[kind, stage, chunk]
    durations_s = durations_s - _paired_s(times, stage, kind, chunk, num_virtual_stages)
    delay_s = 0.0 if times.blocking_sends or num_stages == 1 else times.send_s
    ends = np.cumsum(lengths)[:-1]
    start_s = _starts_s(orders, np.split(durations_s, ends), delay_s, num_virtual_stages)
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


def _starts_s(
    orders: Sequence[Sequence[Task]], durations_s: Sequence[FloatArray], delay_s: float,
    num_virtual_stages: int,
) -> FloatArray:  # fmt: skip
    """Return when each pass starts, stage by stage [s]."""
    num_stages, last = len(orders), len(orders) * num_virtual_stages - 1
    ends: dict[tuple[bool, int, int], float] = {}
    """When a pass ended that others wait for, by whether it is forward, micro-batch, position."""
    seconds = [column.tolist() for column in durations_s]
    starts: list[list[float]] = [[] for _ in orders]
    free_s = [0.0] * num_stages

    def ready_s(task: Task, position: int) -> float | None:
        """Return the time at which all inputs of a pass are there; None while one has not run."""
        if task.kind is TaskKind.BACKWARD_WEIGHT:
            return ends.get((False, task.micro_batch, position))
        if task.kind is TaskKind.FORWARD:
            if not position:
                return 0.0
            before = ends.get((True, task.micro_batch, position - 1))
            return None if before is None else before + delay_s
        own = ends.get((True, task.micro_batch, position))
        if own is None or position == last:
            return own
        behind = ends.get((False, task.micro_batch, position + 1))
        return None if behind is None else max(own, behind + delay_s)

    waiting = list(range(num_stages))
    while waiting:
        stage = waiting.pop()
        order, first = orders[stage], len(starts[stage])
        for number in range(first, len(order)):
            task = order[number]
            position = task.chunk * num_stages + stage
            ready = ready_s(task, position)
            if ready is None:
                break
            start_s = max(ready, free_s[stage])
            free_s[stage] = start_s + seconds[stage][number]
            starts[stage].append(start_s)
            if task.kind is not TaskKind.BACKWARD_WEIGHT:
                is_forward = task.kind is TaskKind.FORWARD
                ends[is_forward, task.micro_batch, position] = free_s[stage]
        if len(starts[stage]) > first:
            waiting += [(stage + 1) % num_stages, (stage - 1) % num_stages]
    stuck = [s for s, order in enumerate(orders) if len(starts[s]) < len(order)]
    if stuck:
        task = orders[stuck[0]][len(starts[stuck[0]])]
        raise MeshwrightError(
            f"the pipeline order deadlocks: stages {stuck} wait; stage {stuck[0]} cannot start "
            f"{task.kind} of micro-batch {task.micro_batch}, chunk {task.chunk}"
        )
    return np.concatenate([np.array(column) for column in starts])
