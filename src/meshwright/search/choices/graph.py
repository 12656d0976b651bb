"""Choices that cost something alone and side by side, as arrays on the nodes and edges of a graph.

A node is an operator of one layer, a choice one of its strategies. An edge prices what lies
between the choices of two operators: moving a tensor from one layout to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray

Pair = tuple[int, int]


@dataclass(frozen=True)
class Load:
    """What choices cost: time, and memory that a budget limits."""

    time_s: FloatArray
    """(choices,) on a node, (choices of the first, choices of the second) on an edge [s]."""
    num_bytes: FloatArray
    """Of the same shape [bytes]."""

    def at_price(self, s_per_byte: float) -> FloatArray:
        """Return the time when memory is paid for [s]."""
        priced: FloatArray = self.time_s + s_per_byte * self.num_bytes
        return priced


@dataclass(frozen=True)
class ChoiceGraph:
    """Operators in the order of the model, and the tensors between them.

    Equal operators share one :class:`Load` object, so that what is worked out for one of them
    serves all.
    """

    nodes: Sequence[Load]
    edges: Mapping[Pair, Load]
    """By the numbers of two nodes, the earlier one first."""

    @cached_property
    def equal_nodes(self) -> list[tuple[Load, IntArray]]:
        """Each load of a node, with the nodes that share it."""
        found: dict[int, list[int]] = {}
        for node, load in enumerate(self.nodes):
            found.setdefault(id(load), []).append(node)
        return [(self.nodes[nodes[0]], np.array(nodes)) for nodes in found.values()]

    @cached_property
    def equal_edges(self) -> list[tuple[Load, IntArray]]:
        """Each load of an edge, with the pairs of nodes that share it, (2, pairs)."""
        found: dict[int, list[Pair]] = {}
        for pair, load in self.edges.items():
            found.setdefault(id(load), []).append(pair)
        return [(self.edges[pairs[0]], np.array(pairs).T) for pairs in found.values()]

    def time_s(self, choices: Sequence[int]) -> float:
        """Return the time of one choice for each node [s]."""
        chosen = np.asarray(choices)
        alone = sum(float(load.time_s[chosen[at]].sum()) for load, at in self.equal_nodes)
        return alone + sum(
            float(load.time_s[chosen[u], chosen[v]].sum()) for load, (u, v) in self.equal_edges
        )

    def num_bytes(self, choices: Sequence[int]) -> float:
        """Return the memory of one choice for each node [bytes]."""
        chosen = np.asarray(choices)
        alone = sum(float(load.num_bytes[chosen[at]].sum()) for load, at in self.equal_nodes)
        return alone + sum(
            float(load.num_bytes[chosen[u], chosen[v]].sum()) for load, (u, v) in self.equal_edges
        )


def make_load(time_s: object, num_bytes: object = None) -> Load:
    """Return times with their memory; none where it is not given."""
    times = np.asarray(time_s, dtype=float)
    held = np.zeros_like(times) if num_bytes is None else np.asarray(num_bytes, dtype=float)
    return Load(times, held)
