"""A linear layer in rounds: its weight, its inputs, or sums of its outputs travel over tatp."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, where
from meshwright.cost.compute import Engine
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import (
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
from meshwright.cost.streamed.rounds import LayerStreams, LinkTimes, StreamLinks, link_times
from meshwright.cost.streamed.travels import Travel
from meshwright.graph.op import Op
from meshwright.streams.policy import Transfer
from meshwright.streams.round_model import backward_s, forward_s

FORWARD_PARTS = tuple(entry.name for entry in fields(OpCost) if "forward" in entry.name)


def streamed_matmul_cost(
    op: Op, layer: LocalLayer, engine: Engine, streams: LayerStreams
) -> OpCost:
    """Return a linear layer with what its stream adds.

    Inputs and sums may also be gathered or scattered in one go, before or after one whole product:
    where weights do not stay on chip they are then read once, and not in every round. Each pass
    takes the faster way. Weights that travel are never whole on a device.
    """
    travel, links = streams.travels.get(op.name), streams.links
    if travel is None:
        return matmul_cost(op, layer, engine)
    whole, times = matmul_shape(op, layer), link_times(travel, links, engine)
    cost = _in_rounds(op, round_shape(whole, travel.transfer, links), travel, links, times, engine)
    if travel.transfer is not Transfer.WEIGHTS:
        at_once = _at_once(op, whole, travel, links, times, engine)
        cost = _faster_passes(at_once, cost, links.num_members > 1)
    return replace(
        cost,
        forward_link_bytes=links.num_sends * travel.forward_bytes,
        backward_link_bytes=links.num_sends * travel.backward_bytes,
    )


def round_shape(whole: MatmulShape, transfer: Transfer, links: StreamLinks) -> MatmulShape:
    """Return the products of one round: some columns of the weight, or some rows."""
    if transfer is Transfer.WEIGHTS:
        return whole._replace(columns=ceil_div(whole.columns, links.num_members))
    return whole._replace(rows=whole.rows / links.num_members)


def stream_traffic_bytes(
    transfer: Transfer, shape: MatmulShape, rounds: Any, word: float, engine: Engine
) -> tuple[Any, Any, Any]:
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
    y = engine.activation_bytes * count * rows * columns
    accumulated = GRADIENT_ACCUMULATION_BYTES * count * inner * columns
    stays = (x if transfer is Transfer.WEIGHTS else w) <= 0.5 * engine.stream_sram_bytes

    def staying(num_bytes: Any) -> Any:
        return where(stays, num_bytes / rounds, num_bytes)

    if transfer is Transfer.WEIGHTS:
        each = w / rounds + staying(x) + y
        return each, each, staying(x) + y + accumulated / rounds
    own, third = (x / rounds, y) if transfer is Transfer.INPUTS else (y / rounds, x)
    each = own + staying(w) + third
    return each, each, own + third + staying(accumulated)


def _in_rounds(
    op: Op, shape: MatmulShape, travel: Travel, links: StreamLinks, times: LinkTimes,
    engine: Engine,
) -> OpCost:  # fmt: skip
    """Return a linear layer that computes with one sub-tensor while the next one arrives."""
    rounds, word = links.num_members, word_of(op, engine)
    in_rounds = stream_traffic_bytes(travel.transfer, shape, rounds, word, engine)
    alone = whole_traffic_bytes(shape, word, engine)
    moved = [where(rounds > 1, a, b) for a, b in zip(in_rounds, alone, strict=True)]
    made = products(op, shape, moved, engine)
    flops = 2.0 * shape.rows * params_of(shape) * rounds
    casts = _casts(shape, travel.transfer, rounds, word, engine)
    ahead_s, back_s = _pass_times(made, links, times)
    gradients_s = rounds * made.to_input.time_s + rounds * made.to_weight.time_s
    return replace(
        products_cost(made, rounds, flops, casts),
        stream_forward_s=positive_part(ahead_s - rounds * made.forward.time_s) * (rounds > 1),
        stream_backward_s=positive_part(back_s - gradients_s) * (rounds > 1),
    )


def _casts(
    shape: MatmulShape, transfer: Transfer, rounds: Any, word: float, engine: Engine
) -> tuple[Any, Any]:
    """Return the seconds of casts: of its own part before it travels, else in every round [s]."""
    if transfer is Transfer.SUMS:
        return cast_s(shape, word, engine, input_times=rounds)
    return cast_s(shape, word, engine, output_times=rounds)


def _pass_times(made: Products, links: StreamLinks, times: LinkTimes) -> tuple[Any, Any]:
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
    op: Op, whole: MatmulShape, travel: Travel, links: StreamLinks, times: LinkTimes,
    engine: Engine,
) -> OpCost:  # fmt: skip
    """Return a linear layer with all inputs gathered before, or all sums scattered after.

    A gathered tensor that fills more than half of the on-chip memory passes through the main
    memory as it arrives.
    """
    members, word = links.num_members, word_of(op, engine)
    made = products(op, whole, whole_traffic_bytes(whole, word, engine), engine)
    shape = round_shape(whole, travel.transfer, links)
    casts = _casts(shape, travel.transfer, members, word, engine)

    def passed_s(link_s: Any, num_bytes: Any) -> Any:
        is_stored = members * num_bytes > 0.5 * engine.stream_sram_bytes
        stored_s = where(is_stored, num_bytes / engine.memory_bytes_per_s, 0.0)
        return (members - 1.0) * larger(link_s, stored_s)

    return replace(
        products_cost(made, 1.0, 2.0 * whole.rows * params_of(whole), casts),
        stream_forward_s=passed_s(times.forward_s, travel.forward_bytes),
        stream_backward_s=passed_s(times.backward_item_s, travel.backward_item_bytes)
        + passed_s(times.backward_sum_s, travel.backward_sum_bytes),
        forward_waits=1.0,
        backward_waits=1.0,
    )


def _faster_passes(at_once: OpCost, in_rounds: OpCost, streams: Any) -> OpCost:
    """Return the faster way of each pass; at once where there is a single member."""

    def forward_s(cost: OpCost) -> Any:
        return cost.forward_s + cost.stream_forward_s

    def backward_s(cost: OpCost) -> Any:
        return cost.input_gradient_s + cost.weight_gradient_s + cost.stream_backward_s

    ahead = streams & (forward_s(in_rounds) < forward_s(at_once))
    back = streams & (backward_s(in_rounds) < backward_s(at_once))
    parts = {}
    for entry in fields(OpCost):
        is_cut = ahead if entry.name in FORWARD_PARTS else back
        parts[entry.name] = where(is_cut, getattr(in_rounds, entry.name),
                                  getattr(at_once, entry.name))  # fmt: skip
    return OpCost(**parts)
