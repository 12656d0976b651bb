"""Exhaustive search with bounds: families in order of their lower bounds, priced block by block.

A family is a row that stands for many members of the space; no member is faster than the bound of
its family. What a family is and how its members are priced is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.search.best import Best
from meshwright.search.counts import Counts

BLOCK_ROWS = 8_192
"""Families of one block: with their divisions about the size of a cache."""
FIRST_ROWS = 256
"""Families of the first block, which finds a first good plan."""
Progress = Callable[[Counts, Best, float], None]
"""Called after each block: counts, the best so far, and the bound of what is left [s]."""
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
    best: Best
    watched: Best
    """The best of the watched members."""
    is_watched: BoolArray | None
    """Families whose members are watched, shape (families,); None: no member is."""
    prepare: Callable[[IntArray], Price]
    """Returns what prices members, given the families that may be priced, in ascending order."""
    left_s: float = float("inf")
    """Bound of the families that were not priced yet [s]."""

    def cover(self, rows: IntArray, *, prune: bool, progress: Progress | None) -> bool:
        """Go through families in order of their bounds; False after an interrupt.

        The first ones set a limit beyond which no others are collected.
        """
        try:
            for part in (rows[:FIRST_ROWS], rows[FIRST_ROWS:]):
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
        """Return the families that may hold one of the best, or the best watched one."""
        bound_s = self.bound_s[rows]
        near = bound_s <= self.best.limit_s
        if self.is_watched is not None:
            near |= (bound_s <= self.watched.limit_s) & self.is_watched[rows]
        self.counts.pruned_by_bound += int(self.num_members[rows[~near]].sum())
        return rows[near]
