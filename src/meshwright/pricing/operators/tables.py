"""What each group of operators costs under each option: columns of layer prices, priced at once.

An option is a way to split one micro-batch of the whole model over the devices of a stage: the
degrees, where the axes lie, and what streams. The sequences of a micro-batch and what is chosen
for the whole model (:class:`Frame`) are the same for all options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.cost.layer import LayerCost
from meshwright.cost.layer_price import layer_cost
from meshwright.cost.step import DataParallelLinks
from meshwright.graph.op import LayerGraph
from meshwright.pricing.layers import Collectives, PricedWay
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.operators.groups import operator_groups
from meshwright.pricing.placed.price import Choice
from meshwright.pricing.problem import Problem
from meshwright.pricing.steps import joined, sync_links, take_rows
from meshwright.pricing.streaming import ways_to_stream
from meshwright.strategy.axes import all_refusals
from meshwright.strategy.space import axis_orders, factorizations, first_orders
from meshwright.strategy.strategy import (
    AXES,
    Recompute,
    Strategy,
    StrategyColumns,
    Streamed,
    Structure,
    make_strategy,
    row,
    stack,
    take,
)


@dataclass(frozen=True)
class Frame:
    """What all operators of a plan share."""

    structure: Structure
    """The order of its axes and what streams are left to the options."""
    num_devices: int
    num_sequences: int
    """Of one micro-batch of all data-parallel ranks together."""


@dataclass(frozen=True)
class Options:
    """Columns of options under one frame, legal ones only."""

    frame: Frame
    columns: StrategyColumns
    structures: tuple[Structure, ...]
    """Of each row: what streams, and the order of the axes."""
    network: AxisNetwork

    def __len__(self) -> int:
        return len(self.structures)

    def strategy(self, index: int) -> Strategy:
        """Return the degrees of one option."""
        return row(self.columns, index)

    def choice(self, index: int) -> Choice:
        """Return how the axes of an option lie on the grid."""
        axes, reaches = self.structures[index].axis_order, self.network.layout.reaches
        shapes = (tuple(int(size[index]) for size in reaches[axis].sizes) for axis in axes)
        return Choice(axes, tuple(shapes))

    def take(self, rows: IntArray | BoolArray) -> Options:
        """Return some of the options."""
        numbers = np.arange(len(self))[rows]
        return Options(
            self.frame,
            take(self.columns, numbers),
            tuple(self.structures[number] for number in numbers.tolist()),
            take_rows(self.network, numbers),
        )


def all_options(problem: Problem, frame: Frame) -> Options:
    """Return every legal option: degrees, order of the axes, and streamed tensor."""
    parts = []
    for streamed in (Streamed.WEIGHTS, Streamed.INPUTS):
        for order in axis_orders(problem.has_grid):
            structure = replace(frame.structure, streamed=streamed, axis_order=order)
            columns = _degrees(problem, frame, order, streamed)
            if len(columns.tp):
                parts.append(_legal(problem, frame, structure, columns))
    found = [part for part in parts if len(part)]
    return Options(
        frame,
        joined([part.columns for part in found]),
        tuple(structure for part in found for structure in part.structures),
        _joined_networks([part.network for part in found]),
    )


def _joined_networks(networks: Sequence[AxisNetwork]) -> AxisNetwork:
    """Return the groups of several columns of strategies put after one another."""
    return replace(
        networks[0],
        strategy=joined([network.strategy for network in networks]),
        layout=joined([network.layout for network in networks]),
    )


def _degrees(
    problem: Problem, frame: Frame, order: tuple[str, ...], streamed: Streamed
) -> StrategyColumns:
    """Return the degrees to try in one order of the axes; those of an earlier order left out."""
    orders = axis_orders(problem.has_grid)
    keeps = first_orders(orders)[orders.index(order)] == 1
    least_tatp = 2 if streamed is Streamed.INPUTS else 1
    most_tatp = frame.num_devices if problem.has_grid else 1
    rows = []
    for tp, cp, dp, tatp in factorizations(frame.num_devices, 4).tolist():
        degrees = {"tp": tp, "cp": cp, "dp_shard": dp, "tatp": tatp}
        mask = sum(1 << bit for bit, name in enumerate(AXES) if degrees.get(name, 1) > 1)
        if keeps[mask] and frame.num_sequences % dp == 0 and least_tatp <= tatp <= most_tatp:
            rows.append(make_strategy(**degrees, micro_batch_size=frame.num_sequences // dp))
    return stack(rows)


def _legal(
    problem: Problem, frame: Frame, structure: Structure, columns: StrategyColumns
) -> Options:
    """Return the options of one structure that no rule refuses and that have a place."""
    chip = problem.system.chip
    bad = np.zeros(len(columns.tp), dtype=bool)
    has_sp = (columns.tp > 1) & structure.sequence_parallel
    for is_on in (True, False):
        chosen = replace(structure, sequence_parallel=is_on)
        for refusal in all_refusals(
            problem.model, problem.workload, columns, chosen,
            tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
        ):  # fmt: skip
            bad |= refusal.mask & (has_sp == is_on)
    network = problem.network(structure.axis_order, columns)
    for reach in network.layout.reaches.values():
        bad |= np.asarray(reach.sizes[0] == 0)
    structures = tuple(replace(structure, sequence_parallel=is_on) for is_on in has_sp.tolist())
    whole = Options(frame, columns, structures, network)
    return whole.take(~bad)


@dataclass(frozen=True)
class GroupCost:
    """The price of one group, and the parts of its working memory: columns of options."""

    layer: LayerCost
    transient_bytes: Any
    """Alive for a moment [bytes]."""
    recomputed_bytes: Any
    """Activations that recomputation brings back for the whole layer [bytes]."""


@dataclass(frozen=True)
class OperatorPrices:
    """The price of every group under every option."""

    problem: Problem
    options: Options

    @cached_property
    def groups(self) -> tuple[tuple[LayerGraph, ...], ...]:
        """The groups of each piece: kinds of layers, embedding, head."""
        return tuple(operator_groups(piece) for piece in self.problem.pieces)

    @cached_property
    def costs(self) -> tuple[tuple[GroupCost, ...], ...]:
        """By piece and group: columns, one row for each option."""
        by_tensor = [self._of_tensor(s) for s in (Streamed.WEIGHTS, Streamed.INPUTS)]
        streams_inputs = np.array([s.streamed is Streamed.INPUTS for s in self.options.structures])
        place = np.argsort(np.concatenate([np.flatnonzero(~streams_inputs),
                                           np.flatnonzero(streams_inputs)]))  # fmt: skip
        found = [part for part in by_tensor if part]
        return tuple(
            tuple(take_rows(joined(list(costs)), place) for costs in zip(*piece, strict=True))
            for piece in zip(*found, strict=True)
        )

    def _of_tensor(self, streamed: Streamed) -> list[list[GroupCost]]:
        """Return the prices of the options that stream one kind of tensor; nothing without any."""
        mine = np.array([s.streamed is streamed for s in self.options.structures])
        if not mine.any():
            return []
        network = take_rows(self.options.network, np.flatnonzero(mine))
        structure = replace(self.options.frame.structure, streamed=streamed)
        collectives = Collectives(network, self.problem.calibration.collective_launch_s)
        uses_tatp = bool((network.strategy.tatp > 1).any())
        zero = 0.0 * network.strategy.tp
        found = []
        for index in range(len(self.problem.pieces)):
            is_edge = index >= len(self.problem.graph.layers)
            recompute = Recompute.NONE if is_edge else structure.recompute
            way = ways_to_stream(
                self.problem, structure, network, index, uses_tatp=uses_tatp, cut=operator_groups
            )[0]
            blocks = PricedWay(way, collectives).blocks(recompute)
            found.append(
                [
                    GroupCost(
                        layer_cost([block], self.problem.engine, zero),
                        block.transient_bytes + zero,
                        block.recomputed_bytes + zero,
                    )
                    for block in blocks
                ]
            )
        return found

    @cached_property
    def links(self) -> DataParallelLinks:
        """Collectives over the data-parallel axes of each option."""
        launch_s = self.problem.calibration.collective_launch_s
        return sync_links(self.problem, Collectives(self.options.network, launch_s)).dense
