"""From operators and derived collectives to the price of a layer, block by block.

A :class:`LayerCost` is the unit that everything above composes: a stage is so many layers of each
kind, a step so many micro-batches through a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import TypeVar

import numpy as np

from meshwright.base.arrays import Mask, Num, larger, where
from meshwright.cost.communication import (
    EXPOSED_PART,
    AxisNetwork,
    Collectives,
    CommCost,
    ExposedComm,
    OpSums,
    comm_cost,
    exposed_s,
)
from meshwright.cost.device import (
    DeviceRates,
    exposed_launch_s,
)
from meshwright.cost.memory import kept_bytes, largest_transient_bytes, parameters_on_device
from meshwright.cost.operator import OpCost, _attention_cost, _memory_bound_cost, matmul_cost
from meshwright.cost.problem import Problem
from meshwright.cost.streamed_layer import LayerStreams, StreamedPiece, streamed_pieces
from meshwright.cost.streamed_operator import streamed_attention, streamed_matmul_cost
from meshwright.graph.op import LayerGraph, Op, OpKind
from meshwright.sharding.local_sizes import LocalLayer
from meshwright.sharding.saved_activations import SavedTensor
from meshwright.sharding.strategy import PlanOptions, Recompute, Streamed
from meshwright.spec.workload import SelectiveRecompute

_TRANSIENT = "working_bytes"


@dataclass(frozen=True, kw_only=True)
class LayerCost(ExposedComm):
    """Seconds, bytes and FLOPs of one layer (or of an edge: embedding, head) on one device.

    Numbers, or columns with one row per way to split the layer. Communication is what shows
    outside of computation. ``kept`` is what a micro-batch leaves behind for its backward pass.
    """

    forward_s: Num
    """Computation of the forward pass [s]."""
    input_gradient_s: Num
    weight_gradient_s: Num
    recompute_s: Num
    """Forward computation that the backward pass repeats [s]."""
    launch_s: Num
    """What launching kernels adds to forward, backward and recomputation [s]."""
    forward_total_s: Num
    """Seconds of the forward pass, communication and launches included [s]."""
    per_step_s: Num
    """Communication over tp once for each optimizer step [s]."""
    kept_bytes: Num
    """Activations kept for the backward pass [bytes]."""
    working_bytes: Num
    """Largest transient of this layer: recomputed activations, stream buffers, logits [bytes]."""
    dense_params: Num
    """Parameters on this device outside of routed experts [1]."""
    expert_params: Num
    flops: Num
    """FLOPs executed, forward and backward [FLOP]."""
    memory_traffic_bytes: Num
    """Bytes that cross the main memory [bytes]."""
    hidden_s: Num
    """Communication that runs beside computation [s]."""
    link_traffic_bytes: Num
    """Bytes that this device sends at the least, each over one link [bytes]."""

    @property
    def busy_s(self) -> Num:
        """Computation and launches [s]."""
        return (
            self.forward_s
            + self.input_gradient_s
            + self.weight_gradient_s
            + self.recompute_s
            + self.launch_s
        )

    @property
    def exposed_comm_s(self) -> Num:
        """Communication that shows [s]."""
        return exposed_s(self)

    @property
    def total_s(self) -> Num:
        """Time of one micro-batch through this layer, forward and backward [s]."""
        return self.busy_s + self.exposed_comm_s


LAYER_PARTS = tuple(field.name for field in fields(LayerCost))


def weighted_part(costs: Sequence[LayerCost], counts: Sequence[Num], name: str) -> Num:
    """Return one part of ``counts[k]`` layers of each kind k; of transients the largest."""
    largest = name == _TRANSIENT
    weights = [count > 0 for count in counts] if largest else counts
    terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
    result: Num = reduce(larger if largest else add, terms)
    return result


def weighted_sum(costs: Sequence[LayerCost], counts: Sequence[Num]) -> LayerCost:
    """Return the price of ``counts[k]`` layers of each kind k; the largest transient is kept."""
    return LayerCost(**{name: weighted_part(costs, counts, name) for name in LAYER_PARTS})


def sum_of(costs: Sequence[_Sum], of: type[_Sum]) -> _Sum:
    """Return the sum of prices, part by part."""
    total: dict[str, Num] = {entry.name: 0.0 for entry in fields(of)}
    for cost in costs:
        for name, so_far in total.items():
            total[name] = so_far + getattr(cost, name)
    return of(**total)


def _scaled(cost: OpCost, share: float) -> OpCost:
    """Return a share of a price."""
    return OpCost(**{entry.name: share * getattr(cost, entry.name) for entry in fields(OpCost)})


def op_sums(
    layer: LayerGraph, local: LocalLayer, rates: DeviceRates, streams: LayerStreams | None, *,
    causal: bool, selective: SelectiveRecompute = "attention",
) -> OpSums:  # fmt: skip
    """Return the prices of all operators of a layer, or of a block of one, added up.

    Parameters
    ----------
    selective
        What selective recomputation repeats: the attention core; every second product and all
        elementwise operators; or all but the products.
    """
    costs = [(op, op_cost(op, local, rates, streams, causal=causal)) for op in layer.ops]
    matmuls = [cost for op, cost in costs if op.kind is OpKind.MATMUL]
    core = [cost for op, cost in costs if op.is_recomputed_selectively]
    apart = (OpKind.MATMUL, OpKind.ATTENTION)
    others = [cost for op, cost in costs if op.kind not in apart]
    selected = {
        "attention": core,
        "half_of_products": [*others, *(_scaled(cost, 0.5) for cost in matmuls)],
        "all_but_products": [*others, *core],
    }[selective]
    return OpSums(
        everything=sum_of([cost for _, cost in costs], OpCost),
        attention=sum_of(core, OpCost),
        selected=sum_of(selected, OpCost),
        matmul_forward_s=sum_of(matmuls, OpCost).forward_s,
    )


def joined_sums(blocks: Sequence[OpSums]) -> OpSums:
    """Return the sums over all blocks of a layer."""
    return OpSums(
        everything=sum_of([block.everything for block in blocks], OpCost),
        attention=sum_of([block.attention for block in blocks], OpCost),
        selected=sum_of([block.selected for block in blocks], OpCost),
        matmul_forward_s=sum(block.matmul_forward_s for block in blocks),
    )


_Sum = TypeVar("_Sum", OpCost, CommCost)


@dataclass(frozen=True)
class BlockCost:
    """A part of a layer between two additions to the residual stream, on one device."""

    everything: OpCost
    recomputed: OpCost
    """What of it the backward pass repeats."""
    comm: CommCost
    kept_bytes: Num
    recomputed_bytes: Num
    """Activations that full recomputation brings back [bytes]."""
    transient_bytes: Num
    dense_params: Num
    expert_params: Num

    @property
    def stream_s(self) -> Num:
        """What links add to operators that work in rounds [s]."""
        total, recomputed = self.everything, self.recomputed
        return total.stream_forward_s + total.stream_backward_s + recomputed.stream_forward_s

    def total_s(self, rates: DeviceRates) -> Num:
        """Return one micro-batch through the block alone, both passes [s]."""
        total, recomputed, comm = self.everything, self.recomputed, self.comm
        ahead_s = total.forward_s
        back_s = total.input_gradient_s + total.weight_gradient_s + recomputed.forward_s
        ahead_s = ahead_s + exposed_launch_s(ahead_s, total.forward_kernels, rates)
        kernels = total.backward_kernels + recomputed.forward_kernels
        back_s = back_s + exposed_launch_s(back_s, kernels, rates)
        shown_s = [getattr(comm, name) for name in EXPOSED_PART]
        total_s: Num = reduce(add, shown_s, ahead_s + back_s + self.stream_s)
        return total_s


def chosen_block(takes_second: Mask, first: BlockCost, second: BlockCost) -> BlockCost:
    """Return the second of two prices of a block where it is to be taken, else the first."""
    costs = (OpCost, CommCost)
    parts = {}
    for entry in fields(BlockCost):
        one, other = getattr(first, entry.name), getattr(second, entry.name)
        parts[entry.name] = (
            _chosen(takes_second, one, other)
            if isinstance(one, costs)
            else where(takes_second, other, one)
        )
    return BlockCost(**parts)


def _chosen(takes_second: Mask, first: _Sum, second: _Sum) -> _Sum:
    """Return one of two prices, chosen row by row."""
    parts = {
        entry.name: where(takes_second, getattr(second, entry.name), getattr(first, entry.name))
        for entry in fields(first)
    }
    return type(first)(**parts)


def layer_cost(blocks: Sequence[BlockCost], rates: DeviceRates, zero: Num) -> LayerCost:
    """Return the price of a layer; ``zero`` gives every part the length of the columns."""
    total = sum_of([block.everything for block in blocks], OpCost)
    recomputed = sum_of([block.recomputed for block in blocks], OpCost)
    comm = sum_of([block.comm for block in blocks], CommCost)
    launch_forward = exposed_launch_s(total.forward_s, total.forward_kernels, rates)
    backward_s = total.input_gradient_s + total.weight_gradient_s + recomputed.forward_s
    backward_kernels = total.backward_kernels + recomputed.forward_kernels
    launch = launch_forward + exposed_launch_s(backward_s, backward_kernels, rates)
    ahead_s = total.forward_s + launch_forward + comm.forward_s + total.stream_forward_s
    parts = {
        "forward_s": total.forward_s,
        "input_gradient_s": total.input_gradient_s,
        "weight_gradient_s": total.weight_gradient_s,
        "recompute_s": recomputed.forward_s,
        "launch_s": launch,
        **{name: getattr(comm, name) for name in EXPOSED_PART},
        "stream_s": comm.stream_s + sum(block.stream_s for block in blocks),
        "forward_total_s": ahead_s,
        "per_step_s": comm.per_step_s,
        "kept_bytes": sum(block.kept_bytes for block in blocks),
        "working_bytes": reduce(larger, [block.transient_bytes for block in blocks])
        + sum(block.recomputed_bytes for block in blocks),
        "dense_params": sum(block.dense_params for block in blocks),
        "expert_params": sum(block.expert_params for block in blocks),
        "flops": total.forward_flops + total.backward_flops + recomputed.forward_flops,
        "memory_traffic_bytes": total.forward_traffic_bytes
        + total.backward_traffic_bytes
        + recomputed.forward_traffic_bytes,
        "hidden_s": comm.hidden_s,
        "link_traffic_bytes": comm.link_bytes
        + total.forward_link_bytes
        + total.backward_link_bytes
        + recomputed.forward_link_bytes,
    }
    return LayerCost(**{name: part + zero for name, part in parts.items()})


def price_layers(
    problem: Problem,
    structure: PlanOptions,
    network: AxisNetwork,
    recomputes: tuple[Recompute, ...],
    *,
    uses_tatp: bool,
) -> dict[Recompute, tuple[LayerCost, ...]]:
    """Return the price of each piece of the model, for each kind of recomputation.

    Parameters
    ----------
    network
        Columns of degrees with the groups of their axes; only what a layer sees matters.
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    pieces: dict[Recompute, list[LayerCost]] = {recompute: [] for recompute in recomputes}
    for index in range(len(problem.pieces)):
        ways = streamed_pieces(problem, structure, network, index, uses_tatp=uses_tatp)
        priced = [PricedPiece(way, collectives) for way in ways]
        alone = without_contention(priced)
        for recompute in recomputes:
            again = Recompute.NONE if index >= len(problem.graph.layers) else recompute
            blocks = priced[0].blocks(again)
            if len(priced) > 1:
                takes = takes_inputs(alone, again)
                pairs = zip(takes, blocks, priced[1].blocks(again), strict=True)
                blocks = [chosen_block(*pair) for pair in pairs]
            cost = layer_cost(blocks, problem.rates, 0.0 * network.strategy.tp)
            if index == len(problem.pieces) - 1:
                # The head goes backward at once: what it keeps is part of its work.
                working = cost.working_bytes + cost.kept_bytes
                cost = replace(cost, working_bytes=working, kept_bytes=cost.kept_bytes * 0.0)
            pieces[recompute].append(cost)
    return {recompute: tuple(costs) for recompute, costs in pieces.items()}


