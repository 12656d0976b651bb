"""The cheapest choices of a graph: nodes are eliminated one by one.

A node is an operator of one layer, a choice one of its strategies. An edge prices each pair of
choices of two operators: moving a tensor from one layout to another.

An eliminated node leaves a table: the best that it can do for each combination of choices of its
neighbours. With one neighbour that is a row of numbers, with two a min-plus product of matrices,
as in dynamic programming. Layers with residual connections never need more (they are
series-parallel); other graphs need larger tables, and are exact as long as these fit.

Where a table would be too large, the tables of a node are split into groups that fit, and each
takes its own best choice of the node. Then the value is a bound, and the choices are one way to
follow it: the caller compares both.

The order of elimination follows from the graph alone, not from the values of its tables. So it is
worked out once, and equal layers, which share their tables, are reduced once.

Sources: variable elimination (Bertele and Brioschi 1972, Nonserial Dynamic Programming);
mini-buckets (Dechter and Rish 2003, Mini-buckets: a general scheme for bounded inference).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import combinations
from math import prod
from operator import add
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray

Pair = tuple[int, int]


@dataclass(frozen=True)
class Load:
    """Cost of the choices: time, and memory that a budget limits."""

    time_s: FloatArray
    """(choices,) on a node, (choices of the first, choices of the second) on an edge [s]."""
    num_bytes: FloatArray
    """Bytes of the choices, in the same shape."""

    def at_price(self, s_per_byte: float) -> FloatArray:
        """Return the time when memory is paid for [s]."""
        priced: FloatArray = self.time_s + s_per_byte * self.num_bytes
        return priced


@dataclass(frozen=True)
class ChoiceGraph:
    """Operators in the order of the model, and the tensors between them.

    Equal operators share one :class:`Load` object, so that results for one of them serve all.
    """

    nodes: Sequence[Load]
    edges: Mapping[Pair, Load]
    """Costs of the edges, by the numbers of two nodes, the earlier one first."""

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


Scope = tuple[int, ...]
"""Nodes that a table spans, in rising order: one axis each."""
Edges = tuple[tuple[tuple[int, int], int], ...]
"""Pairs of nodes, each with the number of its table."""
Factor = tuple[Scope, int]
"""Nodes that a table spans, and its number."""


class Summand(NamedTuple):
    """A table as a summand, with the node on its last axis."""

    num_axes: int
    table: int
    axis: int
    """Axis of the node in the table."""
    spans: tuple[bool, ...]
    """Whether the table spans each neighbour; it has an axis of length one for each of the
    others."""


class EliminationStep(NamedTuple):
    """One table from others: the least over the choices of a node, for each of its neighbours."""

    summands: tuple[Summand, ...]
    """Tables to add up, those of few axes first."""
    beside: int | None
    """Number of a table over the same neighbours that exists already; None: there is none."""


@dataclass
class Order:
    """Steps that take out the nodes of a graph."""

    tasks: list[EliminationStep] = field(default_factory=list)
    """The result of each is the next table."""
    taken: list[tuple[int, tuple[Factor, ...]]] = field(default_factory=list)
    """Nodes in the order in which they go, with the tables that held them."""
    left: tuple[Factor, ...] = ()
    """Tables over the nodes that stay."""
    is_exact: bool = True
    depends_on_sizes: bool = False
    """Whether nodes with other numbers of choices might have gone in another order."""


def elimination_order(
    sizes: tuple[int, ...], nodes: tuple[int, ...], edges: Edges, kept: Scope, num_tables: int,
    most_entries: int,
) -> Order:  # fmt: skip
    """Return the order in which all nodes of a graph are taken out, except those kept.

    Where no node ever has more than two neighbours the choices of each do not matter, as long as
    every table fits: then one order serves a graph of any sizes.

    Parameters
    ----------
    sizes
        Choices of each node.
    nodes, edges
        Number of the table of each.
    num_tables
        Different tables of the graph.
    most_entries
        Most entries of a table; a larger one is split.
    """
    if max(sizes, default=1) ** 2 <= most_entries:
        equal = (1,) * len(sizes)
        order = _order(equal, nodes, edges, kept, num_tables, most_entries)
        if not order.depends_on_sizes:
            return order
    return _order(sizes, nodes, edges, kept, num_tables, most_entries)


@lru_cache(maxsize=32)
def _order(
    sizes: tuple[int, ...], nodes: tuple[int, ...], edges: Edges, kept: Scope, num_tables: int,
    most_entries: int,
) -> Order:  # fmt: skip
    """Return the order for these sizes."""
    factors: dict[Scope, int] = {(node,): table for node, table in enumerate(nodes)}
    factors.update(edges)
    return _Eliminator(sizes, factors, set(kept), num_tables, most_entries).run()


class _Eliminator:
    """A graph with nodes that are taken out one by one."""

    def __init__(
        self, sizes: tuple[int, ...], factors: dict[Scope, int], kept: set[int], num_tables: int,
        most_entries: int,
    ) -> None:  # fmt: skip
        self.sizes, self.num_tables, self.most_entries = sizes, num_tables, most_entries
        self.kept = kept
        self.factors: dict[Scope, int] = {}
        self.holding: dict[int, dict[Scope, None]] = {node: {} for node in range(len(sizes))}
        self.beside: dict[int, set[int]] = {node: set() for node in range(len(sizes))}
        for scope, table in factors.items():
            self._add(scope, table)
        self.order = Order()
        self.known: dict[EliminationStep, int] = {}

    def run(self) -> Order:
        """Take out the tips of residuals, then leaves, then nodes that leave the least table."""
        waiting = set(self.beside) - self.kept
        for node in self._tips(waiting):
            self._take_out(node)
            waiting.discard(node)
        leaves = [node for node in waiting if len(self.beside[node]) <= 1]
        while waiting:
            node = leaves.pop() if leaves else min(waiting, key=self._burden)
            if node not in waiting:
                continue
            near = self.beside[node]
            self._take_out(node)
            waiting.discard(node)
            leaves += [other for other in near if len(self.beside[other]) <= 1]
        self.order.left = tuple(self.factors.items())
        return self.order

    def _tips(self, waiting: set[int]) -> list[int]:
        """Return nodes with two neighbours that are neighbours of each other."""
        tips: list[int] = []
        for node in sorted(waiting):
            near = self.beside[node]
            if len(near) == 2 and not near & set(tips):
                first, second = near
                if second in self.beside[first]:
                    tips.append(node)
        return tips

    def _burden(self, node: int) -> tuple[int, int, int]:
        """Return the burden of taking out a node: neighbours, then entries, then new bonds.

        Nodes of two neighbours or fewer come first, with any choices; then the fewest entries.
        """
        near = self.beside[node]
        if len(near) <= 2:
            return len(near), 0, 0
        bonds = sum(v not in self.beside[u] for u, v in combinations(near, 2))
        return 3, self._entries(near), bonds

    def _take_out(self, node: int) -> None:
        """Take out a node; its tables are added up as far as the result is small enough."""
        factors = tuple((scope, self.factors[scope]) for scope in self.holding[node])
        for scope, _ in factors:
            self._remove(scope)
        near = tuple(sorted(self.beside.pop(node)))
        self.order.depends_on_sizes |= len(near) > 2
        for other in near:
            self.beside[other].discard(node)
        fits = self._entries(near) <= self.most_entries
        groups = [(near, factors)] if fits else self._groups(factors, node)
        self.order.is_exact &= len(groups) == 1
        for near, group in groups:
            self._add(near, self._result(self._task(group, near, node)))
        self.order.taken.append((node, factors))

    def _groups(
        self, factors: tuple[Factor, ...], node: int
    ) -> list[tuple[Scope, tuple[Factor, ...]]]:
        """Return the tables of a node in groups that leave a table of allowed size each."""
        groups: list[tuple[set[int], list[Factor]]] = []
        for scope, table in sorted(factors, key=lambda factor: -self._entries(factor[0])):
            others = set(scope) - {node}
            fitting = (g for g in groups if self._entries(g[0] | others) <= self.most_entries)
            near, group = next(fitting, (set[int](), list[Factor]()))
            if not group:
                groups.append((near, group))
            near |= others
            group.append((scope, table))
        return [(tuple(sorted(near)), tuple(group)) for near, group in groups]

    def _entries(self, nodes: Iterable[int]) -> int:
        return prod([self.sizes[node] for node in nodes])

    def _add(self, scope: Scope, table: int) -> None:
        self.factors[scope] = table
        for node in scope:
            self.holding[node][scope] = None
        if len(scope) > 1:
            for first, second in combinations(scope, 2):
                self.beside[first].add(second)
                self.beside[second].add(first)

    def _remove(self, scope: Scope) -> None:
        del self.factors[scope]
        for node in scope:
            del self.holding[node][scope]

    def _task(self, group: tuple[Factor, ...], near: Scope, node: int) -> EliminationStep:
        """Return the sum of tables over a node and its neighbours, least over the node."""
        summands = []
        for scope, table in group:
            spans = tuple([other in scope for other in near])
            summands.append(Summand(len(scope), table, scope.index(node), spans))
        summands.sort()
        return EliminationStep(tuple(summands), self.factors.get(near))

    def _result(self, task: EliminationStep) -> int:
        """Return the number of the table of a task, which is listed once."""
        number = self.known.setdefault(task, len(self.order.tasks))
        if number == len(self.order.tasks):
            self.order.tasks.append(task)
        return self.num_tables + number


MOST_ENTRIES = 4_000_000
"""Most entries of a table, and of all arrays held at once to make one."""


@dataclass(frozen=True)
class CheapestChoices:
    """The cheapest choices that were found, and a bound of any choice's cost, memory paid for."""

    choices: tuple[int, ...]
    value_s: float
    """Equal to the cost of the choices where it is exact."""
    is_exact: bool


def cheapest(
    graph: ChoiceGraph, s_per_byte: float = 0.0, *, most_entries: int = MOST_ENTRIES
) -> CheapestChoices:
    """Return the choices of least time, where each byte of memory is charged a price.

    Parameters
    ----------
    most_entries
        Entries that a table may have; beyond, the value is a bound and the choices a guess.
    """
    reduced = Reduced(graph, s_per_byte, most_entries=most_entries)
    return CheapestChoices(reduced.choices({}), float(reduced.table), reduced.is_exact)


class Reduced:
    """A graph with a few nodes left, and one table over them.

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
        """Return the best choice of every node, given the choices of the kept nodes."""
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


def _done(task: EliminationStep, tables: Sequence[FloatArray]) -> FloatArray:
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
