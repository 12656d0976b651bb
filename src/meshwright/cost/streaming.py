"""Tensor streams of a layer over tatp: messages during computation, links and rounds.

Which tensor streams for which operator follows from the derived calls. A linear layer or the
attention core then works in rounds: with one sub-tensor while the next one arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from meshwright.base.arrays import (
    BoolArray,
    FloatArray,
    Mask,
    Num,
    ceil_div,
    larger,
    names_of,
    positive_part,
    smaller,
    where,
)
from meshwright.collectives.group import Group
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.operator import (
    ACCUMULATOR_BYTES,
    GRADIENT_ACCUMULATION_BYTES,
    DeviceRates,
    MatmulShape,
    OpCost,
    Products,
    cast_s,
    matmul_cost,
    matmul_shape,
    products,
    products_cost,
    whole_traffic_bytes,
    word_of,
)
from meshwright.cost.parts import by_field
from meshwright.graph.op import LayerGraph, Op, OpKind, Phase
from meshwright.sharding.algebra import FLAT, CollectiveCall
from meshwright.sharding.axes import weight_sharding
from meshwright.sharding.local_sizes import LocalLayer, degree_of, local_elements
from meshwright.sharding.strategy import PlanOptions, StrategyOf, Streamed, StreamForm
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import LineStream, TensorStream, streams
from meshwright.streams.round_model import (
    StreamedTensor,
    backward_s,
    exchange_s,
    forward_s,
    num_chunks_to_fit,
    product_backward_s,
    product_forward_s,
    relay_bytes,
    round_link_s,
    round_traffic_bytes,
    stream_buffer_bytes,
)

AXIS = "tatp"
SPLITS = (0.0, 0.25, 0.5, 0.75)
"""Shares of the room on chip that may be set apart for what stays [1]; streams have the rest."""
ROWS = "tp"
"""Axis of the rows of a block with columns that stream weights: inputs and sums go along it."""
MOST_CHUNKS = 64.0
"""Chunks of a sub-tensor beyond which it is relayed through the main memory instead."""


@dataclass(frozen=True)
class StreamLinks:
    """The links between neighbours of a tensor stream, and the form of it; columns, (rows,)."""

    num_members: Num
    bandwidth_bytes_per_s: Num
    latency_s: Num
    message_half_bytes: Num
    num_parts: Num
    """Directions in which pieces of a sub-tensor are sent at once: 2 on a cycle."""
    num_hops: Num
    """Links between members that are neighbours in the stream."""
    num_buffers: Num
    """Sub-tensors of others that a member holds and receives."""
    num_sends: Num
    """Sub-tensors that each member sends in a pass, over any number of links."""
    num_shared_rounds: Num
    """Backward rounds in which a link carries a sub-tensor and an accumulator."""
    num_exchange_rounds: Num
    """Rounds of backward attention."""
    may_hold: Mask
    """Whether a member may hold all passing copies that fit: a line without a stated form."""


@dataclass(frozen=True)
class StreamedBytes:
    """Sub-tensors that stream while one operator computes: bytes of each that one member owns."""

    tensor: StreamedTensor
    forward_item_bytes: Num = 0.0
    """Copies that go round: weights, inputs, or keys and values."""
    forward_sum_bytes: Num = 0.0
    """Accumulators that return to their owner: sums of outputs."""
    backward_item_bytes: Num = 0.0
    backward_sum_bytes: Num = 0.0
    """Gradients of the tensor that went round."""

    @property
    def forward_bytes(self) -> Num:
        """All that one member owns of the forward pass [bytes]."""
        return self.forward_item_bytes + self.forward_sum_bytes

    @property
    def backward_bytes(self) -> Num:
        """All that one member owns of the backward pass [bytes]."""
        return self.backward_item_bytes + self.backward_sum_bytes


@dataclass(frozen=True)
class LayerStreams:
    """All that streams in one layer."""

    links: StreamLinks
    by_op: Mapping[str, StreamedBytes]
    """Streamed bytes of each operator, by its name."""
    rows: LayerStreams | None = None
    """Streams over tp in the same rounds, where both tensors stream; else None."""
    private: StreamLinks | None = None
    """The links without the traffic of others that share them: these decide how tensors travel.
    None where nothing shares them."""


def streamed_tensor_of(op: Op, plan_options: PlanOptions, axis: str = AXIS) -> StreamedTensor:
    """Return the tensor that streams for an operator, by the dim of its weight that an axis splits.

    Logits gather their tokens whole: their part of the table is too large to be read in each
    round.
    """
    if op.kind is OpKind.ATTENTION:
        return StreamedTensor.WEIGHTS
    if op.kind is not OpKind.MATMUL:
        return StreamedTensor.NOTHING
    dim = weight_sharding(op.weights[0], plan_options).dim_of(axis)
    if dim in (None, "vocab"):
        return StreamedTensor.NOTHING
    if dim == FLAT:
        return StreamedTensor.WEIGHTS
    return StreamedTensor.SUMS if dim in op.contracted else StreamedTensor.INPUTS


def overlapped_ops(
    calls: Sequence[CollectiveCall], layer: LayerGraph, plan_options: PlanOptions
) -> list[Op | None]:
    """Return for each call the product or attention core that sends it in its rounds, or None.

    Sums of outputs belong to the operator that makes them, those of input gradients to the one that
    gathered the input: the first of several readers, which is the last one in the backward pass.
    Along the rows of a block messages are sent only where a weight streams along the columns.
    """
    works = [
        op for op in layer.ops
        if op.kind is OpKind.ATTENTION
        or (op.kind is OpKind.MATMUL and "vocab" not in op.output.dims)
    ]  # fmt: skip
    named = {op.name: op for op in works}
    makers = {tensor.name: op for op in works for tensor in op.outputs}
    takers: dict[tuple[str, str], Op | None] = {}
    found: list[Op | None] = []
    for call in calls:
        worker = None
        if _is_cut(call, plan_options):
            if call.kind is CollectiveKind.ALL_GATHER or call.of_weight:
                worker = named.get(call.site.partition(":")[0])
                takers.setdefault((call.axis, f"{call.tensor.name}.gradient"), worker)
            elif call.phase is Phase.FORWARD or call.replayed:
                worker = makers.get(call.tensor.name)
            else:
                worker = takers.get((call.axis, call.tensor.name))
        if call.axis == ROWS and worker is not None:
            is_product = worker.kind is OpKind.MATMUL
            if not (
                is_product and streamed_tensor_of(worker, plan_options) is StreamedTensor.WEIGHTS
            ):
                worker = None
        found.append(worker)
    return found


def _is_cut(call: CollectiveCall, plan_options: PlanOptions) -> bool:
    """Return whether a call is cut into pieces, one for each round."""
    if call.axis == AXIS:
        return call.streamed
    is_gather_or_scatter = call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    along_rows = plan_options.streamed is Streamed.BOTH and call.axis == ROWS
    return along_rows and is_gather_or_scatter and not (call.of_weight or call.per_step)


def call_word_bytes(call: CollectiveCall, rates: DeviceRates, gradient_bytes: float) -> float:
    """Return the bytes of one element of a call: of a weight, of its gradient, or an activation.

    Sums of activations are sent in the type of the activations.
    """
    if call.of_weight and call.streamed:
        is_gradient = call.phase is Phase.WEIGHT_GRADIENT
        return gradient_bytes if is_gradient else rates.matmul_word_bytes
    word = call.tensor.word_bytes
    return rates.activation_bytes if word is None else word


def streamed_bytes(
    layer: LayerGraph, calls: Sequence[CollectiveCall], plan_options: PlanOptions,
    sizes: Mapping[str, Num], strategy: StrategyOf[Num], rates: DeviceRates, gradient_bytes: float,
    axis: str = AXIS,
) -> dict[str, StreamedBytes]:  # fmt: skip
    """Return the bytes that stream for each operator that works round by round, by its name.

    Parameters
    ----------
    sizes
        Sizes of all dims, with the token dims bound (``LayerGraph.bind``).
    gradient_bytes
        Bytes of one gradient of a weight in the message.
    axis
        Axis along which tensors stream.
    """
    transfers: dict[str, StreamedTensor] = {}
    owned_bytes: dict[str, dict[str, Num]] = {}
    for op in layer.ops:
        transfer = streamed_tensor_of(op, plan_options, axis)
        if op.kind is OpKind.MATMUL and transfer is not StreamedTensor.NOTHING:
            transfers[op.name] = transfer
    for call, worker in zip(calls, overlapped_ops(calls, layer, plan_options), strict=True):
        if worker is None or call.replayed or call.axis != axis:
            continue
        transfers.setdefault(worker.name, streamed_tensor_of(worker, plan_options, axis))
        parts = owned_bytes.setdefault(worker.name, {})
        direction = "forward" if call.phase is Phase.FORWARD else "backward"
        what = "item" if call.kind is CollectiveKind.ALL_GATHER else "sum"
        name = f"{direction}_{what}_bytes"
        elements = local_elements(call.tensor, call.split, sizes, strategy)
        word = call_word_bytes(call, rates, gradient_bytes)
        parts[name] = parts.get(name, 0.0) + word * elements / degree_of(axis, strategy)
    return {name: StreamedBytes(of, **owned_bytes.get(name, {})) for name, of in transfers.items()}


def stream_links(
    network: AxisNetwork, plan_options: PlanOptions, axis: str = AXIS
) -> list[StreamLinks]:
    """Return the links between neighbours of the streams over an axis.

    Where axes are still to be placed, the best that any block has: with a cycle of neighbours and
    without.
    """
    ways = network.ways(axis)
    every = [_links_of(group, network, plan_options, axis) for group in ways]
    if len(every) == 1:
        return every
    cycles = [_may_cycle(plan_options, axis) & _has_cycle(group) for group in ways]
    return [_best_links(every, cycles), _best_links(every, [~closes for closes in cycles])]


def _best_links(every: Sequence[StreamLinks], chosen: Sequence[BoolArray]) -> StreamLinks:
    """Return the best value of each field over the chosen links; all links where none is chosen."""
    none = ~np.logical_or.reduce(chosen)
    valid = [mask | none for mask in chosen]

    def most(name: str, otherwise: float) -> FloatArray:
        rows = [
            where(v, getattr(one, name), otherwise) for v, one in zip(valid, every, strict=True)
        ]
        return reduce(np.minimum if otherwise > 0 else np.maximum, rows)

    best = reduce(
        lambda other, one: by_field(lambda a, b: where(one[0], b, a), other, one[1]),
        zip(valid[::-1], every[::-1], strict=True), every[0],
    )  # fmt: skip
    return replace(
        best,
        bandwidth_bytes_per_s=most("bandwidth_bytes_per_s", 0.0),
        latency_s=most("latency_s", np.inf),
        message_half_bytes=most("message_half_bytes", np.inf),
    )


def _may_cycle(plan_options: PlanOptions, axis: str) -> bool:
    """Return whether the streams over an axis take a cycle of neighbours where there is one.

    Along the rows of blocks arrived tensors stay, so a form that sends nothing twice is right.
    """
    return axis == ROWS or plan_options.stream_form in (StreamForm.AUTO, StreamForm.CYCLE)


def _links_of(
    group: Group[FloatArray], network: AxisNetwork, plan_options: PlanOptions, axis: str
) -> StreamLinks:
    """Return the links between neighbours of the streams in a group: the slowest that they cross.

    On a cycle of neighbours the stream is a cycle, unless the strategy names another form.
    """
    members = degree_of(axis, network.strategy)
    may_cycle = _may_cycle(plan_options, axis)
    other_form = {"auto": "stream", "cycle": "ring"}.get(str(plan_options.stream_form))
    other_form = other_form or str(plan_options.stream_form)
    cycle, other = streams["cycle"], streams["hold" if axis == ROWS else other_form]
    has_cycle = _has_cycle(group) & may_cycle

    def of_form(quantity: Callable[[TensorStream], Num]) -> Num:
        return where(has_cycle, quantity(cycle), quantity(other))

    def num_sends(form: TensorStream) -> Num:
        """Return the sub-tensors a member sends in a pass; over several links none repeats."""
        straight = members * (members - 1.0)
        return where(form.num_hops(members) > 1, straight, form.transfers(members))

    bandwidth = reduce(
        smaller, [np.where(s.size > 1, s.bandwidth_bytes_per_s, np.inf) for s in group.spans]
    )
    return StreamLinks(
        num_members=members,
        bandwidth_bytes_per_s=np.where(np.isinf(bandwidth), 1.0e30, bandwidth),
        latency_s=reduce(larger, [s.latency_s * (s.size > 1) for s in group.spans]),
        message_half_bytes=reduce(
            larger, [s.message_half_bytes * (s.size > 1) for s in group.spans]
        ),
        num_parts=of_form(lambda form: form.num_parts(members)),
        num_hops=of_form(lambda form: form.num_hops(members)),
        num_buffers=of_form(lambda form: form.buffers(members).with_incoming),
        num_sends=of_form(num_sends) / members,
        num_shared_rounds=of_form(lambda form: form.num_shared_rounds(members)),
        num_exchange_rounds=of_form(lambda form: form.num_exchange_rounds(members)),
        may_hold=~has_cycle & (axis != ROWS and plan_options.stream_form is StreamForm.AUTO),
    )


def _has_cycle(group: Group[FloatArray]) -> BoolArray:
    """Return whether the members of a group form a cycle of neighbours, for each row.

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


