"""Hops on the shortest way, by search from one node: what closed forms of diameters must equal."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.topology.network import Network


def hop_distances(network: Network, source: int) -> IntArray:
    """Return the links on the shortest way from one node to each node; -1 where there is none.

    Only nodes that forward stand in the middle of a way.
    """
    distance = np.full(network.num_nodes, -1, dtype=np.int64)
    distance[source] = 0
    offsets, links = network.outgoing
    frontier = np.array([source])
    hops = 0
    while len(frontier):
        hops += 1
        starts, counts = offsets[frontier], offsets[frontier + 1] - offsets[frontier]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        reached = np.unique(network.target[links[np.repeat(starts, counts) + within]])
        found = reached[distance[reached] < 0]
        distance[found] = hops
        frontier = found[network.forwards[found] == 1]
    return distance
