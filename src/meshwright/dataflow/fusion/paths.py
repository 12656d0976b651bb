"""The best chain of partitions: a shortest path over ideals, with a second number on the way.

Two quantities couple partitions. Weights of the next one come while one runs, if there is room: a
path is the pair of its end and of the time at which these weights begin to load, both later or
both the same after the same steps. Or the bytes of all tensors limit the micro-batch, and a small
one reads the weights more often: then a path is (seconds, bytes). An ideal keeps the pairs that no
other beats in both. A pair is dropped as soon as the least of both from there to the end cannot
beat the best path known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.dataflow.fusion.lattice import Lattice

TOLERANCE = 1e-12
"""Relative tolerance: sums of the same seconds in another order differ by less."""

Finish = Callable[[FloatArray, FloatArray], FloatArray]
"""Function from both numbers of whole paths to the seconds of a sequence; infinite: no fit."""
Columns = tuple[FloatArray, FloatArray]
Advance = Callable[[FloatArray, FloatArray, IntArray], Columns]
"""Function from both numbers of paths, and a step behind each, to those after it; it rises."""


@dataclass(frozen=True)
class LatticeSteps:
    """Steps of a lattice that are possible, and what they do to both numbers of a path."""

    lattice: Lattice
    number: IntArray
    """Indices among all steps of the lattice, in their order."""
    least: Columns
    """Least growth of each number over each step."""
    advance: Advance

    @cached_property
    def source(self) -> IntArray:
        """Ideals before the steps."""
        return self.lattice.source[self.number]

    @cached_property
    def target(self) -> IntArray:
        """Ideals after the steps, rising."""
        return self.lattice.target[self.number]

    @cached_property
    def backwards(self) -> IntArray:
        """The steps in the order of falling sources."""
        place = np.full(len(self.lattice.source), -1)
        place[self.number] = np.arange(len(self.number))
        found: IntArray = place[self.lattice.backwards]
        return found[found >= 0]

    @cached_property
    def left(self) -> Columns:
        """Least growth from each ideal to the whole graph; infinite where no path leads."""
        return self.first_left, _to_the_end(self, self.least[1])

    @cached_property
    def first_left(self) -> FloatArray:
        """Least growth of the first number alone."""
        return _to_the_end(self, self.least[0])

    def least_s(self, finish: Finish, enough_s: float) -> float:
        """Return seconds that no path undercuts, infinite where none finishes.

        Of the first number alone where those are enough.
        """
        least = float(finish(self.first_left[:1], np.zeros(1))[0])
        return least if least >= enough_s else float(finish(*(c[:1] for c in self.left))[0])

    def by_size(self, ideals: IntArray) -> list[tuple[int, int]]:
        """Return the first and end row of the ideals of each size, in a column of sorted ideals."""
        starts = np.flatnonzero(np.diff(self.lattice.size[ideals], prepend=-1))
        ends = np.append(starts, len(ideals))[1:]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


@dataclass(frozen=True)
class Path:
    """A whole chain of partitions."""

    numbers: tuple[float, float]
    finished_s: float
    steps: tuple[int, ...]
    """Numbers of the steps of the lattice, in the order of time."""


def best_path(
    steps: LatticeSteps, finish: Finish, most_s: float = np.inf
) -> tuple[Path | None, int]:
    """Return the path that finishes first, and the number of pairs that were kept on the way.

    None where no path can finish before ``most_s``. Of equal paths one with the least second.
    """
    if not steps.least_s(finish, most_s) < most_s:
        return None, 0
    known = min(
        float(finish(*_along(steps, costs, left))[0])
        for costs, left in zip(steps.least, steps.left, strict=True)
    )
    pairs = _Pairs(len(steps.lattice.ideals))
    for start, end in steps.by_size(steps.target):
        pairs.extend(steps, slice(start, end), finish, known)
    return pairs.path(steps, finish), pairs.count


def _to_the_end(steps: LatticeSteps, costs: FloatArray) -> FloatArray:
    """Return the least cost from each ideal to the whole graph; infinite where no path leads."""
    least = np.full(len(steps.lattice.ideals), np.inf)
    least[-1] = 0.0
    order = steps.backwards
    source, target, costs = steps.source[order], steps.target[order], costs[order]
    firsts = np.flatnonzero(np.diff(source, prepend=-1))
    ideals, place = source[firsts], 0
    for start, end in steps.by_size(source):
        after = place + int(np.searchsorted(firsts[place:], end))
        through = costs[start:end] + least[target[start:end]]
        least[ideals[place:after]] = np.minimum.reduceat(through, firsts[place:after] - start)
        place = after
    return least


def _along(steps: LatticeSteps, costs: FloatArray, left: FloatArray) -> Columns:
    """Return both numbers of a path of least cost, as columns of one."""
    best = np.zeros(len(steps.lattice.ideals), np.int64)
    is_best = np.flatnonzero(costs + left[steps.target] <= left[steps.source])
    best[steps.source[is_best]] = is_best
    first, second, ideal = np.zeros(1), np.zeros(1), 0
    while ideal != len(steps.lattice.ideals) - 1:
        first, second = steps.advance(first, second, best[ideal : ideal + 1])
        ideal = int(steps.target[best[ideal]])
    return first, second


class _Pairs:
    """Pairs of numbers of ways to each ideal, with the pair and step each came from."""

    def __init__(self, num_ideals: int) -> None:
        self.first, self.second = np.zeros(1), np.zeros(1)
        self.parent, self.step = np.full(1, -1), np.full(1, -1)
        self.start, self.held = np.zeros(num_ideals, np.int64), np.zeros(num_ideals, np.int64)
        self.held[0] = 1

    @property
    def count(self) -> int:
        """All pairs kept so far."""
        return len(self.first)

    def extend(self, steps: LatticeSteps, chosen: slice, finish: Finish, known: float) -> None:
        """Add the pairs of ideals of one size, which these steps lead to."""
        source, target = steps.source[chosen], steps.target[chosen]
        times = self.held[source]
        step = np.repeat(np.arange(len(source)), times)
        place = np.arange(len(step)) - np.repeat(np.cumsum(times) - times, times)
        parent = self.start[source][step] + place
        target = target[step]
        first, second = steps.advance(self.first[parent], self.second[parent], chosen.start + step)
        at_best = finish(first + steps.left[0][target], second + steps.left[1][target])
        kept = np.flatnonzero(at_best <= known * (1 + TOLERANCE))
        kept = kept[_unbeaten(target[kept], first[kept], second[kept])]
        start = np.flatnonzero(np.diff(target[kept], prepend=-1))
        ideals = target[kept[start]]
        self.start[ideals] = self.count + start
        self.held[ideals] = np.diff(start, append=len(kept))
        self.first = np.append(self.first, first[kept])
        self.second = np.append(self.second, second[kept])
        self.parent = np.append(self.parent, parent[kept])
        self.step = np.append(self.step, steps.number[chosen][step[kept]])

    def path(self, steps: LatticeSteps, finish: Finish) -> Path | None:
        """Return the best path to the last ideal."""
        last = len(steps.lattice.ideals) - 1
        ends = np.arange(self.start[last], self.start[last] + self.held[last])
        finished = finish(self.first[ends], self.second[ends])
        if not np.any(np.isfinite(finished)):
            return None
        best = int(np.lexsort((self.second[ends], finished))[0])
        taken, pair = [], int(ends[best])
        while self.step[pair] >= 0:
            taken.append(int(self.step[pair]))
            pair = int(self.parent[pair])
        end = int(ends[best])
        return Path(
            (float(self.first[end]), float(self.second[end])), float(finished[best]),
            tuple(reversed(taken)),
        )  # fmt: skip


def _unbeaten(ideal: IntArray, first: FloatArray, second: FloatArray) -> IntArray:
    """Return the pairs of each ideal that no other pair beats, in the order of the ideals.

    In the order of first numbers, a pair is kept where its second is below those of all before it.
    One running minimum serves all ideals: ranks of later ideals lie below those of earlier ones.
    """
    if not len(ideal):
        return np.zeros(0, np.int64)
    order = np.lexsort((second, first, ideal))
    rank = np.empty(len(order), np.int64)
    rank[np.argsort(second[order], kind="stable")] = np.arange(len(order))
    group = np.cumsum(np.diff(ideal[order], prepend=ideal[order[0]]) != 0)
    level = rank - group * (len(order) + 1)
    is_lower: BoolArray = np.append(True, level[1:] < np.minimum.accumulate(level)[:-1])
    found: IntArray = order[is_lower]
    return found