@dataclass(frozen=True)
class LinkTimes:
    """Seconds of the sub-tensors of a round, on their link and in the main memory."""

    forward_s: Num
    backward_item_s: Num
    backward_sum_s: Num
    forward_relay_s: Num
    """Seconds in the main memory, where sub-tensors are relayed through it; else 0."""
    backward_relay_s: Num
    num_shared_rounds: Num
    """Backward rounds in which a link carries a sub-tensor and an accumulator."""
    forward_link_bytes: Num
    """Bytes that a member sends in a pass, each link counted."""
    backward_link_bytes: Num
    forward_chunks: Num
    """Messages that a sub-tensor is cut into."""
    backward_chunks: Num

    @property
    def sent(self) -> dict[str, Num]:
        """Bytes on links and chunks, as the price of an operator holds them."""
        names = ("forward_link_bytes", "backward_link_bytes", "forward_chunks", "backward_chunks")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class BufferFit:
    """Fit of the buffers of one pass on chip."""

    num_chunks: Num
    """Chunks of a sub-tensor, one message each."""
    relays: Mask
    """Whether sub-tensors go through the main memory."""
    num_sends: Num
    num_shared_rounds: Num


def fit_buffers(num_bytes: Num, links: StreamLinks, free_bytes: Num) -> BufferFit:
    """Return the fit of the buffers of passing copies on chip, with the chunks of a sub-tensor.

    On a line a member holds all copies that fit whole; where not even those of ``stream`` fit,
    chunks are sent, and without on-chip memory for these all goes through the main memory.
    """
    members, may_hold = links.num_members, links.may_hold
    held, sends, shared = links.num_buffers, links.num_sends, links.num_shared_rounds
    if np.any(may_hold):
        line = LineStream.filling(members, np.floor(free_bytes / larger(num_bytes, 1.0)))
        held = where(may_hold, line.buffers(members).with_incoming, held)
        sends = where(may_hold, line.transfers(members) / members, sends)
        shared = where(may_hold, line.num_shared_rounds(members), shared)
    chunks = num_chunks_to_fit(stream_buffer_bytes(num_bytes, held), free_bytes, 0.0 * num_bytes)
    is_cut = chunks > MOST_CHUNKS
    return BufferFit(where(is_cut, 1.0, chunks), is_cut & (members > 1), sends, shared)


