"""The price of a layer from operators and derived collectives, block by block.

A block ends where its result is added to the residual stream; there tokens are split, whichever
tensor streams over tatp, so each block of a layer streams its weights or its inputs, whichever is
cheaper. A :class:`LayerCost` is the unit that everything above composes: a stage is some layers of
each kind, a step some micro-batches through a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial, reduce
from itertools import pairwise, product
from operator import add, mul
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import (
    FloatArray,
    IntArray,
    Mask,
    Num,
    groups_of,
    larger,
    names_of,
    smaller,
    take_rows,
    where,
)
from meshwright.cost.communication import (
    EXPOSED_PART,
    AxisNetwork,
    Collectives,
    CommCost,
    ExposedComm,
    Windows,
    comm_cost,
    exposed_s,
)
from meshwright.cost.memory import (
    kept_bytes,
    largest_transient_bytes,
    logit_bytes,
    norm_bytes,
    parameters_on_device,
    weighed_rows_bytes,
)
from meshwright.cost.operator import (
    DeviceRates,
    OpCost,
    attention_cost,
    exposed_launch_s,
    matmul_cost,
    matmul_shape,
    memory_bound_cost,
    partial_gradients_bytes,
    scan_cost,
    traffic_s,
    widened,
    widened_bytes,
)
from meshwright.cost.parts import by_field, sum_of
from meshwright.cost.problem import DerivedShardings, Problem
from meshwright.cost.streaming import (
    AXIS,
    ROWS,
    LayerStreams,
    StreamedBytes,
    StreamLinks,
    overlapped_ops,
    stream_links,
    streamed_attention,
    streamed_bytes,
    streamed_matmul_cost,
)
from meshwright.graph.common import EDGE
from meshwright.graph.op import LayerGraph, Op, OpKind
from meshwright.graph.recompute import repeated_ops
from meshwright.sharding.algebra import CollectiveCall
from meshwright.sharding.axes import may_stream_inputs
from meshwright.sharding.local_sizes import CAST, LocalLayer, SavedTensor, kept_shares
from meshwright.sharding.strategy import (
    AXES,
    REUSED_AXES,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
)


def op_cost(
    op: Op, layer: LocalLayer, rates: DeviceRates, streams: LayerStreams | None, *, causal: bool
) -> OpCost:
    """Return the price of one operator.

    Parameters
    ----------
    streams
        Tensor streams of its layer over tatp; None without tatp.
    """
    if op.kind is OpKind.MATMUL:
        if streams is None:
            cost = matmul_cost(op, layer, rates)
        else:
            cost = streamed_matmul_cost(op, layer, rates, streams)
        return widened(cost, op, layer, rates)
    if op.kind is OpKind.ATTENTION:
        alone = attention_cost(op, layer, rates, causal=causal)
        return alone if streams is None else streamed_attention(alone, op.name, streams, rates)
    if op.kind is OpKind.RECURRENCE:
        return scan_cost(op, layer, rates)
    return memory_bound_cost(op, layer, rates)


@dataclass(frozen=True)
class BlockCost:
    """A part of a layer between two additions to the residual stream, on one device.

    Numbers, or columns of shape (rows,).
    """

    everything: OpCost
    recomputed: OpCost
    """Part of the work that the backward pass repeats."""
    comm: CommCost
    kept_bytes: Num
    hosted_bytes: Num
    """Activations that wait in host memory [bytes]."""
    recomputed_bytes: Num
    """Activations that full recomputation brings back [bytes]."""
    transient_bytes: Num
    transient_logit_bytes: Num
    """Largest tensors of an operator as wide as the vocabulary [bytes]."""
    kept_logit_bytes: Num
    logit_bytes: Num
    """Logits in the type of activations [bytes]."""
    dense_params: Num
    expert_params: Num
    num_weights: float
    """Products with a gradient of their weights: a kernel each [1]."""
    norm_bytes: Num = 0.0
    """Transient of the norm that begins the block, with what recomputation brings back of its
    tensors: all other gradients of the block are there by then [bytes]."""
    norm_kept_bytes: Num = 0.0
    """Activations that this norm keeps [bytes]."""


@dataclass(frozen=True, kw_only=True)
class HeldMemory:
    """Memory and parameters of a piece of the model on one device: in its price, or in a bound."""

    kept_bytes: Num
    """Activations kept for the backward pass [bytes]."""
    kept_logit_bytes: Num
    """Tensors as wide as the vocabulary among them [bytes]."""
    hosted_bytes: Num
    """Activations that wait for it in host memory [bytes]."""
    working_bytes: Num
    """Largest transient of this layer: recomputed activations, stream buffers, logits [bytes]."""
    recomputed_bytes: Num
    """Recomputed activations in the largest transient [bytes]."""
    working_logit_bytes: Num
    """Tensors as wide as the vocabulary in the largest transient [bytes]."""
    working_kept_bytes: Num
    """Other activations in it, of a piece that goes backward at once [bytes]."""
    working_first_bytes: Num
    """Largest transient of its first block, and of the norm behind it, with what recomputation
    brings back of them [bytes]."""
    working_other_params: Num
    """Parameters of the blocks behind the first one, which go backward before it [1]."""
    other_kept_bytes: Num
    """Kept tensors of those blocks, their norms left out [bytes]."""
    logit_bytes: Num
    """Logits in the type of activations [bytes]."""
    dense_params: Num
    """Parameters on this device outside of routed experts [1]."""
    expert_params: Num

    def at_once(self) -> Self:
        """Return a piece that goes backward at once: its kept tensors are part of its work."""
        logits, zero = self.kept_logit_bytes, self.kept_bytes * 0.0
        return replace(
            self, kept_bytes=zero, kept_logit_bytes=zero,
            working_bytes=self.working_bytes + self.kept_bytes,
            working_logit_bytes=self.working_logit_bytes + logits,
            working_kept_bytes=self.kept_bytes - logits,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LayerCost(ExposedComm, HeldMemory):
    """Seconds, bytes and FLOPs of one layer (or of an edge: embedding, head) on one device.

    Numbers, or columns with one row per way to split the layer, shape (rows,). Communication is its
    exposed part. ``kept`` are the tensors that a micro-batch keeps for its backward pass.
    """

    forward_s: Num
    """Computation of the forward pass [s]."""
    input_gradient_s: Num
    weight_gradient_s: Num
    recompute_s: Num
    """Forward computation that the backward pass repeats [s]."""
    memory_s: Num
    """Part of the passes in kernels that the main memory limits, recomputation left out [s]."""
    forward_launch_s: Num
    """Kernel launches of the forward pass that its computation does not hide [s]."""
    backward_launch_s: Num
    """Kernel launches of the backward pass that are not hidden, recomputation included [s]."""
    input_launch_s: Num
    """Kernel launches, not hidden, of a backward pass without gradients of weights [s]."""
    weight_launch_s: Num
    """Kernel launches, not hidden, of a separate pass for gradients of weights [s]."""
    forward_total_s: Num
    """Seconds of the forward pass, communication and launches included [s]."""
    per_step_s: Num
    """Communication over tp once for each optimizer step [s]."""
    flops: Num
    """FLOPs executed, forward and backward [FLOP]."""
    memory_traffic_bytes: Num
    """Bytes that cross the main memory [bytes]."""
    hidden_s: Num
    """Communication that overlaps with computation [s]."""
    paired_s: Num
    """Communication over ep that another micro-batch could hide: at most the computation of the
    opposite pass of the layer [s]."""
    link_traffic_bytes: Num
    """Least bytes that this device sends, each over one link."""

    @property
    def launch_s(self) -> Num:
        """Kernel launches that computation does not hide [s]."""
        return self.forward_launch_s + self.backward_launch_s

    @property
    def weight_gradient_pass_s(self) -> Num:
        """Separate pass for gradients of weights, with its launches [s]."""
        return self.weight_gradient_s + self.weight_launch_s

    @property
    def total_s(self) -> Num:
        """One micro-batch through this layer, forward and backward [s]."""
        return self.anywhere_s + exposed_s(self)

    @property
    def anywhere_s(self) -> Num:
        """Time of one micro-batch wherever the axes lie: without communication [s]."""
        passes_s = self.forward_s + self.input_gradient_s + self.weight_gradient_s
        return passes_s + self.recompute_s + self.launch_s


def exposed_launches_s(total: OpCost, again: OpCost, rates: DeviceRates) -> tuple[Num, Num]:
    """Return the launches that computation does not hide, of the forward and backward pass [s].

    Parameters
    ----------
    again
        Part of the layer that the backward pass repeats.
    """
    backward_s = total.input_gradient_s + total.weight_gradient_s + again.forward_s
    backward_kernels = total.backward_kernels + again.forward_kernels
    return (
        exposed_launch_s(total.forward_s, total.forward_kernels, rates),
        exposed_launch_s(backward_s, backward_kernels, rates),
    )


_SUMMED = ("kept_bytes", "kept_logit_bytes", "hosted_bytes", "recomputed_bytes", "logit_bytes",
           "dense_params", "expert_params")  # fmt: skip
"""Fields of a layer that are sums over its blocks."""


def layer_cost(blocks: Sequence[BlockCost], rates: DeviceRates, zero: Num) -> LayerCost:
    """Return the price of a layer; ``zero`` gives every part the length of the columns."""
    total = sum_of(OpCost(), [block.everything for block in blocks])
    again = sum_of(OpCost(), [block.recomputed for block in blocks])
    comm = sum_of(CommCost(), [block.comm for block in blocks])
    launch_forward_s, launch_backward_s = exposed_launches_s(total, again, rates)
    backward_s = total.input_gradient_s + total.weight_gradient_s + again.forward_s
    backward_kernels = total.backward_kernels + again.forward_kernels
    num_weights = sum(block.num_weights for block in blocks)
    # Communication that another micro-batch could hide, in its opposite pass.
    paired_forward_s = smaller(comm.ep_forward_s, backward_s)
    paired_backward_s = smaller(comm.ep_s - comm.ep_forward_s, total.forward_s)
    # Tensor streams: time that links add to operators that work in rounds.
    rounds_s = sum(
        b.everything.stream_forward_s + b.everything.stream_backward_s
        + b.recomputed.stream_forward_s for b in blocks
    )  # fmt: skip
    parts = {
        "forward_s": total.forward_s,
        "input_gradient_s": total.input_gradient_s,
        "weight_gradient_s": total.weight_gradient_s,
        "recompute_s": again.forward_s,
        "memory_s": total.forward_memory_s + total.backward_memory_s,
        "forward_launch_s": launch_forward_s,
        "backward_launch_s": launch_backward_s,
        "input_launch_s": exposed_launch_s(
            backward_s - total.weight_gradient_s, backward_kernels - num_weights, rates
        ),
        "weight_launch_s": exposed_launch_s(total.weight_gradient_s, num_weights, rates),
        **{name: getattr(comm, name) for name in EXPOSED_PART},
        "stream_s": comm.stream_s + rounds_s,
        "forward_total_s": total.forward_s + launch_forward_s + comm.forward_s
        + total.stream_forward_s,
        "per_step_s": comm.per_step_s,
        **{name: sum(getattr(block, name) for block in blocks) for name in _SUMMED},
        "working_bytes": reduce(larger, [block.transient_bytes for block in blocks])
        + sum(block.recomputed_bytes for block in blocks),
        "working_logit_bytes": reduce(larger, [b.transient_logit_bytes for b in blocks]),
        "working_kept_bytes": 0.0,
        "working_first_bytes": blocks[0].recomputed_bytes
        + reduce(larger, [blocks[0].transient_bytes, *(b.norm_bytes for b in blocks[1:])]),
        "working_other_params": sum(b.dense_params + b.expert_params for b in blocks[1:]),
        "other_kept_bytes": sum(b.kept_bytes - b.norm_kept_bytes for b in blocks[1:]),
        "flops": total.forward_flops + total.backward_flops + again.forward_flops,
        "memory_traffic_bytes": total.forward_traffic_bytes + total.backward_traffic_bytes
        + again.forward_traffic_bytes,
        "hidden_s": comm.hidden_s,
        "paired_s": paired_forward_s + paired_backward_s,
        "link_traffic_bytes": comm.link_bytes + total.forward_link_bytes
        + total.backward_link_bytes + again.forward_link_bytes,
    }  # fmt: skip
    return LayerCost(**{name: part + zero for name, part in parts.items()})


def split_backward(costs: Sequence[LayerCost], plan_options: PlanOptions) -> Sequence[LayerCost]:
    """Return prices with a backward pass in two passes where the schedule splits it.

    Each pass waits for its own launches.
    """
    if plan_options.schedule is not ScheduleKind.ZERO_BUBBLE:
        return costs
    return [replace(c, backward_launch_s=c.input_launch_s + c.weight_launch_s) for c in costs]


def weighted_part(costs: Sequence[HeldMemory], counts: Sequence[Num], name: str) -> Num:
    """Return one part of ``counts[k]`` layers of each kind k; of transients the largest."""
    largest = name.startswith("working") or name == "recomputed_bytes"
    weights = [count > 0 for count in counts] if largest else counts
    terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
    result: Num = reduce(larger if largest else add, terms)
    return result


OfLayers = TypeVar("OfLayers", bound=HeldMemory)


def weighted_sum(costs: Sequence[OfLayers], counts: Sequence[Num]) -> OfLayers:
    """Return the price of ``counts[k]`` layers of each kind k; the largest transient is kept."""
    names = [entry.name for entry in fields(costs[0])]
    return type(costs[0])(**{name: weighted_part(costs, counts, name) for name in names})


def residual_blocks(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut after each addition to the residual stream."""
    ends = [number for number, op in enumerate(layer.ops, 1) if op.region == "residual"]
    cuts = sorted({0, *ends, len(layer.ops)})
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(cuts))


