"""How the layers of a model stream over tatp: links, what travels, and the choice block by block.

A block ends where its result is added to the residual stream; there tokens are split whatever
streams, so each block of a layer streams its weights or its inputs, whichever is cheaper. Which
tensor travels beside which operator follows from the derived calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, Mask, Num, larger, smaller, where
from meshwright.collectives.group import Group
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.device import DeviceRates
from meshwright.cost.problem import DerivedShardings, Problem
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase
from meshwright.sharding.algebra import FLAT, CollectiveCall
from meshwright.sharding.axes import may_stream_inputs, weight_sharding
from meshwright.sharding.local_sizes import LocalLayer, degree_of, local_elements
from meshwright.sharding.saved_activations import CAST, SavedTensor
from meshwright.sharding.strategy import PlanOptions, Recompute, StrategyOf, Streamed, StreamForm
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import TensorStream, streams
from meshwright.streams.round_model import (
    StreamedTensor,
    num_chunks_to_fit,
    relay_bytes,
    round_link_s,
    stream_buffer_bytes,
)

MOST_CHUNKS = 64.0
"""Chunks of a sub-tensor beyond which it is relayed through the main memory instead."""


@dataclass(frozen=True)
class StreamLinks:
    """The links between neighbours of a tensor stream, and the form of it; columns."""

    num_members: Num
    bandwidth_bytes_per_s: Num
    latency_s: Num
    message_half_bytes: Num
    num_parts: Num
    """Directions in which pieces of a sub-tensor travel at once: 2 on a cycle."""
    num_hops: Num
    """Links between members that are neighbours in the stream."""
    num_buffers: Num
    """Sub-tensors of others that a member holds and receives."""
    num_sends: Num
    """Sub-tensors that each member sends in a pass, whatever the links that a send crosses."""
    num_shared_rounds: Num
    """Backward rounds in which a link carries a sub-tensor and an accumulator."""
    num_exchange_rounds: Num
    """Rounds of backward attention."""


@dataclass(frozen=True)
class LayerStreams:
    """All that streams in one layer."""

    links: StreamLinks
    travels: Mapping[str, StreamedBytes]
    """By the name of the operator."""
    rows: LayerStreams | None = None
    """What travels over tp in the same rounds, where both tensors stream."""


@dataclass(frozen=True)
class LinkTimes:
    """What the sub-tensors of a round take, on their link and in the main memory [s]."""

    forward_s: Num
    backward_item_s: Num
    backward_sum_s: Num
    forward_relay_s: Num
    """In the main memory, where sub-tensors are relayed through it; else 0."""
    backward_relay_s: Num


def link_times(travel: StreamedBytes, links: StreamLinks, rates: DeviceRates) -> LinkTimes:
    """Return the times of one operator.

    Sub-tensors that do not fit on chip are relayed in chunks; without on-chip memory for even
    that, through the main memory.
    """
    members = links.num_members
    most = larger(travel.forward_bytes, travel.backward_bytes)
    buffers = stream_buffer_bytes(most, links.num_buffers)
    chunks = num_chunks_to_fit(buffers, rates.stream_sram_bytes, 0.0 * buffers)
    relays = (chunks > MOST_CHUNKS) & (members > 1)
    chunks = where(chunks > MOST_CHUNKS, 1.0, chunks)

    def link_s(num_bytes: Num) -> Num:
        passed_s = round_link_s(
            num_bytes, links.bandwidth_bytes_per_s, links.latency_s, links.message_half_bytes,
            num_hops=links.num_hops, num_parts=links.num_parts, num_chunks=chunks,
        )  # fmt: skip
        return where(num_bytes > 0, passed_s, 0.0)

    def relay_s(num_bytes: Num) -> Num:
        moved = relay_bytes(num_bytes, members, links.num_parts)
        return where(relays, moved / rates.memory_bytes_per_s, 0.0)

    return LinkTimes(
        forward_s=link_s(travel.forward_bytes),
        backward_item_s=link_s(travel.backward_item_bytes),
        backward_sum_s=link_s(travel.backward_sum_bytes),
        forward_relay_s=relay_s(travel.forward_bytes),
        backward_relay_s=relay_s(travel.backward_bytes),
    )


AXIS = "tatp"
ROWS = "tp"
"""Axis of the rows of a block whose columns stream weights: inputs and sums travel along them."""


@dataclass(frozen=True)
class StreamedBytes:
    """Sub-tensors that travel beside one operator: what one member owns of each [bytes]."""

    transfer: StreamedTensor
    forward_item_bytes: Num = 0.0
    """Copies that go round: weights, inputs, or keys and values."""
    forward_sum_bytes: Num = 0.0
    """Accumulators that come home: sums of outputs."""
    backward_item_bytes: Num = 0.0
    backward_sum_bytes: Num = 0.0
    """Gradients of what went round."""

    @property
    def forward_bytes(self) -> Num:
        """All that one member owns of the forward pass [bytes]."""
        return self.forward_item_bytes + self.forward_sum_bytes

    @property
    def backward_bytes(self) -> Num:
        """All that one member owns of the backward pass [bytes]."""
        return self.backward_item_bytes + self.backward_sum_bytes


def transfer_of(op: Op, structure: PlanOptions, axis: str = AXIS) -> StreamedTensor:
    """Return what travels for an operator, from the dim of its weight that an axis splits.

    Logits gather their tokens whole: their part of the table is too large to be read in each
    round.
    """
    if op.kind is OpKind.ATTENTION:
        return StreamedTensor.WEIGHTS
    if op.kind is not OpKind.MATMUL:
        return StreamedTensor.NOTHING
    dim = weight_sharding(op.weights[0], structure).dim_of(axis)
    if dim in (None, "vocab"):
        return StreamedTensor.NOTHING
    if dim == FLAT:
        return StreamedTensor.WEIGHTS
    return StreamedTensor.SUMS if dim in op.contracted else StreamedTensor.INPUTS


def overlapped_ops(
    calls: Sequence[CollectiveCall], layer: LayerGraph, structure: PlanOptions
) -> list[Op | None]:
    """Return for each call the product or attention core in whose rounds it travels; else None.

    Sums of outputs belong to their maker, those of input gradients to whoever gathered the input:
    of several readers that is the first one, which is the last one in the backward pass. Along the
    rows of a block something travels only where a weight streams along the columns.
    """
    works = [op for op in layer.ops if _computes(op)]
    named = {op.name: op for op in works}
    makers = {tensor.name: op for op in works for tensor in op.outputs}
    takers: dict[tuple[str, str], Op | None] = {}
    found: list[Op | None] = []
    for call in calls:
        worker = None
        if _is_cut(call, structure):
            if call.kind is CollectiveKind.ALL_GATHER or call.of_weight:
                worker = named.get(call.site.partition(":")[0])
                takers.setdefault((call.axis, f"{call.tensor.name}.gradient"), worker)
            elif call.phase is Phase.FORWARD or call.replayed:
                worker = makers.get(call.tensor.name)
            else:
                worker = takers.get((call.axis, call.tensor.name))
        if call.axis == ROWS and worker is not None and not _streams_weight(worker, structure):
            worker = None
        found.append(worker)
    return found


def _is_cut(call: CollectiveCall, structure: PlanOptions) -> bool:
    """Return whether a call is cut into pieces, one of which passes in each round."""
    if call.axis == AXIS:
        return call.streamed
    is_gather_or_scatter = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    along_rows = structure.streamed is Streamed.BOTH and call.axis == ROWS
    return along_rows and is_gather_or_scatter and not (call.of_weight or call.per_step)


def _streams_weight(op: Op, structure: PlanOptions) -> bool:
    return op.kind is OpKind.MATMUL and transfer_of(op, structure) is StreamedTensor.WEIGHTS


def _computes(op: Op) -> bool:
    """Return whether an operator works round by round."""
    is_product = op.kind is OpKind.MATMUL and "vocab" not in op.output.dims
    return is_product or op.kind is OpKind.ATTENTION


def call_word_bytes(call: CollectiveCall, rates: DeviceRates, gradient_bytes: float) -> float:
    """Return the bytes of one element of a call: of a weight, of its gradient, or an activation.

    Sums of activations travel in the type of the activations.
    """
    if call.of_weight and call.streamed:
        is_gradient = call.phase is Phase.WEIGHT_GRADIENT
        return gradient_bytes if is_gradient else rates.matmul_word_bytes
    word = call.tensor.word_bytes
    return rates.activation_bytes if word is None else word


def streamed_bytes(
    layer: LayerGraph, calls: Sequence[CollectiveCall], structure: PlanOptions,
    sizes: Mapping[str, Num], strategy: StrategyOf[Num], rates: DeviceRates, gradient_bytes: float,
    axis: str = AXIS,
) -> dict[str, StreamedBytes]:  # fmt: skip
    """Return what travels beside each operator of a layer that works round by round, by name.

    Parameters
    ----------
    sizes
        Sizes of all dims, with the token dims bound (``LayerGraph.bind``).
    gradient_bytes
        Of a travelling gradient of a weight [bytes].
    axis
        Along which it travels.
    """
    transfers: dict[str, StreamedTensor] = {}
    owned_bytes: dict[str, dict[str, Num]] = {}
    for op in layer.ops:
        transfer = transfer_of(op, structure, axis)
        if op.kind is OpKind.MATMUL and transfer is not StreamedTensor.NOTHING:
            transfers[op.name] = transfer
    for call, worker in zip(calls, overlapped_ops(calls, layer, structure), strict=True):
        if worker is None or call.replayed or call.axis != axis:
            continue
        transfers.setdefault(worker.name, transfer_of(worker, structure, axis))
        parts = owned_bytes.setdefault(worker.name, {})
        direction = "forward" if call.phase is Phase.FORWARD else "backward"
        what = "item" if call.kind is CollectiveKind.ALL_GATHER else "sum"
        name = f"{direction}_{what}_bytes"
        word = call_word_bytes(call, rates, gradient_bytes)
        owned = (
            word
            * local_elements(call.tensor, call.split, sizes, strategy)
            / degree_of(axis, strategy)
        )
        parts[name] = parts.get(name, 0.0) + owned
    return {name: StreamedBytes(of, **owned_bytes.get(name, {})) for name, of in transfers.items()}


def stream_links(network: AxisNetwork, structure: PlanOptions) -> StreamLinks:
    """Return the links between neighbours of the tensor streams: the slowest that they cross."""
    is_open = structure.stream_form in (StreamForm.AUTO, StreamForm.CYCLE)
    return _links(network, AXIS, _forms(structure), may_cycle=is_open)


def row_links(network: AxisNetwork) -> StreamLinks:
    """Return the links along the rows of blocks, over tp.

    What has arrived there stays, so a form that sends nothing twice is right.
    """
    return _links(network, ROWS, (streams["cycle"], streams["hold"]), may_cycle=True)


def _links(
    network: AxisNetwork, axis: str, forms: tuple[TensorStream, TensorStream], *, may_cycle: bool
) -> StreamLinks:
    """Return the links of the streams over an axis; the first form is taken where it may cycle."""
    group = network.group(axis)
    bandwidths = [np.where(s.size > 1, s.bandwidth_bytes_per_s, np.inf) for s in group.spans]
    crossed = [s.size > 1 for s in group.spans]
    bandwidth = reduce(smaller, bandwidths)
    members = degree_of(axis, network.strategy)
    has_cycle = _has_cycle(group) & may_cycle

    def of_form(quantity: Callable[[TensorStream], Num]) -> Num:
        cycle, other = (quantity(form) for form in forms)
        return where(has_cycle, cycle, other)

    return StreamLinks(
        num_members=members,
        bandwidth_bytes_per_s=np.where(np.isinf(bandwidth), 1.0e30, bandwidth),
        latency_s=reduce(
            larger, [s.latency_s * c for s, c in zip(group.spans, crossed, strict=True)]
        ),
        message_half_bytes=reduce(
            larger, [s.message_half_bytes * c for s, c in zip(group.spans, crossed, strict=True)]
        ),
        num_parts=of_form(lambda form: form.num_parts(members)),
        num_hops=of_form(lambda form: form.num_hops(members)),
        num_buffers=of_form(lambda form: form.buffers(members).with_incoming),
        num_sends=of_form(lambda form: _num_sends(form, members)) / members,
        num_shared_rounds=of_form(lambda form: form.num_shared_rounds(members)),
        num_exchange_rounds=of_form(lambda form: form.num_exchange_rounds(members)),
    )


def _num_sends(form: TensorStream, members: Num) -> Num:
    """Return the sub-tensors that are sent in a pass, whatever the links that they cross.

    Where sends cross several links, none is repeated: each goes once to all other members.
    """
    return where(form.num_hops(members) > 1, members * (members - 1.0), form.transfers(members))


def _has_cycle(group: Group[FloatArray]) -> BoolArray:
    """Return where the members of a group lie on a cycle of neighbours.

    A switch or a closed side is one; so is a block of two sides or more, one of them even.
    """
    shape = np.shape(group.spans[0].size)
    num_long = np.zeros(shape, dtype=np.int64)
    any_even, closes = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
    for span in group.spans:
        is_long = span.size > 1
        num_long = num_long + is_long
        any_even = any_even | (is_long & (np.mod(span.size, 2) == 0))
        closes = closes & (~is_long | (span.closes == 1.0))
    return ((num_long > 1) & any_even) | closes


def _forms(structure: PlanOptions) -> tuple[TensorStream, TensorStream]:
    """Return the stream on a cycle, and the one where there is none."""
    form = structure.stream_form
    is_open = form in (StreamForm.AUTO, StreamForm.CYCLE)
    return streams["cycle"], streams["stream" if is_open else str(form)]


def residual_blocks(layer: LayerGraph) -> tuple[LayerGraph, ...]:
    """Return a layer cut after each addition to the residual stream."""
    ends = [number for number, op in enumerate(layer.ops, 1) if op.region == "residual"]
    cuts = sorted({0, *ends, len(layer.ops)})
    return tuple(replace(layer, ops=layer.ops[first:last]) for first, last in pairwise(cuts))


Cut = Callable[[LayerGraph], tuple[LayerGraph, ...]]
"""Cuts a layer into parts, in order."""


@dataclass(frozen=True)
class StreamedPiece:
    """One kind of layer, or an edge, that streams one tensor: weights or inputs."""

    problem: Problem
    structure: PlanOptions
    """Its streamed tensor is fixed."""
    network: AxisNetwork
    index: int
    links: StreamLinks | None
    """None without tatp."""
    cut: Cut = residual_blocks
    """Cuts the operators into the blocks that are priced apart."""

    @property
    def piece(self) -> LayerGraph:
        """The operators."""
        return self.problem.pieces[self.index]

    @cached_property
    def blocks(self) -> tuple[LayerGraph, ...]:
        """The operators of each block."""
        return self.cut(self.piece)

    @cached_property
    def sizes(self) -> Mapping[str, Num]:
        """Sizes of all dims, those of tokens for one micro-batch of one data-parallel rank."""
        strategy = self.network.strategy
        return self.problem.bound_sizes(self.piece, strategy.micro_batch_size)

    @cached_property
    def local(self) -> LocalLayer:
        """What one device holds of each dim."""
        work = self.problem.workload
        return LocalLayer(
            sizes=self.piece.sizes,
            axes=self.derived_shardings(Recompute.NONE).axes,
            degrees=self.network.strategy,
            sequence_length=float(work.sequence_length),
            expert_load_imbalance=work.expert_load_imbalance,
        )

    @cached_property
    def streams(self) -> LayerStreams | None:
        """What travels beside each operator."""
        if self.links is None:
            return None
        rows = None
        if self.structure.streamed is Streamed.BOTH:
            rows = LayerStreams(row_links(self.network), self._travels(ROWS))
        return LayerStreams(self.links, self._travels(AXIS), rows)

    def _travels(self, axis: str) -> dict[str, StreamedBytes]:
        """Return what travels along an axis beside each operator."""
        calls = self.derived_shardings(Recompute.NONE).calls
        gradient = self.problem.workload.optimizer.reduced_gradient_bytes_per_param
        return streamed_bytes(
            self.piece, calls, self.structure, self.sizes, self.network.strategy,
            self.problem.rates, gradient, axis,
        )  # fmt: skip

    def derived_shardings(self, recompute: Recompute) -> DerivedShardings:
        """Return the collectives, what is kept for the backward pass, and the local axes."""
        return self.problem.derived_shardings(replace(self.structure, recompute=recompute))[
            self.index
        ]

    def senders(self, recompute: Recompute) -> list[tuple[CollectiveCall, str, bool]]:
        """Return each call, the operator that needs it, and whether it travels in its rounds.

        What closes the backward pass belongs to the first operator.
        """
        names = {op.name for op in self.piece.ops}
        calls = self.derived_shardings(recompute).calls
        found = []
        workers = overlapped_ops(calls, self.piece, self.structure)
        for call, worker in zip(calls, workers, strict=True):
            site = call.site.partition(":")[0]
            name = site if site in names else self.piece.ops[0].name
            found.append((call, name if worker is None else worker.name, worker is not None))
        return found

    def calls_of_blocks(self, recompute: Recompute) -> list[list[CollectiveCall]]:
        """Return the collectives of each block that travel in no rounds of an operator."""
        found: list[list[CollectiveCall]] = [[] for _ in self.blocks]
        block_of = {op.name: n for n, block in enumerate(self.blocks) for op in block.ops}
        for call, sender, in_rounds in self.senders(recompute):
            if not in_rounds:
                found[block_of[sender]].append(call)
        return found

    def saved_of_blocks(self, recompute: Recompute) -> list[list[SavedTensor]]:
        """Return what each block keeps; what several keep belongs to the first of them."""
        found: list[list[SavedTensor]] = [[] for _ in self.blocks]
        block_of: dict[str, int] = {}
        ops = [(number, op) for number, block in enumerate(self.blocks) for op in block.ops]
        for number, tensor in (
            *((number, tensor) for number, op in ops for tensor in op.saved),
            *((number, tensor) for number, op in ops for tensor in op.outputs),
        ):
            block_of.setdefault(tensor.name, number)
        for entry in self.derived_shardings(recompute).saved:
            found[block_of.get(entry.tensor.name.removesuffix(CAST), 0)].append(entry)
        return found

    @cached_property
    def is_legal(self) -> tuple[Mask, ...]:
        """Whether each block can stream its inputs, for each row."""
        heads = [[op.attention for op in b.ops if op.attention is not None] for b in self.blocks]
        return tuple(
            may_stream_inputs(attentions, self.network.strategy, self.structure)
            for attentions in heads
        )


def streamed_pieces(
    problem: Problem, structure: PlanOptions, network: AxisNetwork, index: int, *, uses_tatp: bool,
    cut: Cut = residual_blocks,
) -> tuple[StreamedPiece, ...]:  # fmt: skip
    """Return the ways for one piece of the model; weights first, where the choice is left open.

    Edges split the vocabulary whatever streams.

    Parameters
    ----------
    uses_tatp
        Whether any row streams tensors; otherwise the round model is left out.
    cut
        What is priced apart: by default what ends at each addition to the residual stream.
    """
    links = stream_links(network, structure) if uses_tatp else None
    is_edge = index >= len(problem.graph.layers)
    streamed = [structure.streamed]
    if structure.streamed is Streamed.AUTO:
        streamed = [Streamed.WEIGHTS, Streamed.INPUTS]
    if is_edge or not uses_tatp:
        streamed = [Streamed.WEIGHTS]
    return tuple(
        StreamedPiece(problem, replace(structure, streamed=tensor), network, index, links, cut)
        for tensor in streamed
    )
