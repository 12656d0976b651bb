"""Seconds, FLOPs and traffic of one operator on one device, for each phase of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div
from meshwright.cost.compute import (
    Engine,
    attended_fraction,
    attention_backward_s,
    attention_forward_s,
    matmul_s,
    matmul_traffic_bytes,
    traffic_s,
)
from meshwright.cost.local import LocalLayer
from meshwright.graph.op import Op, OpKind

GRADIENT_ACCUMULATION_BYTES = 8.0
"""Reading and writing an FP32 gradient for each parameter and micro-batch."""


@dataclass(frozen=True)
class OpCost:
    """One operator on one device and one micro-batch; with tatp one round of its stream each.

    Sums over a layer are plain sums, so parts that an operator lacks are 0.0.
    """

    forward_s: Any = 0.0
    input_gradient_s: Any = 0.0
    weight_gradient_s: Any = 0.0
    forward_flops: Any = 0.0
    backward_flops: Any = 0.0
    forward_traffic_bytes: Any = 0.0
    backward_traffic_bytes: Any = 0.0
    forward_kernels: float = 0.0
    backward_kernels: float = 0.0


def op_cost(op: Op, layer: LocalLayer, engine: Engine, *, causal: bool, training: bool) -> OpCost:
    """Return the price of one operator; matrix products are priced for one round over tatp."""
    if op.kind is OpKind.MATMUL:
        return _matmul_cost(op, layer, engine)
    if op.kind is OpKind.ATTENTION:
        return _attention_cost(op, layer, engine, causal=causal)
    return _memory_bound_cost(op, layer, engine)


def matmul_shape(op: Op, layer: LocalLayer) -> tuple[Any, Any, Any, Any]:
    """Return (number of products, rows of each, inner, columns) on this device, tatp left whole."""
    inner: Any = 1.0
    for dim in op.contracted:
        inner = inner * layer.size(dim)
    columns: Any = 0.0
    for tensor in op.outputs:
        columns = columns + layer.width(tensor)
    rows = layer.rows_of(op)
    if "experts" in (op.weights[0].dims if op.weights else ()):
        experts = layer.size("experts")
        return experts, ceil_div(rows, experts), inner, columns
    return 1.0, rows, inner, columns


def _matmul_cost(op: Op, layer: LocalLayer, engine: Engine) -> OpCost:
    """Return the three products of a linear layer: Y = X W, dX = dY W^T, dW = X^T dY."""
    count, rows, inner, all_columns = matmul_shape(op, layer)
    columns = ceil_div(all_columns, layer.rows.tatp)
    is_logits = "vocab" in op.output.dims
    rate = engine.edge_flops_per_s if is_logits else engine.matmul_flops_per_s
    word = engine.activation_bytes if is_logits else engine.matmul_word_bytes
    accumulate_bytes = GRADIENT_ACCUMULATION_BYTES * count * inner * columns
    flops = 2.0 * count * rows * inner * columns
    shapes = ((rows, inner, columns), (rows, columns, inner), (inner, rows, columns))
    times = [matmul_s(count, *shape, rate, word, engine) for shape in shapes]
    traffic = [matmul_traffic_bytes(count, *shape, word, engine) for shape in shapes]
    accumulate_s = accumulate_bytes / engine.memory_bytes_per_s
    return OpCost(
        forward_s=times[0],
        input_gradient_s=times[1],
        weight_gradient_s=times[2] + accumulate_s,
        forward_flops=flops,
        backward_flops=2.0 * flops,
        forward_traffic_bytes=traffic[0],
        backward_traffic_bytes=traffic[1] + traffic[2] + accumulate_bytes,
        forward_kernels=1.0,
        backward_kernels=2.0,
    )


def _attention_cost(op: Op, layer: LocalLayer, engine: Engine, *, causal: bool) -> OpCost:
    """Return the attention core: FLOPs of the two products over the scores that are computed.

    2 s_q s_k (score size + value size) for each head, times the share that the mask leaves; cp
    and tatp split the queries evenly (zig-zag order under a causal mask).
    """
    spec = op.attention
    assert spec is not None
    length = layer.sequence_length
    share = attended_fraction(length, spec.window, causal)
    heads = layer.size("query_heads")
    per_score = 2.0 * (spec.head_size + spec.rope_head_size + spec.value_head_size)
    flops = layer.tokens * length * share * heads * per_score
    read = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    traffic = engine.activation_bytes * layer.tokens * read
    scores_bytes = _score_traffic_bytes(op, layer, engine)
    return OpCost(
        forward_s=attention_forward_s(flops, traffic, engine)
        + traffic_s(op.words_per_element[0] * scores_bytes, engine),
        input_gradient_s=attention_backward_s(flops, 2.0 * traffic, engine)
        + traffic_s(op.words_per_element[1] * scores_bytes, engine),
        forward_flops=flops,
        backward_flops=2.5 * flops,
        forward_traffic_bytes=traffic + op.words_per_element[0] * scores_bytes,
        backward_traffic_bytes=2.0 * traffic + op.words_per_element[1] * scores_bytes,
        forward_kernels=1.0 if op.moved is None else 4.0,
        backward_kernels=2.0 if op.moved is None else 6.0,
    )


def _score_traffic_bytes(op: Op, layer: LocalLayer, engine: Engine) -> Any:
    """Return the bytes of a score matrix that is written to memory; 0 for flash attention."""
    if op.moved is None:
        return 0.0
    heads = layer.size("query_heads")
    return engine.activation_bytes * layer.tokens * layer.sequence_length * heads


def _memory_bound_cost(op: Op, layer: LocalLayer, engine: Engine) -> OpCost:
    """Return a norm, an elementwise operator, a lookup, a permutation or the loss."""
    elements: Any = 0.0
    for tensor in op.traffic:
        word = engine.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        is_routed = "routed_tokens" in tensor.dims
        rows = layer.routed_rows if is_routed else layer.rows_of(op)
        elements = elements + word * rows * layer.width(tensor)
    forward, backward = (words * elements for words in op.words_per_element)
    return OpCost(
        forward_s=traffic_s(forward, engine),
        input_gradient_s=traffic_s(backward, engine),
        forward_traffic_bytes=forward,
        backward_traffic_bytes=backward,
        forward_kernels=1.0,
        backward_kernels=1.0,
    )
