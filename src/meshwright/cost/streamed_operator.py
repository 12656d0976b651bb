"""One operator in rounds: a linear layer or the attention core beside a tensor stream."""

from __future__ import annotations

from dataclasses import fields, replace

from meshwright.base.arrays import Mask, Num, ceil_div, larger, positive_part, smaller, where
from meshwright.cost.device import DeviceRates
from meshwright.cost.operator import (
    GRADIENT_ACCUMULATION_BYTES,
    MatmulShape,
    OpCost,
    Products,
    cast_s,
    matmul_cost,
    matmul_shape,
    params_of,
    products,
    products_cost,
    whole_traffic_bytes,
    word_of,
)
from meshwright.cost.streamed_layer import (
    LayerStreams,
    LinkTimes,
    StreamedBytes,
    StreamLinks,
    link_times,
)
from meshwright.graph.op import Op
from meshwright.sharding.local_sizes import LocalLayer
from meshwright.streams.round_model import (
    StreamedTensor,
    backward_s,
    exchange_s,
    forward_s,
    product_backward_s,
    product_forward_s,
)


def streamed_attention(
    alone: OpCost, name: str, streams: LayerStreams, rates: DeviceRates
) -> OpCost:
    """Return the attention core with what the stream of its keys and values adds.

    Backward, gradients of keys and values return behind them on a ring, after them on a line.

    Assumes: every round has the same work, as zig-zag order makes it under a causal mask.
    """
    travel, links = streams.travels.get(name), streams.links
    if travel is None:
        return alone
    members = links.num_members
    times = link_times(travel, links, rates)

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
    travels = members > 1
    return replace(
        alone,
        stream_forward_s=positive_part(ahead.total_s - alone.forward_s) * travels,
        stream_backward_s=positive_part(back.total_s - alone.input_gradient_s) * travels,
        forward_link_bytes=links.num_sends * travel.forward_bytes,
        backward_link_bytes=links.num_sends * travel.backward_bytes,
        forward_kernels=alone.forward_kernels * members,
        backward_kernels=alone.backward_kernels * members,
    )


FORWARD_PARTS = tuple(entry.name for entry in fields(OpCost) if "forward" in entry.name)


def streamed_matmul_cost(
    op: Op, layer: LocalLayer, rates: DeviceRates, streams: LayerStreams
) -> OpCost:
    """Return a linear layer with what its stream adds.

    Inputs and sums may also be gathered or scattered in one go, before or after one whole product:
    where weights do not stay on chip they are then read once, and not in every round. Each pass
    takes the faster way. Weights that travel are never whole on a device.
    """
    travel, links = streams.travels.get(op.name), streams.links
    if travel is None:
        return matmul_cost(op, layer, rates)
    if streams.rows is not None and op.name in streams.rows.travels:
        return _on_block(op, matmul_shape(op, layer), streams, streams.rows, rates)
    whole, times = matmul_shape(op, layer), link_times(travel, links, rates)
    cost = _in_rounds(op, round_shape(whole, travel.transfer, links), travel, links, times, rates)
    if travel.transfer is not StreamedTensor.WEIGHTS:
        at_once = _at_once(op, whole, travel, links, times, rates)
        cost = _faster_passes(at_once, cost, links.num_members > 1)
    return replace(
        cost,
        forward_link_bytes=links.num_sends * travel.forward_bytes,
        backward_link_bytes=links.num_sends * travel.backward_bytes,
    )


def round_shape(whole: MatmulShape, transfer: StreamedTensor, links: StreamLinks) -> MatmulShape:
    """Return the products of one round: some columns of the weight, or some rows."""
    if transfer is StreamedTensor.WEIGHTS:
        return whole._replace(columns=ceil_div(whole.columns, links.num_members))
    return whole._replace(rows=whole.rows / links.num_members)


def stream_traffic_bytes(
    transfer: StreamedTensor, shape: MatmulShape, rounds: Num, word: float, rates: DeviceRates
) -> tuple[Num, Num, Num]:
    """Return the main-memory bytes of one round of Y = X W, dX = dY W^T and dW = X^T dY [bytes].

    What travels passes through on-chip buffers: a device reads (or completes) its own part once in
    all rounds. What stays, and the gradient that is accumulated for it, is on chip over the rounds
    where it fills at most half of that memory; otherwise it moves in every round. The third tensor
    moves once.

    Parameters
    ----------
    shape
        The products of one round.
    """
    count, rows, inner, columns = shape
    x = word * count * rows * inner
    w = word * count * inner * columns
    y = rates.activation_bytes * count * rows * columns
    accumulated = GRADIENT_ACCUMULATION_BYTES * count * inner * columns
    stays = (x if transfer is StreamedTensor.WEIGHTS else w) <= 0.5 * rates.stream_sram_bytes

    def staying(num_bytes: Num) -> Num:
        return where(stays, num_bytes / rounds, num_bytes)

    if transfer is StreamedTensor.WEIGHTS:
        each = w / rounds + staying(x) + y
        return each, each, staying(x) + y + accumulated / rounds
    own, third = (x / rounds, y) if transfer is StreamedTensor.INPUTS else (y / rounds, x)
    each = own + staying(w) + third
    return each, each, own + third + staying(accumulated)