@dataclass(frozen=True)
class PricedPiece:
    """One kind of layer, or an edge, that streams one tensor, with the prices of its blocks."""

    way: StreamedPiece
    collectives: Collectives

    @cached_property
    def sums(self) -> list[OpSums]:
        """The operators of each block, added up."""
        way, problem = self.way, self.way.problem
        work = problem.workload
        return [
            op_sums(
                block, way.local, problem.rates, way.streams,
                causal=work.causal, selective=work.software.selective_recompute,
            )
            for block in way.blocks
        ]  # fmt: skip

    @cached_property
    def transient_bytes(self) -> list[Num]:
        """The largest transient of each block [bytes]."""
        way, word = self.way, self.way.problem.rates.activation_bytes
        return [
            reduce(larger, [largest_transient_bytes(op, way.local, word) for op in block.ops])
            for block in way.blocks
        ]

    @cached_property
    def params(self) -> list[tuple[Num, Num]]:
        """Parameters of each block on one device, outside of routed experts and in them [1]."""
        way = self.way
        strategy = way.network.strategy
        return [parameters_on_device(block, way.structure, strategy) for block in way.blocks]

    def blocks(self, recompute: Recompute) -> list[BlockCost]:
        """Return the price of each block."""
        if recompute not in self._known:
            self._known[recompute] = self._blocks(recompute)
        return self._known[recompute]

    @cached_property
    def _known(self) -> dict[Recompute, list[BlockCost]]:
        return {}

    def _blocks(self, recompute: Recompute) -> list[BlockCost]:
        way = self.way
        strategy, word = way.network.strategy, way.problem.rates.activation_bytes
        calls, whole = way.calls_of_blocks(recompute), joined_sums(self.sums)
        together = [call for of_block in calls for call in of_block]

        def bytes_of(saved: Sequence[SavedTensor]) -> Num:
            return kept_bytes(saved, way.sizes, strategy, word)

        kept = way.saved_of_blocks(recompute)
        core_alone = way.problem.keeping.selective == "attention"
        replays = recompute is Recompute.FULL or (
            recompute is Recompute.SELECTIVE and not core_alone
        )
        back = way.saved_of_blocks(Recompute.NONE) if replays else [[] for _ in kept]
        return [
            BlockCost(
                everything=sums.everything,
                recomputed=sums.recomputed(recompute),
                comm=comm_cost(
                    calls[number], whole, way.sizes, strategy, way.structure,
                    self.collectives.time_s, word, together,
                ),
                kept_bytes=bytes_of(kept[number]),
                recomputed_bytes=bytes_of(back[number]),
                transient_bytes=self.transient_bytes[number],
                dense_params=self.params[number][0],
                expert_params=self.params[number][1],
            )
            for number, sums in enumerate(self.sums)
        ]  # fmt: skip


