"""Routes as compressed rows of links, and the loads of the links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, read_only
from meshwright.base.compiled import compiled
from meshwright.base.errors import InfeasibleError
from meshwright.network.paths import (
    Graph,
    Prices,
    Scratch,
    lengths,
    make_graph,
    make_scratch,
    shortest_tree,
)
from meshwright.network.traffic import Demands
from meshwright.topology.network import Network


@dataclass(frozen=True)
class Routes:
    """The links of each route: in order along a path, in any order in a multicast tree."""

    offsets: IntArray
    """Route r has the links from ``offsets[r]`` up to ``offsets[r + 1]``."""
    links: IntArray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, route: int) -> IntArray:
        """Return the links of one route."""
        return self.links[self.offsets[route] : self.offsets[route + 1]]

    @cached_property
    def num_hops(self) -> IntArray:
        """Links of each route."""
        return np.diff(self.offsets)

    def latency_s(self, network: Network) -> FloatArray:
        """Return the latency of all links of each route [s]; of a path, not of a tree."""
        return self._summed(network.latency_s[self.links])

    def link_load_bytes(self, num_bytes: FloatArray, network: Network) -> FloatArray:
        """Return the bytes on each link when route r carries ``num_bytes[r]`` [bytes]."""
        carried = np.repeat(num_bytes, self.num_hops)
        load: FloatArray = np.bincount(self.links, carried, network.num_links).astype(np.float64)
        return load

    def _summed(self, per_link: FloatArray) -> FloatArray:
        """Return the sum over the links of each route; routes alike have equal sums, to the bit."""
        route = np.repeat(np.arange(len(self)), self.num_hops)
        sums: FloatArray = np.bincount(route, per_link, len(self)).astype(np.float64)
        return sums


def make_routes(rows: Iterable[Sequence[int] | IntArray]) -> Routes:
    """Return routes from one list of links each."""
    listed = [np.asarray(row, dtype=np.int64) for row in rows]
    lengths = np.array([len(row) for row in listed], dtype=np.int64)
    links = np.concatenate(listed) if listed else np.zeros(0, dtype=np.int64)
    return Routes(np.concatenate(([0], np.cumsum(lengths))), links)


LinkTable = NDArray[np.int32]
"""Links by two nodes: half of the memory of other numbers."""
_HOP = 1e-6
"""Weight of a hop against latency over the longest one [1], so small that it only breaks ties."""


def default_routes(network: Network, demands: Demands) -> Routes:
    """Return a path for each row: dimension order where its links live, else a shortest path."""
    if not network.grid_shape:
        return shortest_routes(network, demands)
    routes, is_whole = xy_routes(network, demands)
    broken = np.flatnonzero(~is_whole)
    if not len(broken):
        return routes
    repaired = shortest_routes(network, demands, broken)
    rows = [routes.of(row) for row in range(len(routes))]
    for index, row in enumerate(broken):
        rows[row] = repaired.of(index)
    return make_routes(rows)


def xy_routes(
    network: Network, demands: Demands, *, rows_first: bool = False
) -> tuple[Routes, BoolArray]:
    """Return the dimension-order path of each row on a grid, and whether all its links exist.

    The column index is brought into place first, then the row (XY); with ``rows_first`` the other
    way round (YX). A dimension with wrap links is crossed the shorter way, upwards on a tie. A path
    that meets a missing link ends there.
    """
    shape = np.array(network.grid_shape, dtype=np.int64)
    here = np.array(np.unravel_index(demands.source, network.grid_shape))
    there = np.array(np.unravel_index(demands.destination, network.grid_shape))
    ahead = _links_ahead(network)
    is_whole = np.ones(len(demands), dtype=bool)
    rows: list[IntArray] = []
    links: list[IntArray] = []
    order = range(len(shape)) if rows_first else range(len(shape) - 1, -1, -1)
    for dim in order:
        side = int(shape[dim])
        forward = _goes_forward(here[dim], there[dim], side, wraps=_wraps(network, ahead, dim))
        while (moving := np.flatnonzero(is_whole & (here[dim] != there[dim]))).size:
            nodes = np.ravel_multi_index(tuple(here[:, moving]), network.grid_shape)
            taken = ahead[dim, forward[moving], nodes]
            is_whole[moving[taken < 0]] = False
            rows.append(moving[taken >= 0])
            links.append(taken[taken >= 0])
            step = 2 * forward[moving] - 1
            here[dim, moving] = (here[dim, moving] + step) % side
    return _gathered(rows, links, len(demands)), is_whole


_AHEAD: WeakKeyDictionary[Network, IntArray] = WeakKeyDictionary()


def _links_ahead(network: Network) -> IntArray:
    """Return the link [dim, forward, node] to the next device of a grid; -1 where none is."""
    if network not in _AHEAD:
        _AHEAD[network] = read_only(_each_link_ahead(network))
    return _AHEAD[network]


def _each_link_ahead(network: Network) -> IntArray:
    shape = network.grid_shape
    ahead = np.full((len(shape), 2, network.num_devices), -1, dtype=np.int64)
    on_grid = (network.source < network.num_devices) & (network.target < network.num_devices)
    links = np.flatnonzero(on_grid)[::-1]
    source, target = network.source[links], network.target[links]
    apart = np.array(np.unravel_index(target, shape)) - np.array(np.unravel_index(source, shape))
    is_straight = np.count_nonzero(apart, axis=0) == 1
    for dim, side in enumerate(shape):
        for forward, steps in ((0, (side - 1, -1)), (1, (1 - side, 1))):
            for step in steps:
                chosen = is_straight & (apart[dim] == step)
                ahead[dim, forward, source[chosen]] = links[chosen]
    return ahead


def _wraps(network: Network, ahead: IntArray, dim: int) -> bool:
    """Return whether a link leads from the last device of a dimension to its first."""
    at = np.unravel_index(np.arange(network.num_devices), network.grid_shape)[dim]
    side = network.grid_shape[dim]
    return side > 2 and bool((ahead[dim, 1, at == side - 1] >= 0).any())


def _goes_forward(here: IntArray, there: IntArray, side: int, *, wraps: bool) -> IntArray:
    """Return 1 for rows that count upwards in a dimension, 0 for those that count down."""
    if wraps:
        return (2 * ((there - here) % side) <= side).astype(np.int64)
    return (there > here).astype(np.int64)


def _gathered(rows: list[IntArray], links: list[IntArray], num_rows: int) -> Routes:
    """Return the links of each row, in the order in which they were taken."""
    if not rows:
        return Routes(np.zeros(num_rows + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    of_row = np.concatenate(rows)
    counts = np.bincount(of_row, minlength=num_rows)
    order = np.argsort(of_row, kind="stable")
    return Routes(np.concatenate(([0], np.cumsum(counts))), np.concatenate(links)[order])


def shortest_routes(network: Network, demands: Demands, rows: IntArray | None = None) -> Routes:
    """Return a path of least latency for the rows (all if not given); fewer hops break ties.

    Nodes that do not forward are never passed through.

    Raises
    ------
    InfeasibleError
        Where a destination cannot be reached.
    """
    chosen = np.arange(len(demands)) if rows is None else rows
    source, destination = demands.source[chosen], demands.destination[chosen]
    trees = _trees_of(network)
    trees.grow(np.unique(source))
    offsets = _hops_before(trees.via, trees.row, trees.graph.source, source, destination)
    if offsets[-1] < 0:
        row = -1 - int(offsets[-1])
        ends = f"device {destination[row]} cannot be reached from device {source[row]}"
        raise InfeasibleError(f"{ends}: the links between them are dead")
    links = np.empty(int(offsets[-1]), dtype=np.int64)
    _write_paths(trees.via, trees.row, trees.graph.source, source, destination, offsets, links)
    return Routes(offsets, links)


class _Trees:
    """Shortest paths from the nodes of a network for which they were requested."""

    def __init__(self, network: Network) -> None:
        longest = max(float(network.latency_s.max(initial=0.0)), 1e-12)
        self.graph, self.scratch = make_graph(network), make_scratch(network.num_nodes)
        self.prices = lengths(network.latency_s / longest + _HOP)
        self.row = np.full(network.num_nodes, -1, dtype=np.int64)
        """Row of each node in ``via``; -1 for nodes without a tree."""
        self.via = np.zeros((0, network.num_nodes), dtype=np.int32)
        """(requested nodes, nodes): the last link on the way to a node; -1 where there is none."""

    def grow(self, sources: IntArray) -> None:
        """Find the paths from some nodes, where they are not known."""
        new = sources[self.row[sources] < 0]
        if len(new):
            self.row[new] = len(self.via) + np.arange(len(new))
            found = np.empty((len(new), self.via.shape[1]), dtype=np.int32)
            _find_trees(self.graph, self.scratch, self.prices, new, found)
            self.via = np.concatenate([self.via, found])


_known: WeakKeyDictionary[Network, _Trees] = WeakKeyDictionary()


def _trees_of(network: Network) -> _Trees:
    """Return the shortest-path trees of a network that are known so far."""
    if network not in _known:
        _known[network] = _Trees(network)
    return _known[network]


@compiled
def _find_trees(
    graph: Graph, scratch: Scratch, prices: Prices, sources: IntArray, found: LinkTable
) -> None:
    """Write the last link on the way from each source to each node."""
    for row in range(len(sources)):
        shortest_tree(graph, scratch, prices, sources[row : row + 1])
        for node in range(found.shape[1]):
            is_reached = scratch.distance[node] < np.inf
            found[row, node] = scratch.via[node] if is_reached else -1


@compiled
def _hops_before(
    via: LinkTable, row_of: IntArray, begins: IntArray, source: IntArray, destination: IntArray
) -> IntArray:
    """Return the offset of each row's path; the last entry is -1 - r if row r has none.

    Parameters
    ----------
    begins
        The node at which each link begins.
    """
    offsets = np.zeros(len(source) + 1, dtype=np.int64)
    for row in range(len(source)):
        hops, node, tree = 0, destination[row], row_of[source[row]]
        while node != source[row]:
            if via[tree, node] < 0:
                offsets[-1] = -1 - row
                return offsets
            node = begins[via[tree, node]]
            hops += 1
        offsets[row + 1] = offsets[row] + hops
    return offsets


@compiled
def _write_paths(
    via: LinkTable, row_of: IntArray, begins: IntArray, source: IntArray, destination: IntArray,
    offsets: IntArray, links: IntArray,
) -> None:  # fmt: skip
    """Write the links of the path of each row."""
    for row in range(len(source)):
        node, tree = destination[row], row_of[source[row]]
        for place in range(offsets[row + 1] - 1, offsets[row] - 1, -1):
            links[place] = via[tree, node]
            node = begins[via[tree, node]]
