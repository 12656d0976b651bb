"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from meshwright.base.arrays import N
from meshwright.schedule.registry import OneChunk, Task, TaskKind, schedules


@schedules.register("gpipe")
class GPipe(OneChunk):
    """All micro-batches forward, then all backward; every activation is kept.

    Source: Huang et al. 2019, GPipe (arXiv 1811.06965), section 2.3.
    """

    @staticmethod
    def num_exposed_sends(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """None: each pass waits for nothing but the filling pipeline."""
        return 0 * (num_stages * num_micro_batches)

    @staticmethod
    def peak_in_flight(stage: N, num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """All of them, on every stage."""
        return num_micro_batches + 0 * stage

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """F0 F1 ... then B0 B1 ..., the same on every stage."""
        forward = [Task(TaskKind.FORWARD, i, 0) for i in range(num_micro_batches)]
        return forward + [Task(TaskKind.BACKWARD, i, 0) for i in range(num_micro_batches)]
