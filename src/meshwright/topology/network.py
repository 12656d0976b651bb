"""A physical network: nodes, directed links between them as columns, and who reaches whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes and the directed links between them; a full-duplex wire is two links.

    Nodes 0 to ``num_devices`` - 1 are devices, as they are numbered in plans; switches and IO dies
    follow. What is dead keeps its number and has no links.
    """

    num_devices: int
    num_nodes: int
    source: IntArray
    """Node at which each link begins."""
    target: IntArray
    """Node at which each link ends."""
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    message_half_bytes: FloatArray
    """Message size that reaches half of the bandwidth: m_half / B of occupation per message."""
    level: IntArray
    """Index of the level of the system that each link belongs to, innermost first."""
    forwards: IntArray
    """1 for nodes that pass on what is not for them: switches, and the dies of a grid."""
    position_m: FloatArray
    """Where each node lies, (num_nodes, 2): x to the right, y downwards [m]."""
    speed_factor: FloatArray
    """Share of its full rate that each device computes at; 0 for a dead one."""
    grid_shape: tuple[int, ...] = ()
    """Sides of a grid of devices, outermost first (rows, columns); empty where it is none."""

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.source)

    @property
    def alive(self) -> IntArray:
        """Devices that work."""
        return np.flatnonzero(self.speed_factor > 0)

    @cached_property
    def link_between(self) -> dict[tuple[int, int], int]:
        """Return the link from one node to another; the first one where several run in parallel."""
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        links: dict[tuple[int, int], int] = {}
        for link, pair in enumerate(pairs):
            links.setdefault(pair, link)
        return links

    @cached_property
    def outgoing(self) -> tuple[IntArray, IntArray]:
        """Return (offsets, links): those that leave node n are links[offsets[n]:offsets[n + 1]]."""
        order = np.argsort(self.source, kind="stable")
        counts = np.bincount(self.source, minlength=self.num_nodes)
        return np.concatenate(([0], np.cumsum(counts))), order

    def without(
        self, dead_devices: Iterable[int] = (), dead_links: Iterable[tuple[int, int]] = ()
    ) -> Network:
        """Return the network after devices and wires (both directions) have died."""
        speed = self.speed_factor.copy()
        speed[list(dead_devices)] = 0.0
        gone = np.zeros(self.num_nodes, dtype=bool)
        gone[: self.num_devices] = speed <= 0
        cut = {frozenset(pair) for pair in dead_links}
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        is_cut = np.array([frozenset(pair) in cut for pair in pairs], dtype=bool)
        kept = np.flatnonzero(~(is_cut | gone[self.source] | gone[self.target]))
        return replace(
            self,
            source=self.source[kept],
            target=self.target[kept],
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s[kept],
            latency_s=self.latency_s[kept],
            message_half_bytes=self.message_half_bytes[kept],
            level=self.level[kept],
            speed_factor=speed,
        )


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


def connected_components(network: Network) -> IntArray:
    """Return for each node the number of the piece of the network it is in, from 0.

    Nodes of different pieces have no links between them. A dead device is a piece of its own.
    Each node takes the least name of its neighbours, and the name of that one, until none changes.
    """
    least = np.arange(network.num_nodes)
    while True:
        lower = least.copy()
        np.minimum.at(lower, network.target, least[network.source])
        np.minimum.at(lower, network.source, least[network.target])
        lower = lower[lower]
        if np.array_equal(lower, least):
            return np.unique(least, return_inverse=True)[1].reshape(-1)
        least = lower
