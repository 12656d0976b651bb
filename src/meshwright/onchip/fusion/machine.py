"""A chip as fusion sees it: cores that each hold an array of multiply-adds, SRAM, and DRAM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CoreGrid:
    """Equal cores under one clock, the SRAM that they share, and the memory outside."""

    num_cores: int
    array_rows: int
    """Multiply-adds along the rows of a product, and lanes of an elementwise kernel."""
    array_columns: int
    """Multiply-adds along its columns."""
    frequency_hz: float
    sram_bytes: float
    dram_bytes: float
    dram_bytes_per_s: float

    @property
    def flops_per_s(self) -> float:
        """Dense peak: two FLOP for each multiply-add and clock [FLOP/s]."""
        return 2.0 * self.num_cores * self.array_rows * self.array_columns * self.frequency_hz
