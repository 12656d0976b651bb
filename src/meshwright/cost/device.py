"""What a device does in a second: rates from a chip, its calibration and the software stack."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.arrays import Num, positive_part
from meshwright.base.errors import Fault, SpecError
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.system import ChipSpec, DType
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

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
class DeviceRates:
    """What one device does in a second; each rate a number, or a column of perturbed numbers."""

    matmul_flops_per_s: Num
    """Reached by large matrix products in the type of the linear layers [FLOP/s]."""
    logits_flops_per_s: Num
    """Reached by large matrix products in the activation type: logits [FLOP/s]."""
    attention_forward_flops_per_s: Num
    attention_backward_flops_per_s: Num
    memory_bytes_per_s: Num
    """Reached by matrix products and copies [bytes/s]."""
    elementwise_bytes_per_s: Num
    """Reached by norms and elementwise kernels [bytes/s]."""
    launch_s: Num
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
    vector_flops_per_s: Num | None = None
    """Of the units beside the matrix units, in FP32; None: not known [FLOP/s]."""
    grouped_efficiency: Num = 1.0
    """Share of their rate that products of many experts reach [1]."""
    expert_passes: Num = 1.0
    """How many times the least bytes routing moves [1]."""
    expert_kernels: Num = 0.0
    """Launches that show for each narrow product of one expert [1]."""
    separate_accumulation_kernel: bool = False
    """Gradients of a micro-batch are added in a pass of their own."""
    freezes_weights: bool = False
    """Nobody asks for gradients of weights."""


def exposed_launch_s(busy_s: Num, num_kernels: Num, rates: DeviceRates) -> Num:
    """Return what launching adds to a busy time: kernels cannot start faster than the host says."""
    return positive_part(num_kernels * rates.launch_s - busy_s)


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


def reached_rate(chip: ChipSpec, dtype: DType, calibration: CalibrationOf[Num]) -> Num:
    """Return the rate of large matrix products [FLOP/s]: measured, or a share of the peak.

    The peak itself where the chip states what its cores can take in: the share then follows.
    """
    if chip.noc_bytes_per_s is not None:
        return stated_rate(chip, dtype)
    for name in _names(dtype):
        if name in chip.best_matmul_flops_per_s:
            return chip.best_matmul_flops_per_s[name]
    return stated_rate(chip, dtype) * calibration.matmul_efficiency


def sustained_share(chip: ChipSpec, calibration: CalibrationOf[Num]) -> Num:
    """Return the share of their rate that products keep in whole steps [1].

    It is fitted to chips whose products are priced by a constant, and holds what that constant
    leaves out: how the cores are fed. Where this follows from the arrays of a chip and the network
    on it, a share of other families would count it twice; one of its own family still holds.
    """
    if chip.noc_bytes_per_s is not None and not calibration.is_calibrated:
        return 1.0
    return calibration.matmul_sustained_efficiency


def _linear_rate(chip: ChipSpec, precision: Precision, calibration: CalibrationOf[Num]) -> Num:
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


def device_rates(
    chip: ChipSpec,
    precision: Precision,
    software: SoftwareStack,
    calibration: CalibrationOf[Num],
    *,
    speed_factor: float = 1.0,
    freezes_weights: bool = False,
) -> DeviceRates:
    """Return the rates of one device; ``speed_factor`` is the share of its cores that work.

    Low-precision linear layers leave attention, logits and elementwise work in the activation
    type, so they have their own rate.
    """
    bandwidth = chip.main_memory.bandwidth_bytes_per_s
    if bandwidth is None:
        message = "unknown, but every price needs it"
        raise SpecError(Fault(f"chip {chip.name}: memories[-1].bandwidth", message))
    activation_peak = stated_rate(chip, precision.activation) * speed_factor
    sustained = sustained_share(chip, calibration) * speed_factor
    kernels: Num = 1.0
    if software.attention_kernels == "portable":
        kernels = calibration.portable_attention_efficiency
    passes = calibration.eager_traffic_factor if software.eager else 1.0
    return DeviceRates(
        matmul_flops_per_s=_linear_rate(chip, precision, calibration) * sustained,
        logits_flops_per_s=reached_rate(chip, precision.activation, calibration) * sustained,
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
        separate_accumulation_kernel=not software.fused_gradient_accumulation
        and not freezes_weights,
        freezes_weights=freezes_weights,
    )
