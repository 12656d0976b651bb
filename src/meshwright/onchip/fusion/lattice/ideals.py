"""Order ideals of a graph, and the steps between them: every way to cut it into partitions.

An ideal is a set of kernels that holds all that its members read. Partitions that run one after
the other are a chain of ideals from none of the kernels to all of them; what one ideal has beyond
the one before it is a partition, and its price depends on that set alone. So the best partitions
are a shortest path over ideals.

Sets are rows of booleans. They grow one kernel at a time, in an order in which kernels can run, so
each is found once, and what cannot fit is never grown further.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.onchip.fusion.lattice.symmetry import Branches, alike_branches
from meshwright.onchip.fusion.problem import FusionProblem

MOST_IDEALS = 20_000
"""Ideals beyond which a graph counts as wide."""
MOST_STEPS = 1_500_000
"""Steps beyond which the same holds: they are what takes memory and time."""


class TooWideError(UnsupportedError):
    """A graph has more ideals, or steps between them, than are looked at."""


@dataclass(frozen=True)
class Limits:
    """What may be a partition, and in which order; equal limits have the same lattice."""

    needs: BoolArray
    """Shape (kernels, kernels): whether the first comes only after the second."""
    phase: IntArray
    held_bytes: FloatArray
    sram_bytes: float
    position: IntArray
    """Of each kernel in an order in which they can run."""
    branches: Branches
    """Those that are alike; their orders count once."""

    @cached_property
    def key(self) -> tuple[object, ...]:
        """A value that equal limits share."""
        groups = tuple((group.shape, group.tobytes()) for group in self.branches.groups)
        columns = (self.needs, self.phase, self.held_bytes, self.position)
        return (*(column.tobytes() for column in columns), self.sram_bytes, groups)


def limits_of(problem: FusionProblem) -> Limits:
    """Return the limits of a problem, all orders of its kernels allowed."""
    return Limits(
        problem.needs, problem.phase, problem.held_bytes, problem.grid.sram_bytes,
        np.arange(problem.num_kernels), alike_branches(problem),
    )  # fmt: skip


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


def chain_of(sets: BoolArray) -> Lattice:
    """Return the lattice of given partitions, shape (partitions, kernels), one after the other."""
    nothing = np.zeros((1, sets.shape[1]), bool)
    places = np.arange(len(sets))
    ideals = np.concatenate([nothing, np.logical_or.accumulate(sets, axis=0)])
    return Lattice(ideals, places, places + 1, places, sets)


def lattice_of(limits: Limits, most_steps: int | None = None) -> Lattice:
    """Return all ideals and steps within limits.

    Parameters
    ----------
    limits
        What may be a partition, and in which order.
    most_steps
        Steps that are looked at; None for the usual number.

    Raises
    ------
    TooWideError
        When there are too many ideals, or steps between them.
    """
    branches = limits.branches
    nothing = np.zeros((1, len(limits.phase)), bool)
    found = [grown for _, grown in _grown(nothing, limits, MOST_IDEALS, is_step=False)]
    ideals = np.concatenate([nothing, *found])
    most = MOST_STEPS if most_steps is None else most_steps
    steps = list(_grown(ideals, limits, most, is_step=True))
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
    start: BoolArray, limits: Limits, most: int, *, is_step: bool
) -> Iterator[tuple[IntArray, BoolArray]]:
    """Yield all ideals that hold a starting one, those with one kernel more first.

    Each comes with the row of ``start`` that it grew from. What a step adds is of one phase, and
    its weights fit the SRAM unless it is a single kernel.
    """
    missing = limits.needs.T.astype(np.float32)
    origin, rows = np.arange(len(start)), start
    latest = np.full(len(start), -1)
    held, phase, count = np.zeros(len(start)), np.full(len(start), -1), 0
    while len(rows):
        can_join = ~rows & ((~rows).astype(np.float32) @ missing == 0)
        row, kernel = np.nonzero(can_join & (limits.position > latest[:, None]))
        held = held[row] + limits.held_bytes[kernel]
        if is_step:
            fits = (held <= limits.sram_bytes) & (phase[row] == limits.phase[kernel])
            kept = fits | (latest[row] < 0)
            row, kernel, held = row[kept], kernel[kept], held[kept]
        rows, origin, latest = rows[row], origin[row], limits.position[kernel]
        rows[np.arange(len(rows)), kernel] = True
        if limits.branches.groups:
            kept = limits.branches.are_canonical(start[origin], rows)
            rows, origin, latest = rows[kept], origin[kept], latest[kept]
            held, kernel = held[kept], kernel[kept]
        phase = limits.phase[kernel]
        count += len(rows)
        if count > most:
            raise TooWideError(f"more than {most} sets of kernels: too many branches side by side")
        if len(rows):
            yield origin, rows


def row_keys(rows: BoolArray) -> NDArray[Any]:
    """Return one value for each row of booleans, equal where rows are equal, that can be sorted."""
    bits = np.packbits(rows, axis=1)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    if padded.shape[1] == 8:
        return padded.view(np.uint64)[:, 0]
    return padded.view(f"V{padded.shape[1]}")[:, 0]