def without_contention(priced: Sequence[PricedPiece]) -> Sequence[PricedPiece]:
    """Return the same ways on links that nobody else uses.

    What streams is decided there, so that a plan is the same one at every fidelity.
    """
    network = priced[0].way.network
    if len(priced) == 1 or not network.slowdown:
        return priced
    private = replace(network, slowdown={})
    collectives = Collectives(private, priced[0].collectives.launch_s)
    ways = streamed_pieces(
        priced[0].way.problem, replace(priced[0].way.structure, streamed=Streamed.AUTO), private,
        priced[0].way.index, uses_tatp=True,
    )  # fmt: skip
    return [PricedPiece(way, collectives) for way in ways]


def takes_inputs(priced: Sequence[PricedPiece], recompute: Recompute) -> list[Mask]:
    """Return for each block whether its inputs stream, for each row.

    They do where that is legal and takes less time in a micro-batch; sums once a step and memory
    do not decide.
    """
    weights, inputs = priced
    rates = weights.way.problem.rates
    pairs = zip(weights.blocks(recompute), inputs.blocks(recompute), strict=True)
    return [
        (two.total_s(rates) < one.total_s(rates)) & is_legal
        for (one, two), is_legal in zip(pairs, inputs.way.is_legal, strict=True)
    ]


