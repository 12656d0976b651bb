"""Seconds of single operators on one device: matrix products, attention, memory-bound work.

Every formula takes numbers or columns. Rates come from an :class:`Engine`, which joins a chip with
its calibration, so that nothing here looks anything up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div, larger, positive_part, smaller
from meshwright.base.errors import Fault, SpecError
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

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


_SAME_RATE: dict[DType, DType] = {"fp16": "bf16", "bf16": "fp16"}
"""Types of equal rate on every chip of the catalog, where only one of them is stated."""


def _names(dtype: DType) -> tuple[DType, ...]:
    """Return the type, and the one of equal rate."""
    return (dtype, _SAME_RATE[dtype]) if dtype in _SAME_RATE else (dtype,)


def stated_rate(chip: ChipSpec, dtype: DType) -> float:
    """Return the dense peak of a chip for a type [FLOP/s].

    Raises
    ------
    SpecError
        When the chip has no rate for the type; names the types that it has.
    """
    for name in _names(dtype):
        if name in chip.matmul_flops_per_s:
            return chip.matmul_flops_per_s[name]
    known = ", ".join(sorted(chip.matmul_flops_per_s))
    raise SpecError(
        Fault("precision.matmul", f"{chip.name} has no rate for {dtype}", f"has {known}")
    )


def reached_rate(chip: ChipSpec, dtype: DType, calibration: CalibrationOf[Any]) -> Any:
    """Return the rate of large matrix products [FLOP/s]: measured, or a share of the peak.

    The peak itself where the chip states what its cores can take in: the share then follows.
    """
    if chip.noc_bytes_per_s is not None:
        return stated_rate(chip, dtype)
    for name in _names(dtype):
        if name in chip.best_matmul_flops_per_s:
            return chip.best_matmul_flops_per_s[name]
    return stated_rate(chip, dtype) * calibration.matmul_efficiency


def sustained_share(chip: ChipSpec, calibration: CalibrationOf[Any]) -> Any:
    """Return the share of their rate that products keep in whole steps [1].

    It is fitted to chips whose products are priced by a constant, and holds what that constant
    leaves out: how the cores are fed. Where this follows from the arrays of a chip and the network
    on it, a share of other families would count it twice; one of its own family still holds.
    """
    if chip.noc_bytes_per_s is not None and not calibration.is_calibrated:
        return 1.0
    return calibration.matmul_sustained_efficiency


def _linear_rate(chip: ChipSpec, precision: Precision, calibration: CalibrationOf[Any]) -> Any:
    """Return the rate of large products of the linear layers [FLOP/s].

    Scales of rows are applied to sums outside of the matrix units, which then reach the rate of
    the activation type.
    """
    if precision.row_scales:
        return reached_rate(chip, precision.activation, calibration)
    rate = reached_rate(chip, precision.matmul, calibration)
    is_narrow = BYTES_OF[precision.matmul] < BYTES_OF[precision.activation]
    return rate * calibration.narrow_matmul_efficiency if is_narrow else rate


def core_array_of(chip: ChipSpec) -> CoreArray | None:
    """Return the cores of a chip that states the network on it, None for other chips."""
    if chip.noc_bytes_per_s is None:
        return None
    num_cores = float(chip.num_cores or 1)
    return CoreArray(
        num_cores=num_cores,
        rows=float(chip.array_rows or chip.tile_rows),
        columns=float(chip.array_columns or chip.tile_columns),
        noc_bytes_per_s=chip.noc_bytes_per_s,
        sram_bytes=chip.memories[0].capacity_bytes / num_cores,
    )


def make_engine(
    chip: ChipSpec,
    precision: Precision,
    software: SoftwareStack,
    calibration: CalibrationOf[Any],
    *,
    speed_factor: float = 1.0,
    freezes_weights: bool = False,
) -> Engine:
    """Return the engine of one device; ``speed_factor`` is the share of its cores that work.

    Low-precision linear layers leave attention, logits and elementwise work in the activation
    type, so they have their own rate.
    """
    bandwidth = chip.main_memory.bandwidth_bytes_per_s
    if bandwidth is None:
        message = "unknown, but every price needs it"
        raise SpecError(Fault(f"chip {chip.name}: memories[-1].bandwidth", message))
    activation_peak = stated_rate(chip, precision.activation) * speed_factor
    sustained = sustained_share(chip, calibration) * speed_factor
    kernels = 1.0
    if software.attention_kernels == "portable":
        kernels = calibration.portable_attention_efficiency
    passes = calibration.eager_traffic_factor if software.eager else 1.0
    return Engine(
        matmul_flops_per_s=_linear_rate(chip, precision, calibration) * sustained,
        edge_flops_per_s=reached_rate(chip, precision.activation, calibration) * sustained,
        attention_forward_flops_per_s=activation_peak
        * (calibration.attention_forward_efficiency * kernels),
        attention_backward_flops_per_s=activation_peak
        * (calibration.attention_backward_efficiency * kernels),
        memory_bytes_per_s=bandwidth * calibration.memory_efficiency,
        elementwise_bytes_per_s=bandwidth * (calibration.elementwise_efficiency / passes),
        launch_s=0.0 if software.cuda_graphs else calibration.launch_s,
        stream_sram_bytes=chip.memories[0].capacity_bytes if len(chip.memories) > 1 else 0.0,
        tile_rows=float(chip.tile_rows),
        tile_columns=float(chip.tile_columns),
        num_cores=float(chip.num_cores or 1),
        activation_bytes=BYTES_OF[precision.activation],
        matmul_word_bytes=BYTES_OF[precision.matmul],
        core_array=core_array_of(chip),
        vector_flops_per_s=chip.vector_flops_per_s.get("fp32"),
        grouped_efficiency=calibration.grouped_matmul_efficiency,
        expert_passes=calibration.expert_traffic_factor,
        expert_kernels=calibration.expert_kernels,
        adds_gradients_apart=not software.fused_gradient_accumulation and not freezes_weights,
        freezes_weights=freezes_weights,
    )
