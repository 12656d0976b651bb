"""The fewest stages: each one takes the longest run of layers that fits.

No cut needs fewer stages. Let g_1, g_2, ... be the greedy stops and x_1, x_2, ... those of any
other cut that fits. Then x_i <= g_i: with x_(i-1) <= g_(i-1), the run (g_(i-1), x_i] lies inside
(x_(i-1), x_i], so its load is no larger and fits stage i, and the greedy stage, which takes the
longest run, reaches at least x_i. Only the growth of loads with runs is used, and that both cuts
meet the same stages in the same order.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.sram.contiguous.loads import LayerLoads
from meshwright.sram.contiguous.rooms import Rooms


def greedy_stops(loads: LayerLoads, rooms: Rooms, most_stages: int | None = None) -> list[int]:
    """Return where each stage stops when each takes as many layers as fit: the fewest stages.

    The last stop is short of the end where the layers need more than ``most_stages`` stages, or
    one of them fits no stage that is left. A stage too small for its next layer stays empty.
    """
    most = most_stages or len(loads) + len(rooms.capacity_bytes)
    limits, in_flight = rooms.capacities(most).tolist(), rooms.in_flight(most).tolist()
    stops = loads.stops_within(limits, in_flight)
    return stops[: stops.index(stops[-1]) + 1]


def too_large(loads: LayerLoads, rooms: Rooms) -> IntArray:
    """Return the layers that fit no stage by themselves, with one micro-batch in flight."""
    layers = np.arange(len(loads))
    alone: FloatArray = loads.load_bytes(layers, layers + 1)
    return np.flatnonzero(alone > max(rooms.capacity_bytes))


def least_stages(loads: LayerLoads, rooms: Rooms) -> int:
    """Return a lower bound on the stages: what adds up, over the room that there is.

    ceil(sum / C) for equal rooms. Transients are left out, and one micro-batch is in flight.
    """
    stated = np.cumsum(rooms.capacity_bytes)
    needed_bytes = loads.least_total_bytes
    if needed_bytes <= stated[-1]:
        return int(np.searchsorted(stated, needed_bytes)) + 1
    beyond = (needed_bytes - float(stated[-1])) / rooms.capacity_bytes[-1]
    return len(stated) + int(np.ceil(beyond))
