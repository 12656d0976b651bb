"""The best candidates: folded over blocks, and which of nearly equal ones to recommend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.sharding.strategy import AXES, Offload, PlanOptions, Strategy

TIE = 0.01
"""Plans within this share of the best time are ties; headroom decides among them."""


@dataclass(frozen=True)
class Found:
    """One candidate among the best."""

    strategy: Strategy
    structure: PlanOptions
    time_s: float
    memory_bytes: float


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


def num_axes_in_use(found: Found) -> int:
    """Return how many axes have more than one device, virtual stages counted as one more."""
    axes = [name for name in AXES if getattr(found.strategy, name) > 1]
    return len(axes) + int(found.strategy.num_virtual_stages > 1)


def _preference(found: Found) -> tuple[bool, float, int, float]:
    """Return what decides among ties: no offload, memory in GiB, number of axes, time."""
    offloads = found.structure.offload is not Offload.NONE
    return offloads, found.memory_bytes // 2**30, num_axes_in_use(found), found.time_s


def in_order_of_preference(found: Sequence[Found]) -> list[Found]:
    """Return candidates, preferred ones first: within a tie of the fastest, headroom decides.

    Ties (1 % of time) that need no host memory come first; then less memory in steps of a GiB,
    then fewer axes, then time decides. The others follow in order of time.
    """
    if not found:
        return []
    limit_s = found[0].time_s * (1.0 + TIE)
    ties = [f for f in found if f.time_s <= limit_s]
    ties.sort(key=_preference)
    return ties + [f for f in found if f.time_s > limit_s]
