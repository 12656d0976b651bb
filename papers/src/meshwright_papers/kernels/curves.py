"""Curves of kernels: the few physical numbers that turn a shape into seconds on a chip.

A curve holds shares of the data-sheet figures of its chip and times of the hardware and its
libraries, so that the curve of one chip foresees another one of its family. The value of each field
is expected where nothing was measured; its metadata holds the possible range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast

from meshwright.spec.system import ChipSpec, DType


def bounded(expected: float, lowest: float, highest: float) -> float:
    """Return a field of a curve that a fit moves between two bounds."""
    return field(default=expected, metadata={"range": (lowest, highest)})


def one_of(expected: float, *choices: float) -> float:
    """Return a field of a curve that a fit picks from some values."""
    return field(default=expected, metadata={"choices": choices})


@dataclass(frozen=True)
class KernelDevice:
    """The data-sheet figures of a chip that its kernels depend on."""

    matmul_flops_per_s: Mapping[DType, float]
    """Dense peaks [FLOP/s]."""
    memory_bytes_per_s: float
    cache_bytes: float
    """The cache that all cores share [bytes]."""
    num_cores: float

    def peak_flops_per_s(self, dtype: DType) -> float:
        """Return the peak for a type; that of 16-bit words where the chip lacks it [FLOP/s]."""
        rates = self.matmul_flops_per_s
        return rates.get(dtype) or rates.get("bf16") or rates["fp16"]


def kernel_device(chip: ChipSpec) -> KernelDevice:
    """Return the data-sheet figures of a chip that its kernels depend on."""
    return KernelDevice(
        chip.matmul_flops_per_s,
        chip.main_memory.bandwidth_bytes_per_s or 0.0,
        chip.memories[0].capacity_bytes if len(chip.memories) > 1 else 0.0,
        float(chip.num_cores or 1),
    )


@dataclass(frozen=True)
class Curve:
    """A curve of any kernel."""

    @property
    def numbers(self) -> dict[str, float]:
        """Its fields by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def range_of(curve: type[Curve], name: str) -> tuple[float, float] | None:
    """Return the bounds of a field; None: it is picked from some values."""
    found: Any = next(entry for entry in fields(curve) if entry.name == name)
    return cast("tuple[float, float] | None", found.metadata.get("range"))


@dataclass(frozen=True)
class GemmCurve(Curve):
    """One matrix product."""

    least_rows: float = one_of(64.0, 64.0, 128.0)
    """Fewest rows of the output tiles that the library has [1]."""
    most_parts: float = one_of(32.0, 1.0, 32.0)
    """Most parts into which the library cuts the inner size [1]."""
    rate_share: float = bounded(0.85, 0.2, 1.0)
    """Share of the peak that a busy core reaches [1]."""
    memory_share: float = bounded(0.9, 0.3, 1.0)
    cache_factor: float = bounded(2.0, 0.5, 20.0)
    """Rate of the shared cache over the one reached by the memory [1]."""
    core_bytes_per_s: float = bounded(1e11, 5e9, 2e12)
    """Rate at which one core receives operands [bytes/s]."""
    launch_s: float = bounded(2e-6, 2e-7, 1e-4)
    tile_s: float = bounded(5e-7, 1e-8, 3e-5)
    """Seconds to fill and to empty the pipeline of one output tile."""
    split_s: float = bounded(2e-6, 1e-8, 1e-3)
    """Seconds to add the parts of a product that is cut along its inner size."""
    ragged_share: float = bounded(0.97, 0.5, 1.3)
    """Share of the rate where the number of rows is not a multiple of 8 [1]."""
    blend: float = bounded(4.0, 1.0, 30.0)
    """Sharpness of the maximum of arithmetic and memory [1]: the larger, the more the slower
    decides."""
    sag: float = bounded(0.1, 1e-3, 1.0)
    """Share by which arithmetic is slower in long kernels, which the power cap limits [1]."""


@dataclass(frozen=True)
class NarrowGemmCurve(GemmCurve):
    """One matrix product with operands below 16 bits: the left one is cast first."""

    cast_row_s: float = bounded(2e-9, 1e-11, 1e-7)
    """Seconds for each row."""
    cast_share: float = bounded(0.5, 0.05, 5.0)
    """Share of the memory rate that the cast reaches, over its bytes read and written [1]."""


