"""Order ideals of a graph, and the steps between them: every way to cut it into partitions.

An ideal is a set of kernels that holds all that its members read. Partitions that run one after
the other are a chain of ideals from none of the kernels to all of them; what one ideal has beyond
the one before it is a partition, and its price depends on that set alone. So the best partitions
are a shortest path over ideals.

Sets are rows of booleans. They grow one kernel at a time in the order of the kernels, so each is
found once, and what cannot fit is never grown further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.onchip.fusion.problem import FusionProblem
from meshwright.onchip.fusion.symmetry import Branches, alike_branches

MOST_IDEALS = 20_000
"""Ideals beyond which a graph is cut in a narrower order."""
MOST_STEPS = 1_500_000
"""Steps beyond which the same holds: they are what takes memory and time."""


class TooWideError(UnsupportedError):
    """A graph has more ideals, or steps between them, than are looked at."""


@dataclass(frozen=True)
class Lattice:
    """Ideals, the smaller ones first, and steps between them that may be partitions."""

    ideals: BoolArray
    """Shape (ideals, kernels)."""
    source: IntArray
    target: IntArray
    """Ideals before and after each step; steps are in the order of their targets."""
    partition: IntArray
    """Which set of kernels each step runs."""
    sets: BoolArray
    """Different partitions, shape (sets, kernels)."""

    @cached_property
    def size(self) -> IntArray:
        """Kernels of each ideal."""
        found: IntArray = self.ideals.sum(axis=1)
        return found

    @cached_property
    def backwards(self) -> IntArray:
        """The steps in the order of falling sources."""
        found: IntArray = np.argsort(-self.source, kind="stable")
        return found


def lattice_of(problem: FusionProblem, needs: BoolArray) -> Lattice:
    """Return the lattice of a problem.

    Parameters
    ----------
    problem
        Its weights bound what a partition of several kernels may hold, its phases keep kernels
        apart, and branches of it that are alike count once.
    needs
        Shape (kernels, kernels): whether the first comes only after the second. What kernels read,
        and more where only some orders are looked at.

    Raises
    ------
    TooWideError
        When there are too many ideals, or steps between them.
    """
    branches = alike_branches(problem) if np.array_equal(needs, problem.needs) else Branches(())
    nothing = np.zeros((1, problem.num_kernels), bool)
    found = [grown for _, grown in _grown(nothing, needs, None, branches, MOST_IDEALS)]
    ideals = np.concatenate([nothing, *found])
    steps = list(_grown(ideals, needs, problem, branches, MOST_STEPS))
    source = np.concatenate([origin for origin, _ in steps])
    after = np.concatenate([grown for _, grown in steps])
    keys = row_keys(ideals)
    in_order = np.argsort(keys)
    target = in_order[np.searchsorted(keys, row_keys(branches.canonical(after)), sorter=in_order)]
    order = np.argsort(target, kind="stable")
    source, target, beyond = source[order], target[order], (after & ~ideals[source])[order]
    _, first, partition = np.unique(row_keys(beyond), return_index=True, return_inverse=True)
    return Lattice(ideals, source, target, partition, beyond[first])


def _grown(
    start: BoolArray, needs: BoolArray, limits: FusionProblem | None, branches: Branches, most: int
) -> Iterator[tuple[IntArray, BoolArray]]:
    """Yield all ideals that hold a starting one, those with one kernel more first.

    Each comes with the row of ``start`` that it grew from. With limits, what is beyond the start
    is of one phase, and its weights fit the SRAM unless it is a single kernel.
    """
    kernels = np.arange(start.shape[1])
    missing = needs.T.astype(np.float32)
    origin, rows = np.arange(len(start)), start
    latest = np.full(len(start), -1)
    weight, phase, count = np.zeros(len(start)), np.full(len(start), -1), 0
    while len(rows):
        can_join = ~rows & ((~rows).astype(np.float32) @ missing == 0)
        row, kernel = np.nonzero(can_join & (kernels > latest[:, None]))
        if limits is not None:
            weight = weight[row] + limits.weight_bytes[kernel]
            is_alone = latest[row] < 0
            kept = is_alone | (
                (weight <= limits.grid.sram_bytes) & (phase[row] == limits.phase[kernel])
            )
            row, kernel, weight = row[kept], kernel[kept], weight[kept]
            phase = limits.phase[kernel]
        rows, origin, latest = rows[row], origin[row], kernel
        rows[np.arange(len(rows)), kernel] = True
        kept = branches.are_canonical(start[origin], rows)
        rows, origin, latest = rows[kept], origin[kept], latest[kept]
        if limits is not None:
            weight, phase = weight[kept], phase[kept]
        count += len(rows)
        if count > most:
            raise TooWideError(f"more than {most} sets of kernels: too many branches side by side")
        if len(rows):
            yield origin, rows


def row_keys(rows: BoolArray) -> NDArray[np.void]:
    """Return one value for each row of booleans, equal where rows are equal, that can be sorted."""
    bits = np.packbits(rows, axis=1)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    if padded.shape[1] == 8:
        return padded.view(np.uint64)[:, 0]
    return padded.view(f"V{padded.shape[1]}")[:, 0]
