"""One accelerator: what it computes, remembers, draws and costs; and parts to build one of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from meshwright.spec.declaration import (
    Bytes,
    BytesPerSecond,
    Count,
    Declaration,
    FlopsPerSecond,
    JoulesPerByte,
    JoulesPerFlop,
    MessageBytes,
    Provenance,
    Seconds,
    Source,
    SquareMillimetres,
    Usd,
    UsdPerHour,
    Watts,
)

DType = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]


class MemoryLevel(Declaration):
    """One level of the memory of a chip."""

    name: str
    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond | None = None
    latency_s: Seconds | None = None
    energy_j_per_byte: JoulesPerByte | None = None


class ChipSpec(Declaration):
    """One accelerator (GPU, TPU chip, die of a wafer).

    Rates are dense. Memories are ordered near to far; the last one holds the model (HBM, or the
    SRAM itself on chips without external memory). A missing price or power is None: unknown, and
    never zero.
    """

    name: str
    vendor: str
    family: str
    """Chips of one family share calibration constants: hopper, ampere, tpu, temp-die, ..."""
    matmul_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(alias="matmul_rate")
    best_matmul_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(
        default_factory=dict, alias="best_matmul_rate"
    )
    """Best matrix rate measured under the power cap, where it is known."""
    vector_flops_per_s: Mapping[DType, FlopsPerSecond] = Field(
        default_factory=dict, alias="vector_rate"
    )
    memories: tuple[MemoryLevel, ...]
    num_cores: Count | None = None
    """Units that each work on one output tile of a matrix product (SMs of a GPU)."""
    tile_rows: Count = 128
    tile_columns: Count = 128
    array_rows: Count | None = None
    array_columns: Count | None = None
    """Multiply-adds of one core, where it is known that they are fewer than its output tile."""
    noc_bytes_per_s: BytesPerSecond | None = Field(default=None, alias="noc_rate")
    """What the network on the chip brings to one core. With it, the share of the peak that a
    product reaches follows from its shape; without it, calibration states that share."""
    peak_power_w: Watts | None = None
    idle_power_w: Watts | None = None
    energy_j_per_flop: JoulesPerFlop | None = None
    area_mm2: SquareMillimetres | None = None
    price_usd: Usd | None = None
    rent_usd_per_hour: UsdPerHour | None = None
    standard_system: str | None = None
    """The system meant by ``64xNAME``: a name of the catalog."""
    notes: tuple[str, ...] = ()
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)
    """Origin of each value, by its path in the file."""

    @model_validator(mode="after")
    def _has_memory_and_rate(self) -> Self:
        if not self.memories:
            raise ValueError("memories: a chip needs at least one memory level")
        if not self.matmul_flops_per_s:
            raise ValueError("matmul_rate: a chip needs the rate of at least one type")
        return self

    @property
    def main_memory(self) -> MemoryLevel:
        """The level that holds the model: HBM, or the SRAM where there is nothing else."""
        return self.memories[-1]


class MemoryPart(Declaration):
    """All memory of one kind on one package."""

    name: str
    capacity_bytes: Bytes
    bandwidth_bytes_per_s: BytesPerSecond
    energy_j_per_byte: JoulesPerByte | None = None
    area_mm2: SquareMillimetres | None = None
    """Of the package, where it shares that of the chip."""
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)


class LinkPart(Declaration):
    """All links of one kind of one chip, or the one to a neighbour in a grid."""

    name: str
    bandwidth_bytes_per_s: BytesPerSecond
    """One direction."""
    latency_s: Seconds
    message_half_bytes: MessageBytes = Field(default=0.0, alias="message_half")
    energy_j_per_byte: JoulesPerByte | None = None
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)
