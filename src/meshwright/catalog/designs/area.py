"""Area that logic and memory of one package share: what one gets the other lacks."""

from __future__ import annotations

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.chip import ChipSpec
from meshwright.spec.parts import MemoryPart


def shared_area(
    chip: ChipSpec, memory: MemoryPart, logic_mm2: float
) -> tuple[ChipSpec, MemoryPart]:
    """Return a chip with so much logic, and the memory that the rest of the area holds.

    The area is that of the chip and the memory as the catalog states them. Cores are whole; rates,
    near memories and power follow their number. Capacity and bandwidth of the memory follow its
    area.

    Parameters
    ----------
    logic_mm2
        Area of the logic [mm2].

    Raises
    ------
    SpecError
        Where one of both states no area, or the logic leaves none or has not one core.
    """
    area, cores = chip.area_mm2, chip.num_cores
    if area is None or cores is None or memory.area_mm2 is None:
        message = f"{chip.name} and {memory.name} do not both state their area and cores"
        raise SpecError(Fault("logic_area", message, "such as TEMP-die and TEMP-HBM"))
    whole = area + memory.area_mm2
    kept = int(cores * logic_mm2 / area)
    if kept < 1 or logic_mm2 >= whole:
        allowed = f"from {area / cores:.4g} to below {whole:g} mm2"
        raise SpecError(Fault("logic_area", f"found {logic_mm2:g} mm2", allowed))
    return _smaller(chip, kept, logic_mm2), memory.model_copy(
        update={
            "capacity_bytes": memory.capacity_bytes * (whole - logic_mm2) / memory.area_mm2,
            "bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s
            * (whole - logic_mm2)
            / memory.area_mm2,
        }
    )


def _smaller(chip: ChipSpec, num_cores: int, area_mm2: float) -> ChipSpec:
    """Return a chip of so many equal cores; it may have more than before."""
    share = num_cores / float(chip.num_cores or 1)

    def scaled(value: float | None) -> float | None:
        return None if value is None else value * share

    near = tuple(
        level.model_copy(
            update={
                "capacity_bytes": level.capacity_bytes * share,
                "bandwidth_bytes_per_s": scaled(level.bandwidth_bytes_per_s),
            }
        )
        for level in chip.memories[:-1]
    )
    rates = {
        name: {dtype: rate * share for dtype, rate in getattr(chip, name).items()}
        for name in ("matmul_flops_per_s", "best_matmul_flops_per_s", "vector_flops_per_s")
    }
    return chip.model_copy(
        update={
            **rates, "memories": (*near, chip.memories[-1]), "num_cores": num_cores,
            "area_mm2": area_mm2, "peak_power_w": scaled(chip.peak_power_w),
            "idle_power_w": scaled(chip.idle_power_w), "price_usd": None,
        }
    )  # fmt: skip