Cut = Callable[[LayerGraph], tuple[LayerGraph, ...]]
"""Cuts a layer into parts, in order."""


@dataclass(frozen=True)
class PricedPiece:
    """One kind of layer, or an edge, that streams one tensor over tatp: weights or inputs."""

    problem: Problem
    plan_options: PlanOptions
    """Its streamed tensor is fixed."""
    collectives: Collectives
    """Collectives over the axes of columns of strategies."""
    index: int
    """Place among the pieces of the problem."""
    links: StreamLinks | None
    """Links of streams over tatp; None without it."""
    row_links: StreamLinks | None = None
    """Links of streams over tp, where both tensors stream."""
    cut: Cut = residual_blocks
    """Cuts the operators into the blocks that are priced apart."""
    known: dict[Recompute, list[BlockCost]] = field(default_factory=dict, init=False)
    """Prices of the blocks, computed on first use."""
    _derived: dict[Recompute, DerivedShardings] = field(default_factory=dict, init=False)

    @property
    def network(self) -> AxisNetwork:
        """The groups of the axes."""
        return self.collectives.network

    @property
    def piece(self) -> LayerGraph:
        """The operators."""
        return self.problem.pieces[self.index]

    @cached_property
    def parts(self) -> tuple[LayerGraph, ...]:
        """The operators of each block."""
        return self.cut(self.piece)

    @cached_property
    def sizes(self) -> Mapping[str, Num]:
        """Sizes of all dims, those of tokens for one micro-batch of one data-parallel rank."""
        return self.problem.bound_sizes(self.piece, self.network.strategy.micro_batch_size)

    @cached_property
    def local(self) -> LocalLayer:
        """Sizes of the dims on one device, and the degrees of its axes."""
        work = self.problem.workload
        return LocalLayer(
            sizes=self.piece.sizes,
            axes=self.derived_shardings(Recompute.NONE).axes,
            degrees=self.network.strategy,
            sequence_length=float(work.sequence_length),
            attended_length=float(work.attended_length),
            expert_load_imbalance=work.expert_load_imbalance,
        )

    @cached_property
    def streams(self) -> LayerStreams | None:
        """Tensor streams that run while each operator computes; None without links for them."""
        if self.links is None:
            return None
        alone = replace(self.network, slowdown={})

        def streams(links: StreamLinks, axis: str) -> LayerStreams:
            private = None
            if self.network.slowdown:
                (private,) = stream_links(alone, self.plan_options, axis)
            return LayerStreams(links, self._streamed(axis), private=private)

        rows = None if self.row_links is None else streams(self.row_links, ROWS)
        return replace(streams(self.links, AXIS), rows=rows)

    def _streamed(self, axis: str) -> dict[str, StreamedBytes]:
        calls = self.derived_shardings(Recompute.NONE).calls
        gradient = self.problem.workload.optimizer.reduced_gradient_bytes_per_param
        return streamed_bytes(
            self.piece, calls, self.plan_options, self.sizes, self.network.strategy,
            self.problem.rates, gradient, axis,
        )  # fmt: skip

    def derived_shardings(self, recompute: Recompute) -> DerivedShardings:
        """Return the collectives, the tensors kept for the backward pass, and the local axes."""
        if recompute not in self._derived:
            plan_options = replace(self.plan_options, recompute=recompute)
            self._derived[recompute] = self.problem.derived_shardings(plan_options)[self.index]
        return self._derived[recompute]

    def senders(self, recompute: Recompute) -> list[tuple[CollectiveCall, str, bool]]:
        """Return each call, the operator that needs it, and whether it is sent in its rounds.

        Calls at the end of the backward pass belong to the first operator.
        """
        names = {op.name for op in self.piece.ops}
        calls = self.derived_shardings(recompute).calls
        if self.links is None:  # a group of one over tatp sends nothing
            calls = tuple(call for call in calls if call.axis != AXIS)
            workers: Sequence[Op | None] = [None] * len(calls)
        else:
            workers = overlapped_ops(calls, self.piece, self.plan_options)
        found = []
        for call, worker in zip(calls, workers, strict=True):
            site = call.site.partition(":")[0]
            name = site if site in names else self.piece.ops[0].name
            found.append((call, name if worker is None else worker.name, worker is not None))
        return found

    def _saved_by_block(self, recompute: Recompute) -> list[list[SavedTensor]]:
        """Return the tensors each block keeps; a tensor kept by several belongs to the first."""
        found: list[list[SavedTensor]] = [[] for _ in self.parts]
        block_of: dict[str, int] = {}
        ops = [(number, op) for number, block in enumerate(self.parts) for op in block.ops]
        for number, tensor in (
            *((number, tensor) for number, op in ops for tensor in op.saved),
            *((number, tensor) for number, op in ops for tensor in op.outputs),
        ):
            block_of.setdefault(tensor.name, number)
        for entry in self.derived_shardings(recompute).saved:
            found[block_of.get(entry.tensor.name.removesuffix(CAST), 0)].append(entry)
        return found

    @cached_property
    def may_stream_inputs(self) -> tuple[Mask, ...]:
        """Whether each block can stream its inputs, for each row."""
        heads = [[op.attention for op in b.ops if op.attention is not None] for b in self.parts]
        strategy = self.network.strategy
        return tuple(may_stream_inputs(each, strategy, self.plan_options) for each in heads)

    @property
    def _stored(self) -> tuple[str, ...]:
        """Names of tensors that selective recomputation keeps."""
        return replace(self.plan_options, recompute=Recompute.SELECTIVE).stored_tensors

    def _op_cost(self, op: Op) -> OpCost:
        """Return the price of an operator; the weight gradient of logits in parts is a sum."""
        problem, rates = self.problem, self.problem.rates
        cost = op_cost(op, self.local, rates, self.streams, causal=problem.workload.causal)
        is_head = op.kind is OpKind.MATMUL and op.region == EDGE and "vocab" in op.output.dims
        if not is_head or self._remakes_logits or rates.freezes_weights:
            return cost
        num_params = matmul_shape(op, self.local).num_params
        num_bytes = partial_gradients_bytes(num_params, problem.logit_tiles, rates.activation_bytes)
        added_s = traffic_s(num_bytes, rates)
        return replace(
            cost,
            weight_gradient_s=cost.weight_gradient_s + added_s,
            backward_memory_s=cost.backward_memory_s + added_s,
            backward_traffic_bytes=cost.backward_traffic_bytes + num_bytes,
        )

    @property
    def _remakes_logits(self) -> bool:
        """Whether these are the products of a head that the backward pass computes again."""
        is_head = self.index == len(self.problem.pieces) - 1
        return is_head and self.problem.workload.software.loss == "cut"

    @cached_property
    def _sums(self) -> list[tuple[OpCost, OpCost, Windows]]:
        """Costs of each block: all operators, the part that is recomputed selectively, its windows.

        Selective recomputation repeats the attention core, or the modules that the options name;
        or all but the producers of the tensors that it names; or every second product and all
        elementwise operators; or all but the products.
        """
        modules, stored = self.plan_options.recompute_modules, self._stored
        again = repeated_ops(self.piece, modules, stored) if modules or stored else ()
        work, found = self.problem.workload, []
        made_again = self._made_again
        for block in self.parts:
            costs = [(op, self._op_cost(op)) for op in block.ops]
            matmuls = [cost for op, cost in costs if op.kind is OpKind.MATMUL]
            core = [cost for op, cost in costs if op.is_recomputed_selectively]
            others = [c for op, c in costs if op.kind not in (OpKind.MATMUL, OpKind.ATTENTION)]
            half = [
                by_field(partial(mul, made_again[op.name]), cost)
                for op, cost in costs
                if op.kind is OpKind.MATMUL
            ]
            named = [cost for op, cost in costs if op.name in again]
            selected = (
                matmuls
                if self._remakes_logits
                else named
                if modules or stored
                else {
                    "attention": core,
                    "half_of_products": [*others, *half],
                    "all_but_products": [*others, *core],
                }[work.software.selective_recompute]
            )
            windows = Windows(
                core_forward_s=sum(cost.forward_s for cost in core),
                core_backward_s=sum(cost.input_gradient_s for cost in core),
                matmul_forward_s=sum(cost.forward_s for cost in matmuls),
            )
            everything = sum_of(OpCost(), [cost for _, cost in costs])
            found.append((everything, sum_of(OpCost(), selected), windows))
        return found

    @property
    def _made_again(self) -> dict[str, float]:
        """Share of each product that is made again where every second one is kept [1]."""
        separate = self.problem.workload.software.separate_projections
        kept, sizes = kept_shares(self.piece, separate=separate), self.piece.sizes
        found = {}
        for op in (op for op in self.piece.ops if op.kind is OpKind.MATMUL):
            widths = [(sizes[out.dims[-1]], kept.get(out.name, 0.0)) for out in op.outputs]
            of_all = sum(width for width, _ in widths)
            found[op.name] = 1.0 - sum(width * share for width, share in widths) / of_all
        return found

    @cached_property
    def _held(self) -> list[tuple[Num, Num, Num, Num, Num]]:
        """Largest transient, its logits, and all logits of each block on one device [bytes].

        Then its dense and expert parameters [1].
        """
        rates, tiles = self.problem.rates, self.problem.logit_tiles
        software = self.problem.workload.software
        gathers = not (software.has_head_in_loss or software.keeps_gathered_inputs)
        weighs = software.weighs_rows_in_fp32 and software.eager  # a compiler fuses the products

        def transient(op: Op, *, of_logits: bool) -> Num:
            word = rates.activation_bytes
            own = weighed_rows_bytes(op, self.local) if weighs and not of_logits else 0.0
            moved = largest_transient_bytes(
                op, self.local, word, tiles, gathers=gathers, of_logits=of_logits
            )
            return larger(own, moved)

        return [
            (
                reduce(
                    larger,
                    [
                        transient(op, of_logits=False) + widened_bytes(op, self.local, rates)
                        for op in b.ops
                    ],
                ),
                reduce(larger, [transient(op, of_logits=True) for op in b.ops]),
                logit_bytes(b, self.local, rates.activation_bytes, tiles),
                *parameters_on_device(b, self.plan_options, self.network.strategy),
            )
            for b in self.parts
        ]

    def _num_trained(self, part: LayerGraph) -> float:
        """Return the products of a block with a gradient of their weights [1]."""
        if self.problem.workload.optimizer.freezes_weights:
            return 0.0
        return float(sum(op.kind is OpKind.MATMUL and bool(op.weights) for op in part.ops))

    def blocks(self, recompute: Recompute) -> list[BlockCost]:
        """Return the price of each block."""
        if recompute in self.known:
            return self.known[recompute]
        strategy, word = self.network.strategy, self.problem.rates.activation_bytes
        tiles = self.problem.logit_tiles
        # Collectives that are not sent in the rounds of an operator share the windows of the layer.
        calls: list[list[CollectiveCall]] = [[] for _ in self.parts]
        block_of = {op.name: n for n, block in enumerate(self.parts) for op in block.ops}
        for call, sender, in_rounds in self.senders(recompute):
            if not in_rounds:
                calls[block_of[sender]].append(call)
        together = [call for of_block in calls for call in of_block]
        again = [
            {
                Recompute.NONE: selected if self._remakes_logits else OpCost(),
                Recompute.SELECTIVE: selected,
                Recompute.FULL: everything,
            }[recompute]
            for everything, selected, _ in self._sums
        ]
        total = sum_of(OpCost(), [everything for everything, _, _ in self._sums])
        launches_s = exposed_launches_s(total, sum_of(OpCost(), again), self.problem.rates)
        # Computation of each block; the whole layer waits for launches.
        computed = zip(*(window[:3] for _, _, window in self._sums), strict=True)
        windows = Windows(*map(sum, computed))._replace(
            launch_forward_s=launches_s[0], launch_backward_s=launches_s[1]
        )
        # Tensors that a replay of the forward pass restores before the backward pass uses them.
        kept = self._saved_by_block(recompute)
        modules = self.plan_options.recompute_modules
        names_some = bool(modules or self._stored)
        core_alone = not names_some and self.problem.keeping.selective == "attention"
        replays = recompute is Recompute.FULL or (
            recompute is Recompute.SELECTIVE and not core_alone
        )
        back = self._saved_by_block(Recompute.NONE) if replays else [[] for _ in kept]
        if recompute is Recompute.SELECTIVE and replays:
            shares = {entry.tensor.name: entry.share for of_block in kept for entry in of_block}
            back = [[_without(e, shares.get(e.tensor.name, 0.0)) for e in of] for of in back]
        found = []
        for number, (everything, _, _) in enumerate(self._sums):
            transient, of_logits, logits, dense_params, expert_params = self._held[number]
            norm = self.parts[number].ops[0]
            own = {t.name for t in norm.saved} if norm.kind is OpKind.NORM else set()

            def of_norm(saved: Sequence[SavedTensor], own: set[str] = own) -> Num:
                chosen = [entry for entry in saved if entry.tensor.name in own]
                return kept_bytes(chosen, self.sizes, strategy, word)

            block = BlockCost(
                everything=everything,
                recomputed=again[number],
                comm=comm_cost(
                    calls[number], windows, self.sizes, strategy, self.plan_options,
                    self.collectives.time_s, word, together,
                ),
                kept_bytes=kept_bytes(
                    kept[number], self.sizes, strategy, word, logit_tiles=tiles
                ),
                kept_logit_bytes=kept_bytes(
                    [entry for entry in kept[number] if "vocab" in entry.dims],
                    self.sizes, strategy, word, logit_tiles=tiles,
                ),
                hosted_bytes=kept_bytes(kept[number], self.sizes, strategy, word, on_host=True),
                recomputed_bytes=kept_bytes(back[number], self.sizes, strategy, word),
                transient_bytes=transient,
                transient_logit_bytes=of_logits,
                logit_bytes=logits,
                dense_params=dense_params,
                expert_params=expert_params,
                num_weights=self._num_trained(self.parts[number]),
                norm_bytes=norm_bytes(norm, self.local, word) + of_norm(back[number]) if own else 0,
                norm_kept_bytes=of_norm(kept[number]),
            )  # fmt: skip
            found.append(block)
        self.known[recompute] = found
        return found


