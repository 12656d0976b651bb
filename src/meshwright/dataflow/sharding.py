"""The cheapest way to split every kernel of a graph within the memory of a device, with a proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.dataflow.choices import PlacedChange, SplitChoices
from meshwright.dataflow.splits import KernelSplit
from meshwright.dataflow.tables import SplitTables
from meshwright.search.choices.budget import cheapest_within
from meshwright.search.choices.elimination import MOST_ENTRIES
from meshwright.search.choices.graph import ChoiceGraph, Load

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
