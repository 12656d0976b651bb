"""A row of stages that decodes: groups of sequences go round, one token for each in a round.

Each group passes the stages in order and, with its new tokens, starts again at the first one; a
stage serves one group at a time, in turn. The time of a round in closed form, and the schedule
itself, event by event; they agree once the row is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, larger


def round_s(pass_s: Any, slowest_s: Any, num_groups: Any) -> Any:
    """Return the time per output token of each sequence: max(pass, groups x slowest stage) [s].

    It is the largest mean weight of a cycle in the order of events. A cycle that goes a times
    through all stages and b times through all groups covers a + b rounds and weighs at most
    a ``pass_s`` + b ``num_groups`` ``slowest_s``; the two pure cycles reach the larger mean.

    Parameters
    ----------
    pass_s
        All stages one after the other, each with its send [s].
    slowest_s
        For which one group occupies the slowest stage, its send included [s].

    Source: cycle mean of an event graph (Baccelli et al. 1992, Synchronization and Linearity,
    theorem 3.28).
    """
    return larger(pass_s, num_groups * slowest_s)


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
    for turn in range(num_rounds):
        for group in range(num_groups):
            now = float(left_s[turn - 1, group, -1]) if turn else 0.0
            for stage, seconds in enumerate(occupied_s):
                now = free_s[stage] = max(now, free_s[stage]) + seconds
                left_s[turn, group, stage] = now
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
