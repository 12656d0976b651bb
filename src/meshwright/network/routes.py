"""Routes as compressed rows of links, and what the links carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
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

    @property
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
