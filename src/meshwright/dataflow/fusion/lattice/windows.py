"""The lattices of a problem: of all its orders, or of some of them where a graph is too wide.

Then kernels may leave a fixed order by fewer than so many places; the more places, the more orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.dataflow.fusion.lattice.lattice import Lattice, Limits, lattice_of
from meshwright.dataflow.fusion.lattice.symmetry import Branches
from meshwright.graph.ideals import TooWideError

MOST_STEPS = 200_000
"""In a window: several of them are looked at, and the last is the widest."""


@dataclass(frozen=True)
class Orders:
    """The lattice of some orders of the kernels."""

    lattice: Lattice
    places: int | None = None
    """They differ from a fixed one by fewer than so many places; None: they are all orders."""


def orders_of(limits: Limits) -> tuple[Orders, ...]:
    """Return all orders; of a wide graph the widest windows that can be looked at."""
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
                found = Orders(lattice_of(narrowed, MOST_STEPS), places)
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