@dataclass(frozen=True)
class ContextCurve(Curve):
    """Causal attention of prompts, which writes their keys and values to the cache."""

    query_tile: float = one_of(128.0, 64.0, 128.0, 256.0)
    """Queries that one core works on."""
    rate_share: float = bounded(0.7, 0.03, 2.0)
    softmax_flops: float = bounded(60.0, 1.0, 600.0)
    """Arithmetic of the matrix units that takes as long as the exponential of one score [FLOP]."""
    memory_share: float = bounded(0.6, 0.05, 1.0)
    launch_s: float = bounded(8e-6, 1e-6, 2e-4)
    wave_s: float = bounded(1e-6, 1e-8, 1e-4)
    tail: float = bounded(0.5, 0.01, 2.0)
    """Share of the longest tile that runs after all others have finished [1]."""
    token_s: float = bounded(1e-9, 1e-11, 1e-6)
    """Seconds to write the keys and values of one token."""
    window_share: float = bounded(0.95, 0.01, 1.0)
    """Share of the scores outside a window that are not computed [1]."""
    uneven_share: float = bounded(0.9, 0.02, 1.5)
    """Share of the rate with head sizes up to 256 other than 64, 128 and 256 [1]."""
    wide_share: float = bounded(0.9, 0.02, 1.5)
    """Share of the rate with head sizes above 256 [1]."""
    blend: float = bounded(3.0, 1.0, 30.0)


@dataclass(frozen=True)
class DecodeCurve(Curve):
    """Attention of one new token of each sequence to its cache."""

    memory_share: float = bounded(0.85, 0.1, 1.0)
    cache_factor: float = bounded(2.0, 0.5, 20.0)
    core_bytes_per_s: float = bounded(5e10, 1e9, 1e12)
    rate_share: float = bounded(0.5, 0.01, 1.5)
    launch_s: float = bounded(8e-6, 1e-6, 2e-4)
    wave_s: float = bounded(1e-6, 1e-8, 1e-4)
    combine_s: float = bounded(1e-6, 1e-8, 3e-5)
    """Seconds to add the parts of a sequence that is cut over cores."""
    group_s: float = bounded(1e-6, 1e-8, 3e-5)
    """Extra seconds where several heads share keys and values."""
    sequence_s: float = bounded(1e-9, 1e-12, 1e-6)
    plain_split: float = bounded(0.5, 1e-3, 1.0)
    """Share of the cuts along a sequence that are made where no heads share keys and values [1]."""
    group_split: float = bounded(0.9, 1e-3, 1.0)
    """Share of the cuts along a sequence that are made where heads share keys and values [1]."""
    group_tile: float = one_of(64.0, 64.0, 16.0)
    """Heads that share keys and values and are computed in one piece."""
    windows_group: float = one_of(1.0, 0.0, 1.0)
    """Whether heads that share keys and values are computed together under a window too."""
    window_share: float = bounded(0.95, 0.01, 1.0)
    uneven_share: float = bounded(0.9, 0.02, 1.5)
    wide_share: float = bounded(0.9, 0.02, 1.5)
    blend: float = bounded(2.0, 1.0, 30.0)


@dataclass(frozen=True)
class ExpertsCurve(Curve):
    """Routed experts on one device: routing, two grouped products, and the sum."""

    rate_share: float = bounded(0.6, 0.02, 1.0)
    memory_share: float = bounded(0.8, 0.1, 1.0)
    cache_factor: float = bounded(1.5, 1.0, 10.0)
    core_bytes_per_s: float = bounded(1e11, 1e9, 2e12)
    launch_s: float = bounded(2e-5, 1e-6, 5e-4)
    tile_s: float = bounded(1e-7, 1e-9, 1e-4)
    traffic_share: float = bounded(0.4, 0.02, 5.0)
    """Share of the memory rate that routing and sums reach [1]."""
    foreign_share: float = bounded(0.1, 1e-3, 1.0)
    """Share of the rows of other devices' experts that this device still processes [1]."""
    ragged_share: float = bounded(0.8, 0.1, 1.2)
    """Share of the rate where the width of a shard is not a multiple of 16 [1]."""
    choice_s: float = bounded(1e-9, 1e-12, 1e-6)
    """Seconds for each expert that a token chooses."""
    expert_s: float = bounded(1e-8, 1e-11, 1e-5)
    imbalance: float = bounded(1.0, 0.05, 4.0)
    """Load of the busiest rank above the mean, in standard deviations, over the expected largest of
    as many normal draws [1]."""
    blend: float = bounded(2.0, 1.0, 30.0)