def _in_rounds(
    op: Op, shape: MatmulShape, travel: StreamedBytes, links: StreamLinks, times: LinkTimes,
    rates: DeviceRates,
) -> OpCost:  # fmt: skip
    """Return a linear layer that computes with one sub-tensor while the next one arrives."""
    rounds, word = links.num_members, word_of(op, rates)
    in_rounds = stream_traffic_bytes(travel.transfer, shape, rounds, word, rates)
    alone = whole_traffic_bytes(shape, word, rates)
    moved = [where(rounds > 1, a, b) for a, b in zip(in_rounds, alone, strict=True)]
    made = products(op, shape, moved, rates)
    flops = 2.0 * shape.rows * params_of(shape) * rounds
    casts = _casts(shape, travel.transfer, rounds, word, rates)
    ahead_s, back_s = _pass_times(made, links, times)
    gradients_s = rounds * made.to_input.time_s + rounds * made.to_weight.time_s
    return replace(
        products_cost(made, rounds, flops, casts),
        stream_forward_s=positive_part(ahead_s - rounds * made.forward.time_s) * (rounds > 1),
        stream_backward_s=positive_part(back_s - gradients_s) * (rounds > 1),
    )


def _casts(
    shape: MatmulShape, transfer: StreamedTensor, rounds: Num, word: float, rates: DeviceRates
) -> tuple[Num, Num]:
    """Return the seconds of casts: of its own part before it travels, else in every round [s]."""
    if transfer is StreamedTensor.SUMS:
        return cast_s(shape, word, rates, input_times=rounds)
    return cast_s(shape, word, rates, output_times=rounds)


def _pass_times(made: Products, links: StreamLinks, times: LinkTimes) -> tuple[Num, Num]:
    """Return the seconds of both passes in rounds as slow as their link or their memory [s]."""
    ahead = forward_s(
        links.num_members, made.forward.compute_s, times.forward_s,
        made.forward.memory_s + times.forward_relay_s,
    )  # fmt: skip
    back = backward_s(
        links.num_members, made.to_input.compute_s + made.to_weight.compute_s,
        times.backward_item_s, times.backward_sum_s,
        made.to_input.memory_s + made.to_weight.memory_s + times.backward_relay_s,
        links.num_shared_rounds,
    )  # fmt: skip
    return ahead.total_s, back.total_s


def _at_once(
    op: Op, whole: MatmulShape, travel: StreamedBytes, links: StreamLinks, times: LinkTimes,
    rates: DeviceRates,
) -> OpCost:  # fmt: skip
    """Return a linear layer with all inputs gathered before, or all sums scattered after.

    A gathered tensor that fills more than half of the on-chip memory passes through the main
    memory as it arrives.
    """
    members, word = links.num_members, word_of(op, rates)
    made = products(op, whole, whole_traffic_bytes(whole, word, rates), rates)
    shape = round_shape(whole, travel.transfer, links)
    casts = _casts(shape, travel.transfer, members, word, rates)

    def passed_s(link_s: Num, num_bytes: Num) -> Num:
        return (members - 1.0) * _kept_s(link_s, num_bytes, members, rates)

    return replace(
        products_cost(made, 1.0, 2.0 * whole.rows * params_of(whole), casts),
        stream_forward_s=passed_s(times.forward_s, travel.forward_bytes),
        stream_backward_s=passed_s(times.backward_item_s, travel.backward_item_bytes)
        + passed_s(times.backward_sum_s, travel.backward_sum_bytes),
        forward_waits=1.0,
        backward_waits=1.0,
    )


def _kept_s(link_s: Num, num_bytes: Num, members: Num, rates: DeviceRates) -> Num:
    """Return how long a sub-tensor takes that stays where it arrives: on its link, or in memory.

    One whose whole tensor fills more than half of the on-chip memory is stored as it arrives [s].
    """
    is_stored = members * num_bytes > 0.5 * rates.stream_sram_bytes
    return larger(link_s, where(is_stored, num_bytes / rates.memory_bytes_per_s, 0.0))