def link_times(
    sent: StreamedBytes, links: StreamLinks, rates: DeviceRates, kept: KeptOnChip,
    share: float = 1.0,
) -> LinkTimes:  # fmt: skip
    """Return the times of one operator, with buffers in the room its resident tensor leaves.

    Parameters
    ----------
    share
        Share of the room left on chip, where two tensors stream at once [1].
    """
    ahead, back = (
        fit_buffers(num_bytes, links, share * (rates.room_bytes - stays))
        for num_bytes, stays in (
            (sent.forward_bytes, kept.forward_bytes), (sent.backward_bytes, kept.backward_bytes)
        )
    )  # fmt: skip

    def link_s(num_bytes: Num, fit: BufferFit) -> Num:
        passed_s = round_link_s(
            num_bytes, links.bandwidth_bytes_per_s, links.latency_s, links.message_half_bytes,
            num_hops=links.num_hops, num_parts=links.num_parts, num_chunks=fit.num_chunks,
        )  # fmt: skip
        return where(num_bytes > 0, passed_s, 0.0)

    def relay_s(num_bytes: Num, fit: BufferFit) -> Num:
        moved = relay_bytes(num_bytes, links.num_members, links.num_parts)
        return where(fit.relays, moved / rates.memory_bytes_per_s, 0.0)

    return LinkTimes(
        forward_s=link_s(sent.forward_bytes, ahead),
        backward_item_s=link_s(sent.backward_item_bytes, back),
        backward_sum_s=link_s(sent.backward_sum_bytes, back),
        forward_relay_s=relay_s(sent.forward_bytes, ahead),
        backward_relay_s=relay_s(sent.backward_bytes, back),
        num_shared_rounds=back.num_shared_rounds,
        forward_link_bytes=ahead.num_sends * sent.forward_bytes,
        backward_link_bytes=back.num_sends * sent.backward_bytes,
        forward_chunks=ahead.num_chunks,
        backward_chunks=back.num_chunks,
    )


