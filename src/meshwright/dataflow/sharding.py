"""The cheapest way to split every kernel of a graph over one group of devices, with a proof.

The costs of each split of each kernel, and of each pair of kernels, are tables in the unit to be
minimised: seconds or bytes. They make a graph of choices, one node for each kernel, which is solved
exactly by elimination.

A tensor with several readers is changed once for each layout that is asked for. That is no sum over
pairs of kernels, so such a tensor has its own node; its choices are the sets of layouts of the
tensor. The cost of the set is settled with the producer. A reader that wants a layout outside the
set pays more than that layout can cost inside, so the best choices never do that, and no price is
infinite.

A tensor that leaves the graph is asked for once more, by the consumer outside: closed, in the
layout that is stated, or in any, whichever is the cheapest beside those of its readers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, gap_of
from meshwright.dataflow.layouts import (
    Exit,
    KernelSplit,
    LayoutChange,
    TensorLayout,
    cheapest_changes,
    costs_of_sets,
)
from meshwright.graph.kernels.graph import DataflowGraph, Edge
from meshwright.search.choices.budget import cheapest_within
from meshwright.search.choices.elimination import MOST_ENTRIES, ChoiceGraph, Load, Pair

ChangeCost = Callable[[float, TensorLayout, TensorLayout], float]
"""Cost of a change of layout, by the bytes of the tensor, the layout it has and the one wanted."""
PROVEN = 1e-6
"""Gap at which nothing more is tried."""
BUDGET = 1e12
"""Budget of one sum, in units so small that none of its prices is rounded."""
TIE = 1e-9
"""Weight of the whole memory as a share of the cost, so that it decides between equal costs."""


@dataclass(frozen=True)
class PairCosts:
    """Joint costs of the splits of two kernels, changes of layout apart."""

    costs: FloatArray
    """(splits of the first, splits of the second)."""
    held_bytes: FloatArray
    """Memory of one device, of the same shape [bytes]."""

    def __add__(self, other: PairCosts) -> PairCosts:
        return PairCosts(self.costs + other.costs, self.held_bytes + other.held_bytes)


@dataclass(frozen=True)
class PlacedChange:
    """A change of layout in its place in the graph."""

    producer: str
    readers: tuple[str, ...]
    """Kernels that read the tensor in the layout after this change, or in one made from it."""
    leaves: bool
    """Whether it leaves the graph in that layout."""
    change: LayoutChange
    num_bytes: float
    """Bytes of the tensor, or of the part that is read [bytes]."""
    cost: float


@dataclass(frozen=True)
class Demand:
    """Readers that share the changes of one tensor, or of one part of it."""

    producer: int
    num_bytes: float
    """Bytes that each reader takes, on all devices together [bytes]."""
    reads: tuple[Edge, ...]
    exit: Exit | None = None
    """Layouts in which the tensor leaves the graph; None: it does not leave."""


CutCost = Callable[[int, KernelSplit, int, int], float]
"""Function from the number of a kernel, its split, and two sets of kernels as bits, to its extra
cost."""


@dataclass(frozen=True)
class SplitTables:
    """The ways to split each kernel of a graph, with their costs."""

    graph: DataflowGraph
    degree: int
    """Devices of the group."""
    splits: tuple[tuple[KernelSplit, ...], ...]
    """Splits of each kernel."""
    costs: tuple[FloatArray, ...]
    """Cost of each split of each kernel, alone."""
    held_bytes: tuple[FloatArray, ...]
    """Memory that each takes on one device [bytes]."""
    change_cost: ChangeCost
    pair_costs: Mapping[Pair, PairCosts] = field(default_factory=dict)
    """Joint costs by the numbers of two kernels, the earlier one first."""
    exits: Mapping[int, Exit] = field(default_factory=dict)
    """Tensors that leave, by the number of the kernel that writes them."""
    charges_each_reader: bool = False
    """Whether every reader pays for its own change, although another one asks for the same."""
    cut_cost: CutCost | None = None
    """Extra cost of a kernel in a graph that is cut behind two sets of kernels, with the kernel
    between them. None: cuts cost no more than the sends."""
    known_sets: dict[tuple[object, ...], list[float]] = field(default_factory=dict, compare=False)
    """Costs of the changes of tensors that were looked at, shared with tables of fewer splits."""

    def within(self, limit_bytes: float) -> SplitTables | None:
        """Return the splits that fit a memory by themselves; None where a kernel has none."""
        kept = [np.flatnonzero(held <= limit_bytes) for held in self.held_bytes]
        return self._only(kept) if all(len(splits) for splits in kept) else None

    def over(self, dims: Mapping[str, Collection[str | None]]) -> SplitTables:
        """Return the splits over some dims of each kernel."""
        return self._only(
            [
                np.flatnonzero([split.dim in dims[kernel.name] for split in splits])
                for kernel, splits in zip(self.graph.kernels, self.splits, strict=True)
            ]
        )

    def _only(self, kept: Sequence[IntArray]) -> SplitTables:
        """Return some splits of each kernel, by number."""
        return replace(
            self,
            splits=tuple(
                tuple(splits[number] for number in numbers)
                for splits, numbers in zip(self.splits, kept, strict=True)
            ),
            costs=tuple(costs[n] for costs, n in zip(self.costs, kept, strict=True)),
            held_bytes=tuple(held[n] for held, n in zip(self.held_bytes, kept, strict=True)),
            pair_costs={
                (a, b): PairCosts(
                    pair.costs[np.ix_(kept[a], kept[b])], pair.held_bytes[np.ix_(kept[a], kept[b])]
                )
                for (a, b), pair in self.pair_costs.items()
            },
        )

    @property
    def open_dims(self) -> dict[str, tuple[str | None, ...]]:
        """Dims over which each kernel may be split."""
        return {
            kernel.name: tuple(dict.fromkeys(split.dim for split in splits))
            for kernel, splits in zip(self.graph.kernels, self.splits, strict=True)
        }

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """Demands on each tensor, and on each part of one.

        Each read stands for itself where each reader pays for its own change.
        """
        reads: dict[tuple[int, float, int], list[Edge]] = defaultdict(list)
        for number, edge in enumerate(self.graph.all_edges):
            own = number if self.charges_each_reader else -1
            reads[edge.producer, edge.num_bytes, own].append(edge)
        kernels = self.graph.kernels
        leaving = {(n, self.graph.tensor_bytes(kernels[n]), -1): e for n, e in self.exits.items()}
        return tuple(
            Demand(*key[:2], tuple(reads.get(key, ())), leaving.get(key))
            for key in dict.fromkeys((*reads, *leaving))
        )

    @cached_property
    def choices(self) -> ChoiceGraph:
        """The nodes of kernels in their order, then those of demands with several readers."""
        return _ChoiceBuilder(self).build()

    def cost(self, ways: Sequence[int]) -> float:
        """Return the cost where each kernel has one of its splits, by number."""
        alone = zip(self.costs, ways, strict=True)
        pairs = (pair.costs[ways[a], ways[b]] for (a, b), pair in self.pair_costs.items())
        changed = sum(change.cost for change in self.changes(ways))
        return float(sum(costs[way] for costs, way in alone) + sum(pairs)) + changed

    def costs_by_kernel(self, ways: Sequence[int]) -> dict[str, float]:
        """Return the costs by the kernel that causes them; they sum to the cost.

        A kernel causes its own cost and the changes of its output. The joint cost of two kernels is
        caused by the later one.
        """
        names = (kernel.name for kernel in self.graph.kernels)
        found = dict(zip(names, self.costs_of_kernels(ways), strict=True))
        for change in self.changes(ways):
            found[change.producer] += change.cost
        return found

    def changes(self, ways: Sequence[int]) -> Iterator[PlacedChange]:
        """Yield the collectives between kernels where each has one of its splits, by number."""
        kernels = self.graph.kernels
        for asked, wants, left, moves in self._moves(ways):
            for change, often in moves.items():
                if change.kind is not None:
                    readers = tuple(
                        kernels[read.consumer].name
                        for read, want in zip(asked.reads, wants, strict=True)
                        if want == change.want
                    )
                    yield PlacedChange(
                        kernels[asked.producer].name, readers, change.want == left, change,
                        asked.num_bytes,
                        often * self.change_cost(asked.num_bytes, change.have, change.want),
                    )  # fmt: skip

    def costs_of_kernels(self, ways: Sequence[int]) -> list[float]:
        """Return the cost of each kernel by itself and with those before it, changes apart."""
        found = [float(costs[way]) for costs, way in zip(self.costs, ways, strict=True)]
        for (first, second), pair in self.pair_costs.items():
            found[second] += float(pair.costs[ways[first], ways[second]])
        return found

    def leaving(self, ways: Sequence[int]) -> dict[int, TensorLayout]:
        """Return the layouts in which tensors leave, by the number of who writes them."""
        moves = self._moves(ways)
        return {asked.producer: left for asked, _, left, _ in moves if left is not None}

    def _moves(
        self, ways: Sequence[int]
    ) -> Iterator[
        tuple[Demand, list[TensorLayout], TensorLayout | None, Mapping[LayoutChange, float]]
    ]:
        """Yield the layouts that readers want, that of leaving, and the number of each change.

        A tensor that leaves in a share of the passes is changed for its readers in the others.
        """
        for asked in self.demands:
            have = self.splits[asked.producer][ways[asked.producer]].writes
            wants = [self.splits[r.consumer][ways[r.consumer]].reads[r.place] for r in asked.reads]

            def cost(a: TensorLayout, b: TensorLayout, num_bytes: float = asked.num_bytes) -> float:
                return self.change_cost(num_bytes, a, b)

            inside = cheapest_changes(have, set(wants), cost)
            if asked.exit is None:
                yield asked, wants, None, dict.fromkeys(inside[1], 1.0)
                continue
            (_, changes), left = min(
                ((cheapest_changes(have, {*wants, out}, cost), out) for out in asked.exit.layouts),
                key=lambda found: found[0][0],
            )
            moves = dict.fromkeys(changes, asked.exit.share)
            for change in inside[1] if asked.exit.share < 1.0 else ():
                moves[change] = moves.get(change, 0.0) + 1.0 - asked.exit.share
            yield asked, wants, left, moves


class _ChoiceBuilder:
    """Nodes and edges of a graph of choices, to which one cost after the other is added."""

    def __init__(self, tables: SplitTables) -> None:
        self.tables = tables
        self.nodes = [
            [costs.copy(), held.copy()]
            for costs, held in zip(tables.costs, tables.held_bytes, strict=True)
        ]
        self.edges: dict[Pair, list[FloatArray]] = {}

    def build(self) -> ChoiceGraph:
        """Return the graph of choices."""
        for pair, between in self.tables.pair_costs.items():
            self._add(*pair, between.costs, between.held_bytes)
        for asked in self.tables.demands:
            self._add_demand(asked)
        edges = {pair: Load(*tables) for pair, tables in self.edges.items()}
        return ChoiceGraph([Load(*tables) for tables in self.nodes], edges)

    def _add_demand(self, asked: Demand) -> None:
        """Add costs of changes: a node for the set of layouts of a tensor with several readers."""
        num_bytes, producer = asked.num_bytes, asked.producer
        have = [split.writes for split in self.tables.splits[producer]]
        wants = [
            [split.reads[read.place] for split in self.tables.splits[read.consumer]]
            for read in asked.reads
        ]
        targets = tuple(sorted({want for each in wants for want in each}, key=str))
        sets = np.array([self._set_costs(asked, layout, targets) for layout in have])
        if not wants:
            self.nodes[producer][0] += sets[:, 0]
        elif len(wants) == 1:
            columns = [1 << targets.index(want) for want in wants[0]]
            self._add(producer, asked.reads[0].consumer, sets[:, columns])
        else:
            node, size = len(self.nodes), (1 << len(targets)) - 1
            self.nodes.append([np.zeros(size), np.zeros(size)])
            self._add(producer, node, sets[:, 1:])
            dearest = [
                max(self.tables.change_cost(num_bytes, layout, want) for layout in have)
                for want in targets
            ]
            member = np.arange(1, size + 1)[None, :] >> np.arange(len(targets))[:, None] & 1
            missing = np.where(member, 0.0, np.array(dearest)[:, None])
            for read, each in zip(asked.reads, wants, strict=True):
                self._add(read.consumer, node, missing[[targets.index(want) for want in each]])

    def _add(
        self, first: int, second: int, costs: FloatArray, held: FloatArray | None = None
    ) -> None:
        """Add to the joint costs of two nodes; a node with itself has a cost alone."""
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

    def _set_costs(
        self, asked: Demand, have: TensorLayout, targets: tuple[TensorLayout, ...]
    ) -> list[float]:
        """Return the cost of each set of targets, leaving included; bit k stands for target k.

        Worked out once for tensors of equal size.
        """
        num_bytes, leaves, cost = asked.num_bytes, asked.exit, self.tables.change_cost
        key = (cost, num_bytes, have, targets, leaves)
        sets = self.tables.known_sets
        if key not in sets:
            outs = () if leaves is None else leaves.layouts
            every = tuple(dict.fromkeys((*targets, *outs)))
            costs = costs_of_sets(have, every, lambda a, b: cost(num_bytes, a, b))
            inside = costs[: 1 << len(targets)]
            if leaves is not None:
                bits = [1 << every.index(out) for out in outs]
                left = [min(costs[n | bit] for bit in bits) for n in range(len(inside))]
                share = leaves.share
                inside = [(1 - share) * a + share * b for a, b in zip(inside, left, strict=True)]
            sets[key] = inside
        return sets[key]


@dataclass(frozen=True)
class GraphSharding:
    """One split for each kernel, the cost, and a lower bound over all splits."""

    tables: SplitTables
    ways: tuple[int, ...]
    """Index of the split of each kernel."""
    cost: float
    held_bytes: float
    lower_bound: float

    @property
    def splits(self) -> tuple[KernelSplit, ...]:
        """The split of each kernel."""
        return tuple(
            splits[number] for splits, number in zip(self.tables.splits, self.ways, strict=True)
        )

    @property
    def dims(self) -> dict[str, str | None]:
        """The dim that each kernel is split over, by its name; None where all do all of it."""
        kernels = self.tables.graph.kernels
        return {k.name: split.dim for k, split in zip(kernels, self.splits, strict=True)}

    @property
    def changes(self) -> tuple[PlacedChange, ...]:
        """Collectives in their places."""
        return tuple(self.tables.changes(self.ways))

    @property
    def neighbours(self) -> Iterator[tuple[int, ...]]:
        """The splits of all kernels that differ in one of them."""
        for kernel, splits in enumerate(self.tables.splits):
            for way in range(len(splits)):
                if way != self.ways[kernel]:
                    yield *self.ways[:kernel], way, *self.ways[kernel + 1 :]

    def at(self, ways: tuple[int, ...]) -> GraphSharding:
        """Return other splits of the same tables, under the same bound."""
        tables = self.tables
        held = sum(float(each[way]) for each, way in zip(tables.held_bytes, ways, strict=True))
        held += sum(
            float(pair.held_bytes[ways[a], ways[b]]) for (a, b), pair in tables.pair_costs.items()
        )
        return replace(self, ways=ways, cost=tables.cost(ways), held_bytes=held)

    @property
    def gap(self) -> float:
        """Largest possible distance of the cost from the least one, as a fraction."""
        return gap_of(self.cost, self.lower_bound)


def choose_sharding(
    tables: SplitTables,
    limit_bytes: float = float("inf"),
    *,
    most_entries: int = MOST_ENTRIES,
    uses_program: bool = True,
) -> GraphSharding | None:
    """Return the cheapest splits within a memory; of equally cheap ones the leaner.

    None where nothing fits.

    Parameters
    ----------
    limit_bytes
        Memory of a device that kernels may fill [bytes].
    most_entries
        Entries of a table of elimination; a graph that needs more is not exact and has a gap.
    uses_program
        Whether an integer program may close the gap that a limit on memory leaves.
    """
    choices = tables.choices
    loads = (*choices.nodes, *choices.edges.values())
    most_bytes = sum(float(load.num_bytes.max()) for load in loads)
    most_cost = sum(float(np.abs(load.time_s).max()) for load in loads)
    tie = TIE * most_cost / max(most_bytes, 1.0)
    chosen = cheapest_within(
        _at_price(choices, tie), limit_bytes, most_entries=most_entries, uses_program=uses_program
    )
    if chosen is None:
        return None
    cost = choices.time_s(chosen.choices)
    bound = chosen.lower_bound_s - tie * most_bytes
    ways = tuple(chosen.choices[: len(tables.graph.kernels)])
    return GraphSharding(tables, ways, cost, chosen.num_bytes, min(max(bound, 0.0), cost))


def choose_for_largest(
    sums: Sequence[SplitTables], limit_bytes: float = float("inf"), *, uses_program: bool = True
) -> tuple[GraphSharding, ...]:
    """Return splits with a small largest sum, the best ones first; none where nothing fits.

    Where computation overlaps collectives, the larger of both counts. Any mean of both lies below
    it, so the least mean is a bound for all, and the splits that have it are likely good. Better
    splits have both below the larger of theirs: the least of the one within that budget of the
    other is looked for until there is none.

    Parameters
    ----------
    sums
        One, the other, and means of both, over the same graph and splits.
    uses_program
        Whether the gap between means and the larger one is closed, and integer programs may help.
    """
    found = [choose_sharding(one, limit_bytes, uses_program=uses_program) for one in sums]
    fitting = {sharding.ways: sharding for sharding in found if sharding is not None}
    bound = max((sharding.lower_bound for sharding in found if sharding is not None), default=0.0)
    priced = []
    for ways, sharding in fitting.items():
        cost = max(one.cost(ways) for one in sums)
        priced.append(replace(sharding, cost=cost, lower_bound=min(bound, cost)))
    priced.sort(key=lambda sharding: sharding.cost)
    while uses_program and len(sums) > 1 and priced and priced[0].gap > PROVEN:
        better, bound = _below(sums, priced[0].cost)
        if better is not None and better.held_bytes <= limit_bytes:
            priced.insert(0, replace(better, lower_bound=priced[0].lower_bound))
            continue
        priced = [replace(one, lower_bound=max(one.lower_bound, bound)) for one in priced]
        break
    least = max((sharding.lower_bound for sharding in priced), default=0.0)
    return tuple(replace(one, lower_bound=min(least, priced[0].cost)) for one in priced)


def _below(sums: Sequence[SplitTables], cost: float) -> tuple[GraphSharding | None, float]:
    """Return splits with their first two sums below a cost, if found, and a bound of those.

    The least first sum within a budget for the second; memory is left out.
    """
    one, other, unit = sums[0].choices, sums[1].choices, cost / BUDGET
    nodes = [Load(a.time_s, b.time_s / unit) for a, b in zip(one.nodes, other.nodes, strict=True)]
    edges = {pair: Load(load.time_s, other.edges[pair].time_s / unit)
             for pair, load in one.edges.items()}  # fmt: skip
    found = cheapest_within(ChoiceGraph(nodes, edges), BUDGET * (1.0 - PROVEN))
    if found is None:
        return None, 0.0
    bound = min(found.lower_bound_s, cost)
    tables, ways = sums[0], tuple(found.choices[: len(sums[0].graph.kernels)])
    largest = max(each.cost(ways) for each in sums)
    if largest >= cost * (1.0 - PROVEN):
        return None, bound
    return GraphSharding(tables, ways, largest, one.num_bytes(found.choices), 0.0), bound


def _at_price(graph: ChoiceGraph, price: float) -> ChoiceGraph:
    """Return the choices with memory paid for, and still counted."""
    nodes = [Load(load.at_price(price), load.num_bytes) for load in graph.nodes]
    edges = {pair: Load(load.at_price(price), load.num_bytes) for pair, load in graph.edges.items()}
    return ChoiceGraph(nodes, edges)
