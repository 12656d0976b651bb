"""Choices that cost something alone and side by side, as arrays on the nodes and edges of a graph.

A node is an operator of one layer, a choice one of its strategies. An edge prices what lies
between the choices of two operators: moving a tensor from one layout to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray

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

    def time_s(self, choices: Sequence[int]) -> float:
        """Return the time of one choice for each node [s]."""
        alone = sum(float(load.time_s[c]) for load, c in zip(self.nodes, choices, strict=True))
        return alone + sum(
            float(load.time_s[choices[u], choices[v]]) for (u, v), load in self.edges.items()
        )

    def num_bytes(self, choices: Sequence[int]) -> float:
        """Return the memory of one choice for each node [bytes]."""
        alone = sum(float(load.num_bytes[c]) for load, c in zip(self.nodes, choices, strict=True))
        return alone + sum(
            float(load.num_bytes[choices[u], choices[v]]) for (u, v), load in self.edges.items()
        )


def make_load(time_s: object, num_bytes: object = None) -> Load:
    """Return times with their memory; none where it is not given."""
    times = np.asarray(time_s, dtype=float)
    held = np.zeros_like(times) if num_bytes is None else np.asarray(num_bytes, dtype=float)
    return Load(times, held)
