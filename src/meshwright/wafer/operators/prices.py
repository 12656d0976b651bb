"""Groups of operators, their price under every option, and the whole step of one option for each.

A group has one matrix product or attention core, with the norm before it and the light operators
after it. Experts stay together: their routing ties them. The step has the same formulas as for one
strategy: the layers are means over the chosen options, gradients are summed for each kind of
parameters, one per option in use, and resharding comes on top. With one option for all it is
the price of that strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import (
    FloatArray,
    IntArray,
    Num,
    joined,
    take_rows,
)
from meshwright.cost.communication import Collectives
from meshwright.cost.layer import BlockCost, LayerCost, layer_cost, priced_pieces
from meshwright.cost.problem import Problem
from meshwright.cost.step import (
    DataParallelLinks,
    SyncLinks,
    send_s,
    sync_links,
)
from meshwright.graph.op import LayerGraph, OpKind, Tensor
from meshwright.sharding.strategy import (
    AXES,
    PlanOptions,
    Recompute,
    Streamed,
)
from meshwright.topology.network import Network
from meshwright.wafer.contention import Contention
from meshwright.wafer.messages import HeldParams
from meshwright.wafer.operators.options import TENSORS, Options
from meshwright.wafer.price import contention_of

ANCHORS = (OpKind.MATMUL, OpKind.ATTENTION)
BEFORE = -1
"""Number of the source before the first group: the layer before, or the embedding."""


@dataclass(frozen=True)
class Handover:
    """Tensors that pass from one group of a layer to a later one."""

    first: int
    """Number of the group, or ``BEFORE``."""
    second: int
    tensors: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]
    """Tensors that the second group keeps for its backward pass, after the first did."""


def groups_of_pieces(problem: Problem) -> tuple[tuple[LayerGraph, ...], ...]:
    """Return the groups of each kind of layer, of the embedding, and of the head."""
    return tuple(operator_groups(piece) for piece in problem.pieces)


def operator_groups(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut into its groups, in order."""
    starts, has_anchor, has_any_anchor = [0], False, False
    for number, op in enumerate(layer.ops):
        begins = op.kind is OpKind.NORM or (op.kind in ANCHORS and has_anchor)
        # Inside experts and at edges an operator stays with the one before it, and so does a norm
        # before the first anchor of the layer.
        before = layer.ops[max(number - 1, 0)]
        is_inside = op.region == before.region and op.region in ("experts", "edge")
        is_early = op.kind is OpKind.NORM and not has_any_anchor
        if begins and number and not (is_inside or is_early):
            starts.append(number)
            has_anchor = False
        has_anchor |= op.kind in ANCHORS
        has_any_anchor |= op.kind in ANCHORS
    bounds = [*starts, len(layer.ops)]
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(bounds))


def handovers(groups: Sequence[LayerGraph]) -> list[Handover]:
    """Return the tensors that pass between the groups of a layer, by pairs of groups.

    A tensor that several groups read passes from reader to reader: the first one has laid it out
    as it needs it, and the residual stream goes on from there.
    """
    made = {t.name: n for n, group in enumerate(groups) for op in group.ops for t in op.outputs}
    readers_of: dict[Tensor, dict[int, None]] = {}
    for number, group in enumerate(groups):
        for op in group.ops:
            for tensor in op.inputs:
                readers_of.setdefault(tensor, {})[number] = None
    passed: dict[tuple[int, int], list[Tensor]] = {}
    for tensor, readers in readers_of.items():
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


@dataclass(frozen=True)
class Launches:
    """Launches of the kernels of a group beyond its computation: less than 0 where it is longer.

    A layer waits for the launches of all its groups that their computation does not hide.
    """

    forward_launch_s: Num
    backward_launch_s: Num
    input_launch_s: Num
    weight_launch_s: Num


def launches_of(block: BlockCost, host_s: Num, zero: Num) -> Launches:
    """Return the launches of a part of a layer beyond its computation, by pass [s].

    Parameters
    ----------
    host_s
        Launch of one kernel [s].
    zero
        It gives every part the length of the columns.
    """
    total, again = block.everything, block.recomputed
    weight_s = total.weight_gradient_s
    backward_s = total.input_gradient_s + weight_s + again.forward_s
    kernels = total.backward_kernels + again.forward_kernels
    return Launches(
        zero + total.forward_kernels * host_s - total.forward_s,
        zero + kernels * host_s - backward_s,
        zero + (kernels - block.num_weights) * host_s - backward_s + weight_s,
        zero + block.num_weights * host_s - weight_s,
    )


@dataclass(frozen=True)
class GroupCost:
    """The price of one group, and the parts of its working memory: columns of options."""

    layer: LayerCost
    transient_bytes: Num
    """Alive for a moment [bytes]."""
    recomputed_bytes: Num
    """Activations that recomputation brings back for the whole layer [bytes]."""
    launches: Launches


