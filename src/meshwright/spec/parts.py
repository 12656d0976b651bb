"""Parts that a system is composed of: a memory next to a chip, and a link between two of them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from meshwright.spec.declaration import (
    Bytes,
    BytesPerSecond,
    Declaration,
    JoulesPerByte,
    MessageBytes,
    Seconds,
    SquareMillimetres,
)
from meshwright.spec.provenance import Provenance, Source


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
