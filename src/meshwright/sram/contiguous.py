"""Layers cut into contiguous stages: fewest stages, most even load, or fastest slowest stage.

Also the load of a run of layers on the device that holds it, and which layers of a stage stay in
the near memory when not all of them fit there.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, repeat

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Mask, Num, column

Index = int | IntArray
"""Index in the sequence of layers, or a column of them: shape (rows,)."""


@dataclass(frozen=True)
class StageCapacities:
    """Room of each stage; stages beyond the last one stated are like it."""

    capacity_bytes: Sequence[float]
    most_in_flight: int = 1
    """Stage i keeps the activations of ``min(i + 1, most_in_flight)`` micro-batches. Training
    fills stages from the last layer to the first: under 1F1B the i-th stage from the end is i
    passes away from the first gradient. Inference keeps none, so that 1 does."""

    def capacities(self, num_stages: int) -> FloatArray:
        """Return the room of the first stages [bytes]."""
        at = np.minimum(np.arange(num_stages), len(self.capacity_bytes) - 1)
        return np.asarray(self.capacity_bytes, dtype=float)[at]

    def in_flight(self, num_stages: int) -> IntArray:
        """Return the number of micro-batches with activations kept by each of the first stages."""
        return np.minimum(np.arange(1, num_stages + 1), self.most_in_flight)


@dataclass(frozen=True)
class LayerLoads:
    """Bytes of each layer, in their order; columns with one entry for each layer, at least one.

    The load of a run is the sum of ``resident_bytes``, plus ``in_flight`` times the sum of
    ``kept_bytes``, plus the largest of ``transient_bytes``. Sums of whole bytes are exact up to
    2^53.
    """

    resident_bytes: FloatArray
    """Weights and their state, key-value cache: summed over the layers of a run [bytes]."""
    transient_bytes: FloatArray
    """Activations and buffers of a layer while it runs: only the largest counts [bytes]."""
    kept_bytes: FloatArray
    """Activations kept for the backward pass by each micro-batch in flight; 0 in inference
    [bytes]."""

    def __len__(self) -> int:
        return len(self.resident_bytes)

    @property
    def least_total_bytes(self) -> float:
        """Sum over all layers with one micro-batch in flight, transients apart [bytes]."""
        return float(self.sums_bytes(1)[-1])

    def reversed(self) -> LayerLoads:
        """Return the layers from the last to the first."""
        columns = (self.resident_bytes, self.transient_bytes, self.kept_bytes)
        return LayerLoads(*(column[::-1] for column in columns))

    def sums_bytes(self, in_flight: Index) -> FloatArray:
        """Return the sums over the first 0, 1, ... n layers, transients apart [bytes]."""
        resident, kept = self._sums
        sums: FloatArray = resident + in_flight * kept
        return sums

    def load_bytes(self, first: Index, stop: Index, in_flight: Index = 1) -> Num:
        """Return the load of a run, or of a column of runs; nothing where it is empty [bytes]."""
        resident, kept = self._sums
        added = resident[stop] - resident[first] + in_flight * (kept[stop] - kept[first])
        return added + self._largest_transient_bytes(np.asarray(first), np.asarray(stop))

    def fits(self, first: Index, stop: Index, limit_bytes: float, in_flight: int = 1) -> Mask:
        """Return whether the load of a run, or of each of a column of runs, is within a limit.

        It is rounded as in ``stops_within``, so that both agree on sums of fractions too.
        """
        sums = self.sums_bytes(in_flight)
        largest = self._largest_transient_bytes(np.asarray(first), np.asarray(stop))
        return sums[stop] <= sums[first] + (limit_bytes - largest)

    def stops_within(
        self, limits_bytes: Sequence[float], in_flight: Sequence[int],
        least: Iterable[int] | None = None, most: Iterable[int] | None = None,
    ) -> list[int]:  # fmt: skip
        """Return the stop of each stage of a sequence, each with the longest run within its limit.

        A stage with a limit too small for one layer is empty. One look-up for each stage where all
        transients are equal, else a few with a table of range maxima: O(k log n).

        Parameters
        ----------
        least, most
            Stops under lower and under higher limits, where they are known: the result lies
            between, because stops never fall when limits rise.
        """
        stops, stop, end, is_even = [], 0, len(self), self._is_even
        least, most = least or repeat(0), most or repeat(end)
        sums, summed_for = self._viewed_sums(1), 1
        for limit, count, low, high in zip(limits_bytes, in_flight, least, most, strict=False):
            if low == high:
                stop = low
            elif stop < end:
                if count != summed_for:
                    sums, summed_for = self._viewed_sums(count), count
                known = max(stop, low)
                room = limit - self._transients[stop]
                within = max(bisect_right(sums, sums[stop] + room, known, high + 1) - 1, known)
                stop = within if is_even else self._fitting(sums, stop, known, within, limit)
            stops.append(stop)
        return stops

    def _fitting(self, sums: memoryview, first: int, fitting: int, above: int, limit: float) -> int:
        """Return the largest stop of a run from ``first`` within a limit, between two stops.

        The largest transient up to ``above`` is at least that of any shorter run, so a run that
        fits with it certainly fits: most searches end there. The stops between are bisected.
        """
        stop, maxima = above, self._viewed_maxima
        while fitting < above:
            power = (stop - first).bit_length() - 1
            room = limit - max(maxima[power][first], maxima[power][stop - (1 << power)])
            fitting = max(fitting, bisect_right(sums, sums[first] + room, fitting, stop + 1) - 1)
            if fitting < stop:
                above = stop - 1
            stop = (fitting + above + 1) // 2
        return fitting

    def _largest_transient_bytes(self, first: IntArray, stop: IntArray) -> Num:
        """Return the largest transient of each run; 0 where it is empty [bytes]."""
        if self._is_even:
            return np.where(stop > first, self._transients[0], 0.0)
        width = np.maximum(stop - first, 1)
        power = np.frexp(width)[1] - 1
        last = np.maximum(stop - (1 << power), 0)
        table, at = self._maxima, np.minimum(first, len(self) - 1)
        return np.where(stop > first, np.maximum(table[power, at], table[power, last]), 0.0)

    @cached_property
    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Sums of resident and of kept bytes over the first 0, 1, ... n layers."""
        resident, kept = (
            np.concatenate(([0.0], np.cumsum(column)))
            for column in (self.resident_bytes, self.kept_bytes)
        )
        return resident, kept

    def _viewed_sums(self, in_flight: int) -> memoryview:
        """Return ``sums_bytes`` as a view with faster reads of single entries."""
        if in_flight not in self._views:
            self._views[in_flight] = self.sums_bytes(in_flight).data
        return self._views[in_flight]

    @cached_property
    def _views(self) -> dict[int, memoryview]:
        return {}

    @cached_property
    def _transients(self) -> memoryview:
        return np.ascontiguousarray(self.transient_bytes, dtype=float).data

    @cached_property
    def _is_even(self) -> bool:
        """Whether all transients are equal."""
        return bool(np.min(self.transient_bytes) == np.max(self.transient_bytes))

    @cached_property
    def _maxima(self) -> FloatArray:
        """Row k holds the largest of each 2^k adjacent transients; its last entries are unused."""
        rows, width = [np.asarray(self.transient_bytes, dtype=float)], 1
        while 2 * width <= len(self):
            last, further, entries = rows[-1], np.zeros(len(self)), len(self) - 2 * width + 1
            further[:entries] = np.maximum(last[:entries], last[width : width + entries])
            rows.append(further)
            width *= 2
        return np.stack(rows)

    @cached_property
    def _viewed_maxima(self) -> list[memoryview]:
        return [row.data for row in self._maxima]


