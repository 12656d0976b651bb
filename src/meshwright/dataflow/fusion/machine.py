"""A chip as fusion sees it: cores that each hold an array of multiply-adds, SRAM, and DRAM."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.chip import ChipSpec, DType


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


def grid_of(chip: ChipSpec, dtype: DType = "bf16") -> CoreGrid:
    """Return a chip as fusion sees it.

    The clock is the one at which its cores reach the peak: rate / (2 cores rows columns). Arrays
    are those of a core where the chip states them, otherwise its output tile.

    Raises
    ------
    SpecError
        With all that the chip does not state but fusion needs.
    """
    on_chip, main = chip.memories[0], chip.main_memory
    needed = {
        "num_cores": chip.num_cores is not None,
        f"matmul_rate.{dtype}": dtype in chip.matmul_flops_per_s,
        "memories: one on the chip and one outside": len(chip.memories) > 1,
        "memories[-1].bandwidth": main.bandwidth_bytes_per_s is not None,
    }
    missing = [Fault(name, "is unknown, but fusion needs it") for name, is_there in needed.items()
               if not is_there]  # fmt: skip
    if missing:
        raise SpecError(missing, origin=f"chip {chip.name}")
    num_cores = chip.num_cores or 0
    rows, columns = chip.array_rows or chip.tile_rows, chip.array_columns or chip.tile_columns
    return CoreGrid(
        num_cores=num_cores,
        array_rows=rows,
        array_columns=columns,
        frequency_hz=chip.matmul_flops_per_s[dtype] / (2.0 * num_cores * rows * columns),
        sram_bytes=on_chip.capacity_bytes,
        dram_bytes=main.capacity_bytes,
        dram_bytes_per_s=main.bandwidth_bytes_per_s or 0.0,
    )
