"""The way that messages take by default: dimension order on whole grids, else shortest paths."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.base.compiled import compiled
from meshwright.base.errors import InfeasibleError
from meshwright.placement.demands import Demands
from meshwright.placement.paths import (
    Graph,
    Prices,
    Scratch,
    lengths,
    make_graph,
    make_scratch,
    shortest_tree,
)
from meshwright.placement.routes import Routes, make_routes
from meshwright.topology.network import Network

_HOP = 1e-6
"""What a hop counts against latency, so that it only breaks ties."""


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


def _links_ahead(network: Network) -> IntArray:
    """Return the link [dim, forward, node] to the next device of a grid; -1 where none is."""
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
    order = np.argsort(source, kind="stable")
    longest = max(float(network.latency_s.max(initial=0.0)), 1e-12)
    graph, scratch = make_graph(network), make_scratch(network.num_nodes)
    prices = lengths(network.latency_s / longest + _HOP)
    room = np.zeros(max(len(chosen), 1) * network.num_nodes, dtype=np.int64)
    offsets = _walk(graph, scratch, prices, source[order], destination[order], room)
    if offsets[-1] < 0:
        row = order[-1 - int(offsets[-1])]
        ends = f"device {destination[row]} cannot be reached from device {source[row]}"
        raise InfeasibleError(f"{ends}: the links between them are dead")
    paths = Routes(offsets, room)
    places = np.argsort(order, kind="stable")
    return make_routes(paths.of(int(place)) for place in places)


@compiled
def _walk(
    graph: Graph,
    scratch: Scratch,
    prices: Prices,
    source: IntArray,
    destination: IntArray,
    room: IntArray,
) -> IntArray:
    """Write the shortest path of each row, rows sorted by source; return where each begins.

    Where row r has no path the last offset is -1 - r.
    """
    offsets = np.zeros(len(source) + 1, dtype=np.int64)
    for row in range(len(source)):
        if row == 0 or source[row] != source[row - 1]:
            shortest_tree(graph, scratch, prices, source[row : row + 1])
        if scratch.distance[destination[row]] == np.inf:
            offsets[-1] = -1 - row
            return offsets
        hops, node = 0, destination[row]
        while node != source[row]:
            node = graph.source[scratch.via[node]]
            hops += 1
        offsets[row + 1] = offsets[row] + hops
        node = destination[row]
        for at in range(hops):
            room[offsets[row + 1] - 1 - at] = scratch.via[node]
            node = graph.source[scratch.via[node]]
    return offsets
