"""Embeddings of a logical grid on a grid of devices: nested blocks, their orders, reflections.

The members of the innermost axis fill a block of devices, the next axis tiles a block of such
blocks, and so on. With reflection every other block of an axis is turned around, so that it meets
the one before it at the same cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, islice, pairwise, permutations, product
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.placement import Placement
from meshwright.network.regions.orders import visit, visiting_orders
from meshwright.network.regions.region import cover_region, make_region
from meshwright.topology.network import Network


Extent = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class AxisBlock:
    """The block that the members of one axis fill, in units of the blocks inside them."""

    axis: str
    rows: int
    columns: int
    order: str

    @property
    def name(self) -> str:
        """The block in words."""
        order = "line" if 1 in (self.rows, self.columns) else self.order
        return f"{self.axis} {self.rows}x{self.columns} {order}"


@dataclass(frozen=True)
class Embedding:
    """Nested blocks, innermost first; axes of degree 1 have none."""

    blocks: tuple[AxisBlock, ...]
    is_reflected: bool = False

    @property
    def name(self) -> str:
        """The embedding in words, innermost axis first."""
        blocks = ", ".join(block.name for block in self.blocks) or "one device"
        return blocks + (", reflected" if self.is_reflected else "")

    @cached_property
    def extents(self) -> tuple[Extent, ...]:
        """Rows and columns of what lies inside one member of each axis; last those of all."""
        sides = ((block.rows, block.columns) for block in self.blocks)
        longer = accumulate(sides, lambda a, b: (a[0] * b[0], a[1] * b[1]), initial=(1, 1))
        return tuple(longer)

    def cells(self) -> IntArray:
        """Return the (row, column) at each coordinate: one dimension for each axis, and 2."""
        cells = np.zeros(2, dtype=np.int64)
        for block, extent in zip(self.blocks, self.extents, strict=False):
            place = visit(block.order, block.rows, block.columns)
            inside = np.broadcast_to(cells[..., None, :], (*cells.shape[:-1], len(place), 2))
            if self.is_reflected:
                inside = np.where(place % 2 == 1, np.array(extent) - 1 - inside, inside)
            cells = place * extent + inside
        return cells

    def mean_hops(self, axis: str) -> float:
        """Return the hops on a mesh from a member to the next, from the last to the first [1].

        Neighbouring blocks are as far apart as they are long, whether they are reflected or not:
        what some cells gain by reflection, others lose.
        """
        block, (rows, columns) = self._inside(axis)
        by_rows, by_columns = _mean_moves(block.order, block.rows, block.columns)
        return by_rows * rows + by_columns * columns

    def longest_hop(self, axis: str) -> int:
        """Return the most hops on a mesh from a member to the next, the last one left out.

        A reflected block of L rows, an odd number of blocks away, has its far row L - 1 further.
        """
        block, extent = self._inside(axis)
        moves = _moves(block.order, block.rows, block.columns)
        further = np.where(self.is_reflected & (moves % 2 == 1), np.array(extent) - 1, 0)
        return int((moves * extent + further).sum(axis=1)[:-1].max(initial=0))

    def _inside(self, axis: str) -> tuple[AxisBlock, Extent]:
        """Return the block of an axis, and how much lies inside each of its members."""
        index = [block.axis for block in self.blocks].index(axis)
        return self.blocks[index], self.extents[index]

    def placement(self, degrees: Mapping[str, int], network: Network) -> Placement | None:
        """Return the placement at the first corner where all its devices work, if there is one."""
        corner = _first_corner(network, self.extents[-1])
        if corner is None:
            return None
        cells = self.cells() + np.array(corner)
        devices = cells[..., 0] * network.grid_shape[1] + cells[..., 1]
        nested = [block.axis for block in self.blocks]
        devices = devices.transpose([nested.index(axis) for axis in degrees if axis in nested])
        return Placement(tuple(degrees), devices.reshape(tuple(degrees.values())), self.name)


def _moves(order: str, rows: int, columns: int) -> IntArray:
    """Return the rows and columns from each cell of a block to the next, the last to the first."""
    place = visit(order, rows, columns)
    moves: IntArray = np.abs(np.roll(place, -1, axis=0) - place)
    return moves


@cache
def _mean_moves(order: str, rows: int, columns: int) -> tuple[float, float]:
    """Return the mean over all moves of a block, by rows and by columns."""
    by_rows, by_columns = _moves(order, rows, columns).mean(axis=0).tolist()
    return by_rows, by_columns


def _first_corner(network: Network, extent: Extent) -> Extent | None:
    """Return the first (row, column) from where a rectangle of the grid works as a whole."""
    rows, columns = network.grid_shape
    if extent[0] > rows or extent[1] > columns:
        return None
    works = (network.speed_factor > 0).reshape(rows, columns)
    windows = np.lib.stride_tricks.sliding_window_view(works, extent).all(axis=(2, 3))
    found = np.argwhere(windows)
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def block_embedding(shapes: Mapping[str, Extent]) -> Embedding:
    """Return the blocks of given rows and columns, innermost first: cycles where they exist."""
    return Embedding(
        tuple(
            AxisBlock(axis, rows, columns, visiting_orders(rows, columns)[0])
            for axis, (rows, columns) in shapes.items()
            if rows * columns > 1
        )
    )
















