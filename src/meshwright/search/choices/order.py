"""In which order the nodes of a graph are taken out, and which tables that makes of which.

Everything is a number here: a table of cost is known by its number and by the nodes it spans.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple

Scope = tuple[int, ...]
"""Nodes that a table spans, in rising order: one axis each."""
Edges = tuple[tuple[tuple[int, int], int], ...]
"""Pairs of nodes, each with the number of its table."""
Factor = tuple[Scope, int]
"""What a table spans, and its number."""


class Summand(NamedTuple):
    """A table as it is added up, the node on its last axis."""

    num_axes: int
    table: int
    axis: int
    """Of the node, in the table."""
    spans: tuple[bool, ...]
    """Which neighbours the table spans; it has an axis of length one for each of the others."""


class Task(NamedTuple):
    """One table from others: the least over the choices of a node, for each of its neighbours."""

    summands: tuple[Summand, ...]
    """Tables to add up, those of few axes first."""
    beside: int | None
    """A table over the same neighbours that is there already."""


@dataclass
class Order:
    """What is done to take out the nodes of a graph."""

    tasks: list[Task] = field(default_factory=list)
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
    """Return how to take out all nodes of a graph but those that are kept.

    Where no node ever has more than two neighbours the choices of each do not matter, as long as
    every table fits: then one order serves a graph whatever its sizes.

    Parameters
    ----------
    sizes
        Choices of each node.
    nodes, edges
        The number of the table of each.
    num_tables
        Different tables of the graph.
    most_entries
        Entries that a table may have; what would exceed them is shared out.
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
    """Return the order that these sizes ask for."""
    factors: dict[Scope, int] = {(node,): table for node, table in enumerate(nodes)}
    factors.update(edges)
    return _Eliminator(sizes, factors, set(kept), num_tables, most_entries).run()


class _Eliminator:
    """A graph whose nodes are taken out."""

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
        self.known: dict[Task, int] = {}

    def run(self) -> Order:
        """Take out the tips of residuals, then leaves, then what leaves the smallest table."""
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
        """Return what taking out a node makes worse: neighbours, then entries, then new bonds.

        Two neighbours or fewer come first, whatever their choices; then the fewest entries.
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

    def _task(self, group: tuple[Factor, ...], near: Scope, node: int) -> Task:
        """Return the sum of tables over a node and its neighbours, least over the node."""
        summands = []
        for scope, table in group:
            spans = tuple([other in scope for other in near])
            summands.append(Summand(len(scope), table, scope.index(node), spans))
        summands.sort()
        return Task(tuple(summands), self.factors.get(near))

    def _result(self, task: Task) -> int:
        """Return the number of the table of a task, which is listed once."""
        number = self.known.setdefault(task, len(self.order.tasks))
        if number == len(self.order.tasks):
            self.order.tasks.append(task)
        return self.num_tables + number