@dataclass(frozen=True)
class KeptOnChip:
    """Bytes that stay on chip over the rounds of an operator, in each pass, and their shares."""

    forward_bytes: Num = 0.0
    backward_bytes: Num = 0.0
    forward_share: Num = 0.0
    """Share of the resident tensor that stays in the forward pass [1]."""
    backward_share: Num = 0.0
    sums_share: Num = 0.0
    """Share of its gradient that is summed on chip, in FP32 [1]."""


def kept_on_chip(
    transfer: StreamedTensor, shape: MatmulShape, word: float, room_bytes: Num,
    cuts_inner: Mask = False,
) -> KeptOnChip:  # fmt: skip
    """Return the part that stays on chip of the tensor that all rounds of an operator use.

    It is the weight, unless the weight streams: then the inputs, or where its rows are cut the
    outputs, which are summed forward. Backward, sums come first: each of their bytes saves two, one
    read and one written, in a round.

    Parameters
    ----------
    shape
        The products of one round.
    room_bytes
        On-chip memory for it: a part of the room; streams have the rest [bytes].
    cuts_inner
        Whether the rounds cut the rows of a weight that streams, from :func:`cuts_rows`.
    """
    count, rows, inner, columns = shape
    if transfer is StreamedTensor.WEIGHTS:
        elements = count * rows * where(cuts_inner, columns, inner)
    else:
        elements = count * inner * columns
    operand, all_sums = word * elements, ACCUMULATOR_BYTES * elements
    resident = where(cuts_inner, all_sums, operand)
    kept = smaller(resident, room_bytes)
    sums = where(cuts_inner, 0.0, smaller(all_sums, room_bytes))
    again = smaller(operand, room_bytes - sums)
    return KeptOnChip(kept, sums + again, kept / resident, again / operand, sums / all_sums)


