"""The ways to lay candidates on a grid, and the pace of the ranks in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, column
from meshwright.base.errors import InfeasibleError
from meshwright.collectives.group import Group
from meshwright.cost.communication import OPEN
from meshwright.cost.pipeline import micro_batches
from meshwright.cost.problem import MOST_DEVICES, Mapper, Problem
from meshwright.cost.step import price_each
from meshwright.network.blocks import sequential_shapes
from meshwright.network.covers import cover_choices
from meshwright.network.faults import SharedWork
from meshwright.network.placement import AxisPlace, Nesting, all_choices, stated_ranks
from meshwright.network.regions import make_region
from meshwright.search.exhaustive import Found
from meshwright.sharding.space import axis_orders
from meshwright.sharding.strategy import AXES, PlanOptions, Strategy, StreamForm, stack, take
from meshwright.topology.network import Network
from meshwright.train.families import ROUNDING
from meshwright.wafer.loads import RowGroups
from meshwright.wafer.passes import PROVEN, PipelineShape, least_slowdown
from meshwright.wafer.price import choice_network, work_of
from meshwright.wafer.teams import slowest_devices, stream_loads

NONE = np.zeros(0)
MOST_CHOICES = 4096
"""Most ways to lay a strategy that are tried; a bound holds for all others."""
MOST_ON_LARGE = 64
"""Most ways to lay a strategy that are tried on grids of more than ``MOST_DEVICES``."""

STEPS = 8
"""Steps between bounds of a slowdown of 1 and of 2."""
MANY_WAYS = 131_072
"""Ways at once above which those of each pace have one bound first."""


@dataclass(frozen=True)
class Ways:
    """A candidate and ways to lay it."""

    found: Found
    choices: Sequence[Nesting]
    works: Sequence[SharedWork]
    """Split of the work over the ranks in each way; empty where all devices are equal."""
    left_s: float
    """Least seconds of all ways that are not among them."""
    num_choices: int
    """All ways."""
    slowdown: FloatArray
    """Slowdown of the tensor streams in each way while nothing else uses links, at least; empty
    where all devices are equal."""


@dataclass(frozen=True)
class _Table:
    """The ways of strategies of equal degrees in which some rank works, by their pace."""

    every: Sequence[Nesting]
    """All ways; they stay, so that no others have their identity."""
    choices: Sequence[Nesting]
    works: Sequence[SharedWork]
    paces: FloatArray
    """Distinct paces, with their most work: a row for each."""
    pace_of: IntArray
    """The pace of each way."""


class WayTables:
    """Tables of ways: candidates of equal degrees share them."""

    def __init__(self, problem: Problem, physical: Network) -> None:
        self.problem, self.physical = problem, physical
        self._tables: dict[tuple[int, float], _Table] = {}
        self._choices: dict[object, tuple[Nesting, ...]] = {}
        self._near: dict[
            tuple[int, StreamForm, float, bytes],
            tuple[Sequence[Nesting], Sequence[SharedWork], FloatArray],
        ] = {}
        self._slowed: dict[tuple[StreamForm, Group[float], AxisPlace, bytes], float] = {}

    def ways_of(self, found: Sequence[Found], within_s: float) -> list[Ways]:
        """Return the ways to lay each candidate; candidates without any are left out.

        On devices of unequal speed, where ways are many, one is left out as well if the candidate
        takes longer than ``within_s`` at the pace of the ranks, even if each axis had the best
        block to itself.
        """
        problem, most = self.problem, most_choices(self.problem)
        entries = []
        for one in found:
            choices = self._choices_of(one)
            left_s = one.time_s if len(choices) > most else np.inf
            if choices:
                entries.append(Ways(one, choices[:most], (), left_s, len(choices), NONE))
        if not (problem.is_unequal and entries):
            return entries
        tables = [self._table(entry.found.strategy, entry.choices) for entry in entries]
        working = [number for number, table in enumerate(tables) if table.choices]
        entries, tables = [entries[n] for n in working], [tables[n] for n in working]
        bounds = [np.zeros(len(table.paces)) for table in tables]
        if np.isfinite(within_s) and sum(len(table.choices) for table in tables) > MANY_WAYS:
            bounds = self._bounds([entry.found for entry in entries], tables)
        return [self._within(*one, within_s) for one in zip(entries, tables, bounds, strict=True)]

    def _within(self, entry: Ways, table: _Table, bound_s: FloatArray, within_s: float) -> Ways:
        """Return the ways of a candidate whose pace leaves it within a time."""
        is_near = bound_s < within_s
        left_s = min(entry.left_s, float(bound_s[~is_near].min(initial=np.inf)))
        found = entry.found
        chunks = float(found.strategy.num_virtual_stages)
        key = id(table), found.plan_options.stream_form, chunks, is_near.tobytes()
        if key not in self._near:
            rows = np.flatnonzero(is_near[table.pace_of]).tolist()
            near = [table.choices[row] for row in rows]
            split = [table.works[row] for row in rows]
            self._near[key] = near, split, self._slowdowns(found, near, split)
        choices, works, slowdown = self._near[key]
        return replace(entry, choices=choices, works=works, left_s=left_s, slowdown=slowdown)

    def _slowdowns(
        self, one: Found, choices: Sequence[Nesting], works: Sequence[SharedWork]
    ) -> FloatArray:
        """Return the least slowdown of the tensor streams of a candidate in each way."""
        found = np.ones(len(choices))
        if one.strategy.tatp == 1 or not choices:
            return found
        shape = PipelineShape.of(micro_batches(self.problem, one.strategy), one.strategy)
        groups = RowGroups(choice_network(self.problem, [(one.strategy, choices)]))
        for row, (choice, work) in enumerate(zip(choices, works, strict=True)):
            ranks = stated_ranks(self.physical, self.problem.grid_sides, choice)
            assert ranks is not None
            senders = slowest_devices(ranks, work, self.physical)
            group, place = groups.of("tatp", row), ranks.place("tatp")
            key = one.plan_options.stream_form, group, place, senders.tobytes()
            if key not in self._slowed:
                self._slowed[key] = self._slowdown(one, group, place, senders)
            found[row] = shape.effective(self._slowed[key], 1.0)
        # Few different numbers: rows with equal ones share their price.
        return np.maximum(1.0, np.floor(found * STEPS + PROVEN) / STEPS)

    def _slowdown(
        self, one: Found, group: Group[float], place: AxisPlace, senders: BoolArray
    ) -> float:
        """Return the least slowdown of the streams that some devices send."""
        try:
            loads = stream_loads(one.plan_options, group, place, senders, self.physical)
        except InfeasibleError:  # no way around dead links: it is not priced either
            return 1.0
        return least_slowdown(loads)

    def _bounds(self, found: Sequence[Found], tables: Sequence[_Table]) -> list[FloatArray]:
        """Return the least seconds of each candidate at each pace, wherever its axes lie."""
        counts = [len(table.paces) for table in tables]
        columns = take(
            stack([one.strategy for one in found]), np.repeat(np.arange(len(found)), counts)
        )
        option_sets = [
            (replace(one.plan_options, axis_order=AXES), number)
            for one, number in zip(found, counts, strict=True)
        ]
        paced = self.problem.at_pace(*np.concatenate([table.paces for table in tables]).T)
        seconds = np.zeros(sum(counts))
        for rows, priced in price_each(paced, option_sets, paced.network_with(OPEN, columns)):
            seconds[rows] = column(priced.step.time.total_s) * (1.0 - ROUNDING)
        return np.split(seconds, np.cumsum(counts)[:-1])

    def _choices_of(self, found: Found) -> Sequence[Nesting]:
        """Return the ways to lay a candidate that the mapper of the problem knows."""
        plan_options, strategy = found.plan_options, found.strategy
        degrees = tuple((axis, int(getattr(strategy, axis))) for axis in plan_options.axis_order)
        if degrees not in self._choices:
            self._choices[degrees] = tuple(self._each_choice(plan_options, strategy, degrees))
        return self._choices[degrees]

    def _each_choice(
        self, plan_options: PlanOptions, strategy: Strategy, degrees: tuple[tuple[str, int], ...]
    ) -> Iterator[Nesting]:
        problem, sides = self.problem, self.problem.grid_sides
        if problem.mapper is Mapper.SMAP:
            for order in axis_orders(True):
                shapes = sequential_shapes([int(getattr(strategy, axis)) for axis in order], sides)
                if shapes is not None:
                    yield Nesting(order, shapes)
            return
        grids = () if problem.may_have_holes else problem.whole_grids
        yield from all_choices(plan_options, strategy, sides, grids, most_choices(problem) + 1)
        if strategy.num_devices in problem.cover_numbers:
            region = make_region(self.physical, problem.islands[0])
            yield from cover_choices(region, degrees, sides)

    def _table(self, strategy: Strategy, choices: Sequence[Nesting]) -> _Table:
        key = id(choices), float(strategy.micro_batch_size)
        if key not in self._tables:
            every = [(choice, self._work(strategy, choice)) for choice in choices]
            ways = [(choice, work) for choice, work in every if work is not None]
            pace = np.array([(work.pace, work.most_work) for _, work in ways]).reshape(-1, 2)
            paces, pace_of = np.unique(pace, axis=0, return_inverse=True)
            self._tables[key] = _Table(
                choices, [c for c, _ in ways], [w for _, w in ways], paces, pace_of.reshape(-1)
            )
        return self._tables[key]

    def _work(self, strategy: Strategy, choice: Nesting) -> SharedWork | None:
        ranks = stated_ranks(self.physical, self.problem.grid_sides, choice)
        return None if ranks is None else work_of(self.problem, strategy, ranks, self.physical)


def most_choices(problem: Problem) -> int:
    """Return the most ways to lay a strategy that are tried."""
    return MOST_CHOICES if problem.system.num_devices <= MOST_DEVICES else MOST_ON_LARGE
