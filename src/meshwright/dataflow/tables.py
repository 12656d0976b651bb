"""What every way to split a kernel costs, and what lies between the ways of two kernels.

Costs are seconds or bytes, whatever is to be least; the search does not ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.splits import KernelSplit, Layout
from meshwright.graph.dataflow.graph import DataflowGraph

ChangeCost = Callable[[float, Layout, Layout], float]
"""Cost of a change of layout, by the bytes of the tensor, the layout it has and the one wanted."""


@dataclass(frozen=True)
class Bond:
    """What the ways of two kernels cost beside each other, changes of layout apart."""

    costs: FloatArray
    """(ways of the first, ways of the second)."""
    held_bytes: FloatArray
    """Memory of one device, of the same shape [bytes]."""

    def __add__(self, other: Bond) -> Bond:
        return Bond(self.costs + other.costs, self.held_bytes + other.held_bytes)


@dataclass(frozen=True)
class SplitTables:
    """The ways to split each kernel of a graph, with their costs."""

    graph: DataflowGraph
    degree: int
    """Devices of the group."""
    splits: tuple[tuple[KernelSplit, ...], ...]
    """Of each kernel."""
    costs: tuple[FloatArray, ...]
    """Of each way of each kernel, alone."""
    held_bytes: tuple[FloatArray, ...]
    """Memory that each takes on one device [bytes]."""
    change_cost: ChangeCost
    bonds: Mapping[tuple[int, int], Bond] = field(default_factory=dict)
    """By the numbers of two kernels, the earlier one first."""
    charges_each_reader: bool = False
    """Whether every reader pays for its own change, although another one asks for the same."""

    def within(self, room_bytes: float) -> SplitTables | None:
        """Return the ways that fit a memory by themselves; None where a kernel has none."""
        kept = [np.flatnonzero(held <= room_bytes) for held in self.held_bytes]
        if not all(len(ways) for ways in kept):
            return None
        return replace(
            self,
            splits=tuple(
                tuple(splits[way] for way in ways)
                for splits, ways in zip(self.splits, kept, strict=True)
            ),
            costs=tuple(costs[ways] for costs, ways in zip(self.costs, kept, strict=True)),
            held_bytes=tuple(h[ways] for h, ways in zip(self.held_bytes, kept, strict=True)),
            bonds={
                (a, b): Bond(
                    bond.costs[np.ix_(kept[a], kept[b])], bond.held_bytes[np.ix_(kept[a], kept[b])]
                )
                for (a, b), bond in self.bonds.items()
            },
        )