def streamed_blocks(
    problem: Problem, structure: PlanOptions, network: AxisNetwork
) -> list[list[tuple[StreamedPiece, LayerGraph]]]:
    """Return how each block of each piece of the model streams, under one strategy.

    Parameters
    ----------
    network
        The groups of one strategy: columns of one row.
    """
    uses_tatp = bool((network.strategy.tatp > 1).any())
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    found = []
    for index in range(len(problem.pieces)):
        ways = streamed_pieces(problem, structure, network, index, uses_tatp=uses_tatp)
        takes = [False] * len(ways[0].blocks)
        if len(ways) > 1:
            priced = without_contention([PricedPiece(way, collectives) for way in ways])
            takes = [bool(np.all(taken)) for taken in takes_inputs(priced, structure.recompute)]
        found.append(
            [(ways[int(t)], block) for t, block in zip(takes, ways[0].blocks, strict=True)]
        )
    return found


def op_cost(
    op: Op, layer: LocalLayer, rates: DeviceRates, streams: LayerStreams | None, *, causal: bool
) -> OpCost:
    """Return the price of one operator.

    Parameters
    ----------
    streams
        What streams over tatp in its layer; None without tatp.
    """
    if op.kind is OpKind.MATMUL:
        if streams is None:
            return matmul_cost(op, layer, rates)
        return streamed_matmul_cost(op, layer, rates, streams)
    if op.kind is OpKind.ATTENTION:
        alone = _attention_cost(op, layer, rates, causal=causal)
        return alone if streams is None else streamed_attention(alone, op.name, streams, rates)
    return _memory_bound_cost(op, layer, rates)
