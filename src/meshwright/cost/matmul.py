"""A linear layer on one device, its three products, alone or under a tensor stream over tatp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, where
from meshwright.cost.compute import (
    Engine,
    matmul_compute_s,
    matmul_traffic_bytes,
    traffic_s,
)
from meshwright.cost.local import LocalLayer
from meshwright.graph.op import Op
from meshwright.streams.round_model import (
    backward_s,
    forward_s,
    num_chunks_to_fit,
    relay_bytes,
    round_link_s,
    stream_buffer_bytes,
)

GRADIENT_ACCUMULATION_BYTES = 8.0
"""Reading and writing an FP32 gradient for each parameter and micro-batch."""


@dataclass(frozen=True)
class StreamLinks:
    """The links between neighbours of a tensor stream; columns."""

    num_members: Any
    bandwidth_bytes_per_s: Any
    latency_s: Any
    message_half_bytes: Any
    num_parts: Any
    """Directions in which pieces of a sub-tensor travel at once: 2 on a cycle."""
    num_hops: Any
    """Links between members that are neighbours in the stream."""
    num_buffers: Any
    """Sub-tensors of others that a member holds and receives."""
    num_shared_rounds: Any
    """Backward rounds in which a link carries a sub-tensor and an accumulator."""
    accumulator_bytes: float
    """Bytes of a travelling gradient word."""


@dataclass(frozen=True)
class OpCost:
    """One operator on one device and one micro-batch; what an operator lacks is 0.0.

    Computation includes what the main memory adds to it; ``stream_*`` is what links add.
    """

    forward_s: Any = 0.0
    input_gradient_s: Any = 0.0
    weight_gradient_s: Any = 0.0
    stream_forward_s: Any = 0.0
    stream_backward_s: Any = 0.0
    forward_flops: Any = 0.0
    backward_flops: Any = 0.0
    forward_traffic_bytes: Any = 0.0
    backward_traffic_bytes: Any = 0.0
    link_bytes: Any = 0.0
    stream_buffer_bytes: Any = 0.0
    forward_kernels: Any = 0.0
    backward_kernels: Any = 0.0


@dataclass(frozen=True)
class _Product:
    """Seconds of arithmetic, seconds of memory, and bytes of one matrix product."""

    compute_s: Any
    memory_s: Any
    traffic_bytes: Any

    @property
    def time_s(self) -> Any:
        return larger(self.compute_s, self.memory_s)


def matmul_shape(op: Op, layer: LocalLayer) -> tuple[Any, Any, Any, Any]:
    """Return (number of products, rows of each, inner, columns) on this device, tatp left whole."""
    inner: Any = 1.0
    for dim in op.contracted:
        inner = inner * layer.size(dim)
    columns: Any = 0.0
    for tensor in op.outputs:
        columns = columns + layer.width(tensor)
    rows = layer.rows_of(op)
    if "experts" in op.weights[0].dims:
        experts = layer.size("experts")
        return experts, ceil_div(rows, experts), inner, columns
    return 1.0, rows, inner, columns


def is_streamed(op: Op) -> bool:
    """Return whether the weight of a linear layer travels over tatp: all but the vocabulary."""
    return "vocab" not in op.output.dims


def matmul_cost(op: Op, layer: LocalLayer, engine: Engine, links: StreamLinks | None) -> OpCost:
    """Return the products of a linear layer: Y = X W, dX = dY W^T, dW = X^T dY."""
    count, rows, inner, columns = matmul_shape(op, layer)
    streams = links is not None and is_streamed(op)
    rounds: Any = layer.degrees.tatp if streams else 1.0
    columns = ceil_div(columns, rounds)
    is_logits = "vocab" in op.output.dims
    word = engine.activation_bytes if is_logits else engine.matmul_word_bytes
    rate = engine.edge_flops_per_s if is_logits else engine.matmul_flops_per_s

    params = count * inner * columns
    shapes = ((rows, inner, columns), (rows, columns, inner), (inner, rows, columns))
    moved = [matmul_traffic_bytes(count, *shape, word, engine) for shape in shapes]
    moved[2] = moved[2] + GRADIENT_ACCUMULATION_BYTES * params
    if streams:
        in_rounds = stream_traffic_bytes(count, rows, inner, columns, rounds, word, engine)
        moved = [where(rounds > 1, a, b) for a, b in zip(in_rounds, moved, strict=True)]
    forward, to_input, to_weight = (
        _Product(
            matmul_compute_s(count, *shape, rate, engine),
            traffic / engine.memory_bytes_per_s,
            traffic,
        )
        for shape, traffic in zip(shapes, moved, strict=True)
    )
    flops = 2.0 * rows * params * rounds
    cast_in_s, cast_out_s = (
        cast_s(count * rows * width, word, engine) for width in (inner, columns * rounds)
    )
    alone = OpCost(
        forward_s=rounds * forward.time_s + cast_in_s,
        input_gradient_s=rounds * to_input.time_s + cast_out_s,
        weight_gradient_s=rounds * to_weight.time_s,
        forward_flops=flops,
        backward_flops=2.0 * flops,
        forward_traffic_bytes=rounds * forward.traffic_bytes,
        backward_traffic_bytes=rounds * (to_input.traffic_bytes + to_weight.traffic_bytes),
        forward_kernels=rounds,
        backward_kernels=2.0 * rounds,
    )
    if not streams or links is None:
        return alone
    return _streamed(alone, forward, to_input, to_weight, params * word, word, links, engine)


def cast_s(num_elements: Any, word_bytes: float, engine: Engine) -> Any:
    """Return the seconds of casting operands to a narrower type: read wide, write narrow [s].

    Activations and their gradients rest in the activation type; a product in FP8 casts its input
    forward and its output gradient backward. 0 where both types are equally wide.
    """
    if word_bytes >= engine.activation_bytes:
        return 0.0 * num_elements
    return traffic_s(num_elements * (engine.activation_bytes + word_bytes), engine)


def stream_traffic_bytes(
    count: Any, rows: Any, inner: Any, columns: Any, rounds: Any, word: float, engine: Engine
) -> tuple[Any, Any, Any]:
    """Return the main-memory bytes of one round of Y = X W, dX = dY W^T and dW = X^T dY [bytes].

    Travelling sub-weights and accumulators pass through on-chip buffers: a device reads its own
    sub-weight once and completes its own gradient once in all rounds. X (and dX, which is
    accumulated) stays on chip over the rounds where it fills at most half of that memory;
    otherwise it moves in every round. Y and dY move once.

    Parameters
    ----------
    columns
        Columns of one round: those of one sub-weight [1].
    """
    sub_weight = word * count * inner * columns / rounds
    x_bytes = word * count * rows * inner
    stays = x_bytes <= 0.5 * engine.stream_sram_bytes
    x_moved = where(stays, x_bytes / rounds, x_bytes)
    y_moved = engine.activation_bytes * count * rows * columns
    accumulated = GRADIENT_ACCUMULATION_BYTES * count * inner * columns / rounds
    return (
        sub_weight + x_moved + y_moved,
        sub_weight + x_moved + y_moved,
        (x_moved + y_moved + accumulated),
    )


def _streamed(
    alone: OpCost, forward: _Product, to_input: _Product, to_weight: _Product,
    sub_tensor_bytes: Any, word_bytes: float, links: StreamLinks, engine: Engine,
) -> OpCost:  # fmt: skip
    """Return the linear layer with what its stream adds: rounds are as slow as their link.

    Sub-tensors that do not fit on chip are relayed in chunks; without on-chip memory for even
    that, through the main memory.
    """
    ratio = links.accumulator_bytes / word_bytes
    buffers = stream_buffer_bytes(sub_tensor_bytes, links.num_buffers, ratio)
    chunks = num_chunks_to_fit(buffers, engine.stream_sram_bytes, 0.0 * buffers)
    members = links.num_members
    travels = members > 1
    relays = chunks > 64.0
    chunks = where(relays, 1.0, chunks)
    relayed_bytes = relay_bytes(sub_tensor_bytes, members, links.num_parts)
    relay_s = where(relays & travels, relayed_bytes / engine.memory_bytes_per_s, 0.0)

    def link_s(num_bytes: Any) -> Any:
        return round_link_s(
            num_bytes, links.bandwidth_bytes_per_s, links.latency_s, links.message_half_bytes,
            num_hops=links.num_hops, num_parts=links.num_parts, num_chunks=chunks,
        )  # fmt: skip

    item_s, accumulator_s = link_s(sub_tensor_bytes), link_s(sub_tensor_bytes * ratio)
    ahead = forward_s(members, forward.compute_s, item_s, forward.memory_s + relay_s)
    back = backward_s(
        members, to_input.compute_s + to_weight.compute_s, item_s, accumulator_s,
        to_input.memory_s + to_weight.memory_s + relay_s * (1.0 + ratio), links.num_shared_rounds,
    )  # fmt: skip
    backward_alone_s = alone.input_gradient_s + alone.weight_gradient_s
    return replace(
        alone,
        stream_forward_s=positive_part(ahead.total_s - alone.forward_s) * travels,
        stream_backward_s=positive_part(back.total_s - backward_alone_s) * travels,
        link_bytes=(members - 1.0) * sub_tensor_bytes * (2.0 + ratio),
        stream_buffer_bytes=buffers / chunks,
    )