def room_parts(rates: DeviceRates, links: StreamLinks) -> Num:
    """Return the ways to part the room on chip: bytes for what stays, one along the first axis."""
    number = np.ndim(links.num_members + 0.0 * rates.memory_bytes_per_s)
    return np.reshape(SPLITS, (-1, *[1] * number)) * rates.room_bytes


def _fastest(ways: Sequence[OpCost], alone: Sequence[OpCost]) -> OpCost:
    """Return the fastest way of each pass, of ways along the first axis.

    Parameters
    ----------
    alone
        The same ways on links without contention, which decide, so that a plan is equal at every
        fidelity.
    """
    ahead_s = [cost.forward_s + cost.stream_forward_s for cost in alone]
    back_s = [
        cost.input_gradient_s + cost.weight_gradient_s + cost.stream_backward_s for cost in alone
    ]
    shape = np.broadcast_shapes(*map(np.shape, (*ahead_s, *back_s)))

    def together(each: Sequence[Sequence[Num]]) -> FloatArray:
        """Return the numbers of each list, those of all ways along the second axis."""
        number = shape[0]
        found = np.empty((len(each), number * len(ways), *shape[1:]))
        for values, row in zip(each, found, strict=True):
            for place, value in enumerate(values):
                row[place * number : (place + 1) * number] = value
        return found

    ahead, back = np.expand_dims(together((ahead_s, back_s)).argmin(axis=1), (1, 2))
    known = {name: [getattr(cost, name) for cost in ways] for name in names_of(OpCost)}
    found: dict[str, Num] = {}
    for is_forward, best in ((True, ahead), (False, back)):
        each = {name: values for name, values in known.items() if ("forward" in name) is is_forward}
        for name, values in list(each.items()):
            if not np.ndim(values[0]) and all(np.ndim(v) == 0 and v == values[0] for v in values):
                found[name] = each.pop(name)[0]
        taken = np.take_along_axis(together(list(each.values())), best, axis=1)[:, 0]
        found |= zip(each, taken, strict=True)
    return OpCost(**found)


def streamed_attention(
    alone: OpCost, name: str, streams: LayerStreams, rates: DeviceRates
) -> OpCost:
    """Return the attention core, with the cost of streaming its keys and values.

    Backward, gradients of keys and values return behind them on a ring, after them on a line.

    Assumes: every round has the same work, as zig-zag order makes it under a causal mask.
    """
    sent, links = streams.by_op.get(name), streams.links
    if sent is None:
        return alone
    members = links.num_members
    times = link_times(sent, links, rates, KeptOnChip())

    def round_hbm_s(traffic_bytes: Num, relay_s: Num) -> Num:
        return traffic_bytes / (rates.memory_bytes_per_s * members) + relay_s

    ahead = forward_s(
        members, alone.forward_s / members, times.forward_s,
        round_hbm_s(alone.forward_traffic_bytes, times.forward_relay_s),
    )  # fmt: skip
    back = exchange_s(
        members, alone.input_gradient_s / members, times.backward_item_s, times.backward_sum_s,
        round_hbm_s(alone.backward_traffic_bytes, times.backward_relay_s),
        links.num_exchange_rounds,
    )  # fmt: skip
    return replace(
        alone,
        stream_forward_s=positive_part(ahead.total_s - alone.forward_s) * (members > 1),
        stream_backward_s=positive_part(back.total_s - alone.input_gradient_s) * (members > 1),
        forward_link_bytes=times.forward_link_bytes,
        backward_link_bytes=times.backward_link_bytes,
        forward_chunks=times.forward_chunks,
        backward_chunks=times.backward_chunks,
        forward_kernels=alone.forward_kernels * members,
        backward_kernels=alone.backward_kernels * members,
    )


