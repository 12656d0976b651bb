"""Seconds of single operators on one device: matrix products, attention, memory-bound work.

Every formula takes numbers or columns. Rates come from an :class:`Engine`, which joins a chip with
its calibration, so that nothing here looks anything up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, smaller

ALIGNED_WORDS = 8
"""Matrix units take operands whose rows are multiples of so many 16-bit words."""
UNALIGNED_SHARE = 0.5
"""Of the FP32 vector rate."""

ACCUMULATOR_BYTES = 4.0
"""Sums are kept in FP32."""
MOST_ARRAYS = 4
"""Arrays along one side of a block of outputs."""


@dataclass(frozen=True)
class CoreArray:
    """Equal cores: the array of multiply-adds in each, and what feeds it."""

    num_cores: float
    rows: float
    columns: float
    noc_bytes_per_s: float
    """What one core takes in from its network."""
    sram_bytes: float
    """Of one core; half of it holds sums, the other half what passes."""

    @property
    def blocks(self) -> tuple[tuple[float, float], ...]:
        """Sides of the blocks of outputs that a core may work on, in outputs."""
        sides = [2**power for power in range(MOST_ARRAYS.bit_length())]
        found = [(a * self.rows, b * self.columns) for a in sides for b in sides]
        room = self.sram_bytes / 2.0
        fitting = [(p, q) for p, q in found[1:] if ACCUMULATOR_BYTES * p * q <= room]
        return (found[0], *fitting)


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
    vector_flops_per_s: Any = None
    """Of the units beside the matrix units, in FP32; None: not known [FLOP/s]."""
    grouped_efficiency: Any = 1.0
    """Share of their rate that products of many experts reach [1]."""
    expert_passes: Any = 1.0
    """How many times the least bytes routing moves [1]."""
    expert_kernels: Any = 0.0
    """Launches that show for each narrow product of one expert [1]."""
    adds_gradients_apart: bool = False
    """Gradients of a micro-batch are added in a pass of their own."""
    freezes_weights: bool = False
    """Nobody asks for gradients of weights."""


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


def blocked_product_s(
    count: Any, rows: Any, inner: Any, columns: Any, peak: Any, word_bytes: float, cores: CoreArray
) -> Any:
    """Return the seconds of ``count`` products (rows x inner) @ (inner x columns) [s].

    A core works on one block of p x q outputs: it takes in (p + q) inner words, and its array of
    R x C needs (p q / R C) inner + R + C cycles, the last two to fill and drain it. The slower of
    both, times waves = ceil(count ceil(rows/p) ceil(columns/q) / cores); the best block counts.
    The clock is the one at which all arrays reach the peak: peak / (2 cores R C).

    Parameters
    ----------
    count, rows, inner, columns
        Sizes of the products [1].
    peak
        Of all cores [FLOP/s].
    word_bytes
        Of one operand [bytes].
    cores
        The cores, their arrays and their network.

    Valid for: operands that are in the SRAM of the chip; no core shares what it takes in.
    """
    clock_hz = peak / (2.0 * cores.num_cores * cores.rows * cores.columns)
    best: Any = None
    for high, wide in cores.blocks:
        arrays = high * wide / (cores.rows * cores.columns)
        compute_s = (arrays * inner + cores.rows + cores.columns) / clock_hz
        taken = (smaller(rows, high) + smaller(columns, wide)) * inner * word_bytes
        blocks = count * ceil_div(rows, high) * ceil_div(columns, wide)
        waves = ceil_div(blocks, cores.num_cores)
        seconds = waves * larger(compute_s, taken / cores.noc_bytes_per_s)
        best = seconds if best is None else smaller(best, seconds)
    return best


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


def unaligned_attention_s(flops: Any, engine: Engine) -> Any:
    """Return the seconds of plain attention whose head size is no multiple of 8 words.

    Operands that do not start at 16 bytes keep batched products off the matrix units; the vector
    units reach about half of their rate there (assumed; head sizes 108 and 150 of the BigScience
    experiments on A100 show it).
    Source: NVIDIA Deep Learning Performance, Matrix Multiplication Background, section 2.1.
    """
    return flops / (UNALIGNED_SHARE * engine.vector_flops_per_s)


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
