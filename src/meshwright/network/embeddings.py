"""A placement: the device of each rank of a logical grid, and the distances in its groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from math import prod

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.base.errors import InfeasibleError
from meshwright.network.visiting_orders import visit, visiting_orders
from meshwright.topology.network import Network


@dataclass(frozen=True)
class Placement:
    """The device of each rank; ranks count the first axis fastest."""

    axis_names: tuple[str, ...]
    """Innermost axis first."""
    devices: IntArray
    """Device at each coordinate; one dimension for each axis, as long as its degree."""
    name: str
    """Name of the layout of the ranks, in words."""

    @property
    def num_ranks(self) -> int:
        """Devices in use."""
        return self.devices.size

    @property
    def degrees(self) -> dict[str, int]:
        """Members of a group of each axis."""
        return dict(zip(self.axis_names, self.devices.shape, strict=True))

    @property
    def device_of_rank(self) -> IntArray:
        """Device of each rank, (num_ranks,)."""
        return self.devices.ravel(order="F")

    def groups(self, axis: str) -> IntArray:
        """Return the devices that differ in one axis only, in its order: (num_groups, degree)."""
        index = self.axis_names.index(axis)
        along = np.moveaxis(self.devices, index, 0)
        return along.reshape(along.shape[0], -1, order="F").T

    def hops(self, axis: str, distances: IntArray) -> IntArray:
        """Return the hops from each member to the next, from the last to the first: per group.

        Parameters
        ----------
        distances
            Hops between any two devices, of :func:`hop_distances`; -1 where there is no way.
        """
        groups = self.groups(axis)
        return distances[groups, np.roll(groups, -1, axis=1)]

    def are_lines(self, axis: str, distances: IntArray) -> BoolArray:
        """Return for each group whether its consecutive members are neighbours."""
        is_line: BoolArray = (self.hops(axis, distances)[:, :-1] == 1).all(axis=1)
        return is_line

    def are_cycles(self, axis: str, distances: IntArray) -> BoolArray:
        """Return for each group whether it is a line and its last member next to its first."""
        is_cycle: BoolArray = (self.hops(axis, distances) == 1).all(axis=1)
        return is_cycle


def hop_distances(network: Network) -> IntArray:
    """Return the fewest links from each device to each other, (num_devices, num_devices).

    -1 where there is no way. Nodes that do not forward begin and end ways only.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    size = network.num_nodes
    begins = network.source + np.where(network.forwards[network.source] > 0, 0, size)
    ones = np.ones(network.num_links)
    graph = csr_array((ones, (begins, network.target)), shape=(2 * size, 2 * size))
    devices = np.arange(network.num_devices)
    starts = devices + np.where(network.forwards[devices] > 0, 0, size)
    hops = shortest_path(graph, unweighted=True, indices=starts)[:, devices]
    hops[devices, devices] = 0
    return np.where(np.isfinite(hops), hops, -1).astype(np.int64)


def sequential(degrees: Mapping[str, int], network: Network) -> Placement:
    """Return the ranks on the working devices in the order of their numbers.

    On a whole grid that is row-major order: rank n on device n.
    """
    chosen = working_devices(degrees, network)
    grid = chosen.reshape(tuple(degrees.values()), order="F")
    return Placement(tuple(degrees), grid, "in the order of the device numbers")


def working_devices(degrees: Mapping[str, int], network: Network) -> IntArray:
    """Return the first working devices, one for each rank.

    Raises
    ------
    InfeasibleError
        Where too few devices work.
    """
    num_ranks = prod(degrees.values())
    if num_ranks > len(network.alive):
        wanted = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items())
        raise InfeasibleError(
            f"{wanted} needs {num_ranks} devices; {len(network.alive)} of "
            f"{network.num_devices} work"
        )
    return network.alive[:num_ranks]


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
        """Rows and columns of the block inside one member of each axis; last those of all."""
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

        The distance of neighbouring blocks is their length, whether they are reflected or not:
        some cells gain by reflection as much as others lose.
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
        """Return the block of an axis, and the extent inside each of its members."""
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