@dataclass(frozen=True)
class OperatorPrices:
    """The price of every group under every option."""

    problem: Problem
    options: Options
    costs: tuple[tuple[GroupCost, ...], ...]
    """Costs by piece (kinds of layers, embedding, head) and group: one row for each option."""

    @cached_property
    def groups(self) -> tuple[tuple[LayerGraph, ...], ...]:
        """The groups of each piece."""
        return groups_of_pieces(self.problem)

    @cached_property
    def links(self) -> SyncLinks:
        """Collectives over the data-parallel axes of each option."""
        launch_s = self.problem.calibration.collective_launch_s
        return sync_links(self.problem, Collectives(self.options.network, launch_s))

    @cached_property
    def sends_s(self) -> FloatArray:
        """Seconds in which one micro-batch passes to the next stage under each option [s]."""
        found = np.zeros(len(self.options))
        if self.options.frame.num_stages == 1:
            return found
        network, launch_s = self.options.network, self.problem.calibration.collective_launch_s
        alike: dict[PlanOptions, list[int]] = {}
        for row, plan_options in enumerate(self.options.option_sets):
            alike.setdefault(replace(plan_options, axis_order=AXES), []).append(row)
        for plan_options, rows in alike.items():
            part = take_rows(network, np.array(rows))
            found[rows] = send_s(
                self.problem, plan_options, part.strategy, Collectives(part, launch_s)
            )
        return found

    def held(self, place: Place) -> list[tuple[DataParallelLinks, Num]]:
        """Return the dense parameters of a group on one device, and those of its experts.

        Each with the collectives that synchronise them.
        """
        layer = self.costs[place[0]][place[1]].layer
        found = [(self.links.dense, layer.dense_params)]
        if self.links.expert is not None:
            found.append((self.links.expert, layer.expert_params))
        return found

    def under(self, plan_options: PlanOptions) -> OperatorPrices:
        """Return the prices under a set of plan options that changes no layer."""
        return OperatorPrices(self.problem, self.options.under(plan_options), self.costs)

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
    plan_options = replace(options.frame.plan_options, streamed=streamed)
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    uses_tatp = bool((network.strategy.tatp > 1).any())
    found = []
    for index in range(len(problem.pieces)):
        is_edge = index >= len(problem.graph.layers)
        recompute = Recompute.NONE if is_edge else plan_options.recompute
        piece = priced_pieces(
            problem, plan_options, collectives, index, uses_tatp=uses_tatp, cut=operator_groups
        )[0]
        zero = 0.0 * network.strategy.tp
        found.append(
            [
                GroupCost(
                    layer_cost([block], problem.rates, zero),
                    block.transient_bytes + zero,
                    block.recomputed_bytes + zero,
                    launches_of(block, problem.rates.host_s, zero),
                )
                for block in piece.blocks(recompute)
            ]
        )
    return found


def contention_alone(
    problem: Problem, options: Options, index: int, params: HeldParams[float], physical: Network,
    *, is_routed: bool = False,
) -> Contention:  # fmt: skip
    """Return the contention of the messages of one option where the whole model has it.

    Parameters
    ----------
    params
        Parameters of the model on one device under this option.
    is_routed
        Whether messages that share links are routed anew where that may help.
    """
    ranks, plan_options = options.ranks(problem, index, physical), options.option_sets[index]
    return contention_of(
        problem, plan_options, options.strategy(index), ranks, params, physical,
        is_routed=is_routed,
    )  # fmt: skip


def slowed_prices(
    prices: OperatorPrices, rows: IntArray, shared: Sequence[Contention]
) -> OperatorPrices:
    """Return prices in which some of the options share links, and all others keep theirs."""
    index = np.arange(len(prices.options))
    index[rows] = len(prices.options) + np.arange(len(rows))
    whole, part = prices.options.network, prices.options.take(rows).network
    columns: dict[str, tuple[dict[str, FloatArray], dict[str, FloatArray]]] = {}
    for name in ("slowdown", "own_slowdown"):
        each: list[Mapping[str, float]] = [getattr(entry, name) for entry in shared]
        every: dict[str, FloatArray] = dict(getattr(whole, name))
        own: dict[str, FloatArray] = {}
        for axis in dict.fromkeys(axis for entry in each for axis in entry):
            own[axis] = np.array([entry.get(axis, 1.0) for entry in each])
            every[axis] = np.array(every.get(axis, np.ones(len(index))))
            every[axis][rows] = own[axis]
        columns[name] = every, own
    (slowdown, of_rows), (own_slowdown, own_of_rows) = columns.values()
    part = replace(part, slowdown=of_rows, own_slowdown=own_of_rows)
    whole = replace(whole, slowdown=slowdown, own_slowdown=own_slowdown)
    found = operator_prices(prices.problem, replace(prices.options.take(rows), network=part))
    return OperatorPrices(
        prices.problem,
        replace(prices.options, network=whole),
        take_rows(joined([prices.costs, found.costs]), index),
    )


Place = tuple[int, int]
"""A group of operators: number of the piece of the model, and of the group in it."""


def places_of(problem: Problem) -> tuple[Place, ...]:
    """Return the groups of a model in order: embedding, those of each layer, head."""
    return places_among(problem, problem.model.layer_pattern)


def places_among(problem: Problem, layers: Sequence[int]) -> tuple[Place, ...]:
    """Return the embedding, the groups of layers of some kinds, and the head."""
    groups, kinds = groups_of_pieces(problem), len(problem.graph.layers)
    inner = [(kind, n) for kind in layers for n in range(len(groups[kind]))]
    return ((kinds, 0), *inner, (kinds + 1, 0))
