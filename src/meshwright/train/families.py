"""Families of candidates: one pipeline each, to be combined with ways to shard its state.

A family is a row of degrees under a structure; its members differ in how data-parallel replicas
are divided into shards, in the ZeRO stage and in offload. Members cost no more than a few sums
each, so a whole family is refused or bounded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, groups_of, joined, take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.cost.communication import Collectives
from meshwright.cost.layer import LayerPrices, price_layers
from meshwright.cost.network import (
    DATA_PARALLEL_ONLY,
    AxisNetwork,
    AxisPlacement,
    crosses_data_parallel_network,
)
from meshwright.cost.pipeline import PipelinePrice, price_pipeline
from meshwright.cost.problem import Problem
from meshwright.cost.step import send_s
from meshwright.search.counts import Counts
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    StrategyColumns,
    Streamed,
    take,
)
from meshwright.train.space import (
    EXPERTS_REGROUP,
    SearchSpace,
    num_divisions,
    num_members,
    num_sharded_choices,
    orders_of,
)


@dataclass(frozen=True)
class Families:
    """Legal families, priced as far as their members agree; one row each."""

    structures: tuple[PlanOptions, ...]
    structure_of: IntArray
    """Index into ``structures`` of each row."""
    strategy: StrategyColumns
    price: PipelinePrice
    num_members: FloatArray

    @property
    def bound_s(self) -> FloatArray:
        """The pipeline alone: no member is faster [s]."""
        bound: FloatArray = self.price.pipeline.total_s
        return bound

    def __len__(self) -> int:
        return len(self.structure_of)

    def take(self, rows: IntArray, first_structure: int = 0) -> Families:
        """Return some of the families; structures are numbered from the given one."""
        return Families(
            self.structures,
            self.structure_of[rows] + first_structure,
            take(self.strategy, rows),
            take_rows(self.price, rows),
            self.num_members[rows],
        )


@dataclass(frozen=True)
class AllFamilies:
    """Families in the parts in which they were priced; rows are numbered through all of them."""

    parts: tuple[Families, ...]
    is_complete: bool
    """False after an interrupt: some families are missing."""

    def column(self, values: Callable[[Families], FloatArray]) -> FloatArray:
        """Return a value of each family."""
        return np.concatenate([values(part) for part in self.parts])

    @cached_property
    def strategy(self) -> StrategyColumns:
        """The degrees of all families."""
        return joined([part.strategy for part in self.parts])

    def take(self, rows: IntArray) -> Families:
        """Return some of the families; their rows ascend."""
        starts = np.cumsum([0, *map(len, self.parts)])
        cuts = np.searchsorted(rows, starts)
        found, first = [], 0
        for part, start, one, end in zip(self.parts, starts, cuts, cuts[1:], strict=False):
            if end > one:
                found.append(part.take(rows[one:end] - start, first))
                first += len(part.structures)
        return Families(
            structures=tuple(structure for part in found for structure in part.structures),
            structure_of=np.concatenate([part.structure_of for part in found]),
            strategy=joined([part.strategy for part in found]),
            price=joined([part.price for part in found]),
            num_members=np.concatenate([part.num_members for part in found]),
        )


def layout_structures(space: SearchSpace) -> Iterator[PlanOptions]:
    """Yield the structures that a layer sees; the order of the axes is left open."""
    keeps = space.choices.keeps
    overlap = space.problem.workload.software.async_tensor_parallel
    kinds = product((True, False), ContextKind, space.stream_choices)
    for sequence_parallel, kind, (streamed, form) in kinds:
        if keeps("sequence_parallel", sequence_parallel) and keeps("context_kind", kind):
            yield PlanOptions(
                sequence_parallel=sequence_parallel,
                context_kind=kind,
                zero_stage=0,
                overlap_data_parallel=space.overlaps_data_parallel,
                overlap_tensor_parallel=overlap,
                streamed=streamed,
                stream_form=form,
            )


def rows_of_layout(
    space: SearchSpace, columns: StrategyColumns, structure: PlanOptions
) -> BoolArray:
    """Return the rows for which a structure is not another one under a different name.

    Without tp there is no sequence parallelism, without cp only one kind of it, without tatp one
    kind of stream. Both tensors stream on blocks of tp x tatp devices.
    """
    keep = np.ones(len(columns.tp), dtype=bool)
    if (structure.streamed, structure.stream_form) != space.stream_choices[0]:
        keep &= columns.tatp > 1
    if structure.streamed is Streamed.BOTH:
        keep &= (columns.tatp > 1) & structure.sequence_parallel
    if structure.sequence_parallel:
        keep &= columns.tp > 1
    if structure.context_kind is ContextKind.ULYSSES:
        keep &= columns.cp > 1
    return keep


def schedules_of(space: SearchSpace) -> tuple[ScheduleKind, ...]:
    """Return the schedules that are allowed."""
    return tuple(kind for kind in ScheduleKind if space.choices.keeps("schedule", kind))


def rows_of_schedule(columns: StrategyColumns, kind: ScheduleKind) -> BoolArray:
    """Return the rows that a schedule is about; one stage needs no schedule and gets 1F1B."""
    has_chunks: BoolArray = columns.num_virtual_stages > 1
    if kind is ScheduleKind.INTERLEAVED:
        return has_chunks
    if kind is ScheduleKind.ONE_F_ONE_B:
        return ~has_chunks
    has_stages: BoolArray = columns.pp > 1
    return ~has_chunks & has_stages


def layer_keys(network: AxisNetwork) -> tuple[IntArray, IntArray]:
    """Return the first row of each group of rows that no layer can tell apart, and the groups."""
    columns = network.strategy
    parts = (
        columns.tp, columns.tatp, columns.cp, columns.ep, columns.etp, columns.micro_batch_size,
        *network.placement.keys(("tp", "tatp", "cp")),
    )  # fmt: skip
    return groups_of(parts)


def families(space: SearchSpace, tables: Iterable[StrategyColumns], counts: Counts) -> AllFamilies:
    """Return the legal families of all structures, and count the members of the refused ones."""
    parts, is_complete = [], True
    try:
        for columns in tables:
            for part in _families(space, columns, counts):
                parts.append(part)  # noqa: PERF402 (an interrupt keeps what is there)
    except KeyboardInterrupt:
        is_complete = False
        if not parts:
            raise
    if not (space.zero_choices and space.offloads):
        raise InfeasibleError(
            "the choices contradict each other: no way to shard or offload is left"
        )
    if not parts:
        raise InfeasibleError("every candidate is refused by a rule: " + counts.summary)
    return AllFamilies(tuple(parts), is_complete)


def _families(space: SearchSpace, columns: StrategyColumns, counts: Counts) -> Iterator[Families]:
    """Yield the legal families of each structure for one number of devices."""
    for layout in layout_structures(space):
        rows = take(columns, rows_of_layout(space, columns, layout))
        legal = []
        for kind in schedules_of(space):
            chosen = take(rows, rows_of_schedule(rows, kind))
            if len(chosen.tp):
                structure = replace(layout, schedule=kind)
                legal.append((kind, _legal_rows(space, structure, chosen, counts)))
        yield from _priced(space, layout, [(k, s) for k, s in legal if len(s.tp)], counts)


def _legal_rows(
    space: SearchSpace, structure: PlanOptions, columns: StrategyColumns, counts: Counts
) -> StrategyColumns:
    """Return the rows that no rule refuses; refused families count with all their members."""
    problem = space.problem
    chip = problem.system.chip
    refused = np.zeros(len(columns.tp), dtype=bool)
    num_orders = orders_of(space, columns).sum(axis=0)
    weight = len(_recomputes(space)) * num_orders
    divided = num_divisions(space, columns)[1] * num_sharded_choices(space) * len(space.offloads)
    members = (num_members(space, columns) + divided) * weight
    for refusal in all_refusals(
        problem.model, problem.workload, columns, structure,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        first = refusal.mask & ~refused
        counts.refused[refusal.name] += int(members[first].sum())
        refused |= refusal.mask
    counts.refused[EXPERTS_REGROUP] += int((divided * weight)[~refused].sum())
    return take(columns, ~refused)


def _recomputes(space: SearchSpace) -> tuple[Recompute, ...]:
    return tuple(r for r in Recompute if space.choices.keeps("recompute", r))


@dataclass(frozen=True)
class _Ordered:
    """Rows of one schedule, once for each order of the axes that they are tried in."""

    schedule: ScheduleKind
    strategy: StrategyColumns
    order_of: IntArray
    layout: AxisPlacement


def _ordered(
    space: SearchSpace, kind: ScheduleKind, columns: StrategyColumns, counts: Counts
) -> _Ordered:
    """Return the rows with their strides, order by order; a network may refuse some orders."""
    orders, rows = np.nonzero(orders_of(space, columns))
    if any(level.data_parallel_only for level in space.problem.system.levels):
        refused = _refused_orders(space, columns, orders, rows)
        members = num_members(space, columns)[rows[refused]] * len(_recomputes(space))
        counts.refused[DATA_PARALLEL_ONLY] += int(members.sum())
        orders, rows = orders[~refused], rows[~refused]
    parts = [
        space.problem.axis_placement(order, take(columns, rows[orders == number]))
        for number, order in enumerate(space.orders)
    ]
    return _Ordered(kind, take(columns, rows), orders, joined(parts))


def _refused_orders(
    space: SearchSpace, columns: StrategyColumns, orders: IntArray, rows: IntArray
) -> BoolArray:
    """Return the rows whose order lets another axis than dp cross a network for dp only."""
    refused = np.zeros(len(rows), dtype=bool)
    for number, order in enumerate(space.orders):
        of_order = orders == number
        network = space.problem.network(order, take(columns, rows[of_order]))
        refused[of_order] = crosses_data_parallel_network(network)
    return refused


def _priced(
    space: SearchSpace,
    layout: PlanOptions,
    legal: Sequence[tuple[ScheduleKind, StrategyColumns]],
    counts: Counts,
) -> Iterator[Families]:
    """Yield the families of one layout: layers are priced once for all schedules and orders."""
    if not legal:
        return
    ordered = [_ordered(space, kind, columns, counts) for kind, columns in legal]
    parts = [part for part in ordered if len(part.order_of)]
    if not parts:
        return
    network = space.problem.network_with(
        joined([part.layout for part in parts]), joined([part.strategy for part in parts])
    )
    prices, groups, sends = _layer_table(space.problem, layout, network, _recomputes(space))
    start = 0
    for part in parts:
        rows = slice(start, start + len(part.order_of))
        start = rows.stop
        members = num_members(space, part.strategy)
        for recompute, table in prices.items():
            structure = replace(layout, schedule=part.schedule, recompute=recompute)
            gathered = take_rows(table, groups[rows])
            price = price_pipeline(space.problem, structure, part.strategy, gathered, sends[rows])
            structures = tuple(replace(structure, axis_order=order) for order in space.orders)
            yield Families(structures, part.order_of, part.strategy, price, members)


def _layer_table(
    problem: Problem, layout: PlanOptions, network: AxisNetwork, recomputes: Sequence[Recompute]
) -> tuple[dict[Recompute, LayerPrices], IntArray, FloatArray]:
    """Return layer prices of rows that a layer can tell apart, the row of each, and its sends."""
    first, groups = layer_keys(network)
    few = problem.network_with(take_rows(network.placement, first), take(network.strategy, first))
    tables = price_layers(
        problem, layout, few, tuple(recomputes), uses_tatp=bool((few.strategy.tatp > 1).any())
    )
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    return tables, groups, send_s(problem, layout, network.strategy, collectives)
