"""The fastest slowest stage: what it computes and sends, within what its device holds.

Sends depend on where a row is cut, so a longer run may take less time and the greedy cut proves
nothing. Dynamic programming over stops: with ``time(j, p, i)`` the seconds of stage j on layers p
to i, infinite where they do not fit,

    f(j, i) = min(f(j - 1, i), min over p < i of max(f(j - 1, p), time(j, p, i))),    f(j, 0) = 0.

A stage may stay empty: where devices differ, one may be too small for its next layer.
O(n w k) for n layers, k stages and runs of at most w layers that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.sram.contiguous.loads import LayerLoads
from meshwright.sram.contiguous.rooms import Rooms


@dataclass(frozen=True)
class StageTimes:
    """Seconds of the layers on the device of a stage, and of what crosses its ends."""

    layer_s: FloatArray
    """Of each layer [s]."""
    entry_s: FloatArray
    """Sends that a stage pays which starts with each layer; 0 for the first one [s]."""
    exit_s: FloatArray
    """Sends that a stage pays which ends with each layer [s]."""

    def reversed(self) -> StageTimes:
        """Return the same, seen from the last layer to the first."""
        return StageTimes(self.layer_s[::-1], self.exit_s[::-1], self.entry_s[::-1])

    def run_s(self, first: IntArray, stop: int) -> FloatArray:
        """Return the seconds of runs that stop at the same place."""
        work = self._sums[stop] - self._sums[first]
        seconds: FloatArray = work + self.entry_s[first] + self.exit_s[stop - 1]
        return seconds

    @cached_property
    def _sums(self) -> FloatArray:
        return np.concatenate(([0.0], np.cumsum(self.layer_s)))


@dataclass(frozen=True)
class Bottlenecks:
    """The best cut on each number of stages, some of which may be empty."""

    slowest_s: FloatArray
    """Seconds of the slowest of 1, 2, ... k stages; infinite where the layers do not fit."""
    starts: IntArray
    """Where the last of j stages starts that end at stop i: row j - 1, column i. At i itself where
    it is empty."""

    def stops(self, num_stages: int) -> list[int]:
        """Return the stops of the best cut on so many stages."""
        stops = [self.starts.shape[1] - 1]
        for row in range(num_stages - 1, 0, -1):
            stops.append(int(self.starts[row, stops[-1]]))
        return stops[::-1]


def bottleneck_cuts(
    loads: LayerLoads, rooms: Rooms, times: Sequence[StageTimes], most_stages: int
) -> Bottlenecks:
    """Return the cuts whose slowest stage is fastest, on 1, 2, ... ``most_stages`` stages.

    Parameters
    ----------
    times
        Of the stages; those beyond the last one stated are like it.
    """
    num_layers = len(loads)
    num_stages = min(most_stages, num_layers)
    kinds, kind_of = _kinds(rooms, times, num_stages)
    reached = np.full((num_stages + 1, num_layers + 1), np.inf)
    reached[:, 0] = 0.0
    starts = np.zeros((num_stages, num_layers + 1), dtype=np.int64)
    earliest = 0
    for stop in range(1, num_layers + 1):
        first = np.arange(earliest, stop)
        rows = np.stack([kind.run_s(loads, first, stop) for kind in kinds])
        fits = np.isfinite(rows).any(axis=0)
        if not fits.any():
            earliest, starts[:, stop] = stop, stop
            continue
        skipped = int(fits.argmax())  # what does not fit before this stop fits before no later one
        earliest, first, rows = earliest + skipped, first[skipped:], rows[:, skipped:]
        candidates = np.maximum(reached[:-1, first], rows[kind_of])
        best = candidates.argmin(axis=1)
        filled = candidates[np.arange(num_stages), best]
        reached[1:, stop] = np.minimum.accumulate(filled)
        starts[:, stop] = np.where(filled <= reached[1:, stop], first[best], stop)
    return Bottlenecks(reached[1:, num_layers], starts)


@dataclass(frozen=True)
class _Kind:
    """Stages of equal room and equal times."""

    capacity_bytes: float
    in_flight: int
    times: StageTimes

    def run_s(self, loads: LayerLoads, first: IntArray, stop: int) -> FloatArray:
        """Return the seconds of runs that stop at the same place; infinite where too large."""
        fits = loads.fits(first, stop, self.capacity_bytes, self.in_flight)
        return np.where(fits, self.times.run_s(first, stop), np.inf)


def _kinds(
    rooms: Rooms, times: Sequence[StageTimes], num_stages: int
) -> tuple[list[_Kind], IntArray]:
    """Return the kinds of stages, and which of them each stage is."""
    capacities, in_flight = rooms.capacities(num_stages), rooms.in_flight(num_stages)
    found: dict[tuple[float, int, int], int] = {}
    kinds: list[_Kind] = []
    kind_of: list[int] = []
    for stage in range(num_stages):
        own = times[min(stage, len(times) - 1)]
        key = (float(capacities[stage]), int(in_flight[stage]), id(own))
        if key not in found:
            found[key] = len(kinds)
            kinds.append(_Kind(key[0], key[1], own))
        kind_of.append(found[key])
    return kinds, np.array(kind_of)
