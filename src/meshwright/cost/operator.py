"""Seconds, FLOPs and traffic of any operator on one device, for each phase of a step."""

from __future__ import annotations

from typing import Any

from meshwright.cost.device import (
    ALIGNED_WORDS,
    Engine,
    attended_fraction,
    attention_backward_ratio,
    attention_backward_s,
    attention_forward_s,
    traffic_s,
    unaligned_attention_s,
)
from meshwright.cost.local import LocalLayer
from meshwright.cost.matmul import OpCost, matmul_cost
from meshwright.cost.streamed_layer import LayerStreams
from meshwright.cost.streamed_operator import streamed_attention, streamed_matmul_cost
from meshwright.graph.op import Op, OpKind


def op_cost(
    op: Op, layer: LocalLayer, engine: Engine, streams: LayerStreams | None, *, causal: bool
) -> OpCost:
    """Return the price of one operator.

    Parameters
    ----------
    streams
        What streams over tatp in its layer; None without tatp.
    """
    if op.kind is OpKind.MATMUL:
        if streams is None:
            return matmul_cost(op, layer, engine)
        return streamed_matmul_cost(op, layer, engine, streams)
    if op.kind is OpKind.ATTENTION:
        alone = _attention_cost(op, layer, engine, causal=causal)
        return alone if streams is None else streamed_attention(alone, op.name, streams, engine)
    return _memory_bound_cost(op, layer, engine)


def _attention_cost(op: Op, layer: LocalLayer, engine: Engine, *, causal: bool) -> OpCost:
    """Return the attention core: FLOPs of the two products over the scores that are computed.

    2 s_q s_k (score size + value size) for each head, times the share that the mask leaves; cp
    and tatp split the queries evenly (zig-zag order under a causal mask). Plain products that
    materialise the scores compute all of them and mask afterwards.
    """
    spec = op.attention
    assert spec is not None
    length = layer.sequence_length
    is_whole = op.is_materialized_attention
    is_chunked = spec.window_kind == "chunked"
    share = attended_fraction(length, spec.window, causal and not is_whole, is_chunked=is_chunked)
    heads = layer.size("query_heads")
    per_score = 2.0 * (spec.head_size + spec.rope_head_size + spec.value_head_size)
    tokens = layer.rows_of(op)
    flops = tokens * length * share * heads * per_score
    width = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    traffic = engine.activation_bytes * tokens * width
    written = 0.0 if op.moved is None else engine.activation_bytes * tokens * length * heads
    forward, backward = (words * written for words in op.words_per_element)
    backward_flops = attention_backward_ratio(is_materialized=is_whole) * flops
    core_s = attention_forward_s(flops, traffic, engine)
    core_back_s = attention_backward_s(backward_flops, 2.0 * traffic, engine)
    if is_whole and spec.head_size % ALIGNED_WORDS and engine.vector_flops_per_s:
        core_s = unaligned_attention_s(flops, engine)
        core_back_s = unaligned_attention_s(backward_flops, engine)
    return OpCost(
        forward_s=core_s + traffic_s(forward, engine),
        input_gradient_s=core_back_s + traffic_s(backward, engine),
        forward_flops=flops,
        backward_flops=backward_flops,
        forward_traffic_bytes=traffic + forward,
        backward_traffic_bytes=2.0 * traffic + backward,
        forward_kernels=1.0 if op.moved is None else 4.0,
        backward_kernels=2.0 if op.moved is None else 6.0,
    )


def _memory_bound_cost(op: Op, layer: LocalLayer, engine: Engine) -> OpCost:
    """Return a norm, an elementwise operator, a lookup, a permutation or the loss."""
    num_bytes: Any = 0.0
    for tensor in op.traffic:
        word = engine.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        num_bytes = num_bytes + word * layer.rows_of(op) * layer.width(tensor)
    if op.kind is OpKind.ROUTE:
        num_bytes = num_bytes * engine.expert_passes
    forward, backward = (words * num_bytes for words in op.words_per_element)
    return OpCost(
        forward_s=traffic_s(forward, engine),
        input_gradient_s=traffic_s(backward, engine),
        forward_traffic_bytes=forward,
        backward_traffic_bytes=backward,
        forward_kernels=1.0,
        backward_kernels=1.0,
    )