def _on_block(
    op: Op, whole: MatmulShape, columns: LayerStreams, rows: LayerStreams, rates: DeviceRates
) -> OpCost:
    """Return a linear layer on r x c devices: r c products of two sub-tensors each.

    Weights travel along the columns; along the rows inputs, or sums of outputs. Products of one
    sub-weight are one where nothing travels along the rows: there only c rounds do, backward the
    first and the last c.
    """
    of_weight, of_rows = columns.travels[op.name], rows.travels[op.name]
    r, c = columns.links.num_members, rows.links.num_members
    word, is_sum = word_of(op, rates), of_rows.transfer is StreamedTensor.SUMS
    shape = round_shape(whole, StreamedTensor.WEIGHTS, columns.links)
    num_cut = 1.0, 1.0 if is_sum else smaller(r, 2.0)
    made = _mean_rounds(op, shape, r, c, num_cut, rates)
    own_rows = c if is_sum else 1.0
    part = shape._replace(rows=shape.rows / c)
    casts = cast_s(part, word, rates, input_times=own_rows, output_times=r * c / own_rows)
    ahead_s, back_s = _block_times(made, columns, rows, op.name, rates)
    gradients_s = r * c * (made.to_input.time_s + made.to_weight.time_s)
    sent_weights, sent_rows = columns.links.num_sends, rows.links.num_sends
    return replace(
        products_cost(made, r * c, 2.0 * shape.rows * params_of(shape) * r, casts),
        stream_forward_s=positive_part(ahead_s - r * c * made.forward.time_s),
        stream_backward_s=positive_part(back_s - gradients_s),
        forward_link_bytes=sent_weights * of_weight.forward_bytes
        + sent_rows * of_rows.forward_bytes,
        backward_link_bytes=sent_weights * of_weight.backward_bytes
        + sent_rows * of_rows.backward_bytes,
        forward_kernels=r + num_cut[0] * (c - 1.0),
        backward_kernels=2.0 * (r + num_cut[1] * (c - 1.0)),
    )


def _mean_rounds(
    op: Op, shape: MatmulShape, r: Num, c: Num, num_cut: tuple[Num, Num], rates: DeviceRates
) -> Products:
    """Return the mean round of a block, of r c.

    Parameters
    ----------
    shape
        The products of c rounds, with one sub-weight.
    num_cut
        Sub-weights whose products are cut into c, forward and backward.
    """
    moved = stream_traffic_bytes(StreamedTensor.WEIGHTS, shape, r, word_of(op, rates), rates)
    parts = [num_bytes / c for num_bytes in moved]
    cut = products(op, shape._replace(rows=shape.rows / c), parts, rates)
    uncut = products(op, shape, moved, rates)
    shares = (num_cut[0] / r, num_cut[1] / r, num_cut[1] / r)
    return Products(
        *(
            replace(one, compute_s=share * one.compute_s + (1.0 - share) * all_c.compute_s / c)
            for share, one, all_c in zip(shares, cut, uncut, strict=True)
        )
    )


def _block_times(
    made: Products, columns: LayerStreams, rows: LayerStreams, name: str, rates: DeviceRates
) -> tuple[Num, Num]:
    """Return the seconds of both passes of one operator on a block [s]."""
    r, c, of_rows = columns.links.num_members, rows.links.num_members, rows.travels[name]
    weights = link_times(columns.travels[name], columns.links, rates)
    along = link_times(of_rows, rows.links, rates)

    def kept_s(link_s: Num, num_bytes: Num) -> Num:
        return _kept_s(link_s, num_bytes, c, rates)

    passed_s = kept_s(along.forward_s, of_rows.forward_bytes)
    is_sum = of_rows.transfer is StreamedTensor.SUMS
    ahead = product_forward_s(
        r, c, made.forward.compute_s, 0.0 if is_sum else passed_s, weights.forward_s,
        made.forward.memory_s + weights.forward_relay_s / c, passed_s if is_sum else 0.0,
    )  # fmt: skip
    back = product_backward_s(
        r, c, made.to_input.compute_s + made.to_weight.compute_s,
        kept_s(along.backward_item_s, of_rows.backward_item_bytes), weights.backward_item_s,
        kept_s(along.backward_sum_s, of_rows.backward_sum_bytes), weights.backward_sum_s,
        made.to_input.memory_s + made.to_weight.memory_s + weights.backward_relay_s / c,
        columns.links.num_shared_rounds,
    )  # fmt: skip
    return ahead.total_s, back.total_s


def _faster_passes(at_once: OpCost, in_rounds: OpCost, streams: Mask) -> OpCost:
    """Return the faster way of each pass; at once where there is a single member."""

    def forward_s(cost: OpCost) -> Num:
        return cost.forward_s + cost.stream_forward_s

    def backward_s(cost: OpCost) -> Num:
        return cost.input_gradient_s + cost.weight_gradient_s + cost.stream_backward_s

    ahead = streams & (forward_s(in_rounds) < forward_s(at_once))
    back = streams & (backward_s(in_rounds) < backward_s(at_once))
    parts = {}
    for entry in fields(OpCost):
        is_cut = ahead if entry.name in FORWARD_PARTS else back
        parts[entry.name] = where(is_cut, getattr(in_rounds, entry.name),
                                  getattr(at_once, entry.name))  # fmt: skip
    return OpCost(**parts)
