"""Exhaustive search with bounds: families in order of their lower bounds, priced block by block.

A family is a row that stands for many members of the space; no member is faster than the bound of
its family. The caller defines families and the price of their members. The best candidates are
folded over blocks, and counts say how the space was covered: priced, refused by a named rule, or
left out by a proven bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.records import Brief
from meshwright.cost.communication import AxisPlacement
from meshwright.sharding.strategy import (
    PlanOptions,
    Strategy,
)


@dataclass
class Counts:
    """Numbers of candidates by outcome; they sum to the size of the space."""

    priced: int = 0
    """Priced in full."""
    does_not_fit: int = 0
    """Their memory was priced, and is more than there is."""
    over_host: int = 0
    """Candidates of these that fit the devices, but not the memory of their hosts."""
    least_device_bytes: float = float("inf")
    """Least need of one of those on a device, among the needs above its capacity [bytes]."""
    least_host_bytes: float = float("inf")
    """Least need of one of those on the host of a device, among the needs above its capacity
    [bytes]."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused by a rule, by its name; a candidate is counted under the first rule it breaks."""
    pruned_by_memory: int = 0
    """Families with a smallest member that needs more memory than there is."""
    pruned_by_bound: int = 0
    """Families with a lower bound on time beyond the best plans."""
    dominated: int = 0
    """Plans with more offload than one that fits already: offload only slows them."""

    def add(self, other: Counts) -> None:
        """Take in the counts of another part of a space."""
        for f in fields(Counts):
            mine, its = getattr(self, f.name), getattr(other, f.name)
            is_least = f.name.startswith("least_")
            setattr(self, f.name, min(mine, its) if is_least else mine + its)

    def plus(self, other: Counts) -> Counts:
        """Return the counts of two parts of a space."""
        found = replace(self)
        found.add(other)
        return found

    @property
    def total(self) -> int:
        """Size of the space."""
        pruned = self.pruned_by_memory + self.pruned_by_bound
        named = sum(self.refused.values())
        return self.priced + self.does_not_fit + named + pruned + self.dominated

    def coverage(
        self, lower_bound_s: float, elapsed_s: float, *, gap: float = 0.0, is_complete: bool = True
    ) -> Coverage:
        """Return the coverage of the space by a search."""
        return Coverage(
            num_candidates=self.total,
            num_priced=self.priced,
            num_refused={name: n for name, n in sorted(self.refused.items()) if n},
            num_over_memory=self.does_not_fit + self.pruned_by_memory,
            num_beyond_bound=self.pruned_by_bound,
            num_dominated=self.dominated,
            is_complete=is_complete,
            lower_bound_s=lower_bound_s,
            gap=gap,
            elapsed_s=elapsed_s,
        )

    @property
    def summary(self) -> str:
        """Counts of the searched space, in one line."""
        refused = sum(self.refused.values())
        return (
            f"{self.total:,} candidates: {self.priced:,} priced, {refused:,} refused by rule, "
            f"{self.does_not_fit + self.pruned_by_memory:,} over memory, "
            f"{self.pruned_by_bound:,} beyond the bound, "
            f"{self.dominated:,} dominated"
        )


@dataclass(frozen=True)
class Coverage(Brief):
    """Counts of the searched space; the numbers sum to ``num_candidates``."""

    num_candidates: int
    num_priced: int
    num_refused: Mapping[str, int]
    """Refused candidates by rule."""
    num_over_memory: int
    num_beyond_bound: int
    num_dominated: int
    is_complete: bool
    """False after an interrupt: the best so far, with a gap."""
    lower_bound_s: float
    gap: float
    elapsed_s: float


TIE = 0.01
"""Plans within this share of the best time are ties; headroom decides among them."""


@dataclass(frozen=True)
class Found:
    """One candidate among the best."""

    strategy: Strategy
    plan_options: PlanOptions
    time_s: float
    """Its price, or a bound of it where its axes are still to be placed [s]."""
    memory_bytes: float
    placement: AxisPlacement | None = None
    """Place on a grid: columns of one row; None: as the order of its axes says."""


