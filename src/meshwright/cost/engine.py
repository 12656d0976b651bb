"""From a chip, its calibration and the software stack to what a device does in a second."""

from __future__ import annotations

from typing import Any

from meshwright.base.errors import Fault, SpecError
from meshwright.cost.compute import CoreArray, Engine
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.workload import BYTES_OF, Precision, SoftwareStack

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
