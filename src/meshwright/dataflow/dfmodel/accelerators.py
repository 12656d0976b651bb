"""Accelerators as the published runs of DFModel enter them (Ko et al. 2024, arXiv 2412.16432)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import Field

from meshwright.base.errors import UnknownNameError
from meshwright.catalog.peers import load_peer
from meshwright.dataflow.fusion.machine import CoreGrid
from meshwright.spec.declaration import Bytes, BytesPerSecond, Count, Declaration, Hertz
from meshwright.spec.provenance import Source


class Accelerator(Declaration):
    """One accelerator: cores, SRAM, DRAM, and one direction of a link of its first dimension."""

    num_cores: Count
    array_rows: Count
    array_columns: Count
    frequency_hz: Hertz
    sram_bytes: Bytes
    dram_capacity_bytes: Bytes
    dram_bytes_per_s: BytesPerSecond = Field(alias="dram_rate")
    link_bytes_per_s: BytesPerSecond | None = None

    @property
    def grid(self) -> CoreGrid:
        """The accelerator as fusion sees it."""
        return CoreGrid(
            num_cores=self.num_cores,
            array_rows=self.array_rows,
            array_columns=self.array_columns,
            frequency_hz=self.frequency_hz,
            sram_bytes=self.sram_bytes,
            dram_bytes=self.dram_capacity_bytes,
            dram_bytes_per_s=self.dram_bytes_per_s,
        )


class Accelerators(Declaration):
    """Everything that is kept of the peer's inputs."""

    name: str
    sources: Mapping[str, Source]
    accelerators: Mapping[str, Accelerator]


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Return all accelerators by name."""
    return load_peer(Accelerators, "dfmodel").accelerators


def accelerator_named(name: str) -> Accelerator:
    """Return an accelerator, such as ``SN10``."""
    known = accelerators()
    if name not in known:
        raise UnknownNameError("accelerator of DFModel", name, known)
    return known[name]
