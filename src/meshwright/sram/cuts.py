"""The cut of a row under each objective."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.sram.contiguous.balanced import balanced_stops
from meshwright.sram.contiguous.bottleneck import Bottlenecks, bottleneck_cuts
from meshwright.sram.contiguous.greedy import greedy_stops, least_stages, too_large
from meshwright.sram.contiguous.loads import LayerLoads
from meshwright.sram.ground import Ground

MOST_PLACES = 50_000_000
"""Layers times stages beyond which the table of the fastest cuts is not made."""


class Objective(StrEnum):
    """What the cut is best in."""

    COUNT = "count"
    """Fewest stages, each as full as possible."""
    BALANCE = "balance"
    """Fewest stages, and among those cuts the fullest stage as empty as possible."""
    TIME = "time"
    """Most tokens per second, over all numbers of stages and replicas that the devices allow."""


def fewest_stops(ground: Ground) -> list[int] | None:
    """Return the greedy cut, on as many stages as it needs; None where a layer fits nowhere."""
    stops = greedy_stops(_loads(ground), ground.rooms)
    return _forward(ground, stops) if stops[-1] == len(ground.row.names) else None


def even_stops(ground: Ground, num_stages: int) -> list[int]:
    """Return the cut on so many stages, which are enough, whose fullest stage is emptiest."""
    stops = balanced_stops(_loads(ground), ground.rooms, num_stages)
    assert stops is not None
    return _forward(ground, stops)


def fast_cuts(ground: Ground, most_stages: int) -> Bottlenecks:
    """Return the cuts whose slowest stage is fastest, on each number of stages.

    Raises
    ------
    UnsupportedError
        The table would have too many places.
    """
    count = len(ground.row.names)
    if count * min(most_stages, count) > MOST_PLACES:
        raise UnsupportedError(
            f"{count:,} layers on {most_stages:,} stages are too many for the objective time; "
            "count and balance have no such limit"
        )
    if ground.is_training:
        times = [ground.times_of(0).reversed()]
    else:
        times = [ground.times_of(stage) for stage in range(min(most_stages, count))]
    return bottleneck_cuts(_loads(ground), ground.rooms, times, most_stages)


def fast_stops(ground: Ground, cuts: Bottlenecks, num_stages: int) -> list[int]:
    """Return one of the cuts."""
    return _forward(ground, cuts.stops(num_stages))


def layers_too_large(ground: Ground) -> IntArray:
    """Return the layers that fit no stage by themselves."""
    return too_large(ground.row.loads, ground.rooms)


def bound(ground: Ground) -> int:
    """Return the stages below which no cut fits: all bytes over all room."""
    return least_stages(_loads(ground), ground.rooms)


def weights_bound(ground: Ground) -> int:
    """Return the same for the weights alone."""
    weights = ground.row.resident_bytes["weights"]
    zero = np.zeros(len(weights))
    return least_stages(LayerLoads(weights, zero, zero), ground.rooms)


def _loads(ground: Ground) -> LayerLoads:
    """Return the loads in the order in which stages are filled."""
    loads = ground.row.loads
    return loads.reversed() if ground.is_training else loads


def _forward(ground: Ground, stops: list[int]) -> list[int]:
    """Return stops from the first layer on."""
    if not ground.is_training:
        return stops
    count = len(ground.row.names)
    return [*(count - stop for stop in reversed(stops[:-1])), count]