def _without(entry: SavedTensor, share: float) -> SavedTensor:
    """Return a tensor without the share of it that was kept."""
    return replace(entry, share=entry.share - share)


def priced_pieces(
    problem: Problem, plan_options: PlanOptions, collectives: Collectives, index: int, *,
    uses_tatp: bool, cut: Cut = residual_blocks,
) -> tuple[PricedPiece, ...]:  # fmt: skip
    """Return a piece of the model for each tensor that it may stream; weights first.

    Edges split the vocabulary for any streamed tensor. Where axes are still to be placed, the rows
    of a piece come again for each way to place them.

    Parameters
    ----------
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    cut
        Blocks that are priced apart: by default each ends at an addition to the residual stream.
    """
    network, streamed = collectives.network, [plan_options.streamed]
    columns: Sequence[StreamLinks | None] = [None]
    rows: Sequence[StreamLinks | None] = [None]
    if uses_tatp:
        columns = stream_links(network, plan_options)
    if plan_options.streamed is Streamed.BOTH:
        rows = stream_links(network, plan_options, ROWS)
    if plan_options.streamed is Streamed.AUTO:
        streamed = [Streamed.WEIGHTS, Streamed.INPUTS]
    if index >= len(problem.graph.layers) or not uses_tatp:
        streamed, columns, rows = [Streamed.WEIGHTS], columns[:1], [None]
    ways = list(product(columns, rows))
    if len(ways) > 1:
        each = np.tile(np.arange(len(network.strategy.tp)), len(ways))
        collectives = Collectives(take_rows(network, each), collectives.launch_s)
        problem = problem.of_rows(each)
    links, row_links = (_below(of_ways) for of_ways in zip(*ways, strict=True))
    return tuple(
        PricedPiece(
            problem, replace(plan_options, streamed=tensor), collectives, index, links, row_links,
            cut,
        )
        for tensor in streamed
    )  # fmt: skip


