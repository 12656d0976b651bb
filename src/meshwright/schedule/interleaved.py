"""Interleaved 1F1B: each stage owns several chunks of layers, so the pipeline fills sooner."""

from __future__ import annotations

from typing import Any

from meshwright.base.arrays import N, smaller
from meshwright.schedule.registry import Task, TaskKind, schedules


@schedules.register("interleaved")
class Interleaved:
    """1F1B over v chunks per stage: the bubble falls by v, sends and activations rise.

    Micro-batches go through a chunk in runs of p, then through the next chunk.

    Source: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2; warm-up of
    2 (p - s - 1) + (v - 1) p chunk passes as in Megatron-LM's pipeline schedules; in-flight
    p (1 + (p - 1) / (p v)) on stage 0: Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.3.
    """

    rule = "two or more virtual stages, two or more stages, micro-batches a multiple of the stages"

    @staticmethod
    def is_legal(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> Any:
        """Return whether (or for which rows) the schedule exists."""
        many = (num_virtual_stages > 1) & (num_stages > 1)
        return many & (num_micro_batches % num_stages == 0)

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
        """Idle time of one step [s]: (p - 1) ((t_f + t_b) / v + 2 t_send).

        A send carries the activations of one micro-batch whatever the number of chunks, so the
        sends that fill and drain the pipeline do not shrink with v.
        """
        stage_s = forward_s + backward_input_s + backward_weight_s
        return (num_stages - 1) * (stage_s / num_virtual_stages + 2 * send_s)

    @staticmethod
    def sends_per_micro_batch(num_virtual_stages: N) -> N:
        """One activation forward and one gradient backward for each chunk."""
        return 2 * num_virtual_stages

    @staticmethod
    def num_exposed_sends(num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """2 (v - 1) p: only warm-up and cool-down wait, once for each further chunk.

        Source: derived; equals the replayed timeline for equal stages.
        Valid for: sends up to (t_f + t_b) / (3 v); longer ones show in the steady state too.
        """
        return 2 * (num_virtual_stages - 1) * num_stages

    @staticmethod
    def peak_in_flight(stage: N, num_stages: N, num_virtual_stages: N, num_micro_batches: N) -> N:
        """min(m, (2 (p - s - 1) + (v - 1) p + 1) / v): the warm-up and one more, in chunks."""
        warm_up = 2 * (num_stages - stage - 1) + (num_virtual_stages - 1) * num_stages
        in_flight: N = smaller(num_micro_batches, (warm_up + 1) / num_virtual_stages)
        return in_flight

    @staticmethod
    def order(
        stage: int, num_stages: int, num_virtual_stages: int, num_micro_batches: int
    ) -> list[Task]:
        """Warm-up, then F B in turn, then the remaining B, counted in passes of one chunk."""
        num_passes = num_virtual_stages * num_micro_batches
        passes = [_chunk_pass(k, num_stages, num_virtual_stages) for k in range(num_passes)]
        forward = [Task(TaskKind.FORWARD, i, chunk) for i, chunk in passes]
        last = num_virtual_stages - 1
        backward = [Task(TaskKind.BACKWARD, i, last - chunk) for i, chunk in passes]
        warm_up = 2 * (num_stages - stage - 1) + last * num_stages
        warm_up = min(warm_up, num_passes)
        steady = num_passes - warm_up
        pairs = zip(forward[warm_up:], backward[:steady], strict=True)
        return forward[:warm_up] + [task for pair in pairs for task in pair] + backward[steady:]


def _chunk_pass(index: int, num_stages: int, num_virtual_stages: int) -> tuple[int, int]:
    """Return micro-batch and chunk of the index-th forward pass of a stage."""
    run, within = divmod(index, num_stages * num_virtual_stages)
    chunk, offset = divmod(within, num_stages)
    return run * num_stages + offset, chunk