@dataclass(frozen=True)
class LatentBlockCurve(Curve):
    """Additions of a block of latent attention to its products and its attention core."""

    host_s: float = bounded(5e-5, 1e-6, 5e-4)
    """Seconds before the host has launched all kernels."""
    core_scale: float = bounded(1.0, 0.1, 10.0)
    """Seconds of the core over those of the kernel on its own [1]."""
    traffic_share: float = bounded(0.4, 0.02, 5.0)
    """Share of the memory rate that norms, rotations and copies reach [1]."""
    blend: float = bounded(2.0, 1.0, 30.0)


@dataclass(frozen=True)
class CollectiveCurve(Curve):
    """A collective of a library inside one node: the fastest of some protocols."""

    limit_bytes: float = one_of(2.0**40, 2.0**40, 2.0**24, 2.0**23, 2.0**22, 2.0**21, 2.0**20)
    """Size above which only the protocol of large pieces is used [bytes]."""
    host_s: float = bounded(1e-6, 1e-7, 2e-4)
    """Seconds before the host has launched the collective."""
    launch_s: float = bounded(5e-6, 5e-7, 1e-4)
    hop_s: float = bounded(5e-7, 1e-8, 2e-5)
    """Seconds for each further rank."""
    flag_share: float = bounded(0.1, 1e-3, 1.5)
    """Share of the link rate when each word carries a flag [1]."""
    line_s: float = bounded(3e-6, 1e-8, 1e-4)
    """Extra seconds of a protocol with a flag for each cache line."""
    line_share: float = bounded(0.4, 1e-3, 1.5)
    bulk_s: float = bounded(1e-5, 1e-8, 1e-3)
    """Extra seconds of a protocol that synchronises large pieces."""
    bulk_share: float = bounded(0.8, 1e-3, 1.5)
    crowding: float = bounded(0.02, 1e-3, 1.0)
    """Power of half the number of ranks by which the rate of each falls: root ports shared by cards
    [1]."""
    switch_share: float = bounded(0.5, 1e-3, 1.5)
    """Share of the link rate in an all-reduce that the switch adds up [1]."""


@dataclass(frozen=True)
class DispatchCurve(Curve):
    """Tokens sent to their experts, or back, by a library of all-to-all."""

    launch_s: float = bounded(2e-5, 1e-6, 5e-4)
    token_s: float = bounded(1e-8, 1e-12, 1e-6)
    network_share: float = bounded(0.7, 0.01, 1.5)
    core_bytes_per_s: float = bounded(2e10, 1e8, 1e12)
    """Rate of each core that is assigned to the library [bytes/s]."""
    blend: float = bounded(2.0, 1.0, 30.0)


@dataclass(frozen=True)
class ElementwiseCurve(Curve):
    """A kernel that memory limits."""

    launch_s: float = bounded(3e-6, 2e-7, 1e-4)
    memory_share: float = bounded(0.8, 0.05, 1.0)
    cache_factor: float = bounded(1.5, 0.5, 10.0)
    row_s: float = bounded(1e-10, 1e-13, 1e-7)
    """Seconds for each row."""


_CURVES: Mapping[str, type[Curve]] = {
    "gemm": GemmCurve, "context": ContextCurve, "decode": DecodeCurve,
    "latent_context": ContextCurve, "latent_decode": DecodeCurve,
    "latent_products": GemmCurve, "latent_block": LatentBlockCurve, "experts": ExpertsCurve,
    "collectives": CollectiveCurve, "dispatch": DispatchCurve, "elementwise": ElementwiseCurve,
}  # fmt: skip


def curve_type(kernel: str, variant: str) -> type[Curve]:
    """Return the type of a kernel's curve; variants of products end in the type of their words."""
    found = _CURVES[kernel]
    is_narrow = variant.rpartition("/")[2] != "bfloat16"
    return NarrowGemmCurve if found is GemmCurve and is_narrow else found
