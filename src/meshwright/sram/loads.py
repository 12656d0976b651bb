"""What a run of layers puts on the device that holds it, and what the stages have room for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, Mask, Num

Index = int | IntArray
"""A place in the sequence of layers, or a column of them: shape (rows,)."""


@dataclass(frozen=True)
class StageCapacities:
    """What each stage has room for; stages beyond the last one stated are like it."""

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
        """Return the micro-batches whose activations the first stages keep."""
        return np.minimum(np.arange(1, num_stages + 1), self.most_in_flight)


@dataclass(frozen=True)
class LayerLoads:
    """Bytes of each layer, in their order; columns with one entry for each layer, at least one.

    The load of a run is the sum of ``resident_bytes``, plus ``in_flight`` times the sum of
    ``kept_bytes``, plus the largest of ``transient_bytes``. Sums of whole bytes are exact up to
    2^53.
    """

    resident_bytes: FloatArray
    """Weights and their state, key-value cache: they add up [bytes]."""
    transient_bytes: FloatArray
    """Activations and buffers of the layer at work: the largest one counts [bytes]."""
    kept_bytes: FloatArray
    """Kept for the backward pass by each micro-batch in flight; 0 in inference [bytes]."""

    def __len__(self) -> int:
        return len(self.resident_bytes)

    @property
    def least_total_bytes(self) -> float:
        """What adds up over all layers with one micro-batch in flight [bytes]."""
        return float(self.sums_bytes(1)[-1])

    def reversed(self) -> LayerLoads:
        """Return the layers from the last to the first."""
        columns = (self.resident_bytes, self.transient_bytes, self.kept_bytes)
        return LayerLoads(*(column[::-1] for column in columns))

    def sums_bytes(self, in_flight: Index) -> FloatArray:
        """Return what adds up over the first 0, 1, ... n layers [bytes]."""
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
        """Return where each stage of a sequence stops that takes the longest run within its limit.

        A stage whose limit not even one layer keeps is empty. One look-up for each stage where
        all transients are equal, else a few with a table of range maxima: O(k log n).

        Parameters
        ----------
        least, most
            Stops under lower and under higher limits, where they are known: those asked for lie
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

        The largest transient up to ``above`` allows a run that certainly fits, and whose own one
        is no larger: most searches end there. What lies between is bisected.
        """
        stop = above
        while fitting < above:
            room = limit - self._largest_of(first, stop)
            fitting = max(fitting, bisect_right(sums, sums[first] + room, fitting, stop + 1) - 1)
            if fitting < stop:
                above = stop - 1
            stop = (fitting + above + 1) // 2
        return fitting

    def _largest_of(self, first: int, stop: int) -> float:
        """Return the largest transient of a run of one layer or more [bytes]."""
        power = (stop - first).bit_length() - 1
        row = self._viewed_maxima[power]
        return max(row[first], row[stop - (1 << power)])

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
        """Return ``sums_bytes`` as a view, whose single entries are read faster."""
        if in_flight not in self._views:
            self._views[in_flight] = _view(self.sums_bytes(in_flight))
        return self._views[in_flight]

    @cached_property
    def _views(self) -> dict[int, memoryview]:
        return {}

    @cached_property
    def _transients(self) -> memoryview:
        return _view(np.ascontiguousarray(self.transient_bytes, dtype=float))

    @cached_property
    def _is_even(self) -> bool:
        """Whether all transients are equal."""
        return bool(np.min(self.transient_bytes) == np.max(self.transient_bytes))

    @cached_property
    def _maxima(self) -> FloatArray:
        """Row k holds the largest of each 2^k transients side by side, then nothing of use."""
        rows, width = [np.asarray(self.transient_bytes, dtype=float)], 1
        while 2 * width <= len(self):
            last, further, entries = rows[-1], np.zeros(len(self)), len(self) - 2 * width + 1
            further[:entries] = np.maximum(last[:entries], last[width : width + entries])
            rows.append(further)
            width *= 2
        return np.stack(rows)

    @cached_property
    def _viewed_maxima(self) -> list[memoryview]:
        return [_view(row) for row in self._maxima]


def _view(column: Any) -> memoryview:
    """Return a view of a column."""
    return memoryview(column)