def streamed_matmul_cost(
    op: Op, layer: LocalLayer, rates: DeviceRates, streams: LayerStreams
) -> OpCost:
    """Return a linear layer, with the cost of its stream.

    The room on chip is parted between what stays and the buffers of streams as is fastest. Inputs
    and sums may also be gathered or scattered in one go, before or after one whole product: what
    does not stay of a weight is then read once, and not in every round. Each pass takes the fastest
    way. Weights that stream are never whole on a device.
    """
    sent = streams.by_op.get(op.name)
    if sent is None:
        return matmul_cost(op, layer, rates)
    whole, rows = matmul_shape(op, layer), streams.rows

    def ways(links: StreamLinks, row_links: StreamLinks | None) -> list[OpCost]:
        if rows is not None and row_links is not None and op.name in rows.by_op:
            return [_on_block(op, whole, (sent, links), (rows.by_op[op.name], row_links), rates)]
        found = [_in_rounds(op, whole, sent, links, rates)]
        if sent.tensor is not StreamedTensor.WEIGHTS:
            found.append(_at_once(op, whole, sent, links, rates))
        return found

    row_links = None if rows is None else rows.links
    shared = ways(streams.links, row_links)
    if streams.private is None:
        return _fastest(shared, shared)
    of_rows = row_links if rows is None or rows.private is None else rows.private
    return _fastest(shared, ways(streams.private, of_rows))


def cuts_rows(whole: MatmulShape, transfer: StreamedTensor) -> Mask:
    """Return whether the rounds cut the rows of a weight that streams, and not its columns.

    Then outputs are used by all rounds, else inputs; the narrower of both moves less: 12 bytes of
    each element that does not stay, in the three products of a round.
    """
    return (transfer is StreamedTensor.WEIGHTS) & (whole.columns <= whole.inner)


def round_shape(whole: MatmulShape, transfer: StreamedTensor, links: StreamLinks) -> MatmulShape:
    """Return the products of one round: some columns or rows of the weight, or some tokens."""
    if transfer is not StreamedTensor.WEIGHTS:
        return whole._replace(rows=whole.rows / links.num_members)
    cuts = cuts_rows(whole, transfer)
    return whole._replace(
        inner=where(cuts, ceil_div(whole.inner, links.num_members), whole.inner),
        columns=where(cuts, whole.columns, ceil_div(whole.columns, links.num_members)),
    )


def stream_traffic_bytes(
    transfer: StreamedTensor, shape: MatmulShape, rounds: Num, word: float, rates: DeviceRates,
    kept: KeptOnChip, cuts_inner: Mask = False,
) -> tuple[Num, Num, Num]:  # fmt: skip
    """Return the main-memory bytes of one round of Y = X W, dX = dY W^T and dW = X^T dY [bytes].

    Of the three tensors one streams through on-chip buffers: a device reads (or completes) its part
    once in all rounds. One is used by all rounds: what does not stay of it on chip is read in each,
    or read and written in FP32 where it is the sum of a product. Rounds cut the third one, which
    moves once.

    Parameters
    ----------
    shape
        The products of one round.
    kept, cuts_inner
        As in :func:`kept_on_chip`.
    """
    count, rows, inner, columns = shape
    x, w = word * count * rows * inner, word * count * inner * columns
    y = rates.activation_bytes * count * rows * columns
    accumulated = GRADIENT_ACCUMULATION_BYTES * shape.num_params

    def read(tensor: Num, share: Num) -> Num:
        return round_traffic_bytes(tensor, share, rounds)

    def summed(result: Num, elements: Num, share: Num) -> Num:
        again = (1.0 - share) * GRADIENT_ACCUMULATION_BYTES * elements
        return (result + (rounds - 1.0) * again) / rounds

    if transfer is not StreamedTensor.WEIGHTS:
        own, third = (x / rounds, y) if transfer is StreamedTensor.INPUTS else (y / rounds, x)
        sums = summed(accumulated, shape.num_params, kept.sums_share)
        ahead, back = read(w, kept.forward_share), read(w, kept.backward_share)
        return own + ahead + third, own + back + third, own + third + sums
    own, own_sum = w / rounds, accumulated / rounds
    num_inputs, num_outputs = count * rows * inner, count * rows * columns
    of_columns = (
        own + read(x, kept.forward_share) + y,
        own + summed(x, num_inputs, kept.sums_share) + y,
        own_sum + read(x, kept.backward_share) + y,
    )
    of_rows = (
        own + summed(y, num_outputs, kept.forward_share) + x,
        own + read(y, kept.backward_share) + x,
        own_sum + read(y, kept.backward_share) + x,
    )
    forward, to_input, to_weight = (
        where(cuts_inner, one, other) for one, other in zip(of_rows, of_columns, strict=True)
    )
    return forward, to_input, to_weight