def greedy_stops(loads: LayerLoads, stage_capacities: StageCapacities) -> list[int]:
    """Return the stop of each stage when each takes as many layers as fit: the fewest stages.

    The last stop is short of the end where a layer fits no stage that is left. A stage too small
    for its next layer stays empty.
    """
    most = len(loads) + len(stage_capacities.capacity_bytes)
    limits = stage_capacities.capacities(most).tolist()
    stops = loads.stops_within(limits, stage_capacities.in_flight(most).tolist())
    return stops[: stops.index(stops[-1]) + 1]


def too_large(loads: LayerLoads, stage_capacities: StageCapacities) -> IntArray:
    """Return the layers that fit no stage by themselves, with one micro-batch in flight."""
    layers = np.arange(len(loads))
    alone: FloatArray = column(loads.load_bytes(layers, layers + 1))
    return np.flatnonzero(alone > max(stage_capacities.capacity_bytes))


def least_stages(loads: LayerLoads, stage_capacities: StageCapacities) -> int:
    """Return a lower bound on the stages: the sum over all layers, over the capacity.

    ceil(sum / C) for equal capacities. Transients are left out, and one micro-batch is in flight.
    """
    stated = np.cumsum(stage_capacities.capacity_bytes)
    needed_bytes = loads.least_total_bytes
    if needed_bytes <= stated[-1]:
        return int(np.searchsorted(stated, needed_bytes)) + 1
    beyond = (needed_bytes - float(stated[-1])) / stage_capacities.capacity_bytes[-1]
    return len(stated) + int(np.ceil(beyond))


