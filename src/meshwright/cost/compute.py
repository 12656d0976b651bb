"""Seconds of single operators on one device: matrix products, attention, memory-bound work.

Every formula takes numbers or columns. Rates come from an :class:`Engine`, which joins a chip with
its calibration, so that nothing here looks anything up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, smaller
from meshwright.cost.core_array import CoreArray, blocked_product_s


@dataclass(frozen=True)
class Engine:
    """What one device does in a second; each rate a number, or a column of perturbed numbers."""

    matmul_flops_per_s: Any
    """Reached by large matrix products in the type of the linear layers [FLOP/s]."""
    edge_flops_per_s: Any
    """Reached by large matrix products in the activation type: logits [FLOP/s]."""
    attention_forward_flops_per_s: Any
    attention_backward_flops_per_s: Any
    memory_bytes_per_s: Any
    """Reached by matrix products and copies [bytes/s]."""
    elementwise_bytes_per_s: Any
    """Reached by norms and elementwise kernels [bytes/s]."""
    launch_s: Any
    """Host time to launch one kernel [s]."""
    stream_sram_bytes: float
    """On-chip memory that buffers of tensor streams may fill [bytes]."""
    tile_rows: float
    tile_columns: float
    num_cores: float
    activation_bytes: float
    """Bytes of one activation word."""
    matmul_word_bytes: float
    """Bytes of one operand of a linear layer."""
    core_array: CoreArray | None = None
    """Where the chip states arrays and the network on it; then rates above are peaks."""


def matmul_compute_s(
    count: Any, rows: Any, inner: Any, columns: Any, rate: Any, engine: Engine
) -> Any:
    """Return the arithmetic seconds of ``count`` products (rows x inner) @ (inner x columns).

    waves * cores * 2 tile_rows tile_columns inner / rate with
    waves = ceil(count ceil(rows/tile_rows) ceil(columns/tile_columns) / cores). Products smaller
    than one wave leave cores idle.

    Parameters
    ----------
    count
        Products in one kernel: experts of a grouped product, otherwise 1 [1].
    rows, inner, columns
        Local sizes of each [1].
    rate
        Rate of large products [FLOP/s].

    Valid for: dense products; the best tile of a library may be smaller, so products of less
    than a wave are priced high (conservative). A chip that states the arrays of its cores and the
    network that feeds them is priced by :func:`blocked_product_s`.
    """
    if engine.core_array is not None:
        return blocked_product_s(
            count, rows, inner, columns, rate, engine.matmul_word_bytes, engine.core_array
        )
    tiles = count * ceil_div(rows, engine.tile_rows) * ceil_div(columns, engine.tile_columns)
    waves = ceil_div(tiles, engine.num_cores)
    tile_flops = 2.0 * engine.tile_rows * engine.tile_columns * inner
    return waves * engine.num_cores * tile_flops / rate


def matmul_traffic_bytes(
    count: Any, rows: Any, inner: Any, columns: Any, word_bytes: Any, engine: Engine
) -> Any:
    """Return the least bytes that products move: operands read once, results written once."""
    operands = word_bytes * (rows * inner + inner * columns)
    return count * (operands + engine.activation_bytes * rows * columns)


def attended_fraction(
    sequence_length: Any, window: float | None, causal: bool, *, is_chunked: bool = False
) -> Any:
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


def attention_forward_s(flops: Any, traffic_bytes: Any, engine: Engine) -> Any:
    """Return the seconds of the attention core, forward: the slower of arithmetic and traffic."""
    return larger(
        flops / engine.attention_forward_flops_per_s, traffic_bytes / engine.memory_bytes_per_s
    )


def attention_backward_s(backward_flops: Any, traffic_bytes: Any, engine: Engine) -> Any:
    """Return the seconds of the attention core, backward: the slower of arithmetic and traffic."""
    return larger(
        backward_flops / engine.attention_backward_flops_per_s,
        traffic_bytes / engine.memory_bytes_per_s,
    )


def attention_backward_ratio(*, is_materialized: bool) -> float:
    """Return the FLOPs of the attention core backward over those forward [1].

    Kept probabilities: 2, two gradients for each of the two products. Flash attention: 2.5, one
    product more, because the scores are computed again.
    Source: Dao 2023 (FlashAttention-2), section 4.1.
    """
    return 2.0 if is_materialized else 2.5


def traffic_s(num_bytes: Any, engine: Engine) -> Any:
    """Return the seconds of a memory-bound kernel that moves ``num_bytes``."""
    return num_bytes / engine.elementwise_bytes_per_s


def launch_bound_s(busy_s: Any, num_kernels: Any, engine: Engine) -> Any:
    """Return what launching adds to a busy time: kernels cannot start faster than the host says."""
    return positive_part(num_kernels * engine.launch_s - busy_s)
