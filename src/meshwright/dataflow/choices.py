"""Ways to split kernels as a graph of choices: one node for each kernel, and one for each demand.

A tensor with several readers is changed once for each layout that is asked for. That is no sum over
pairs of kernels, so such a tensor has a node of its own, whose choices are the sets of layouts in
which the tensor will lie. What the set costs is settled with the producer. A reader that wants
a layout outside the set pays more than that layout can cost inside, so the best choices never do
that, and no price is infinite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.changes import Change, cheapest_changes, costs_of_sets
from meshwright.dataflow.splits import Layout
from meshwright.dataflow.tables import SplitTables
from meshwright.graph.dataflow.readings import Reading, readings
from meshwright.search.choices.graph import ChoiceGraph, Load, Pair


@dataclass(frozen=True)
class Demand:
    """A tensor, or a part of one, that readers ask for in some layouts."""

    producer: int
    num_bytes: float
    readings: tuple[Reading, ...]

    def wanted(self, tables: SplitTables, choices: Sequence[int]) -> set[Layout]:
        """Return the layouts that are asked for."""
        return {
            tables.splits[read.consumer][choices[read.consumer]].reads[read.place]
            for read in self.readings
        }


@dataclass(frozen=True)
class PlacedChange:
    """A change of layout in its place in the graph."""

    producer: str
    readers: tuple[str, ...]
    """That read the tensor in the layout after this change, or in one made from it."""
    change: Change
    num_bytes: float
    """Of the tensor, or of the part that is read [bytes]."""
    cost: float


@dataclass(frozen=True)
class SplitChoices:
    """The choices of all kernels of a graph, and those of its demands."""

    tables: SplitTables

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """What is asked for; each reader for itself where each one pays for its own change."""
        asked: dict[tuple[int, ...] | tuple[int, float], list[Reading]] = defaultdict(list)
        for number, read in enumerate(readings(self.tables.graph)):
            is_own = self.tables.charges_each_reader
            asked[(number,) if is_own else (read.producer, read.num_bytes)].append(read)
        return tuple(
            Demand(reads[0].producer, reads[0].num_bytes, tuple(reads)) for reads in asked.values()
        )

    @cached_property
    def graph(self) -> ChoiceGraph:
        """The nodes of kernels in their order, then those of demands with several readers."""
        return _Builder(self.tables).build(self.demands)

    def splits_of(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return the way of each kernel among its ways, from the choices of all nodes."""
        return tuple(choices[: len(self.tables.graph.kernels)])

    def cost(self, ways: Sequence[int]) -> float:
        """Return what it costs to split each kernel in its way."""
        alone = zip(self.tables.costs, ways, strict=True)
        between = (bond.costs[ways[a], ways[b]] for (a, b), bond in self.tables.bonds.items())
        changed = sum(change.cost for change in self.changes(ways))
        return float(sum(costs[way] for costs, way in alone) + sum(between)) + changed

    def costs_by_kernel(self, ways: Sequence[int]) -> dict[str, float]:
        """Return the same by the kernel that causes it; they sum to the cost.

        A kernel causes what it costs alone and the changes of what it writes. What lies between two
        kernels is caused by the later one.
        """
        tables = self.tables
        found = {
            kernel.name: float(costs[way])
            for kernel, costs, way in zip(tables.graph.kernels, tables.costs, ways, strict=True)
        }
        for (first, second), bond in tables.bonds.items():
            found[tables.graph.kernels[second].name] += float(bond.costs[ways[first], ways[second]])
        for change in self.changes(ways):
            found[change.producer] += change.cost
        return found

    def changes(self, ways: Sequence[int]) -> Iterator[PlacedChange]:
        """Yield what has to be changed when each kernel is split in its way."""
        tables = self.tables
        kernels = tables.graph.kernels
        for demand in self.demands:
            have = tables.splits[demand.producer][ways[demand.producer]].writes

            def cost(a: Layout, b: Layout, num_bytes: float = demand.num_bytes) -> float:
                return tables.change_cost(num_bytes, a, b)

            _, found = cheapest_changes(have, demand.wanted(tables, ways), cost)
            for change in found:
                readers = tuple(
                    kernels[read.consumer].name
                    for read in demand.readings
                    if tables.splits[read.consumer][ways[read.consumer]].reads[read.place]
                    == change.want
                )
                if change.kind is not None:
                    yield PlacedChange(
                        kernels[demand.producer].name, readers, change, demand.num_bytes,
                        cost(change.have, change.want),
                    )  # fmt: skip


