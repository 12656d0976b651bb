"""What each group of operators costs under each option: columns of layer prices, priced at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.base.arrays import IntArray, joined, take_rows
from meshwright.cost.communication import Collectives
from meshwright.cost.data_parallel import DataParallelLinks, sync_links
from meshwright.cost.layer import BlockCost, LayerCost, PricedWay, layer_cost
from meshwright.cost.problem import Problem
from meshwright.cost.streamed_layer import ways_to_stream
from meshwright.graph.op import LayerGraph
from meshwright.sharding.strategy import PlanOptions, Recompute, Streamed
from meshwright.wafer.operators.groups import operator_groups
from meshwright.wafer.operators.options import TENSORS, Options


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
    costs: tuple[tuple[GroupCost, ...], ...]
    """By piece (kinds of layers, embedding, head) and group: one row for each option."""

    @cached_property
    def groups(self) -> tuple[tuple[LayerGraph, ...], ...]:
        """The groups of each piece."""
        return tuple(operator_groups(piece) for piece in self.problem.pieces)

    @cached_property
    def links(self) -> DataParallelLinks:
        """Collectives over the data-parallel axes of each option."""
        launch_s = self.problem.calibration.collective_launch_s
        return sync_links(self.problem, Collectives(self.options.network, launch_s)).dense

    def under(self, structure: PlanOptions) -> OperatorPrices:
        """Return the same prices under a structure that changes no layer."""
        frame = replace(self.options.frame, structure=structure)
        return OperatorPrices(self.problem, replace(self.options, frame=frame), self.costs)

    def take(self, rows: IntArray) -> OperatorPrices:
        """Return the prices of some of the options."""
        return OperatorPrices(self.problem, self.options.take(rows), take_rows(self.costs, rows))


def operator_prices(problem: Problem, options: Options) -> OperatorPrices:
    """Return the prices of all options, those of one streamed tensor at a time."""
    streamed = options.streamed
    parts = [np.flatnonzero(streamed == place) for place in range(len(TENSORS))]
    used = [(rows, tensor) for rows, tensor in zip(parts, TENSORS, strict=True) if len(rows)]
    found = [_of_tensor(problem, options.take(rows), tensor) for rows, tensor in used]
    place = np.argsort(np.concatenate([rows for rows, _ in used]))
    costs = tuple(
        tuple(take_rows(joined(list(group)), place) for group in zip(*piece, strict=True))
        for piece in zip(*found, strict=True)
    )
    return OperatorPrices(problem, options, costs)


def _of_tensor(problem: Problem, options: Options, streamed: Streamed) -> list[list[GroupCost]]:
    """Return the prices of options that all stream one kind of tensor."""
    network = options.network
    structure = replace(options.frame.structure, streamed=streamed)
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    uses_tatp = bool((network.strategy.tatp > 1).any())
    found = []
    for index in range(len(problem.pieces)):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else structure.recompute
        way = ways_to_stream(
            problem, structure, network, index, uses_tatp=uses_tatp, cut=operator_groups
        )[0]
        blocks = PricedWay(way, collectives).blocks(recompute)
        found.append([_group_cost(problem, block, 0.0 * network.strategy.tp) for block in blocks])
    return found


def _group_cost(problem: Problem, block: BlockCost, zero: Any) -> GroupCost:
    return GroupCost(
        layer_cost([block], problem.rates, zero),
        block.transient_bytes + zero,
        block.recomputed_bytes + zero,
    )