def _below(ways: Sequence[StreamLinks | None]) -> StreamLinks | None:
    """Return the rows of all links, one table after the other; None without links."""
    known = [links for links in ways if links is not None]
    if len(known) < 2:
        return ways[0]
    shape = np.shape(known[0].num_members)
    return StreamLinks(**{
        name: np.concatenate([np.broadcast_to(getattr(links, name), shape) for links in known])
        for name in names_of(StreamLinks)
    })  # fmt: skip


def takes_inputs(pieces: Sequence[PricedPiece], recompute: Recompute) -> list[Mask]:
    """Return for each block whether its inputs stream, for each row.

    They do where that is legal and takes less time in a micro-batch; sums once a step and memory
    do not decide. Times are those on links without contention, so that a plan is equal at
    every fidelity.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return [False] * len(first.parts)
    problem, layout = first.problem, layout_of(first.plan_options)
    if problem.stream_choices is None:
        return _takes_inputs(pieces, recompute)
    columns = [
        *layer_columns(first.network, layout),
        np.asarray(np.nan if problem.pace is None else problem.pace, dtype=np.float64),
        np.asarray(problem.most_work, dtype=np.float64),
    ]
    layer = layout, recompute, first.index
    return [*problem.stream_choices.of(layer, columns, lambda: _takes_inputs(pieces, recompute))]


def _takes_inputs(pieces: Sequence[PricedPiece], recompute: Recompute) -> list[Mask]:
    """Return the same from the times of both pieces on private links."""
    first = pieces[0]
    if first.network.slowdown:
        private = Collectives(replace(first.network, slowdown={}), first.collectives.launch_s)
        plan_options = replace(first.plan_options, streamed=Streamed.AUTO)
        pieces = priced_pieces(first.problem, plan_options, private, first.index, uses_tatp=True)
    weights_s, inputs_s = (
        [layer_cost([b], first.problem.rates, 0.0).total_s for b in piece.blocks(recompute)]
        for piece in pieces
    )
    legal = pieces[1].may_stream_inputs
    return [(b < a) & is_legal for a, b, is_legal in zip(weights_s, inputs_s, legal, strict=True)]


def price_layers(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork,
    recomputes: Sequence[Recompute], *, uses_tatp: bool,
) -> dict[Recompute, tuple[LayerCost, ...]]:  # fmt: skip
    """Return the price of each piece of the model, as :func:`each_piece` does."""

    def price(pieces: Sequence[PricedPiece], recompute: Recompute) -> LayerCost:
        part = ("layer", plan_options, recompute, pieces[0].index)
        streamed_bytes = problem.workload.optimizer.reduced_gradient_bytes_per_param
        inputs = (pieces[0].piece, uses_tatp and streamed_bytes, problem.inputs_of_layers)
        return problem.once(part, inputs, lambda: priced(pieces, recompute), network)

    def priced(pieces: Sequence[PricedPiece], recompute: Recompute) -> LayerCost:
        takes = takes_inputs(pieces, recompute)
        if not any(np.any(taken) for taken in takes):
            blocks = pieces[0].blocks(recompute)
        elif all(np.all(taken) for taken in takes):
            blocks = pieces[1].blocks(recompute)
        else:
            one, other = (piece.blocks(recompute) for piece in pieces)
            blocks = [_either(*each) for each in zip(takes, one, other, strict=True)]
        return layer_cost(blocks, problem.rates, 0.0 * network.strategy.tp)

    return each_piece(problem, plan_options, network, recomputes, price, uses_tatp=uses_tatp)


def _either(takes: Mask, one: BlockCost, other: BlockCost) -> BlockCost:
    """Return the price of a block: in each row that of the other where that is taken."""
    if not np.any(takes):
        return one
    if np.all(takes):
        return other
    return by_field(lambda first, second: where(takes, second, first), one, other)


def each_piece(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork,
    recomputes: Sequence[Recompute], price: Callable[[Sequence[PricedPiece], Recompute], OfLayers],
    *, uses_tatp: bool,
) -> dict[Recompute, tuple[OfLayers, ...]]:  # fmt: skip
    """Return the price, or a bound, of each piece of the model, for each kind of recomputation.

    The head goes backward at once.

    Parameters
    ----------
    network
        Columns of degrees with the groups of their axes; only those of a layer matter.
    price
        Price of a piece that streams one or another tensor.
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    """
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    found: dict[Recompute, tuple[OfLayers, ...]] = dict.fromkeys(recomputes, ())
    for index in range(len(problem.pieces)):
        pieces = priced_pieces(problem, plan_options, collectives, index, uses_tatp=uses_tatp)
        for recompute in recomputes:
            is_edge = index >= len(problem.graph.layers)
            cost = price(pieces, Recompute.NONE if is_edge else recompute)
            if index == len(problem.pieces) - 1:
                cost = cost.at_once()
            found[recompute] = (*found[recompute], cost)
    return found


def recomputes_of(plan_options: PlanOptions) -> tuple[Recompute, ...]:
    """Return the kinds of recomputation of the layers of a set of plan options."""
    return (
        (Recompute.FULL, Recompute.NONE)
        if plan_options.recomputes_some
        else (plan_options.recompute,)
    )


Pieces = TypeVar("Pieces", bound=tuple[Any, ...])


def prices_of(plan_options: PlanOptions, tables: Mapping[Recompute, Pieces]) -> Pieces:
    """Return the price of each piece under plan options: recomputed layers, then others.

    Others are those that are not, or those of a run behind its first, which keep no input.
    """
    if plan_options.recomputes_some:
        return cast(Pieces, (*tables[Recompute.FULL][:-2], *tables[Recompute.NONE]))
    if plan_options.recomputes_runs:
        pieces = tables[Recompute.FULL]
        behind = [replace(piece, kept_bytes=0.0 * piece.kept_bytes) for piece in pieces[:-2]]
        return cast(Pieces, (*pieces[:-2], *behind, *pieces[-2:]))
    return tables[plan_options.recompute]


def layer_keys(
    network: AxisNetwork, layout: PlanOptions, pace_keys: Sequence[NDArray[Any]] = ()
) -> tuple[IntArray, IntArray]:
    """Return the first row of each group with equal layer prices, and the group of each row."""
    of_layer = {*placed_axes(network, layout), "ep", "etp"}
    slowed = [
        times
        for axis, times in network.slowdown.items()
        if of_layer & set(axis.partition("/")[0].split("*"))
    ]
    return groups_of([*layer_columns(network, layout), *map(numbered, slowed), *pace_keys])


def layer_columns(network: AxisNetwork, layout: PlanOptions) -> list[FloatArray]:
    """Return the columns that the price of a layer on private links depends on."""
    placed = placed_axes(network, layout)
    names = (*placed, "ep", "etp", "micro_batch_size")
    columns = [getattr(network.strategy, name) for name in names]
    return [*columns, *network.placement.keys(placed)]


def placed_axes(network: AxisNetwork, layout: PlanOptions) -> tuple[str, ...]:
    """Return the axes whose place the price of a layer depends on."""
    columns = network.strategy
    has_experts = bool((columns.ep * columns.etp > 1).any())
    placed = ("tp", "tatp", "cp", *(("pp",) if layout.vocabulary_parallel else ()))
    if has_experts:
        placed = tuple(dict.fromkeys((*placed, *REUSED_AXES)))
    return placed


def numbered(column: Num) -> FloatArray:
    """Return whole numbers that are equal where the entries of a column are."""
    return np.unique(column, return_inverse=True)[1].reshape(-1).astype(np.float64)


def layout_of(plan_options: PlanOptions) -> PlanOptions:
    """Return the choices that the price of a layer depends on, recomputation apart."""
    plain = plan_options.of("layer")
    return replace(
        plain, recompute=Recompute.NONE, recompute_layers=0, recompute_run=1, axis_order=AXES
    )


def streamed_blocks(
    problem: Problem, plan_options: PlanOptions, network: AxisNetwork
) -> list[list[tuple[PricedPiece, LayerGraph, Mask]]]:
    """Return the pieces, blocks and rows of each tensor that streams, for each piece of the model.

    A block that no row streams with a tensor is left out for it.
    """
    uses_tatp = bool((network.strategy.tatp > 1).any())
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    found = []
    for index in range(len(problem.pieces)):
        pieces = priced_pieces(problem, plan_options, collectives, index, uses_tatp=uses_tatp)
        is_edge = index >= len(problem.graph.layers)
        takes = takes_inputs(pieces, Recompute.NONE if is_edge else plan_options.recompute)
        found.append([
            (piece, block, rows)
            for taken, block in zip(takes, pieces[0].parts, strict=True)
            for piece, rows in zip(pieces, (np.logical_not(taken), taken), strict=False)
            if np.any(rows)
        ])  # fmt: skip
    return found
