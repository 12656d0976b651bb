"""Groups that decode through a loop of stages, token by token: proof of ``round_s``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.base.arrays import FloatArray


def decode_schedule(occupied_s: Sequence[float], num_groups: int, num_rounds: int) -> FloatArray:
    """Return when each group has left each stage: rounds x groups x stages [s].

    All groups are there at time 0; a stage serves them in turn as they arrive.

    Parameters
    ----------
    occupied_s
        For which a group occupies each stage, the send to the next one included, and after the
        last one that to the first [s].
    """
    left_s = np.zeros((num_rounds, num_groups, len(occupied_s)))
    free_s = [0.0] * len(occupied_s)
    for round_index in range(num_rounds):
        for group in range(num_groups):
            now = float(left_s[round_index - 1, group, -1]) if round_index else 0.0
            for stage, seconds in enumerate(occupied_s):
                now = free_s[stage] = max(now, free_s[stage]) + seconds
                left_s[round_index, group, stage] = now
    return left_s


def measured_rates(left_s: FloatArray, group_size: float) -> tuple[float, float]:
    """Return tokens/s of all groups and seconds per token of a sequence, of a schedule.

    Both are counted, each by itself, over the later half of the rounds: tokens that leave the last
    stage between two departures of the last group, and steps of each group, on average.
    """
    out = left_s[len(left_s) // 2 :, :, -1]
    begin, end = out[0, -1], out[-1, -1]
    num_left = int(((out > begin) & (out <= end)).sum())
    steps = (out[-1] - out[0]) / (len(out) - 1)
    return group_size * num_left / float(end - begin), float(steps.mean())
