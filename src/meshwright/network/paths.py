"""Kernels for shortest paths and for trees that grow along them, over links as columns.

The price of a link is ``price * (FLOOR + (load * scale)^8)``, with the load that it would have: a
plain length where ``scale`` is 0, the p-norm cost of a loaded link otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.compiled import compiled
from meshwright.topology.network import Network

FLOOR = 0.01
"""Price of an empty link, relative to one that is as loaded as the worst may be."""


class Graph(NamedTuple):
    """The links of a network as kernels read them."""

    offsets: IntArray
    """The links that leave node n are ``outgoing[offsets[n]:offsets[n + 1]]``."""
    outgoing: IntArray
    source: IntArray
    target: IntArray
    forwards: IntArray
    seconds_per_byte: FloatArray
    """Seconds for each byte on each link."""


class Scratch(NamedTuple):
    """Working memory of a search: one entry for each node, or more."""

    distance: FloatArray
    via: IntArray
    """Link by which a node is reached; -1 at a node where the search begins."""
    place: IntArray
    """Position in the heap; -1 outside."""
    heap: IntArray
    is_member: BoolArray
    """Nodes that hold or receive the message, and so may pass it on."""
    is_waiting: BoolArray
    """Receivers that the tree has not reached."""
    found: IntArray
    """Links of the tree, each path from its receiver back."""


class Prices(NamedTuple):
    """Price of a link, by the bytes that it would carry."""

    price: FloatArray
    """Factor of each link."""
    load_s: FloatArray
    """Load of each link so far [s]."""
    num_bytes: float
    """Bytes that the new path adds to it."""
    scale: float
    """1 over the load that counts as full [1/s]; 0 where loads do not matter."""


def make_graph(network: Network) -> Graph:
    """Return the links of a network for kernels."""
    offsets, outgoing = network.outgoing
    return Graph(
        offsets,
        outgoing,
        network.source,
        network.target,
        network.forwards,
        1.0 / network.bandwidth_bytes_per_s,
    )


def make_scratch(num_nodes: int) -> Scratch:
    """Return working memory for a network with this many nodes."""
    return Scratch(
        np.zeros(num_nodes),
        np.zeros(num_nodes, dtype=np.int64),
        np.zeros(num_nodes, dtype=np.int64),
        np.zeros(num_nodes + 1, dtype=np.int64),
        np.zeros(num_nodes, dtype=bool),
        np.zeros(num_nodes, dtype=bool),
        np.zeros(num_nodes, dtype=np.int64),
    )


def lengths(price: FloatArray) -> Prices:
    """Return prices that are plain lengths, for any loads of the links."""
    return Prices(price, np.zeros(len(price)), 0.0, 0.0)


@compiled
def begin(scratch: Scratch, holders: IntArray) -> int:
    """Start a search at some nodes; the heap's first entry holds its size."""
    for node in range(len(scratch.distance)):
        scratch.distance[node] = np.inf
        scratch.via[node] = -1
        scratch.place[node] = -1
        scratch.is_member[node] = False
        scratch.is_waiting[node] = False
    scratch.heap[0] = 0
    for node in holders:
        scratch.is_member[node] = True
        update(scratch, node, 0.0)
    return len(holders)


@compiled
def update(scratch: Scratch, node: int, distance: float) -> int:
    """Lower the distance of a node and let it rise in the heap."""
    heap, place = scratch.heap, scratch.place
    scratch.distance[node] = distance
    slot = place[node]
    if slot < 0:
        heap[0] += 1
        slot = heap[0]
    while slot > 1 and scratch.distance[heap[slot // 2]] > distance:
        heap[slot] = heap[slot // 2]
        place[heap[slot]] = slot
        slot //= 2
    heap[slot] = node
    place[node] = slot
    return int(slot)


@compiled
def nearest(scratch: Scratch) -> int:
    """Take the nearest node out of the heap, which must not be empty."""
    heap, place, distance = scratch.heap, scratch.place, scratch.distance
    first, last = heap[1], heap[heap[0]]
    heap[0] -= 1
    size, slot = heap[0], 1
    while 2 * slot <= size:
        child = 2 * slot
        if child < size and distance[heap[child + 1]] < distance[heap[child]]:
            child += 1
        if distance[heap[child]] >= distance[last]:
            break
        heap[slot] = heap[child]
        place[heap[slot]] = slot
        slot = child
    heap[slot] = last
    place[last] = slot
    place[first] = -1
    return int(first)


@compiled
def expand(graph: Graph, scratch: Scratch, prices: Prices, node: int) -> int:
    """Offer a path over each link that leaves a node, if the node passes anything on."""
    if not (graph.forwards[node] or scratch.is_member[node]):
        return 0
    here = scratch.distance[node]
    for at in range(graph.offsets[node], graph.offsets[node + 1]):
        link = graph.outgoing[at]
        added_s = prices.num_bytes * graph.seconds_per_byte[link]
        full = (prices.load_s[link] + added_s) * prices.scale
        squared = full * full
        fourth = squared * squared
        there = here + prices.price[link] * (FLOOR + fourth * fourth)
        if there < scratch.distance[graph.target[link]]:
            scratch.via[graph.target[link]] = link
            update(scratch, graph.target[link], there)
    return 1


@compiled
def shortest_tree(graph: Graph, scratch: Scratch, prices: Prices, source: IntArray) -> int:
    """Fill ``distance`` and ``via`` with shortest paths from a node; return the number reached.

    The node is an array of one entry.
    """
    begin(scratch, source)
    reached = 0
    while scratch.heap[0] > 0:
        expand(graph, scratch, prices, nearest(scratch))
        reached += 1
    return reached


@compiled
def grow_tree(
    graph: Graph, scratch: Scratch, prices: Prices, holders: IntArray, receivers: IntArray
) -> int:
    """Add a tree from the holders to all receivers to ``found``; return its number of links.

    The nearest receiver is joined to the tree by a shortest path, then the next one. -1 where some
    receiver cannot be reached.

    Source: the shortest-path heuristic of Takahashi and Matsuyama 1980 (Math. Japonica 24), on
    directed links and from several roots.
    """
    begin(scratch, holders)
    for node in receivers:
        scratch.is_member[node] = True
        scratch.is_waiting[node] = True
    left, count = len(receivers), 0
    while left > 0:
        if scratch.heap[0] == 0:
            return -1
        node = nearest(scratch)
        if not scratch.is_waiting[node]:
            expand(graph, scratch, prices, node)
            continue
        while scratch.distance[node] > 0.0:
            link = scratch.via[node]
            scratch.found[count] = link
            count += 1
            left -= scratch.is_waiting[node]
            scratch.is_waiting[node] = False
            update(scratch, node, 0.0)
            node = graph.source[link]
    return count