_BELOW = 1.0 - 1e-12
"""Keeps a bound on its side of the optimum although sums and divisions are rounded."""


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
class LayerTimes:
    """Seconds of the layers on the device of a stage, and of the sends at its ends."""

    layer_s: FloatArray
    """Time of each layer [s]."""
    entry_s: FloatArray
    """Time of the sends of a stage that starts with each layer; 0 for the first one [s]."""
    exit_s: FloatArray
    """Time of the sends of a stage that ends with each layer [s]."""

    def reversed(self) -> LayerTimes:
        """Return the times with the layers in reverse order."""
        return LayerTimes(self.layer_s[::-1], self.exit_s[::-1], self.entry_s[::-1])

    def run_s(self, first: IntArray, stop: int) -> FloatArray:
        """Return the seconds of runs that stop at the same place."""
        work = self._sums[stop] - self._sums[first]
        seconds: FloatArray = work + self.entry_s[first] + self.exit_s[stop - 1]
        return seconds

    @cached_property
    def _sums(self) -> FloatArray:
        return np.concatenate(([0.0], np.cumsum(self.layer_s)))


@dataclass(frozen=True)
class CutTable:
    """The best cut on each number of stages, some of which may be empty."""

    seconds: FloatArray
    """Time of 1, 2, ... k stages, their slowest or their sum; infinite where the layers do not
    fit."""
    starts: IntArray
    """Start of the last of j stages that end at stop i: row j - 1, column i. Equal to i where that
    stage is empty."""

    def stops(self, num_stages: int) -> list[int]:
        """Return the stops of the best cut on a number of stages."""
        stops = [self.starts.shape[1] - 1]
        for row in range(num_stages - 1, 0, -1):
            stops.append(int(self.starts[row, stops[-1]]))
        return stops[::-1]


class StageRuns:
    """The seconds of every run of layers on every kind of stage that has room for it."""

    def __init__(
        self, loads: LayerLoads, stage_capacities: StageCapacities, times: Sequence[LayerTimes],
        most_stages: int,
    ) -> None:  # fmt: skip
        """Price the runs; stages beyond the last one with stated times are like it."""
        self.num_stages = min(most_stages, len(loads))
        self.times = [times[min(stage, len(times) - 1)] for stage in range(self.num_stages)]
        # Stages of equal room, in-flight micro-batches and times are of one kind, priced once.
        capacities = stage_capacities.capacities(self.num_stages).tolist()
        in_flight = stage_capacities.in_flight(self.num_stages).tolist()
        keys = list(zip(capacities, in_flight, map(id, self.times), strict=True))
        kinds = {key: stage for stage, key in reversed(list(enumerate(keys)))}
        places = {key: place for place, key in enumerate(kinds)}
        self.kind_of_stage = np.array([places[key] for key in keys])
        self.firsts: list[IntArray] = []
        """Starts of the runs that stop after 1, 2, ... layers and fit a kind of stage."""
        self.seconds: list[FloatArray] = []
        """Time of these runs, (kinds, firsts); infinite where a kind has no room [s]."""
        earliest = 0
        for stop in range(1, len(loads) + 1):
            first = np.arange(earliest, stop)
            rows = np.stack([
                np.where(loads.fits(first, stop, capacities[stage], in_flight[stage]),
                         self.times[stage].run_s(first, stop), np.inf)
                for stage in kinds.values()
            ])  # fmt: skip
            fits = np.isfinite(rows).any(axis=0)
            # what does not fit before this stop fits before no later one
            skipped = int(fits.argmax()) if fits.any() else len(first)
            earliest += skipped
            self.firsts.append(first[skipped:])
            self.seconds.append(rows[:, skipped:])

    def slowest_s(self, stops: Sequence[int]) -> float:
        """Return the seconds of the slowest stage of a cut [s]."""
        return max(
            float(self.times[stage].run_s(np.array([first]), stop)[0])
            for stage, (first, stop) in enumerate(pairwise([0, *stops]))
            if first < stop
        )

    def best(
        self, total: np.ufunc, num_stages: int | None = None, most_s: float = math.inf
    ) -> CutTable:
        """Return the cuts of least seconds, on 1, 2, ... stages.

        Parameters
        ----------
        total
            ``np.maximum``: the slowest stage counts; ``np.add``: all stages do.
        num_stages
            No more than these; None: all.
        most_s
            No stage takes longer [s].
        """
        num_stages, num_layers = num_stages or self.num_stages, len(self.firsts)
        kinds = self.kind_of_stage[:num_stages]
        reached = np.full((num_stages + 1, num_layers + 1), np.inf)
        reached[:, 0] = 0.0
        starts = np.zeros((num_stages, num_layers + 1), dtype=np.int64)
        for stop, (first, rows) in enumerate(zip(self.firsts, self.seconds, strict=True), start=1):
            if not len(first):
                starts[:, stop] = stop
                continue
            within = np.where(rows <= most_s, rows, np.inf)
            candidates = total(reached[:-1, first], within[kinds])
            best = candidates.argmin(axis=1)
            filled = candidates[np.arange(num_stages), best]
            reached[1:, stop] = np.minimum.accumulate(filled)
            starts[:, stop] = np.where(filled <= reached[1:, stop], first[best], stop)
        return CutTable(reached[1:, num_layers], starts)


