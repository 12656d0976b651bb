"""The attention core on one device: FLOPs of a mask, arithmetic and traffic of both passes."""

from __future__ import annotations

from meshwright.base.arrays import Num, larger, smaller
from meshwright.cost.device import DeviceRates
from meshwright.cost.operator import OpCost, traffic_s
from meshwright.graph.op import Op
from meshwright.sharding.local_sizes import LocalLayer

ALIGNED_WORDS = 8
"""Matrix units take operands whose rows are multiples of so many 16-bit words."""


UNALIGNED_SHARE = 0.5
"""Of the FP32 vector rate."""


def attended_fraction(
    sequence_length: Num, window: float | None, causal: bool, *, is_chunked: bool = False
) -> Num:
    """Return the share of the s x s score matrix that a kernel computes [1].

    Full: 1. Causal: (s + 1) / 2s. Sliding window w < s, causal: (w s - w (w - 1) / 2) / s^2.
    Chunks of w tokens, causal inside each: (w + 1) / 2s.
    """
    if not causal:
        return sequence_length / sequence_length
    if window is None:
        return (sequence_length + 1.0) / (2.0 * sequence_length)
    seen = smaller(float(window), sequence_length)
    if is_chunked:
        return (seen + 1.0) / (2.0 * sequence_length)
    return (seen * sequence_length - seen * (seen - 1.0) / 2.0) / (
        sequence_length * sequence_length
    )


def attention_forward_s(flops: Num, traffic_bytes: Num, rates: DeviceRates) -> Num:
    """Return the seconds of the attention core, forward: the slower of arithmetic and traffic."""
    return larger(
        flops / rates.attention_forward_flops_per_s, traffic_bytes / rates.memory_bytes_per_s
    )


def attention_backward_s(backward_flops: Num, traffic_bytes: Num, rates: DeviceRates) -> Num:
    """Return the seconds of the attention core, backward: the slower of arithmetic and traffic."""
    return larger(
        backward_flops / rates.attention_backward_flops_per_s,
        traffic_bytes / rates.memory_bytes_per_s,
    )


def unaligned_attention_s(flops: Num, rates: DeviceRates) -> Num:
    """Return the seconds of plain attention whose head size is no multiple of 8 words.

    Operands that do not start at 16 bytes keep batched products off the matrix units; the vector
    units reach about half of their rate there (assumed; head sizes 108 and 150 of the BigScience
    experiments on A100 show it).
    Source: NVIDIA Deep Learning Performance, Matrix Multiplication Background, section 2.1.
    """
    assert rates.vector_flops_per_s is not None
    return flops / (UNALIGNED_SHARE * rates.vector_flops_per_s)


def attention_backward_ratio(*, is_materialized: bool) -> float:
    """Return the FLOPs of the attention core backward over those forward [1].

    Kept probabilities: 2, two gradients for each of the two products. Flash attention: 2.5, one
    product more, because the scores are computed again.
    Source: Dao 2023 (FlashAttention-2), section 4.1.
    """
    return 2.0 if is_materialized else 2.5


def _attention_cost(op: Op, layer: LocalLayer, rates: DeviceRates, *, causal: bool) -> OpCost:
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
    traffic = rates.activation_bytes * tokens * width
    written = 0.0 if op.moved is None else rates.activation_bytes * tokens * length * heads
    forward, backward = (words * written for words in op.words_per_element)
    backward_flops = attention_backward_ratio(is_materialized=is_whole) * flops
    core_s = attention_forward_s(flops, traffic, rates)
    core_back_s = attention_backward_s(backward_flops, 2.0 * traffic, rates)
    if is_whole and spec.head_size % ALIGNED_WORDS and rates.vector_flops_per_s:
        core_s = unaligned_attention_s(flops, rates)
        core_back_s = unaligned_attention_s(backward_flops, rates)
    return OpCost(
        forward_s=core_s + traffic_s(forward, rates),
        input_gradient_s=core_back_s + traffic_s(backward, rates),
        forward_flops=flops,
        backward_flops=backward_flops,
        forward_traffic_bytes=traffic + forward,
        backward_traffic_bytes=2.0 * traffic + backward,
        forward_kernels=1.0 if op.moved is None else 4.0,
        backward_kernels=2.0 if op.moved is None else 6.0,
    )
