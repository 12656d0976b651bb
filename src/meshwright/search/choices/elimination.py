"""The cheapest choices of a graph: nodes are taken out one by one.

A node leaves a table: the best that it can do for each combination of choices of its neighbours.
With one neighbour that is a row of numbers, with two a min-plus product of matrices: what dynamic
programming does. Layers with residual connections never need more (they are series-parallel);
other graphs need larger tables, and are exact as long as these fit.

Where a table would be too large, the tables of a node are shared out into groups that fit, and each
takes its own best choice of the node. Then the value is a bound, and the choices are one way to
follow it: the caller compares both.

What has to be done follows from the graph alone, whatever its tables hold. So it is worked out
once, and equal layers, whose tables are one object, are reduced once.

Sources: variable elimination (Bertele and Brioschi 1972, Nonserial Dynamic Programming);
mini-buckets (Dechter and Rish 2003, Mini-buckets: a general scheme for bounded inference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.search.choices.graph import ChoiceGraph, Load, Pair
from meshwright.search.choices.order import Task, elimination_order

MOST_ENTRIES = 4_000_000
"""Entries of a table, and of what is held at once to make one."""


@dataclass(frozen=True)
class Best:
    """The cheapest choices that were found, and a bound of what any cost, memory paid for."""

    choices: tuple[int, ...]
    value_s: float
    """Equal to the cost of the choices where it is exact."""
    is_exact: bool


def cheapest(
    graph: ChoiceGraph, s_per_byte: float = 0.0, *, most_entries: int = MOST_ENTRIES
) -> Best:
    """Return the choices of least time, where each byte of memory is charged a price.

    Parameters
    ----------
    most_entries
        Entries that a table may have; beyond, the value is a bound and the choices a guess.
    """
    reduced = Reduced(graph, s_per_byte, most_entries=most_entries)
    return Best(reduced.choices({}), float(reduced.table), reduced.is_exact)


class Reduced:
    """A graph of which a few nodes are left, and one table over them.

    Parameters
    ----------
    kept
        Nodes that stay: the axes of the table, in rising order.
    """

    def __init__(
        self, graph: ChoiceGraph, s_per_byte: float = 0.0, *, kept: Sequence[int] = (),
        most_entries: int = MOST_ENTRIES,
    ) -> None:  # fmt: skip
        loads, nodes, edges = _numbered(graph)
        sizes = tuple(len(load.time_s) for load in graph.nodes)
        self._kept = tuple(sorted(kept))
        self._sizes = sizes
        self._order = elimination_order(sizes, nodes, edges, self._kept, len(loads), most_entries)
        self._tables = [load.at_price(s_per_byte) for load in loads]
        for task in self._order.tasks:
            self._tables.append(_done(task, self._tables))

    @property
    def is_exact(self) -> bool:
        """Whether no table had to be shared out."""
        return self._order.is_exact

    @property
    def table(self) -> FloatArray:
        """Least cost for each combination of choices of the nodes that are left [s]."""
        total = np.zeros([self._sizes[node] for node in self._kept])
        for scope, table in self._order.left:
            shape = [self._sizes[node] if node in scope else 1 for node in self._kept]
            total = total + self._tables[table].reshape(shape)
        return total

    def choices(self, of_kept: Mapping[int, int]) -> tuple[int, ...]:
        """Return the best choice of every node, given those of the nodes that are left."""
        chosen: list[Any] = [0] * len(self._sizes)
        for node, choice in of_kept.items():
            chosen[node] = choice
        for node, factors in reversed(self._order.taken):
            chosen[node] = slice(None)
            costs = [
                self._tables[table][tuple([chosen[other] for other in scope])]
                for scope, table in factors
            ]
            chosen[node] = int(reduce(add, costs).argmin())
        return tuple(chosen)


def _numbered(
    graph: ChoiceGraph,
) -> tuple[list[Load], tuple[int, ...], tuple[tuple[Pair, int], ...]]:
    """Return the different loads of a graph, and their numbers on its nodes and edges."""
    loads: list[Load] = []
    nodes, edges = [0] * len(graph.nodes), {}
    for load, at in graph.equal_nodes:
        for node in at.tolist():
            nodes[node] = len(loads)
        loads.append(load)
    for load, pairs in graph.equal_edges:
        for u, v in pairs.T.tolist():
            edges[u, v] = len(loads)
        loads.append(load)
    return loads, tuple(nodes), tuple(edges.items())


def _done(task: Task, tables: Sequence[FloatArray]) -> FloatArray:
    """Return the table of a task."""
    spread = []
    for num_axes, table, axis, spans in task.summands:
        turned = tables[table] if axis == num_axes - 1 else np.moveaxis(tables[table], axis, -1)
        if num_axes <= len(spans):
            lengths = iter(turned.shape)
            turned = turned.reshape([next(lengths) if spanned else 1 for spanned in (*spans, True)])
        spread.append(turned)
    least = _least(spread)
    return least if task.beside is None else tables[task.beside] + least


def _least(spread: Sequence[FloatArray]) -> FloatArray:
    """Return the least sum of tables over their last axis, in slices where it is large."""
    shape = [max(sizes) for sizes in zip(*(table.shape for table in spread), strict=True)]
    if prod(shape) <= MOST_ENTRIES:
        return _least_sum(spread)
    least = np.empty(shape[:-1])
    step = max(1, MOST_ENTRIES // prod(shape[1:]))
    for start in range(0, shape[0], step):
        at = slice(start, start + step)
        least[at] = _least_sum([table[at] if len(table) > 1 else table for table in spread])
    return least


def _least_sum(spread: Sequence[FloatArray]) -> FloatArray:
    """Return the least sum of tables over their last axis."""
    total = spread[0]
    for table in spread[1:]:
        total = total + table
    least: FloatArray = total.min(axis=-1)
    return least