def _casts(
    shape: MatmulShape, transfer: StreamedTensor, rounds: Num, word: float, rates: DeviceRates,
    cuts_inner: Mask = False,
) -> tuple[Num, Num]:  # fmt: skip
    """Return the seconds of casts: of its own part once before sending, else in every round."""
    casts_inputs = cuts_inner | (transfer is StreamedTensor.SUMS)
    return cast_s(
        shape, word, rates,
        input_times=where(casts_inputs, rounds, 1.0), output_times=where(casts_inputs, 1.0, rounds),
    )  # fmt: skip


def _in_rounds(
    op: Op, whole: MatmulShape, sent: StreamedBytes, links: StreamLinks, rates: DeviceRates
) -> OpCost:
    """Return a linear layer that computes with one sub-tensor while the next one arrives."""
    rounds, word = links.num_members, word_of(op, rates)
    shape = round_shape(whole, sent.tensor, links)
    cuts = cuts_rows(whole, sent.tensor)
    kept = kept_on_chip(sent.tensor, shape, word, room_parts(rates, links), cuts)
    times = link_times(sent, links, rates, kept)
    in_rounds = stream_traffic_bytes(sent.tensor, shape, rounds, word, rates, kept, cuts)
    alone = whole_traffic_bytes(shape, word, rates)
    moved = [where(rounds > 1, a, b) for a, b in zip(in_rounds, alone, strict=True)]
    made = products(op, shape, moved, rates)
    flops = 2.0 * shape.rows * shape.num_params * rounds
    casts = _casts(shape, sent.tensor, rounds, word, rates, cuts)
    # Rounds are as slow as their link, their arithmetic or their memory.
    ahead = forward_s(
        rounds, made.forward.compute_s, times.forward_s,
        made.forward.memory_s + times.forward_relay_s,
    )  # fmt: skip
    back = backward_s(
        rounds, made.to_input.compute_s + made.to_weight.compute_s, times.backward_item_s,
        times.backward_sum_s,
        made.to_input.memory_s + made.to_weight.memory_s + times.backward_relay_s,
        times.num_shared_rounds,
    )  # fmt: skip
    gradients_s = rounds * made.to_input.time_s + rounds * made.to_weight.time_s
    forward_alone_s = rounds * made.forward.time_s
    return replace(
        products_cost(made, rounds, flops, casts, rates),
        stream_forward_s=positive_part(ahead.total_s - forward_alone_s) * (rounds > 1),
        stream_backward_s=positive_part(back.total_s - gradients_s) * (rounds > 1),
        **times.sent,
    )


def _at_once(
    op: Op, whole: MatmulShape, sent: StreamedBytes, links: StreamLinks, rates: DeviceRates
) -> OpCost:
    """Return a linear layer with all inputs gathered before, or all sums scattered after.

    What does not fit on chip of a gathered tensor passes through the main memory as it arrives.
    """
    members, word = links.num_members, word_of(op, rates)
    room = room_parts(rates, links)
    gathered = [smaller(members * m, room) for m in (sent.forward_bytes, sent.backward_item_bytes)]
    times = link_times(sent, links, rates, KeptOnChip(*gathered))
    made = products(op, whole, whole_traffic_bytes(whole, word, rates), rates)
    shape = round_shape(whole, sent.tensor, links)
    casts = _casts(shape, sent.tensor, members, word, rates)

    def passed_s(link_s: Num, num_bytes: Num) -> Num:
        return (members - 1.0) * _kept_s(link_s, num_bytes, members, room, rates)

    return replace(
        products_cost(made, 1.0, 2.0 * whole.rows * whole.num_params, casts, rates),
        stream_forward_s=passed_s(times.forward_s, sent.forward_bytes),
        stream_backward_s=passed_s(times.backward_item_s, sent.backward_item_bytes)
        + passed_s(times.backward_sum_s, sent.backward_sum_bytes),
        forward_waits=1.0,
        backward_waits=1.0,
        **times.sent,
    )


