"""The cheapest choices of a graph, exactly: nodes are taken out one by one.

A node with one neighbour leaves the best it can do for each choice of that neighbour; one with two
leaves a matrix between them: the min-plus product of dynamic programming. Graphs of layers with
residual connections reduce to nothing that way (they are series-parallel); others are refused.
Equal layers are reduced once, because equal tables are one object.

Source: variable elimination (Bertele and Brioschi 1972, Nonserial Dynamic Programming).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.search.operators.graph import ChoiceGraph, Load, Pair

MOST_ENTRIES = 4_000_000
"""Entries of a min-plus product that are held at once."""


@dataclass(frozen=True)
class Best:
    """The cheapest choices and what they cost, memory paid for."""

    choices: tuple[int, ...]
    value_s: float


@dataclass
class _Tables:
    """What is left of the graph, and how to choose for the nodes that were taken out."""

    nodes: dict[int, FloatArray]
    edges: dict[Pair, FloatArray]
    beside: dict[int, set[int]]
    found: list[tuple[int, tuple[int, ...], IntArray]] = field(default_factory=list)
    products: dict[tuple[int, ...], tuple[FloatArray, IntArray]] = field(default_factory=dict)
    held: list[FloatArray] = field(default_factory=list)
    """Tables of known products: as long as they live, no other one gets their identity."""
    constant_s: float = 0.0

    def between(self, first: int, second: int) -> FloatArray | None:
        """Return the table between two nodes, rows for the first one."""
        if (first, second) in self.edges:
            return self.edges[first, second]
        table = self.edges.get((second, first))
        return None if table is None else table.T


def cheapest(graph: ChoiceGraph, s_per_byte: float = 0.0) -> Best:
    """Return the choices of least time, where each byte of memory is charged a price.

    Raises
    ------
    UnsupportedError
        A graph that is not series-parallel.
    """
    tables = _tables(graph, s_per_byte)
    waiting = set(tables.nodes)
    for node in _tips(tables):
        _take_out(tables, node)
        waiting.discard(node)
    leaves = [node for node in waiting if len(tables.beside[node]) <= 1]
    while waiting:
        node = leaves.pop() if leaves else min(waiting, key=lambda n: len(tables.beside[n]))
        if node not in waiting:
            continue
        near = tuple(tables.beside[node])
        _take_out(tables, node)
        waiting.discard(node)
        leaves += [n for n in near if len(tables.beside[n]) <= 1]
    return Best(_choices(tables, len(graph.nodes)), tables.constant_s)


def _tables(graph: ChoiceGraph, s_per_byte: float) -> _Tables:
    """Return the tables of a graph with memory paid for; one for each distinct load."""
    known: dict[int, FloatArray] = {}

    def priced(load: Load) -> FloatArray:
        if id(load) not in known:
            known[id(load)] = load.at_price(s_per_byte)
        return known[id(load)]

    beside: dict[int, set[int]] = {node: set() for node in range(len(graph.nodes))}
    for first, second in graph.edges:
        beside[first].add(second)
        beside[second].add(first)
    return _Tables(
        nodes={node: priced(load) for node, load in enumerate(graph.nodes)},
        edges={pair: priced(load) for pair, load in graph.edges.items()},
        beside=beside,
    )


def _tips(tables: _Tables) -> list[int]:
    """Return nodes with two neighbours that are neighbours of each other: inside a residual."""
    tips: list[int] = []
    for node, near in tables.beside.items():
        if len(near) == 2 and not near & set(tips):
            first, second = near
            if second in tables.beside[first]:
                tips.append(node)
    return tips


def _take_out(tables: _Tables, node: int) -> None:
    """Take out a node with two neighbours or fewer."""
    near = tuple(sorted(tables.beside[node]))
    if len(near) > 2:
        raise UnsupportedError(
            f"operator {node} is bound to {len(near)} others: the graph is not series-parallel"
        )
    reduce: dict[int, Callable[..., None]] = {0: _end, 1: _fold_leaf, 2: _join}
    reduce[len(near)](tables, node, *near)
    for other in near:
        tables.beside[other].discard(node)
        tables.edges.pop((node, other), None)
        tables.edges.pop((other, node), None)
    del tables.nodes[node]


def _end(tables: _Tables, node: int) -> None:
    """Choose for the last node of a part."""
    best = int(tables.nodes[node].argmin())
    tables.constant_s += float(tables.nodes[node][best])
    tables.found.append((node, (), np.array(best, dtype=np.int64)))


def _fold_leaf(tables: _Tables, node: int, other: int) -> None:
    """Add the best of a leaf to its neighbour."""
    table = tables.between(other, node)
    assert table is not None
    total = table + tables.nodes[node]
    best = total.argmin(axis=1)
    tables.nodes[other] = tables.nodes[other] + total[np.arange(len(best)), best]
    tables.found.append((node, (other,), best))


def _join(tables: _Tables, node: int, first: int, second: int) -> None:
    """Put the best of a node between its two neighbours."""
    left, right = tables.between(first, node), tables.between(node, second)
    assert left is not None
    assert right is not None
    alone, beside = tables.nodes[node], tables.between(first, second)
    parts = [left, right, alone, *([] if beside is None else [beside])]
    key = tuple(id(part if part.base is None else part.base) for part in parts)
    if key not in tables.products:
        product, best = _min_plus(left + alone, right)
        tables.products[key] = (product if beside is None else product + beside, best)
        tables.held += parts
    joined, best = tables.products[key]
    tables.edges.pop((second, first), None)
    tables.edges[first, second] = joined
    tables.beside[first].add(second)
    tables.beside[second].add(first)
    tables.found.append((node, (first, second), best))


def _min_plus(left: FloatArray, right: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the least sums over the middle choice, and which one gives them."""
    rows, columns = left.shape[0], right.shape[1]
    value, best = np.empty((rows, columns)), np.empty((rows, columns), dtype=np.int64)
    across = np.ascontiguousarray(right.T)
    step = max(1, MOST_ENTRIES // max(across.size, 1))
    for start in range(0, rows, step):
        sums = left[start : start + step, None, :] + across[None, :, :]
        chosen = sums.argmin(axis=2)
        best[start : start + step] = chosen
        value[start : start + step] = np.take_along_axis(sums, chosen[..., None], axis=2)[..., 0]
    return value, best


def _choices(tables: _Tables, num_nodes: int) -> tuple[int, ...]:
    """Return the choice of each node: those taken out last are known first."""
    chosen = [0] * num_nodes
    for node, near, best in reversed(tables.found):
        chosen[node] = int(best[tuple(chosen[other] for other in near)])
    return tuple(chosen)
