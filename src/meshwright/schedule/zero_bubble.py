"""ZB-H1: the weight gradient is split off and fills the bubble, at the memory of 1F1B."""

from __future__ import annotations

from meshwright.base.arrays import N, positive_part, smaller
from meshwright.schedule.registry import OneChunk, Task, TaskKind, schedules


@schedules.register("zero_bubble")
class ZeroBubble(OneChunk):
    """1F1B whose backward pass is split; stage s delays its weight gradients by s micro-batches.

    Every stage then holds at most min(m, p) micro-batches: what stage 0 of 1F1B holds.

    Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 2.2.
    """

    @staticmethod
    def bubble_s(
        forward_s: N,
        backward_input_s: N,
        backward_weight_s: N,
        send_s: N,
        num_stages: N,
        num_virtual_stages: N,
        num_micro_batches: N,
    ) -> N:
        """Idle time of one step [s]: (p - 1) (t_f + t_bi + 2 t_send) - (min(m, p) - 1) t_fill.

        t_fill = min(t_f + t_send, t_bi + t_send, t_bw) is what one delayed weight gradient fills;
        for m >= p and a short t_bw this is the published (p - 1) (t_f + t_bi - t_bw).
        """
        filled_s = smaller(smaller(forward_s, backward_input_s) + send_s, backward_weight_s)
        fill_and_drain_s = (num_stages - 1) * (forward_s + backward_input_s + 2 * send_s)
        bubble: N = fill_and_drain_s - (smaller(num_micro_batches, num_stages) - 1) * filled_s
        return bubble

    @staticmethod
    def num_exposed_sends(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """2 min(p - 1, max(m - 2, 0)): weight gradients hide the sends of the steady state.

        Source: derived; equals the replayed timeline for equal stages.
        Valid for: sends short against t_bw, and t_bw <= min(t_f, t_bi).
        """
        exposed: N = 2 * smaller(num_stages - 1, positive_part(num_micro_batches - 2))
        return exposed

    @staticmethod
    def peak_in_flight(stage: N, num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """min(m, p) on every stage, until the weight gradient has used the activations."""
        in_flight: N = smaller(num_micro_batches, num_stages) + 0 * stage
        return in_flight

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """1F1B of F and BI; BW of a micro-batch follows the BI of the stage-th one after it."""
        warm_up = min(num_stages - stage - 1, num_micro_batches)
        tasks = [Task(TaskKind.FORWARD, i, 0) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if i + warm_up < num_micro_batches:
                tasks.append(Task(TaskKind.FORWARD, i + warm_up, 0))
            tasks.append(Task(TaskKind.BACKWARD_INPUT, i, 0))
            if i >= stage:
                tasks.append(Task(TaskKind.BACKWARD_WEIGHT, i - stage, 0))
        delayed = range(max(num_micro_batches - stage, 0), num_micro_batches)
        return tasks + [Task(TaskKind.BACKWARD_WEIGHT, i, 0) for i in delayed]
