"""The evenest loads on so many stages: the fullest stage as empty as possible.

Parametric search over a level, the part of its room that each stage may fill: a level is reached
when the greedy cut under it needs no more stages than there are. The search ends at the exact
optimum, not within a tolerance: a level that is reached falls to that of the fullest stage found,
and one that is not rises to the next level at which any greedy stage would take one layer more,
below which no cut changes. The first level that is tried is the mean and one layer more, which is
enough where rooms are equal.
"""

from __future__ import annotations

import math

import numpy as np

from meshwright.sram.contiguous.loads import LayerLoads
from meshwright.sram.contiguous.rooms import Rooms

_BELOW = 1.0 - 1e-12
"""Keeps the first lower bound below the optimum although its division is rounded."""


def balanced_stops(loads: LayerLoads, rooms: Rooms, num_stages: int) -> list[int] | None:
    """Return the stops on ``num_stages`` stages with the least largest share of a room filled.

    None where the layers do not fit so many stages; some are empty where there are fewer layers.
    O(k log n) for each of a few tens of levels, which are in bytes of the largest room.
    """
    capacities = rooms.capacities(num_stages)
    scales = capacities / capacities.max()
    in_flight = rooms.in_flight(num_stages)
    listed = in_flight.tolist()

    def cut(level: float) -> list[int]:
        return loads.stops_within((level * scales).tolist(), listed, least, best)

    def levels(stops: list[int], further: int) -> list[float]:
        """Return the level that each stage needs for its layers and one more, or none more."""
        ends = np.array(stops)
        taken = np.minimum(ends + further, len(loads))
        found: list[float] = (loads.load_bytes(np.r_[0, ends[:-1]], taken, in_flight)
                              / scales).tolist()  # fmt: skip
        return found

    best = loads.stops_within(capacities.tolist(), listed)
    if best[-1] < len(loads):
        return None
    least = [0] * num_stages
    low, high = _BELOW * loads.least_total_bytes / float(scales.sum()), max(levels(best, 0))
    layers = np.arange(len(loads))
    level = low + float(loads.load_bytes(layers, layers + 1, in_flight.max()).max())
    while low < high:
        level = min(level, math.nextafter(high, low))
        stops = cut(level)
        if stops[-1] < len(loads):
            least, low = stops, max(min(levels(stops, 1)), math.nextafter(level, math.inf))
        else:
            best, high = stops, min(max(levels(stops, 0)), level)
        level = low + (high - low) / 2
    return best