def _kept_s(link_s: Num, num_bytes: Num, members: Num, room_bytes: Num, rates: DeviceRates) -> Num:
    """Return the seconds of a sub-tensor that stays where it arrives: on its link, or in memory.

    What the room does not hold of its whole tensor is stored as it arrives [s].
    """
    left = positive_part(num_bytes - room_bytes / members)
    return larger(link_s, left / rates.memory_bytes_per_s)


def _on_block(
    op: Op, whole: MatmulShape, columns: tuple[StreamedBytes, StreamLinks],
    rows: tuple[StreamedBytes, StreamLinks], rates: DeviceRates,
) -> OpCost:  # fmt: skip
    """Return a linear layer on r x c devices: r c products of two sub-tensors each.

    Weights stream along the columns; along the rows inputs, or sums of outputs. Products of one
    sub-weight are one where nothing is sent along the rows: there only c rounds do, backward the
    first and the last c.
    """
    (of_weight, column_links), (of_rows, row_links) = columns, rows
    r, c = column_links.num_members, row_links.num_members
    word, is_sum = word_of(op, rates), of_rows.tensor is StreamedTensor.SUMS
    shape = round_shape(whole, StreamedTensor.WEIGHTS, column_links)
    part = shape._replace(rows=shape.rows / c)
    streamed, cuts = StreamedTensor.WEIGHTS, cuts_rows(whole, StreamedTensor.WEIGHTS)
    inputs, outputs = (c, r) if is_sum else (1.0, r * c)
    casts = cast_s(
        part, word, rates,
        input_times=where(cuts, inputs * r, inputs), output_times=where(cuts, outputs / r, outputs),
    )  # fmt: skip
    # The mean of the r c rounds: products of some sub-weights are cut into c, forward, backward.
    cut_forward, cut_backward = 1.0, 1.0 if is_sum else smaller(r, 2.0)
    room = room_parts(rates, column_links)
    kept = kept_on_chip(streamed, shape, word, room, cuts)
    moved = stream_traffic_bytes(streamed, shape, r, word, rates, kept, cuts)
    cut = products(op, part, [num_bytes / c for num_bytes in moved], rates)
    uncut = products(op, shape, moved, rates)
    shares = (cut_forward / r, cut_backward / r, cut_backward / r)
    made = Products(
        *(
            replace(one, compute_s=share * one.compute_s + (1.0 - share) * all_c.compute_s / c)
            for share, one, all_c in zip(shares, cut, uncut, strict=True)
        )
    )
    # Both passes: sub-weights between rounds of c, messages along the rows within them.
    weights, along = (
        link_times(of_weight, column_links, rates, kept, 0.5),
        link_times(of_rows, row_links, rates, kept, 0.5),
    )
    passed_s = _kept_s(along.forward_s, of_rows.forward_bytes, c, room, rates)
    ahead = product_forward_s(
        r, c, made.forward.compute_s, 0.0 if is_sum else passed_s, weights.forward_s,
        made.forward.memory_s + weights.forward_relay_s / c, passed_s if is_sum else 0.0,
    )  # fmt: skip
    back = product_backward_s(
        r, c, made.to_input.compute_s + made.to_weight.compute_s,
        _kept_s(along.backward_item_s, of_rows.backward_item_bytes, c, room, rates),
        weights.backward_item_s,
        _kept_s(along.backward_sum_s, of_rows.backward_sum_bytes, c, room, rates),
        weights.backward_sum_s,
        made.to_input.memory_s + made.to_weight.memory_s + weights.backward_relay_s / c,
        weights.num_shared_rounds,
    )  # fmt: skip
    gradients_s = r * c * (made.to_input.time_s + made.to_weight.time_s)
    flops = 2.0 * shape.rows * shape.num_params * r
    return replace(
        products_cost(made, r * c, flops, casts, rates),
        stream_forward_s=positive_part(ahead.total_s - r * c * made.forward.time_s),
        stream_backward_s=positive_part(back.total_s - gradients_s),
        forward_link_bytes=weights.forward_link_bytes + along.forward_link_bytes,
        backward_link_bytes=weights.backward_link_bytes + along.backward_link_bytes,
        forward_chunks=weights.forward_chunks,
        backward_chunks=weights.backward_chunks,
        forward_kernels=r + cut_forward * (c - 1.0),
        backward_kernels=rates.num_gradients * (r + cut_backward * (c - 1.0)),
    )
