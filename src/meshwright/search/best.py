"""The best rows seen so far, folded over blocks of candidates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray

TIE = 0.01
"""Plans within this share of the best time are ties; headroom decides among them."""


@dataclass
class Best:
    """The ``size`` fastest candidates; each carries its memory and an identity of whole numbers.

    ``limit_s`` is the time beyond which a candidate can matter no more: neither among the fastest
    ``top`` nor within a tie of the best.
    """

    size: int
    top: int
    times_s: FloatArray = field(default_factory=lambda: np.empty(0))
    memory_bytes: FloatArray = field(default_factory=lambda: np.empty(0))
    identities: IntArray = field(default_factory=lambda: np.empty((0, 5), dtype=np.int64))

    @property
    def limit_s(self) -> float:
        """Candidates slower than this are of no interest [s]."""
        if len(self.times_s) < self.top:
            return float("inf")
        return float(max(self.times_s[self.top - 1], self.times_s[0] * (1.0 + TIE)))

    def fold(self, times_s: FloatArray, memory_bytes: FloatArray, identities: IntArray) -> None:
        """Take the rows of a block into account."""
        near: BoolArray = times_s <= self.limit_s
        if not near.any():
            return
        times = np.concatenate([self.times_s, times_s[near]])
        memory = np.concatenate([self.memory_bytes, memory_bytes[near]])
        rows = np.concatenate([self.identities, identities[near]])
        keys = (*(rows[:, column] for column in range(rows.shape[1] - 1, -1, -1)), memory, times)
        order = np.lexsort(keys)[: self.size]
        self.times_s, self.memory_bytes, self.identities = times[order], memory[order], rows[order]