@dataclass
class FastestCandidates:
    """The ``size`` fastest candidates; each carries its memory and an identity of whole numbers.

    ``limit_s`` is the time beyond which a candidate can matter no more: neither among the fastest
    ``top`` nor within a tie of the best, or slower than the stated limit.
    """

    size: int
    top: int
    within_s: float | None = None
    """All that are this fast are wanted [s]; None: the fastest ``top``."""
    times_s: FloatArray = field(default_factory=lambda: np.empty(0))
    memory_bytes: FloatArray = field(default_factory=lambda: np.empty(0))
    identities: IntArray = field(default_factory=lambda: np.empty((0, 5), dtype=np.int64))
    ranks: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Sort keys ahead of the time, the least first; without one all are equal."""

    @property
    def limit_s(self) -> float:
        """Seconds beyond which a candidate is of no interest."""
        if self.within_s is not None:
            return self.within_s
        if len(self.times_s) < self.top:
            return float("inf")
        return float(max(self.times_s[self.top - 1], self.times_s[0] * (1.0 + TIE)))

    def fold(
        self, times_s: FloatArray, memory_bytes: FloatArray, identities: IntArray,
        ranks: IntArray | None = None,
    ) -> None:  # fmt: skip
        """Take the rows of a block into account."""
        of_rows = np.zeros(len(times_s), dtype=np.int64) if ranks is None else ranks
        near: BoolArray = times_s <= self.limit_s
        if not near.any():
            return
        times = np.concatenate([self.times_s, times_s[near]])
        memory = np.concatenate([self.memory_bytes, memory_bytes[near]])
        rows = np.concatenate([self.identities, identities[near]])
        first = np.concatenate([self.ranks, of_rows[near]])
        names = (rows[:, column] for column in range(rows.shape[1] - 1, -1, -1))
        order = np.lexsort((*names, memory, times, first))[: self.size]
        self.times_s, self.memory_bytes, self.identities = times[order], memory[order], rows[order]
        self.ranks = first[order]


BLOCK_ROWS = 8_192
"""Families of one block: with their divisions about the size of a cache."""
FIRST_ROWS = 256
"""Families of the first block, which finds a first good plan."""
Progress = Callable[[Counts, FastestCandidates, float], None]
"""Called after each block: counts, the best so far, and the bound of the rest [s]."""
Price = Callable[[IntArray], None]
"""Prices the members of some families and folds them into the best."""


@dataclass
class BoundedSearch:
    """One pass through families that leaves out those beyond the best found."""

    bound_s: FloatArray
    """No member of each family is faster [s], shape (families,)."""
    num_members: FloatArray
    """Shape (families,)."""
    counts: Counts
    best: FastestCandidates
    prepare: Callable[[IntArray], Price]
    """Returns the pricing function of members, given the families to price, in ascending order."""
    left_s: float = float("inf")
    """Bound of the families that were not priced yet [s]."""

    def cover(self, rows: IntArray, *, prune: bool, progress: Progress | None) -> bool:
        """Go through families in order of their bounds; False after an interrupt.

        The first ones, then the first block, set a limit beyond which no others are collected.
        """
        try:
            cuts = (FIRST_ROWS, FIRST_ROWS + BLOCK_ROWS)
            for part in np.split(rows, cuts):
                self.price(part, prune=prune, progress=progress)
        except KeyboardInterrupt:
            return False
        return True

    def price(self, rows: IntArray, *, prune: bool, progress: Progress | None) -> None:
        """Price families block by block, in the given order of their bounds."""
        rows = self._near(rows) if prune else rows
        if not len(rows):
            return
        price = self.prepare(np.sort(rows))
        for first in range(0, len(rows), BLOCK_ROWS):
            part = rows[first : first + BLOCK_ROWS]
            self.left_s = float(self.bound_s[part[0]])
            part = self._near(part) if prune and first else part
            if len(part):
                price(part)
            if progress is not None:
                progress(self.counts, self.best, self.left_s)

    def _near(self, rows: IntArray) -> IntArray:
        """Return the families that may hold one of the best."""
        bound_s = self.bound_s[rows]
        near = bound_s <= self.best.limit_s
        self.counts.pruned_by_bound += int(self.num_members[rows[~near]].sum())
        return rows[near]
