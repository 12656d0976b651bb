"""When each task of a pipeline runs: the order of every stage, played with given durations.

No network is simulated: a send is a delay (beside the computation) or a part of the task that it
follows (blocking).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.base.errors import MeshwrightError
from meshwright.schedule.pipeline_schedules import PipelineSchedule, Task, TaskKind

_Key = tuple[TaskKind, int, int]
"""Kind, micro-batch and position in the model (chunk * p + stage) of a task."""


@dataclass(frozen=True)
class StageTimes:
    """Durations of one micro-batch through all the layers of a stage; one value, or one per stage.

    ``send_s`` is the time to hand one micro-batch to the neighbouring stage.
    """

    forward_s: float | Sequence[float]
    backward_input_s: float | Sequence[float]
    backward_weight_s: float | Sequence[float]
    send_s: float = 0.0
    blocking_sends: bool = False
    """The stage waits while it sends; otherwise sends run beside the computation."""


@dataclass(frozen=True)
class Timeline:
    """One row for each task, in the order of completion of the replay; read-only columns."""

    stage: IntArray
    kind: NDArray[np.str_]
    micro_batch: IntArray
    chunk: IntArray
    start_s: FloatArray
    end_s: FloatArray

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
) -> Timeline:
    """Play the orders of all stages and return when each task runs.

    A task starts when its stage is free and what it needs has arrived: a forward pass the one of
    the layers before, an input gradient the one of the layers behind and its own forward pass, a
    weight gradient its input gradient.

    Raises
    ------
    MeshwrightError
        When the orders wait for each other (deadlock); the message names what is missing.
    """
    orders = [
        schedule.order(stage, num_stages, num_virtual_stages, num_micro_batches)
        for stage in range(num_stages)
    ]
    replay = _Replay(orders, num_virtual_stages, times)
    replay.run()
    return replay.timeline()


class _Replay:
    """State of one replay: how far each stage is and when each task ended."""

    def __init__(
        self, orders: list[list[Task]], num_virtual_stages: int, times: StageTimes
    ) -> None:
        self._orders = orders
        self._num_stages = len(orders)
        self._last = self._num_stages * num_virtual_stages - 1
        self._send_s = 0.0 if times.blocking_sends else times.send_s
        self._duration_s = _durations(times, self._num_stages, num_virtual_stages)
        self._next = [0] * self._num_stages
        self._free_s = [0.0] * self._num_stages
        self._end_s: dict[_Key, float] = {}
        self._rows: list[tuple[int, str, int, int, float, float]] = []

    def run(self) -> None:
        """Advance every stage as far as it can until all are done."""
        waiting = list(range(self._num_stages))
        while waiting:
            stage = waiting.pop()
            if self._advance(stage):
                waiting += [(stage + 1) % self._num_stages, (stage - 1) % self._num_stages]
        stuck = [s for s, order in enumerate(self._orders) if self._next[s] < len(order)]
        if stuck:
            task = self._orders[stuck[0]][self._next[stuck[0]]]
            raise MeshwrightError(
                f"the pipeline order deadlocks: stages {stuck} wait; stage {stuck[0]} cannot start "
                f"{task.kind} of micro-batch {task.micro_batch}, chunk {task.chunk}"
            )

    def _advance(self, stage: int) -> bool:
        """Run the tasks of a stage until one must wait; tell whether any ran."""
        order, first = self._orders[stage], self._next[stage]
        while self._next[stage] < len(order):
            task = order[self._next[stage]]
            ready_s = self._ready_s(task, stage)
            if ready_s is None:
                break
            start_s = max(ready_s, self._free_s[stage])
            end_s = start_s + self._duration_s[task.kind][stage]
            self._free_s[stage] = end_s
            self._end_s[task.kind, task.micro_batch, self._position(task, stage)] = end_s
            self._rows.append((stage, task.kind, task.micro_batch, task.chunk, start_s, end_s))
            self._next[stage] += 1
        return self._next[stage] > first

    def _position(self, task: Task, stage: int) -> int:
        return task.chunk * self._num_stages + stage

    def _ready_s(self, task: Task, stage: int) -> float | None:
        """Return when all that a task needs is there; None while something has not run."""
        ready_s = 0.0
        for kind, position, delay_s in self._needs(task, self._position(task, stage)):
            end_s = self._end_s.get((kind, task.micro_batch, position))
            if end_s is None:
                return None
            ready_s = max(ready_s, end_s + delay_s)
        return ready_s

    def _needs(self, task: Task, position: int) -> list[tuple[TaskKind, int, float]]:
        """Return kind, position and delay of the tasks that a task waits for."""
        delay_s = self._send_s if self._num_stages > 1 else 0.0
        if task.kind is TaskKind.BACKWARD_WEIGHT:
            return [(TaskKind.BACKWARD_INPUT, position, 0.0)]
        if task.kind is TaskKind.FORWARD:
            return [(TaskKind.FORWARD, position - 1, delay_s)] if position else []
        needs = [(TaskKind.FORWARD, position, 0.0)]
        if position < self._last:
            needs.append((task.kind, position + 1, delay_s))
        return needs

    def timeline(self) -> Timeline:
        """Return the rows as read-only columns."""
        stage, kind, micro_batch, chunk, start_s, end_s = zip(*self._rows, strict=True)
        return Timeline(
            stage=read_only(np.array(stage, dtype=np.int64)),
            kind=read_only(np.array(kind, dtype=np.str_)),
            micro_batch=read_only(np.array(micro_batch, dtype=np.int64)),
            chunk=read_only(np.array(chunk, dtype=np.int64)),
            start_s=read_only(np.array(start_s, dtype=float)),
            end_s=read_only(np.array(end_s, dtype=float)),
        )


def _durations(
    times: StageTimes, num_stages: int, num_virtual_stages: int
) -> dict[TaskKind, list[float]]:
    """Return for each kind the time of one chunk on each stage [s]; blocking sends included."""
    blocked_s = times.send_s if times.blocking_sends and num_stages > 1 else 0.0
    forward_s, input_s, weight_s = (
        np.broadcast_to(np.asarray(value, dtype=float), (num_stages,)) / num_virtual_stages
        for value in (times.forward_s, times.backward_input_s, times.backward_weight_s)
    )
    return {
        TaskKind.FORWARD: (forward_s + blocked_s).tolist(),
        TaskKind.BACKWARD: (input_s + weight_s + blocked_s).tolist(),
        TaskKind.BACKWARD_INPUT: (input_s + blocked_s).tolist(),
        TaskKind.BACKWARD_WEIGHT: weight_s.tolist(),
    }
