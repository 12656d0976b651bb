"""Cut bounds: what must cross into or out of a set of devices, over the links that do."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.network.tcme.messages import Messages
from meshwright.network.tcme.node_sets import node_sets
from meshwright.topology.network import Network

_AT_ONCE = 2**23
"""Entries of one block of the tables."""
_MOST_SHARING = 8


def cut_bound(network: Network, messages: Messages) -> float:
    """Return the largest cut bound over nodes, blocks, rows and columns of a grid [s].

    A message crosses into a set once if it holds a receiver and no holder; the set's links divide
    what crosses. Where messages stay whole, of j k + 1 messages on k links some j + 1 share one, so
    z is at least the sum of the j + 1 smallest of the j k + 1 largest.
    """
    crossings = _Crossings(network, messages)
    rows = max(_AT_ONCE // max(len(messages.num_bytes), network.num_nodes), 1)
    sets = node_sets(network)
    blocks = (sets[first : first + rows].T for first in range(0, len(sets), rows))
    sides = (inside for block in blocks for inside in (block, ~block))
    return max((crossings.bound_s(inside) for inside in sides), default=0.0)


class _Crossings:
    """What crosses into sets of nodes; sets are the columns of a table over the nodes."""

    def __init__(self, network: Network, messages: Messages) -> None:
        self.network, self.messages = network, messages
        self.holders = _table(messages.holder_offsets, messages.holders, network.num_nodes)
        self.receivers = _table(messages.receiver_offsets, messages.receivers, network.num_nodes)
        ends = (np.diff(messages.holder_offsets), np.diff(messages.receiver_offsets))
        self.is_unicast = (ends[0] == 1) & (ends[1] == 1)
        self.weights = np.stack([messages.num_bytes, np.ones(len(ends[0]))])
        unicasts = (weight[:, None] * self.is_unicast[:, None] for weight in self.weights)
        back = self.holders.T
        self.between = [back @ self.receivers.multiply(weight).tocsr() for weight in unicasts]

    def bound_s(self, inside: BoolArray) -> float:
        """Return the largest bound of some sets [s]."""
        bandwidth = self.network.bandwidth_bytes_per_s
        into = inside[self.network.target] & ~inside[self.network.source]
        capacity = bandwidth @ into
        crossing_bytes, count = self._volumes(inside)
        used = np.flatnonzero((count > 0) & (capacity > 0))
        if not len(used):
            return 0.0
        shared_s = float((crossing_bytes[used] / capacity[used]).max())
        num_links = into.sum(axis=0)
        few = used[count[used] <= _MOST_SHARING * num_links[used]]
        if not len(few) or self.messages.num_bytes[0] == self.messages.num_bytes[-1]:
            return shared_s
        fastest = np.where(into[:, few], bandwidth[:, None], 0.0).max(axis=0)
        crossing = self._crossing(inside[:, few], np.ones(len(self.is_unicast), dtype=bool))
        whole = _whole_bytes(self.messages.num_bytes, crossing, num_links[few])
        return max(shared_s, float((whole / fastest).max()))

    def _volumes(self, inside: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the bytes that cross into each set, and the number of messages.

        What unicasts bring to a set is what its nodes receive, less what they send each other.
        """
        crossing = self._crossing(inside, ~self.is_unicast).astype(np.float64)
        totals = self.weights[:, ~self.is_unicast] @ crossing
        column = inside.astype(np.float64)
        for total, between in zip(totals, self.between, strict=True):
            received = np.asarray(between.sum(axis=0)).reshape(-1) @ column
            total += received - ((between @ column) * column).sum(axis=0)
        return np.where(totals[1] > 0.5, totals[0], 0.0), np.rint(totals[1])

    def _crossing(self, inside: BoolArray, chosen: BoolArray) -> BoolArray:
        """Return [message, set]: whether a receiver lies inside and no holder does."""
        column = inside.astype(np.float32)
        begins, reaches = self.holders[chosen] @ column, self.receivers[chosen] @ column
        crossing: BoolArray = (reaches > 0) & (begins == 0)
        return crossing


def _table(offsets: IntArray, nodes: IntArray, num_nodes: int) -> Any:
    """Return a sparse table [message, node] of ones."""
    from scipy.sparse import csr_matrix

    ones = np.ones(len(nodes), dtype=np.float32)
    return csr_matrix((ones, nodes, offsets), shape=(len(offsets) - 1, num_nodes))


def _whole_bytes(num_bytes: FloatArray, crossing: BoolArray, num_links: IntArray) -> FloatArray:
    """Return the bytes that some link into each set must carry, as messages stay whole [bytes]."""
    rank = np.cumsum(crossing, axis=0)
    most = np.zeros(crossing.shape[1])
    for sharing in range(_MOST_SHARING):
        last = sharing * num_links + 1
        enough = rank[-1] >= last
        if not enough.any():
            break
        chosen = crossing & (rank <= last) & (rank > last - 1 - sharing)
        most = np.where(enough, np.maximum(most, num_bytes @ chosen), most)
    return most
