"""Layers cut into contiguous stages: the fewest, the evenest, and the fastest slowest stage.

Also which layers of a stage stay in the near memory when not all of them have room there, and what
a loop of stages that decodes yields: groups of sequences go round, one token each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Num, column, larger
from meshwright.sram.loads import LayerLoads, StageCapacities


def greedy_stops(
    loads: LayerLoads, stage_capacities: StageCapacities, most_stages: int | None = None
) -> list[int]:
    """Return where each stage stops when each takes as many layers as fit: the fewest stages.

    The last stop is short of the end where the layers need more than ``most_stages`` stages, or
    one of them fits no stage that is left. A stage too small for its next layer stays empty.
    """
    most = most_stages or len(loads) + len(stage_capacities.capacity_bytes)
    limits, in_flight = (
        stage_capacities.capacities(most).tolist(),
        stage_capacities.in_flight(most).tolist(),
    )
    stops = loads.stops_within(limits, in_flight)
    return stops[: stops.index(stops[-1]) + 1]


def too_large(loads: LayerLoads, stage_capacities: StageCapacities) -> IntArray:
    """Return the layers that fit no stage by themselves, with one micro-batch in flight."""
    layers = np.arange(len(loads))
    alone: FloatArray = column(loads.load_bytes(layers, layers + 1))
    return np.flatnonzero(alone > max(stage_capacities.capacity_bytes))


def least_stages(loads: LayerLoads, stage_capacities: StageCapacities) -> int:
    """Return a lower bound on the stages: what adds up, over the capacity.

    ceil(sum / C) for equal capacities. Transients are left out, and one micro-batch is in flight.
    """
    stated = np.cumsum(stage_capacities.capacity_bytes)
    needed_bytes = loads.least_total_bytes
    if needed_bytes <= stated[-1]:
        return int(np.searchsorted(stated, needed_bytes)) + 1
    beyond = (needed_bytes - float(stated[-1])) / stage_capacities.capacity_bytes[-1]
    return len(stated) + int(np.ceil(beyond))


_BELOW = 1.0 - 1e-12
"""Keeps the first lower bound below the optimum although its division is rounded."""


def balanced_stops(
    loads: LayerLoads, stage_capacities: StageCapacities, num_stages: int
) -> list[int] | None:
    """Return the stops on ``num_stages`` stages with the least largest share of a room filled.

    None where the layers do not fit that many stages; some are empty where there are fewer layers.
    O(k log n) for each of a few tens of levels, which are in bytes of the largest room.
    """
    capacities = stage_capacities.capacities(num_stages)
    scales = capacities / capacities.max()
    in_flight = stage_capacities.in_flight(num_stages)
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
    level = low + float(column(loads.load_bytes(layers, layers + 1, in_flight.max())).max())
    while low < high:
        level = min(level, math.nextafter(high, low))
        stops = cut(level)
        if stops[-1] < len(loads):
            least, low = stops, max(min(levels(stops, 1)), math.nextafter(level, math.inf))
        else:
            best, high = stops, min(max(levels(stops, 0)), level)
        level = low + (high - low) / 2
    return best


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
        """Return the stops of the best cut on a number of stages."""
        stops = [self.starts.shape[1] - 1]
        for row in range(num_stages - 1, 0, -1):
            stops.append(int(self.starts[row, stops[-1]]))
        return stops[::-1]


def bottleneck_cuts(
    loads: LayerLoads,
    stage_capacities: StageCapacities,
    times: Sequence[StageTimes],
    most_stages: int,
) -> Bottlenecks:
    """Return the cuts whose slowest stage is fastest, on 1, 2, ... ``most_stages`` stages.

    Parameters
    ----------
    times
        Of the stages; those beyond the last one stated are like it.
    """
    num_layers = len(loads)
    num_stages = min(most_stages, num_layers)
    kinds, kind_of = _kinds(stage_capacities, times, num_stages)
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
    stage_capacities: StageCapacities, times: Sequence[StageTimes], num_stages: int
) -> tuple[list[_Kind], IntArray]:
    """Return the kinds of stages, and which of them each stage is."""
    capacities, in_flight = (
        stage_capacities.capacities(num_stages),
        stage_capacities.in_flight(num_stages),
    )
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


def most_worth(
    sizes: Sequence[float], worths: Sequence[float], capacity: float
) -> tuple[float, list[int]]:
    """Return the largest worth of items within a capacity, and which items they are.

    A knapsack, exact: sets of items in the order of their size, without those that another one
    beats in size and worth. Few sizes, as those of a model, leave few sets; random ones may not.

    Parameters
    ----------
    sizes, worths
        Of each item, none negative: bytes, and the seconds or bytes that its place saves.
    """
    sets: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for item, (size, worth) in enumerate(zip(sizes, worths, strict=True)):
        further = [
            (held + size, saved + worth, (*items, item))
            for held, saved, items in sets
            if held + size <= capacity
        ]
        sets = _undominated([*sets, *further])
    _, worth, items = sets[-1]
    return worth, list(items)


def _undominated(
    sets: list[tuple[float, float, tuple[int, ...]]],
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return the sets that are worth more than every smaller one, smallest first."""
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for entry in sorted(sets, key=lambda entry: (entry[0], -entry[1])):
        if not kept or entry[1] > kept[-1][1]:
            kept.append(entry)
    return kept


def round_s(pass_s: Num, slowest_s: Num, num_groups: Num) -> Num:
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
