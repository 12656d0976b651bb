"""The cheapest choices of a graph, exactly: nodes are taken out one by one.

A node with one neighbour leaves the best it can do for each choice of that neighbour; one with two
leaves a matrix between them: the min-plus product of dynamic programming. Graphs of layers with
residual connections reduce to nothing that way (they are series-parallel); others are refused.

What has to be done follows from the graph alone, whatever its tables hold. So it is worked out
once, and equal layers, whose tables are one object, are reduced once.

Source: variable elimination (Bertele and Brioschi 1972, Nonserial Dynamic Programming).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.search.operators.graph import ChoiceGraph, Load, Pair

MOST_ENTRIES = 4_000_000
"""Entries of a min-plus product that are held at once."""

Table = tuple[int, bool]
"""Number of a table, and whether it is read the other way round."""


@dataclass(frozen=True)
class Best:
    """The cheapest choices and what they cost, memory paid for."""

    choices: tuple[int, ...]
    value_s: float


@dataclass(frozen=True)
class Task:
    """One table from others: the best choice of a node for each choice of its neighbours."""

    alone: int
    """Table of the node."""
    between: tuple[Table, ...]
    """Tables to its neighbours: rows for the neighbour, columns for the node."""
    beside: Table | int | None
    """What lies between the two neighbours already, or the table of the only one."""


@dataclass
class Order:
    """What is done to take out all nodes of a graph."""

    tasks: list[Task] = field(default_factory=list)
    """The result of each is the next table."""
    taken: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    """Nodes in the order in which they go, the neighbours they leave, and the task."""


def cheapest(graph: ChoiceGraph, s_per_byte: float = 0.0) -> Best:
    """Return the choices of least time, where each byte of memory is charged a price.

    Raises
    ------
    UnsupportedError
        A graph that is not series-parallel.
    """
    loads, nodes, edges = _numbered(graph)
    order = elimination_order(len(loads), nodes, edges)
    tables = [load.at_price(s_per_byte) for load in loads]
    best: list[IntArray] = []
    for task in order.tasks:
        table, chosen = _done(task, tables)
        tables.append(table)
        best.append(chosen)
    choices, value_s = [0] * len(nodes), 0.0
    for node, near, number in reversed(order.taken):
        choices[node] = int(best[number][tuple(choices[other] for other in near)])
        if not near:
            value_s += float(tables[len(loads) + number])
    return Best(tuple(choices), value_s)


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


@lru_cache(maxsize=32)
def elimination_order(
    num_tables: int, nodes: tuple[int, ...], edges: tuple[tuple[Pair, int], ...]
) -> Order:
    """Return how to take out all nodes of a graph.

    Parameters
    ----------
    num_tables
        Different tables of the graph.
    nodes, edges
        The number of the table of each.
    """
    return _Eliminator(num_tables, list(nodes), dict(edges)).run()


class _Eliminator:
    """A graph whose nodes are taken out; tables are numbers."""

    def __init__(self, num_tables: int, nodes: list[int], edges: dict[Pair, int]) -> None:
        self.num_tables, self.nodes = num_tables, nodes
        self.edges: dict[Pair, Table] = {}
        self.beside: dict[int, set[int]] = {node: set() for node in range(len(nodes))}
        for (first, second), table in edges.items():
            self._join_up(first, second, (table, False))
        self.order = Order()
        self.known: dict[Task, int] = {}

    def run(self) -> Order:
        """Take out the tips of residuals, then what has the fewest neighbours, leaves first."""
        waiting = set(self.beside)
        for node in self._tips():
            self._take_out(node)
            waiting.discard(node)
        leaves = [node for node in waiting if len(self.beside[node]) <= 1]
        while waiting:
            node = leaves.pop() if leaves else min(waiting, key=lambda n: len(self.beside[n]))
            if node not in waiting:
                continue
            near = tuple(self.beside[node])
            self._take_out(node)
            waiting.discard(node)
            leaves += [other for other in near if len(self.beside[other]) <= 1]
        return self.order

    def _tips(self) -> list[int]:
        """Return nodes with two neighbours that are neighbours of each other."""
        tips: list[int] = []
        for node, near in self.beside.items():
            if len(near) == 2 and not near & set(tips):
                first, second = near
                if second in self.beside[first]:
                    tips.append(node)
        return tips

    def _take_out(self, node: int) -> None:
        """Take out a node with two neighbours or fewer."""
        near = tuple(sorted(self.beside[node]))
        if len(near) > 2:
            raise UnsupportedError(
                f"operator {node} is bound to {len(near)} others: the graph is not series-parallel"
            )
        between = tuple(self.edges[other, node] for other in near)
        for other in near:
            self.beside[other].discard(node)
        if len(near) == 2:
            beside = self.edges.get(near)
            number = self._result(node, near, Task(self.nodes[node], between, beside))
            self._join_up(*near, (number, False))
        elif near:
            task = Task(self.nodes[node], between, self.nodes[near[0]])
            self.nodes[near[0]] = self._result(node, near, task)
        else:
            self._result(node, near, Task(self.nodes[node], (), None))

    def _join_up(self, first: int, second: int, table: Table) -> None:
        self.edges[first, second] = table
        self.edges[second, first] = (table[0], not table[1])
        self.beside[first].add(second)
        self.beside[second].add(first)

    def _result(self, node: int, near: tuple[int, ...], task: Task) -> int:
        """Return the number of the table of a task, which is listed once."""
        if task not in self.known:
            self.known[task] = len(self.order.tasks)
            self.order.tasks.append(task)
        self.order.taken.append((node, near, self.known[task]))
        return self.num_tables + self.known[task]


def _done(task: Task, tables: list[FloatArray]) -> tuple[FloatArray, IntArray]:
    """Return the table of a task, and the best choice of its node."""
    alone = tables[task.alone]
    between = [_read(tables, table) for table in task.between]
    if not between:
        chosen = alone.argmin()
        return alone[chosen], np.asarray(chosen)
    if isinstance(task.beside, int):
        total = between[0] + alone
        best = total.argmin(axis=1)
        return tables[task.beside] + total[np.arange(len(best)), best], best
    product, best = _min_plus(between[0] + alone, between[1])
    return product if task.beside is None else product + _read(tables, task.beside), best


def _read(tables: list[FloatArray], table: Table) -> FloatArray:
    number, is_turned = table
    return tables[number].T if is_turned else tables[number]


def _min_plus(left: FloatArray, right: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return the least sums over the middle choice, and which one gives them.

    Both tables have the middle choice in their columns.
    """
    rows, columns = left.shape[0], right.shape[0]
    value, best = np.empty((rows, columns)), np.empty((rows, columns), dtype=np.int64)
    across = np.ascontiguousarray(right)
    step = max(1, MOST_ENTRIES // max(across.size, 1))
    for start in range(0, rows, step):
        sums = left[start : start + step, None, :] + across[None, :, :]
        chosen = sums.argmin(axis=2)
        best[start : start + step] = chosen
        value[start : start + step] = np.take_along_axis(sums, chosen[..., None], axis=2)[..., 0]
    return value, best
