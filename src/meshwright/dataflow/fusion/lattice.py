"""Order ideals within limits, and the steps between them: every way to cut a graph into partitions.

Partitions that run one after the other are a chain of ideals; what one ideal has beyond the one
before it is a partition, and its price depends on that set alone. So the best partitions are a
shortest path over ideals.

Where a graph is too wide, kernels may leave a fixed order by fewer than a number of places only;
the more places, the more orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.dataflow.fusion.problem import FusionProblem
from meshwright.dataflow.fusion.symmetry import Branches, alike_branches
from meshwright.dataflow.ideals import TooWideError, larger_ideals, order_ideals

MOST_IDEALS = 20_000
"""Ideals beyond which a graph counts as wide."""
MOST_STEPS = 1_500_000
"""Steps beyond which the same holds: they are what takes memory and time."""


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

    def allows(self, before: BoolArray, after: BoolArray, kernel: IntArray) -> BoolArray:
        """Return which steps may be partitions, by the kernel that comes last.

        What a step adds is of one phase, and its weights fit the SRAM unless it is one kernel. No
        kernel comes before one of an earlier phase, so the last one has the latest of them.
        """
        counted = np.column_stack([self.held_bytes, self.phase, np.ones(len(self.phase))])
        held, phases, count = ((after ^ before) @ counted).T
        fits = (held <= self.sram_bytes) | (count == 1)
        is_mixed = phases < count * self.phase[kernel]
        allowed: BoolArray = fits & ~is_mixed & self.stand(before, after, kernel)
        return allowed

    def stand(self, before: BoolArray, after: BoolArray, kernel: IntArray) -> BoolArray:
        """Return which sets stand for all that differ from them by exchanges of branches."""
        return self.branches.are_canonical(before, after)


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
        Steps that are allowed; None for the usual number.

    Raises
    ------
    TooWideError
        When there are too many ideals, or steps between them.
    """
    branches = limits.branches
    needs, position = limits.needs, limits.position
    ideals = order_ideals(needs, MOST_IDEALS, position=position, kept=limits.stand)
    most = MOST_STEPS if most_steps is None else most_steps
    steps = list(larger_ideals(ideals, needs, most, position=position, kept=limits.allows))
    source = np.concatenate([origin for origin, _ in steps])
    after = np.concatenate([grown for _, grown in steps])
    keys = row_keys(ideals)
    in_order = np.argsort(keys)
    target = in_order[np.searchsorted(keys, row_keys(branches.canonical(after)), sorter=in_order)]
    order = np.argsort(target, kind="stable")
    source, target, beyond = source[order], target[order], (after & ~ideals[source])[order]
    _, first, partition = np.unique(row_keys(beyond), return_index=True, return_inverse=True)
    return Lattice(ideals, source, target, partition, beyond[first])


def row_keys(rows: BoolArray) -> NDArray[Any]:
    """Return one value for each row of booleans, equal where rows are equal, that can be sorted."""
    bits = np.packbits(rows, axis=1)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    if padded.shape[1] == 8:
        return padded.view(np.uint64)[:, 0]
    return padded.view(f"V{padded.shape[1]}")[:, 0]


MOST_WINDOW_STEPS = 200_000
"""In a window: several of them are tried, and the last is the widest."""


@dataclass(frozen=True)
class Orders:
    """The lattice of some orders of the kernels."""

    lattice: Lattice
    places: int | None = None
    """They differ from a fixed one by fewer than this many places; None: they are all orders."""


def orders_of(limits: Limits) -> tuple[Orders, ...]:
    """Return all orders; of a wide graph the widest windows that can be searched."""
    try:
        return (Orders(lattice_of(limits)),)
    except TooWideError:
        return tuple(_windows(limits))


def _windows(limits: Limits) -> Iterator[Orders]:
    """Yield the widest window for two orders of the kernels."""
    numbered = np.arange(len(limits.phase))
    for position in (numbered, _depth_first(limits.needs)):
        found = None
        for places in _tried_places(len(numbered)):
            is_far = position[:, None] - position >= places
            narrowed = replace(
                limits, needs=limits.needs | is_far, position=position, branches=Branches(())
            )
            try:
                found = Orders(lattice_of(narrowed, MOST_WINDOW_STEPS), places)
            except TooWideError:
                break
        if found is not None:
            yield found


def _tried_places(num_kernels: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, 16, ... below the number of kernels."""
    doubled = [1 << power for power in range(num_kernels.bit_length())]
    halfway = [3 * size // 2 for size in doubled if size > 1]
    return sorted(size for size in (*doubled, *halfway) if size < num_kernels)


def _depth_first(needs: BoolArray) -> IntArray:
    """Return the position of each kernel in an order that follows each branch to its end."""
    position = np.full(len(needs), -1)
    ready = list(np.flatnonzero(~needs.any(axis=1))[::-1])
    for place in range(len(needs)):
        kernel = ready.pop()
        position[kernel] = place
        done = position >= 0
        next_ones = needs[:, kernel] & ~done & ~np.any(needs & ~done, axis=1)
        ready += list(np.flatnonzero(next_ones)[::-1])
    return position
