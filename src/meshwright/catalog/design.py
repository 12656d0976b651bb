"""A design: a system not yet built, from a chip, a memory, links and a network.

Memories and links are parts of the catalog or files; logic and memory may share the area of one
package, so that area of the one is lost to the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.files import data_path, load_file
from meshwright.catalog.systems import load_chip, parse_shape, shape_text
from meshwright.spec.system import (
    ChipSpec,
    LevelKind,
    LinkPart,
    MemoryLevel,
    PackageMemory,
    SystemSpec,
)


def shared_area(
    chip: ChipSpec, memory: PackageMemory, logic_mm2: float
) -> tuple[ChipSpec, PackageMemory]:
    """Return a chip with this area of logic, and the memory that the rest of the area holds.

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
    share, left = kept / float(cores), whole - logic_mm2

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
    smaller = {
        "memories": (*near, chip.memories[-1]), "num_cores": kept, "area_mm2": logic_mm2,
        "peak_power_w": scaled(chip.peak_power_w), "idle_power_w": scaled(chip.idle_power_w),
        "price_usd": None,
    }  # fmt: skip
    rest = {
        "capacity_bytes": memory.capacity_bytes * left / memory.area_mm2,
        "bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s * left / memory.area_mm2,
    }
    return chip.model_copy(update=rates | smaller), memory.model_copy(update=rest)


@cache
def load_memory(name_or_path: str) -> PackageMemory:
    """Return a memory by its name in the catalog, or the one in a YAML file."""
    return load_file(PackageMemory, data_path("memories", "memory", name_or_path))


@cache
def load_link(name_or_path: str) -> LinkPart:
    """Return a link by its name in the catalog, or the one in a YAML file."""
    return load_file(LinkPart, data_path("links", "link", name_or_path))


NETWORKS: Mapping[str, tuple[LevelKind, ...]] = {
    "ring": ("torus",),
    "fully-connected": ("fully_connected",),
    "fat-tree": ("switch",),
    "mesh-2d": ("mesh", "mesh"),
    "torus-2d": ("torus", "torus"),
    "torus-3d": ("torus", "torus", "torus"),
    "dgx-1": ("torus", "switch"),
    "dgx-2": ("switch", "switch"),
    "dragonfly": ("fully_connected", "fully_connected"),
    "zionex": ("torus", "fully_connected"),
}
"""Kinds of the dimensions of each network, the innermost first (Ko et al. 2024, arXiv 2412.16432).
A fat tree of full bisection is one switch."""

HOST = 8
"""Devices of a host, where a network has hosts."""


@dataclass(frozen=True)
class Design:
    """A system in names of the catalog."""

    chip: str
    network: str
    links: tuple[str, ...]
    """Link of each dimension, the innermost first; a single one is used for all."""
    num_devices: int
    memory: str | None = None
    """Name of the memory; None: the memory of the chip."""
    shape: str | None = None
    """Sizes of the dimensions, the outermost first: ``128x8``; None: hosts of 8, or near-equal."""
    logic_area_mm2: float | None = None
    """Area of the logic, out of the area shared with memory; None: the area of the chip [mm2]."""

    @property
    def name(self) -> str:
        """Name of the design, in one word with all its parts."""
        parts = (f"{self.num_devices}x{self.chip}", self.memory, self.network, "+".join(self.links))
        return "-".join(part for part in parts if part)


def kinds_of(network: str) -> tuple[LevelKind, ...]:
    """Return the kinds of the dimensions of a network, the innermost first."""
    if network not in NETWORKS:
        raise UnknownNameError("network", network, NETWORKS)
    return NETWORKS[network]


def build(design: Design) -> SystemSpec:
    """Return the system of a design.

    Raises
    ------
    UnknownNameError
        A chip, memory, link or network that the catalog lacks.
    SpecError
        A shape that has other dimensions or holds another number of devices, or a number of links
        that fits no network.
    """
    kinds = kinds_of(design.network)
    sides = _sides(design, kinds)
    links = [load_link(name) for name in design.links]
    if len(links) not in (1, len(kinds)):
        message = f"{len(links)} links for the {len(kinds)} dimensions of {design.network}"
        raise SpecError(Fault("links", message, f"1 or {len(kinds)} of them"))
    each = links * len(kinds) if len(links) == 1 else links
    levels = [
        link.level(
            name=f"{link.name}-{number}".lower(),
            # a ring of two is a line
            kind="mesh" if kind == "torus" and size == 2 else kind,
            size=size,
        )
        for number, (kind, size, link) in enumerate(zip(kinds, sides, each, strict=True))
        if size > 1
    ]
    chip = load_chip(design.chip)
    if design.memory is not None:
        part = load_memory(design.memory)
        if design.logic_area_mm2 is not None:
            chip, part = shared_area(chip, part, design.logic_area_mm2)
        chip = with_memory(chip, part)
    elif design.logic_area_mm2 is not None:
        raise SpecError(Fault("logic_area", "a memory that shares the area is missing", "memory"))
    return SystemSpec(
        name=design.name, chip=chip, num_devices=design.num_devices, levels=tuple(levels)
    )


def with_memory(chip: ChipSpec, part: PackageMemory) -> ChipSpec:
    """Return a chip with another main memory."""
    level = MemoryLevel(
        name=part.name.lower(),
        capacity_bytes=part.capacity_bytes,
        bandwidth_bytes_per_s=part.bandwidth_bytes_per_s,
        energy_j_per_byte=part.energy_j_per_byte,
    )
    near = chip.memories[:-1] if len(chip.memories) > 1 else chip.memories
    return chip.model_copy(update={"memories": (*near, level)})


def _sides(design: Design, kinds: tuple[LevelKind, ...]) -> tuple[int, ...]:
    """Return the sizes of the dimensions, the innermost first."""
    text = design.shape
    if text is None:
        return standard_sides(design.num_devices, len(kinds), kinds[-1] in ("torus", "mesh"))
    shape = (int(text),) if text.isdigit() else parse_shape(text)
    if shape is None or len(shape) != len(kinds):
        message = f"{text!r} is not a shape of {len(kinds)} sides"
        raise SpecError(Fault("shape", message, f"{design.network} has {len(kinds)} dimensions"))
    if math.prod(shape) != design.num_devices:
        message = f"{shape_text(shape)} has {math.prod(shape)} devices, not {design.num_devices}"
        raise SpecError(Fault("shape", message))
    return tuple(reversed(shape))


def standard_sides(num_devices: int, num_dims: int, is_grid: bool) -> tuple[int, ...]:
    """Return sizes of dimensions that multiply to a number of devices, the innermost first.

    The sides of a grid are as equal as they can be; other networks have hosts of 8 (or of the
    largest divisor below).
    """
    if num_dims == 1:
        return (num_devices,)
    if not is_grid:
        host = max(size for size in range(1, HOST + 1) if num_devices % size == 0)
        return (host, num_devices // host)
    divisors = [size for size in range(1, num_devices + 1) if num_devices % size == 0]
    root = num_devices ** (1.0 / num_dims)
    side = min(divisors, key=lambda size: (abs(math.log(size / root)), size))
    return (side, *standard_sides(num_devices // side, num_dims - 1, is_grid))
