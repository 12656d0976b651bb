"""Families of candidates: one pipeline each, to be combined with ways to shard its state.

A family is a row of degrees under a structure; its members differ in how data-parallel replicas
are divided into shards, in the ZeRO stage and in offload. Members cost no more than a few sums
each, so a whole family is refused or bounded at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, unique_rows
from meshwright.base.errors import InfeasibleError
from meshwright.pricing.layers import Collectives, LayerPrices, price_layers
from meshwright.pricing.network import (
    DATA_PARALLEL_ONLY,
    AxisNetwork,
    Layout,
    crosses_data_parallel_network,
)
from meshwright.pricing.price import send_s
from meshwright.pricing.problem import Problem
from meshwright.pricing.stages import PipelinePrice, price_pipeline
from meshwright.pricing.steps import joined, take_rows
from meshwright.search.counts import Counts
from meshwright.strategy.axes import all_refusals, all_rules
from meshwright.strategy.rules import Case
from meshwright.strategy.space import (
    Choices,
    axis_orders,
    divisors,
    first_orders,
    stream_choices,
)
from meshwright.strategy.strategy import (
    AXES,
    ContextKind,
    Offload,
    Recompute,
    ScheduleKind,
    StrategyColumns,
    Streamed,
    StreamForm,
    Structure,
    take,
)

ZERO_CHOICES = ((0, True), (1, True), (2, True), (3, True), (3, False))
"""ZeRO stage, and whether weights are dropped between forward and backward pass."""

EXPERTS_REGROUP = "ep-devices"
"""Rule on which members of one family differ."""


@dataclass(frozen=True)
class Families:
    """Legal families, priced as far as their members agree; one row each."""

    structures: tuple[Structure, ...]
    structure_of: IntArray
    """Index into ``structures`` of each row."""
    strategy: StrategyColumns
    price: PipelinePrice
    num_members: FloatArray
    is_complete: bool = True
    """False after an interrupt: some families are missing."""

    @property
    def bound_s(self) -> FloatArray:
        """The pipeline alone: no member is faster [s]."""
        bound: FloatArray = self.price.pipeline.total_s
        return bound

    def __len__(self) -> int:
        return len(self.structure_of)


@dataclass(frozen=True)
class SearchSpace:
    """A problem, and the choices that the user left open."""

    problem: Problem
    choices: Choices

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """What may live in host memory, where there is any."""
        kinds = (Offload.NONE,) if self.problem.system.host is None else tuple(Offload)
        return tuple(o for o in kinds if self.choices.keeps("offload", o))

    @property
    def zero_choices(self) -> tuple[tuple[int, bool], ...]:
        """ZeRO stages that are allowed; without ZeRO there is one shard."""
        keeps = self.choices.keeps
        allowed = (z for z in ZERO_CHOICES if keeps("zero_stage", z[0]))
        return tuple(z for z in allowed if z[0] or keeps("dp_shard", 1))

    @property
    def overlaps_data_parallel(self) -> bool:
        """Whether gradients and parameters travel beside computation: yes, unless it is fixed.

        That is never slower: what is hidden costs only a share of itself.
        """
        return self.choices.keeps("overlap_data_parallel", True)

    @property
    def stream_choices(self) -> tuple[tuple[Streamed, StreamForm], ...]:
        """What streams and in which form."""
        return stream_choices(self.choices, has_grid=self.problem.has_grid)

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """Orders of the axes on the levels; a single level leaves nothing to order."""
        if len(self.problem.system.levels) == 1:
            return axis_orders(False)[:1]
        orders = axis_orders(self.problem.has_grid)
        if self.problem.num_experts:
            orders = tuple(order for order in orders if order[-1] == "pp")
        return tuple(order for order in orders if self.choices.keeps("axis_order", order))


def num_members(space: SearchSpace, columns: StrategyColumns) -> FloatArray:
    """Return the number of legal members of each family."""
    whole = sum(1 for stage, _ in space.zero_choices if stage == 0)
    divided = num_divisions(space, columns)[0] * _num_sharded_choices(space)
    number: FloatArray = (whole + divided) * len(space.offloads)
    return number


def _num_sharded_choices(space: SearchSpace) -> int:
    return sum(1 for stage, _ in space.zero_choices if stage > 0)


def num_divisions(space: SearchSpace, columns: StrategyColumns) -> tuple[FloatArray, FloatArray]:
    """Return how many divisions of the replicas into shards are legal, and how many are not.

    One device is no shard: neither dp_shard nor cp divides anything then.
    """
    legal, refused = np.zeros(len(columns.tp)), np.zeros(len(columns.tp))
    for dp in np.unique(columns.dp).tolist():
        rows = np.flatnonzero(columns.dp == dp)
        of_dp = take(columns, rows)
        for shard in shard_degrees(space, int(dp)):
            divided = replace(of_dp, dp_shard=shard + 0.0 * of_dp.tp, dp_replicate=of_dp.dp / shard)
            counts = divided.dp_shard * divided.cp > 1
            regroups = experts_regroup(space, divided)
            legal[rows] += counts & regroups
            refused[rows] += counts & ~regroups
    return legal, refused


def experts_regroup(space: SearchSpace, columns: StrategyColumns) -> BoolArray:
    """Return the rows whose experts find their devices among the shards of one replica.

    Families are judged with all replicas whole; ZeRO keeps replicas apart.
    """
    if not space.problem.num_experts:
        return np.ones(len(columns.tp), dtype=bool)
    sharded = Structure(zero_stage=1)
    case = Case(space.problem.model, space.problem.workload, sharded, columns)
    regroups: BoolArray = ~all_rules()[EXPERTS_REGROUP].breaks(case)
    return regroups


def shard_degrees(space: SearchSpace, dp: int) -> tuple[int, ...]:
    """Return the ways to divide data replicas into shards: degrees of dp_shard."""
    return space.choices.of("dp_shard", tuple(divisors(dp)))


def layout_structures(space: SearchSpace) -> Iterator[Structure]:
    """Yield the structures that a layer sees; the order of the axes is left open."""
    keeps = space.choices.keeps
    overlap = space.problem.workload.software.async_tensor_parallel
    kinds = product((True, False), ContextKind, space.stream_choices)
    for sequence_parallel, kind, (streamed, form) in kinds:
        if keeps("sequence_parallel", sequence_parallel) and keeps("context_kind", kind):
            yield Structure(
                sequence_parallel=sequence_parallel,
                context_kind=kind,
                zero_stage=0,
                overlap_data_parallel=space.overlaps_data_parallel,
                overlap_tensor_parallel=overlap,
                streamed=streamed,
                stream_form=form,
            )


def rows_of_layout(space: SearchSpace, columns: StrategyColumns, structure: Structure) -> BoolArray:
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


def orders_of(space: SearchSpace, columns: StrategyColumns) -> BoolArray:
    """Return which orders of the axes each row is to be tried in, shape (orders, rows).

    Orders that differ only in axes of one device are the same plan; the first one stands.
    """
    mask = np.zeros(len(columns.tp), dtype=np.int64)
    for bit, name in enumerate(AXES):
        mask |= (getattr(columns, name) > 1).astype(np.int64) << bit
    keeps: BoolArray = first_orders(space.orders)[:, mask] == 1
    return keeps


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
        *network.layout.keys(("tp", "tatp", "cp")),
    )  # fmt: skip
    return unique_rows(parts)


def families(space: SearchSpace, tables: Iterable[StrategyColumns], counts: Counts) -> Families:
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
    starts = np.cumsum([0, *(len(part.structures) for part in parts)])
    return Families(
        structures=tuple(structure for part in parts for structure in part.structures),
        structure_of=np.concatenate(
            [part.structure_of + start for part, start in zip(parts, starts, strict=False)]
        ),
        strategy=joined([part.strategy for part in parts]),
        price=joined([part.price for part in parts]),
        num_members=np.concatenate([part.num_members for part in parts]),
        is_complete=is_complete,
    )


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
    space: SearchSpace, structure: Structure, columns: StrategyColumns, counts: Counts
) -> StrategyColumns:
    """Return the rows that no rule refuses; refused families count with all their members."""
    problem = space.problem
    chip = problem.system.chip
    refused = np.zeros(len(columns.tp), dtype=bool)
    num_orders = orders_of(space, columns).sum(axis=0)
    weight = len(_recomputes(space)) * num_orders
    divided = num_divisions(space, columns)[1] * _num_sharded_choices(space) * len(space.offloads)
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
    layout: Layout


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
        space.problem.layout(order, take(columns, rows[orders == number]))
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
    layout: Structure,
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
    problem: Problem, layout: Structure, network: AxisNetwork, recomputes: Sequence[Recompute]
) -> tuple[dict[Recompute, LayerPrices], IntArray, FloatArray]:
    """Return layer prices of rows that a layer can tell apart, the row of each, and its sends."""
    first, groups = layer_keys(network)
    few = problem.network_with(take_rows(network.layout, first), take(network.strategy, first))
    tables = price_layers(
        problem, layout, few, tuple(recomputes), uses_tatp=bool((few.strategy.tatp > 1).any())
    )
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    return tables, groups, send_s(problem, layout, network.strategy, collectives)
