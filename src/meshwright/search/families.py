"""Families of candidates: one pipeline each, to be combined with ways to shard its state.

A family is a row of degrees under a structure; its members differ in how data-parallel replicas
are divided into shards, in the ZeRO stage and in offload. Members cost no more than a few sums
each, so a whole family is refused or bounded at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.errors import InfeasibleError
from meshwright.pricing.layers import Collectives, LayerPrices, price_layers
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.price import send_s
from meshwright.pricing.problem import Problem
from meshwright.pricing.stages import PipelinePrice, price_pipeline
from meshwright.pricing.steps import joined, take_rows
from meshwright.search.counts import Counts
from meshwright.strategy.axes import all_refusals
from meshwright.strategy.space import Choices, axis_orders, divisors, first_orders
from meshwright.strategy.strategy import (
    AXES,
    ContextKind,
    Offload,
    Recompute,
    ScheduleKind,
    StrategyColumns,
    Structure,
    take,
)

ZERO_CHOICES = ((0, True), (1, True), (2, True), (3, True), (3, False))
"""ZeRO stage, and whether weights are dropped between forward and backward pass."""


@dataclass(frozen=True)
class Families:
    """Legal families, priced as far as their members agree; one row each."""

    structures: tuple[Structure, ...]
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


@dataclass(frozen=True)
class SearchSpace:
    """A problem, and the choices that the user left open."""

    problem: Problem
    choices: Choices

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """What may live in host memory, where there is any."""
        if self.problem.system.host is None:
            return (Offload.NONE,)
        return tuple(o for o in Offload if self.choices.keeps("offload", o))

    @property
    def zero_choices(self) -> tuple[tuple[int, bool], ...]:
        """ZeRO stages that are allowed."""
        return tuple(z for z in ZERO_CHOICES if self.choices.keeps("zero_stage", z[0]))

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
    """Return the number of members of each family."""
    dp = columns.dp.astype(np.int64)
    values = np.unique(dp)
    num_divisors = np.array([len(shard_degrees(space, d)) for d in values.tolist()])
    shards = num_divisors[np.searchsorted(values, dp)] * 1.0
    keeps_one = np.array([1 in shard_degrees(space, d) for d in values.tolist()])
    has_one = keeps_one[np.searchsorted(values, dp)] & (columns.cp == 1)
    sharded = sum(1 for stage, _ in space.zero_choices if stage > 0)
    whole = sum(1 for stage, _ in space.zero_choices if stage == 0)
    return (whole + (shards - has_one) * sharded) * len(space.offloads)


def shard_degrees(space: SearchSpace, dp: int) -> tuple[int, ...]:
    """Return the ways to divide data replicas into shards: degrees of dp_shard."""
    return space.choices.of("dp_shard", tuple(divisors(dp)))


def layout_structures(space: SearchSpace) -> Iterator[tuple[Structure, int]]:
    """Yield the structures that a layer sees, with the index of their axis order."""
    keeps = space.choices.keeps
    for index, order in enumerate(space.orders):
        for sequence_parallel in (True, False):
            for kind in ContextKind:
                if keeps("sequence_parallel", sequence_parallel) and keeps("context_kind", kind):
                    yield (
                        Structure(
                            sequence_parallel=sequence_parallel,
                            context_kind=kind,
                            axis_order=order,
                            zero_stage=0,
                            overlap_tensor_parallel=(
                                space.problem.workload.software.async_tensor_parallel
                            ),
                        ),
                        index,
                    )


def rows_of_layout(
    space: SearchSpace, columns: StrategyColumns, structure: Structure, order_index: int
) -> BoolArray:
    """Return the rows for which a structure is not another one under a different name.

    Without tp there is no sequence parallelism, without cp one kind of it, and orders differ only
    in the axes in use. Expert axes need tp, cp and dp side by side.
    """
    in_use = {"tp": columns.tp, "tatp": columns.tatp, "cp": columns.cp,
              "dp_shard": columns.dp_shard, "dp_replicate": columns.dp_replicate,
              "pp": columns.pp}  # fmt: skip
    mask = np.zeros(len(columns.tp), dtype=np.int64)
    for bit, name in enumerate(AXES):
        mask |= (in_use[name] > 1).astype(np.int64) << bit
    keep = first_orders(space.orders)[order_index][mask] == 1
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
    if kind is ScheduleKind.INTERLEAVED:
        return columns.num_virtual_stages > 1
    if kind is ScheduleKind.ONE_F_ONE_B:
        return columns.num_virtual_stages == 1
    return (columns.num_virtual_stages == 1) & (columns.pp > 1)


def layer_keys(columns: StrategyColumns, network: AxisNetwork) -> tuple[IntArray, IntArray]:
    """Return the first row of each group of rows that no layer can tell apart, and the groups."""
    strides = network.strides
    parts = (
        columns.tp, columns.tatp, columns.cp, columns.ep, columns.etp, columns.micro_batch_size,
        strides["tp"], strides["tatp"], strides["cp"],
    )  # fmt: skip
    code = np.zeros(len(columns.tp), dtype=np.int64)
    for part in parts:
        values, inverse = np.unique(part, return_inverse=True)
        code = code * len(values) + inverse.reshape(-1)
    _, first, groups = np.unique(code, return_index=True, return_inverse=True)
    return first, groups.reshape(-1)


def families(space: SearchSpace, tables: Iterable[StrategyColumns], counts: Counts) -> Families:
    """Return the legal families of all structures, and count the members of the refused ones."""
    parts = [part for columns in tables for part in _families(space, columns, counts)]
    structures = tuple(part.structures[0] for part in parts)
    rows = [np.full(len(part), number, np.int64) for number, part in enumerate(parts)]
    if not parts:
        raise InfeasibleError("every candidate is refused by a rule: " + counts.summary)
    return Families(
        structures=structures,
        structure_of=np.concatenate(rows),
        strategy=joined([part.strategy for part in parts]),
        price=joined([part.price for part in parts]),
        num_members=np.concatenate([part.num_members for part in parts]),
    )


def _families(
    space: SearchSpace, columns: StrategyColumns, counts: Counts
) -> Iterator[Families]:
    """Yield the legal families of each structure for one number of devices."""
    for layout, order_index in layout_structures(space):
        rows = take(columns, rows_of_layout(space, columns, layout, order_index))
        if not len(rows.tp):
            continue
        legal = {}
        for kind in schedules_of(space):
            chosen = take(rows, rows_of_schedule(rows, kind))
            structure = replace(layout, schedule=kind)
            if len(chosen.tp):
                legal[kind] = _legal_rows(space, structure, chosen, counts)
        yield from _priced(space, layout, {k: s for k, s in legal.items() if len(s.tp)})


def _legal_rows(
    space: SearchSpace, structure: Structure, columns: StrategyColumns, counts: Counts
) -> StrategyColumns:
    """Return the rows that no rule refuses; refused families count with all their members."""
    problem = space.problem
    chip = problem.system.chip
    refused = np.zeros(len(columns.tp), dtype=bool)
    members = num_members(space, columns) * len(_recomputes(space))
    for refusal in all_refusals(
        problem.model, problem.workload, columns, structure,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        first = refusal.mask & ~refused
        counts.refused[refusal.name] += int(members[first].sum())
        refused |= refusal.mask
    return take(columns, ~refused)


def _recomputes(space: SearchSpace) -> tuple[Recompute, ...]:
    return tuple(r for r in Recompute if space.choices.keeps("recompute", r))


def _priced(
    space: SearchSpace, layout: Structure, legal: dict[ScheduleKind, StrategyColumns]
) -> Iterator[Families]:
    """Yield the families of one layout: layers are priced once for all schedules."""
    if not legal:
        return
    everything = joined(list(legal.values()))
    prices, sends = _layer_table(space.problem, layout, everything, _recomputes(space))
    start = 0
    for kind, strategy in legal.items():
        rows = slice(start, start + len(strategy.tp))
        start = rows.stop
        for recompute, table in prices.items():
            structure = replace(layout, schedule=kind, recompute=recompute)
            price = price_pipeline(
                space.problem, structure, strategy, take_rows(table, rows), sends[rows]
            )
            members = num_members(space, strategy)
            yield Families((structure,), np.zeros(len(members), np.int64), strategy, price, members)


def _layer_table(
    problem: Problem, layout: Structure, columns: StrategyColumns, recomputes: Sequence[Recompute]
) -> tuple[dict[Recompute, LayerPrices], FloatArray]:
    """Return the layer prices of each row, priced once for rows that a layer cannot tell apart."""
    network = AxisNetwork(problem.system.levels, problem.efficiencies, layout.axis_order, columns)
    first, groups = layer_keys(columns, network)
    tables = price_layers(
        problem, layout, take(columns, first), tuple(recomputes),
        uses_tatp=bool((columns.tatp > 1).any()),
    )  # fmt: skip
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    sends = send_s(problem, layout, columns, collectives)
    return {r: take_rows(table, groups) for r, table in tables.items()}, sends
