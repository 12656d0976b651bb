"""A kernel that memory limits: norms, rotations, activations, additions, lookups."""

from __future__ import annotations

from meshwright.base.arrays import Num, where
from meshwright_papers.kernels.curves import ElementwiseCurve, KernelDevice
from meshwright_papers.kernels.formulas.gemm import CACHE_SHARE


def elementwise_s(
    rows: Num, num_bytes: Num, *, device: KernelDevice, curve: ElementwiseCurve
) -> Num:
    """Return the seconds of a kernel that reads and writes ``num_bytes`` [s].

    Tensors that fit the shared cache come from there, as earlier kernels left them.
    """
    memory = curve.memory_share * device.memory_bytes_per_s
    fits = num_bytes < CACHE_SHARE * device.cache_bytes
    moved_s = num_bytes / where(fits, curve.cache_factor * memory, memory)
    return curve.launch_s + moved_s + curve.row_s * rows
