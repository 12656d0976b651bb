"""Placements of the ranks of two or more axes on a grid: row after row, and in nested blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.network.visiting_orders import cycle, has_cycle, snake
from meshwright.topology.network import Network


@dataclass(frozen=True)
class Placement:
    """The device of each rank; ranks count the first axis fastest."""

    axis_names: tuple[str, ...]
    """Innermost axis first."""
    devices: IntArray
    """Device at each coordinate; one dimension for each axis, as long as its degree."""

    def groups(self, axis: str) -> IntArray:
        """Return the devices that differ in one axis only, in its order: (num_groups, degree)."""
        along = np.moveaxis(self.devices, self.axis_names.index(axis), 0)
        return along.reshape(along.shape[0], -1, order="F").T

    def are_cycles(self, axis: str, distances: IntArray) -> BoolArray:
        """Return for each group whether it is a ring of neighbours.

        Parameters
        ----------
        distances
            Hops between any two devices, of :func:`hop_distances`.
        """
        groups = self.groups(axis)
        is_cycle: BoolArray = (distances[groups, np.roll(groups, -1, axis=1)] == 1).all(axis=1)
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


def row_major(degrees: Mapping[str, int]) -> Placement:
    """Return the placement with rank n on device n."""
    shape = tuple(degrees.values())
    return Placement(tuple(degrees), np.arange(np.prod(shape)).reshape(shape, order="F"))


def nested_blocks(blocks: Mapping[str, tuple[int, int]], network: Network) -> Placement:
    """Return the placement of nested blocks from the first corner of a grid.

    Members of an axis fill a block of members of the axis inside it: along a cycle where the block
    has one, else along a snake.

    Parameters
    ----------
    blocks
        Rows and columns of the block of each axis, innermost first.
    """
    cells = np.zeros(2, dtype=np.int64)
    extent = np.ones(2, dtype=np.int64)
    for rows, columns in blocks.values():
        place = (cycle if has_cycle(rows, columns) else snake)(rows, columns)
        cells = place * extent + cells[..., None, :]
        extent = extent * (rows, columns)
    return Placement(tuple(blocks), cells[..., 0] * network.grid_shape[1] + cells[..., 1])
