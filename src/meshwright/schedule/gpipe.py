"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from typing import Any

from meshwright.base.arrays import Num
from meshwright.schedule.registry import Task, TaskKind, schedules


@schedules.register("gpipe")
class GPipe:
    """All micro-batches forward, then all backward; every activation is kept.

    Source: Huang et al. 2019, GPipe (arXiv 1811.06965), section 2.3.
    """

    rule = "one virtual stage"

    @staticmethod
    def is_legal(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Any:
        """Return whether (or for which rows) the schedule exists."""
        return num_virtual_stages == 1

    @staticmethod
    def bubble_s(
        forward_s: Num,
        backward_input_s: Num,
        backward_weight_s: Num,
        send_s: Num,
        num_stages: Num,
        num_virtual_stages: Num,
        num_micro_batches: Num,
    ) -> Num:
        """Idle time of one step [s]: (p - 1) (t_f + t_b + 2 t_send)."""
        return (num_stages - 1) * (forward_s + backward_input_s + backward_weight_s + 2 * send_s)

    @staticmethod
    def sends_per_micro_batch(num_virtual_stages: Num) -> Num:
        """One activation forward and one gradient backward for each chunk."""
        return 2 * num_virtual_stages

    @staticmethod
    def num_exposed_sends(num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num) -> Num:
        """None: each pass waits for nothing but the filling pipeline."""
        return 0 * (num_stages * num_micro_batches)

    @staticmethod
    def peak_in_flight(
        stage: Num, num_stages: Num, num_virtual_stages: Num, num_micro_batches: Num
    ) -> Num:
        """All of them, on every stage."""
        return num_micro_batches + 0 * stage

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """F0 F1 ... then B0 B1 ..., the same on every stage."""
        forward = [Task(TaskKind.FORWARD, i, 0) for i in range(num_micro_batches)]
        return forward + [Task(TaskKind.BACKWARD, i, 0) for i in range(num_micro_batches)]
