"""A wide graph searched in all orders, except those that a known answer and a bound exclude.

Ideals are reached in the order of their size, each in its least seconds. One that was reached too
late for the kernels that must still follow is not grown, and a partition between two ideals is
priced only where its shares leave time for the rest. The excluded ones lie on no path that is
faster than the known answer. Seconds alone are summed, for the largest micro-batch: a bound for all
of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.dataflow.fusion.lattice import Limits, row_keys
from meshwright.dataflow.fusion.price import KernelBounds, bound_s, kernel_bounds, price_tiles
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.ideals import TooWideError, larger_ideals, order_ideals

MOST_IDEALS = 100_000
"""Ideals beyond which nothing is searched."""
MOST_STEPS = 1_000_000
"""Most steps; beyond them the bound of the ideals reached so far is used."""
TOGETHER = 200
"""Ideals grown at once."""
ROUNDING = 1.0 - 1e-9
"""Factor on the known time: a smaller gain is not searched for."""


@dataclass(frozen=True)
class AllOrders:
    """Result of a search of all orders."""

    bound_s: float
    """Lower bound of all partitions other than those already known."""
    sets: BoolArray | None
    """Faster partitions that were found, shape (partitions, kernels), in their order."""


def search_all_orders(problem: FusionProblem, limits: Limits, known_s: float) -> AllOrders:
    """Return a lower bound of partitions faster than the known ones, and those found."""
    least_s, ramp = min(bound_s(problem), known_s * ROUNDING), problem.least_ramp
    try:
        ideals = order_ideals(limits.needs, MOST_IDEALS, kept=limits.stand)
    except TooWideError:
        return AllOrders(least_s, None)
    paths = _Paths(problem, limits, ideals, problem.steady_s(known_s, ramp))
    paths.grow()
    found_s = problem.whole_s(paths.bound_s, ramp)
    return AllOrders(max(least_s, min(found_s, known_s * ROUNDING)), paths.sets())


@dataclass
class _Paths:
    """The least seconds in which each ideal was reached, and the ideal before it."""

    problem: FusionProblem
    limits: Limits
    ideals: BoolArray
    known_s: float
    num_steps: int = 0
    bound_s: float = np.inf
    shares: KernelBounds = field(init=False)
    left_s: FloatArray = field(init=False)
    """Least time of the kernels that must still follow each ideal."""
    reached_s: FloatArray = field(init=False)
    parent: IntArray = field(init=False)

    def __post_init__(self) -> None:
        count, size = len(self.ideals), self.problem.tried_micro_batches[0][1]
        self.shares = kernel_bounds(self.problem)
        self.left_s = self.shares.least_s(~self.ideals)
        self.reached_s, self.parent = np.full(count, np.inf), np.full(count, -1)
        # what loads ahead may be hidden
        loads_ahead = self.problem.rules.loads_ahead
        self.reached_s[0] = 0.0 if loads_ahead else self.problem.total_setup_s / size
        keys = row_keys(self.ideals)
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def grow(self) -> None:
        """Reach all ideals that may lie on a faster path, until there are too many steps."""
        size = self.ideals.sum(axis=1)
        for smaller in range(self.problem.num_kernels):
            hopeful = self.reached_s + self.left_s < self.known_s * ROUNDING
            if self.num_steps > MOST_STEPS:
                further = hopeful & (size >= smaller)
                seconds = (self.reached_s + self.left_s)[further]
                self.bound_s = float(seconds.min(initial=self.known_s))
                return
            rows = np.flatnonzero(hopeful & (size == smaller))
            for first in range(0, len(rows), TOGETHER):
                self._grow(rows[first : first + TOGETHER])
        self.bound_s = float(self.reached_s[-1])

    def _grow(self, rows: IntArray) -> None:
        """Reach larger ideals from some of one size."""
        start, limits = self.ideals[rows], self.limits
        grown = larger_ideals(start, limits.needs, 2**60, kept=limits.allows)
        for origin, after in grown:
            self.num_steps += len(origin)
            source, beyond = rows[origin], after & ~start[origin]
            least_s = self.reached_s[source] + self.shares.least_s(beyond)
            is_in_time = least_s + self.shares.least_s(~after) < self.known_s * ROUNDING
            if np.any(is_in_time):
                self._reach(source[is_in_time], after[is_in_time], beyond[is_in_time])

    def _reach(self, source: IntArray, after: BoolArray, beyond: BoolArray) -> None:
        """Price partitions, and keep the least seconds of the ideals behind them."""
        _, first, number = np.unique(row_keys(beyond), return_index=True, return_inverse=True)
        prices = price_tiles(self.problem, beyond[first])
        size = self.problem.tried_micro_batches[0][1]
        least = np.full(len(first), np.inf)
        np.minimum.at(least, prices.number, prices.spaced_s(size))
        seconds = least[number]
        reached = self.reached_s[source] + seconds
        same = self.limits.branches.canonical(after)
        target = self._order[np.searchsorted(self._keys, row_keys(same))]
        order = np.lexsort((reached, target))
        best = order[np.flatnonzero(np.diff(target[order], prepend=-1))]
        best = best[reached[best] < self.reached_s[target[best]]]
        self.reached_s[target[best]] = reached[best]
        self.parent[target[best]] = source[best]

    def sets(self) -> BoolArray | None:
        """Return the partitions of the fastest path; None where none is faster.

        Nor where branches that are alike changed places on the way: its sets are no chain then.
        """
        if self.reached_s[-1] >= self.known_s * ROUNDING:
            return None
        chain = [len(self.ideals) - 1]
        while chain[-1]:
            chain.append(int(self.parent[chain[-1]]))
        rows = self.ideals[chain[::-1]]
        is_chain = not np.any(rows[:-1] & ~rows[1:])
        return rows[1:] & ~rows[:-1] if is_chain else None
