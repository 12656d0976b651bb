"""What every way to split a kernel costs, and what lies between the ways of two kernels.

Costs are seconds or bytes, whatever is to be least; the search does not ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.dataflow.layouts import Change, KernelSplit, Layout, cheapest_changes, costs_of_sets
from meshwright.graph.kernels.graph import DataflowGraph, Reading, readings
from meshwright.search.choices.budget import cheapest_within
from meshwright.search.choices.elimination import MOST_ENTRIES
from meshwright.search.choices.graph import ChoiceGraph, Load, Pair

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


TIE = 1e-9
"""Share of the cost that all of the memory is worth, so that it decides between equal costs."""


@dataclass(frozen=True)
class Sharding:
    """One way for each kernel, what that costs, and a bound that no ways can beat."""

    tables: SplitTables
    ways: tuple[int, ...]
    """Of each kernel, among its ways."""
    cost: float
    held_bytes: float
    lower_bound: float

    @property
    def splits(self) -> tuple[KernelSplit, ...]:
        """The way of each kernel."""
        return tuple(
            ways[number] for ways, number in zip(self.tables.splits, self.ways, strict=True)
        )

    @property
    def dims(self) -> dict[str, str | None]:
        """The dim that each kernel is split over, by its name; None where all do all of it."""
        kernels = self.tables.graph.kernels
        return {k.name: split.dim for k, split in zip(kernels, self.splits, strict=True)}

    @property
    def changes(self) -> tuple[PlacedChange, ...]:
        """Collectives in their places."""
        return tuple(SplitChoices(self.tables).changes(self.ways))

    @property
    def kernel_cost(self) -> float:
        """Of kernels alone, without what lies between them."""
        costs = zip(self.tables.costs, self.ways, strict=True)
        return sum(float(alone[way]) for alone, way in costs)

    @property
    def gap(self) -> float:
        """How far the cost may lie above the least possible one, as a fraction."""
        return max(self.cost / self.lower_bound - 1.0, 0.0) if self.lower_bound > 0.0 else 0.0


def choose_sharding(
    tables: SplitTables,
    room_bytes: float = float("inf"),
    *,
    most_entries: int = MOST_ENTRIES,
    uses_program: bool = True,
) -> Sharding | None:
    """Return the cheapest ways within a memory; of equally cheap ones the leaner. None: no room.

    Parameters
    ----------
    room_bytes
        Memory of a device that kernels may fill [bytes].
    most_entries
        Entries of a table of elimination; a graph that needs more is not exact and has a gap.
    uses_program
        Whether an integer program may close the gap that a limit on memory leaves.
    """
    choices = SplitChoices(tables)
    tie = _tie(choices.graph)
    graph = _at_price(choices.graph, tie)
    chosen = cheapest_within(
        graph, room_bytes, most_entries=most_entries, uses_program=uses_program
    )
    if chosen is None:
        return None
    ways = choices.splits_of(chosen.choices)
    cost = choices.graph.time_s(chosen.choices)
    bound = chosen.lower_bound_s - tie * _most_bytes(choices.graph)
    return Sharding(tables, ways, cost, chosen.num_bytes, min(max(bound, 0.0), cost))


def choose_for_largest(
    sums: Sequence[SplitTables], room_bytes: float = float("inf"), *, uses_program: bool = True
) -> tuple[Sharding, ...]:
    """Return ways whose largest sum is small, the best ones first; none where there is no room.

    Where computation runs beside collectives, the larger of both counts. Any mean of both lies
    below it, so the least mean is a bound for all, and the ways that have it are likely to be good.

    Parameters
    ----------
    sums
        Means of one and the other, over the same graph and ways.
    """
    found = [choose_sharding(one, room_bytes, uses_program=uses_program) for one in sums]
    fitting = {sharding.ways: sharding for sharding in found if sharding is not None}
    choices = [SplitChoices(tables) for tables in sums]
    bound = max((sharding.lower_bound for sharding in found if sharding is not None), default=0.0)
    priced = []
    for ways, sharding in fitting.items():
        cost = max(one.cost(ways) for one in choices)
        priced.append(replace(sharding, cost=cost, lower_bound=min(bound, cost)))
    return tuple(sorted(priced, key=lambda sharding: sharding.cost))


def _tie(graph: ChoiceGraph) -> float:
    """Return a price of memory that only decides between equal costs."""
    loads = (*graph.nodes, *graph.edges.values())
    most = sum(float(np.abs(load.time_s).max()) for load in loads)
    return TIE * most / max(_most_bytes(graph), 1.0)


def _most_bytes(graph: ChoiceGraph) -> float:
    """Return a memory that no choices exceed."""
    return sum(float(load.num_bytes.max()) for load in (*graph.nodes, *graph.edges.values()))


def _at_price(graph: ChoiceGraph, price: float) -> ChoiceGraph:
    """Return the choices with memory paid for, and still counted."""
    nodes = [Load(load.at_price(price), load.num_bytes) for load in graph.nodes]
    edges = {pair: Load(load.at_price(price), load.num_bytes) for pair, load in graph.edges.items()}
    return ChoiceGraph(nodes, edges)
