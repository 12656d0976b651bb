"""Operators that share a strategy, and the tensors that pass from one group to the next.

A group has one matrix product or attention core, with the norm before it and the light operators
after it. Experts stay together: their routing ties them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.base.arrays import IntArray, joined, take_rows
from meshwright.cost.communication import Collectives
from meshwright.cost.layer import BlockCost, LayerCost, layer_cost, priced_pieces
from meshwright.cost.problem import Problem
from meshwright.cost.step import DataParallelLinks, sync_links
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.network.placement import block_ranks
from meshwright.sharding.strategy import PlanOptions, Recompute, Streamed
from meshwright.topology.network import Network
from meshwright.wafer.operators.options import TENSORS, Options
from meshwright.wafer.price import contention_of

ANCHORS = (OpKind.MATMUL, OpKind.ATTENTION)
BEFORE = -1
"""What comes before the first group: the layer before, or the embedding."""


@dataclass(frozen=True)
class Handover:
    """Tensors that pass from one group of a layer to a later one."""

    first: int
    """Number of the group, or ``BEFORE``."""
    second: int
    tensors: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    """Those of them that the second group keeps for its backward pass, after the first did."""


def operator_groups(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut into its groups, in order."""
    starts, has_anchor = [0], False
    for number, op in enumerate(layer.ops):
        begins = op.kind is OpKind.NORM or (op.kind in ANCHORS and has_anchor)
        if begins and number and not _stays(layer.ops, number):
            starts.append(number)
            has_anchor = False
        has_anchor |= op.kind in ANCHORS
    bounds = [*starts, len(layer.ops)]
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(bounds))


def _stays(ops: Sequence[Op], number: int) -> bool:
    """Return whether an operator stays with the one before it: inside experts, and at edges."""
    op, before = ops[number], ops[number - 1]
    is_inside = op.region == before.region and op.region in ("experts", "edge")
    has_anchor = any(other.kind in ANCHORS for other in ops[:number])
    return is_inside or (op.kind is OpKind.NORM and not has_anchor)


def handovers(groups: Sequence[LayerGraph]) -> list[Handover]:
    """Return what passes between the groups of a layer, by pairs of groups.

    A tensor that several groups read passes from reader to reader: the first one has laid it out
    as it needs it, and the residual stream goes on from there.
    """
    made = {t.name: n for n, group in enumerate(groups) for op in group.ops for t in op.outputs}
    passed: dict[tuple[int, int], list[Tensor]] = {}
    for tensor, readers in _readers(groups).items():
        source = made.get(tensor.name, BEFORE)
        stops = [source, *(reader for reader in readers if reader != source)]
        for pair in pairwise(stops):
            passed.setdefault(pair, []).append(tensor)
    keepers = [{t.name for op in group.ops for t in op.saved} for group in groups]
    return [
        Handover(
            first, second, tuple(tensors),
            tuple(t for t in tensors if first != BEFORE and t.name in keepers[first]
                  and t.name in keepers[second]),
        )
        for (first, second), tensors in sorted(passed.items())
    ]  # fmt: skip


def _readers(groups: Sequence[LayerGraph]) -> dict[Tensor, list[int]]:
    """Return the groups that read each activation, in order."""
    found: dict[Tensor, list[int]] = {}
    for number, group in enumerate(groups):
        for op in group.ops:
            for tensor in op.inputs:
                readers = found.setdefault(tensor, [])
                if number not in readers:
                    readers.append(number)
    return found


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
        piece = priced_pieces(
            problem, structure, collectives, index, uses_tatp=uses_tatp, cut=operator_groups
        )[0]
        blocks = piece.blocks(recompute)
        found.append([_group_cost(problem, block, 0.0 * network.strategy.tp) for block in blocks])
    return found


def _group_cost(problem: Problem, block: BlockCost, zero: Any) -> GroupCost:
    return GroupCost(
        layer_cost([block], problem.rates, zero),
        block.transient_bytes + zero,
        block.recomputed_bytes + zero,
    )


Slowdown = Mapping[str, float]
"""By axis: how much longer its messages take than on links of their own."""


def slowdown_of(
    problem: Problem, options: Options, index: int, params: float, physical: Network
) -> Slowdown:
    """Return what the messages of one option suffer where the whole model has it.

    Parameters
    ----------
    params
        Dense parameters of the model on one device under this option.
    """
    choice, strategy = options.choices[index], options.strategy(index)
    ranks = block_ranks(physical, problem.grid_sides, choice.axes, choice.shapes)
    assert ranks is not None
    structure = options.structures[index]
    return contention_of(problem, structure, strategy, ranks, params, physical).slowdown


def slowed_prices(
    prices: OperatorPrices, rows: IntArray, slowdowns: Sequence[Slowdown]
) -> OperatorPrices:
    """Return prices in which some of the options have a slowdown each, and all others their own."""
    part = prices.options.take(rows)
    axes = dict.fromkeys(axis for entry in slowdowns for axis in entry)
    columns = {axis: np.array([entry.get(axis, 1.0) for entry in slowdowns]) for axis in axes}
    slower = replace(part, network=replace(part.network, slowdown=columns))
    found = operator_prices(prices.problem, slower)
    index = np.arange(len(prices.options))
    index[rows] = len(prices.options) + np.arange(len(rows))
    whole = dict(prices.options.network.slowdown)
    for axis in axes:
        slower_by = np.array(whole.get(axis, np.ones(len(index))))
        slower_by[rows] = columns[axis]
        whole[axis] = slower_by
    network = replace(prices.options.network, slowdown=whole)
    return OperatorPrices(
        prices.problem,
        replace(prices.options, network=network),
        take_rows(joined([prices.costs, found.costs]), index),
    )
