"""1F1B: after a warm-up each stage alternates one forward and one backward pass."""

from __future__ import annotations

from meshwright.base.arrays import N, ceil_div, smaller
from meshwright.schedule.registry import OneChunk, Task, TaskKind, schedules


@schedules.register("1f1b")
class OneForwardOneBackward(OneChunk):
    """PipeDream-flush: the bubble of GPipe with the activations of at most p micro-batches.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1.
    """

    @staticmethod
    def num_exposed_sends(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """2 floor((m - 1) (p - 1) / p): stages in step wait for each other's answers.

        The round trip of p micro-batches over the pipeline holds 2 (p - 1) sends and no slack.

        Source: derived; equals the replayed timeline for equal stages.
        """
        between = num_micro_batches - 1
        exposed: N = 2 * (between - ceil_div(between, num_stages))
        return exposed

    @staticmethod
    def peak_in_flight(stage: N, num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """min(m, p - stage): stage s is p - s passes away from the first gradient."""
        in_flight: N = smaller(num_micro_batches, num_stages - stage)
        return in_flight

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """Warm up with p - stage - 1 forward passes, then F B in turn, then the remaining B."""
        warm_up = min(num_stages - stage - 1, num_micro_batches)
        tasks = [Task(TaskKind.FORWARD, i, 0) for i in range(warm_up)]
        for i in range(warm_up, num_micro_batches):
            tasks.append(Task(TaskKind.FORWARD, i, 0))
            tasks.append(Task(TaskKind.BACKWARD, i - warm_up, 0))
        left = range(num_micro_batches - warm_up, num_micro_batches)
        return tasks + [Task(TaskKind.BACKWARD, i, 0) for i in left]