class _Builder:
    """Nodes and edges that are filled one cost after the other."""

    def __init__(self, tables: SplitTables) -> None:
        self.tables = tables
        self.nodes = [
            [costs.copy(), held.copy()]
            for costs, held in zip(tables.costs, tables.held_bytes, strict=True)
        ]
        self.edges: dict[Pair, list[FloatArray]] = {}
        self.sets: dict[tuple[float, Layout, tuple[Layout, ...]], list[float]] = {}

    def build(self, demands: Sequence[Demand]) -> ChoiceGraph:
        """Return the graph of choices."""
        for pair, bond in self.tables.bonds.items():
            self._add(*pair, bond.costs, bond.held_bytes)
        for demand in demands:
            if len(demand.readings) == 1:
                self._add_pair(demand)
            else:
                self._add_sets(demand)
        edges = {pair: Load(*tables) for pair, tables in self.edges.items()}
        return ChoiceGraph([Load(*tables) for tables in self.nodes], edges)

    def _add_pair(self, demand: Demand) -> None:
        """Price a demand of one reader between its ways and those of the producer."""
        read = demand.readings[0]
        table = [
            [self._cost(demand, have, want) for want in self._reads(read)]
            for have in self._writes(demand)
        ]
        self._add(demand.producer, read.consumer, np.array(table))

    def _add_sets(self, demand: Demand) -> None:
        """Add a node for the set of layouts in which a tensor will lie."""
        writes = self._writes(demand)
        asked = {want for read in demand.readings for want in self._reads(read)}
        targets = tuple(sorted(asked, key=str))
        node = len(self.nodes)
        size = (1 << len(targets)) - 1
        self.nodes.append([np.zeros(size), np.zeros(size)])
        self._add(
            demand.producer,
            node,
            np.array([self._set_costs(demand, have, targets)[1:] for have in writes]),
        )
        dearest = [max(self._cost(demand, have, want) for have in writes) for want in targets]
        member = np.arange(1, size + 1)[None, :] >> np.arange(len(targets))[:, None] & 1
        missing = np.where(member, 0.0, np.array(dearest)[:, None])
        for read in demand.readings:
            rows = [targets.index(want) for want in self._reads(read)]
            self._add(read.consumer, node, missing[rows])

    def _add(
        self, first: int, second: int, costs: FloatArray, held: FloatArray | None = None
    ) -> None:
        """Add to what lies between two nodes; a node beside itself has a cost alone."""
        tables = [costs, np.zeros_like(costs) if held is None else held]
        if first == second:
            self.nodes[first] = [
                a + b.diagonal() for a, b in zip(self.nodes[first], tables, strict=True)
            ]
        elif first > second:
            self._add(second, first, tables[0].T, tables[1].T)
        elif (first, second) in self.edges:
            there = self.edges[first, second]
            self.edges[first, second] = [a + b for a, b in zip(there, tables, strict=True)]
        else:
            self.edges[first, second] = tables

    def _writes(self, demand: Demand) -> list[Layout]:
        return [split.writes for split in self.tables.splits[demand.producer]]

    def _reads(self, read: Reading) -> list[Layout]:
        return [split.reads[read.place] for split in self.tables.splits[read.consumer]]

    def _cost(self, demand: Demand, have: Layout, want: Layout) -> float:
        return self.tables.change_cost(demand.num_bytes, have, want)

    def _set_costs(self, demand: Demand, have: Layout, targets: tuple[Layout, ...]) -> list[float]:
        """Return what each set of targets costs; worked out once for tensors of equal size."""
        key = (demand.num_bytes, have, targets)
        if key not in self.sets:
            self.sets[key] = costs_of_sets(have, targets, lambda a, b: self._cost(demand, a, b))
        return self.sets[key]
