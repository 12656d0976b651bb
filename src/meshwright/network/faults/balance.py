"""Work by speed: devices that lost cores take fewer rows, so that all finish a round together."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import InfeasibleError


def balanced_rows(
    num_rows: int, speed_factor: FloatArray, most_rows: IntArray | None = None
) -> IntArray:
    """Return how many rows each device takes so that the slowest is as fast as it can be.

    A round takes 2 S_i H (F/N) / (g_i P eta) on device i, equal for all when S_i is proportional
    to g_i. Rows are whole: each device gets its share rounded down, and the rows that are left go
    one by one to the device that would finish first with one more.

    Parameters
    ----------
    num_rows
        Rows of the group.
    speed_factor
        Share g_i of its full rate that each device computes at [1].
    most_rows
        Rows that fit the memory of each device; any number if not given.

    Raises
    ------
    InfeasibleError
        Where the memory of all devices holds too few rows.

    Source: derived; least possible time, proven by trying all splits of small cases.
    """
    room = np.full(len(speed_factor), num_rows) if most_rows is None else most_rows
    room = np.where(speed_factor > 0, room, 0)
    if room.sum() < num_rows:
        raise InfeasibleError(f"{num_rows} rows do not fit: all devices hold {room.sum()} of them")
    rows = np.floor(_real_shares(num_rows, speed_factor, room)).astype(np.int64)
    for _ in range(num_rows - int(rows.sum())):
        is_open = rows < room
        finish = np.full(len(rows), np.inf)
        finish[is_open] = (rows[is_open] + 1) / speed_factor[is_open]
        rows[np.argmin(finish)] += 1
    return rows


def _real_shares(num_rows: int, speed_factor: FloatArray, room: IntArray) -> FloatArray:
    """Return the rows by speed, as real numbers; what does not fit goes to the others."""
    is_full = room <= 0
    while not is_full.all():
        rows_by_speed = (num_rows - room[is_full].sum()) / speed_factor[~is_full].sum()
        too_much = ~is_full & (speed_factor * rows_by_speed > room)
        if not too_much.any():
            return np.where(is_full, room, speed_factor * rows_by_speed)
        is_full |= too_much
    return room.astype(np.float64)


def relative_rate(rows: IntArray, speed_factor: FloatArray) -> float:
    """Return the rate of a group relative to one of equal rows and full speed [1].

    The slowest device sets the pace: (sum S_i / N) / max(S_i / g_i). It is the mean of g_i where
    S_i is proportional to g_i, and the least g_i where the rows are equal.
    """
    busy = rows > 0
    if not busy.any():
        return 0.0
    return float(rows.mean() / (rows[busy] / speed_factor[busy]).max())


def memory_shares(rows: IntArray) -> FloatArray:
    """Return the rows of each device relative to an equal split, as its activations grow [1]."""
    shares: FloatArray = rows / rows.mean()
    return shares