Speed = Callable[[int, float, float], float]
"""Function from the number of stages, the sum of their times and the slowest of them [s] to the
speed of a cut; it never rises when one of the times does."""


def fastest_cut(runs: StageRuns, speed: Speed) -> list[int] | None:
    """Return the stops of the cut of most speed; None where none fits.

    The least sum and the least slowest stage of each number of stages bound its speed, and numbers
    are taken from the highest bound down. On each, first the cut of least sum among those with the
    least slowest stage, which mostly reaches the bound; else from the cut of least sum on, each one
    of least sum with a slowest stage faster than that of the one before: no other cut is ahead of
    these in both. A walk ends where the bound of the remaining cuts is no more than the best found.
    """
    slowest_s, sums = runs.best(np.maximum).seconds.tolist(), runs.best(np.add)
    best, stops = 0.0, None

    def tried(number: int, cuts: CutTable) -> float:
        """Return the slowest stage of a cut, which is kept where it is the best [s]."""
        nonlocal best, stops
        found = cuts.stops(number)
        slowest = runs.slowest_s(found)
        own = speed(number, float(cuts.seconds[number - 1]), slowest)
        if own > best:
            best, stops = own, found
        return slowest

    bounds = [
        (speed(number, sum_s, least), number)
        for number, (sum_s, least) in enumerate(
            zip(sums.seconds.tolist(), slowest_s, strict=True), start=1
        )
        if least < math.inf
    ]
    for bound, number in sorted(bounds, key=lambda entry: (-entry[0], entry[1])):
        if _BELOW * bound <= best:
            break
        least = slowest_s[number - 1]
        tried(number, runs.best(np.add, number, least / _BELOW))
        cuts = sums
        while _BELOW * speed(number, float(cuts.seconds[number - 1]), least) > best:
            cuts = runs.best(np.add, number, _BELOW * tried(number, cuts))
    return stops


def most_worth(
    sizes: Sequence[float], worths: Sequence[float], capacity: float
) -> tuple[float, list[int]]:
    """Return the largest worth of items within a capacity, and the indices of these items.

    A knapsack, exact: sets of items in the order of their size, without those that another one
    beats in size and worth. Few sizes, as those of a model, leave few sets; random ones may not.

    Parameters
    ----------
    sizes, worths
        Size and worth of each item, none negative: bytes, and the seconds or bytes that it saves.
    """
    sets: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for item, (size, worth) in enumerate(zip(sizes, worths, strict=True)):
        sets += [
            (held + size, saved + worth, (*items, item))
            for held, saved, items in sets
            if held + size <= capacity
        ]
        ordered = sorted(sets, key=lambda entry: (entry[0], -entry[1]))
        best = accumulate((entry[1] for entry in ordered), max, initial=-math.inf)
        sets = [entry for entry, known in zip(ordered, best, strict=False) if entry[1] > known]
    _, worth, items = sets[-1]
    return worth, list(items)
