"""A design: which chip, memory, links and network, and how many of them.

The chip keeps its cores and near memories; its main memory and its network are replaced. Networks
have one to three dimensions, each with a kind of link of its own; a shape gives their sizes, the
outermost first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.errors import Fault, SpecError, UnknownNameError
from meshwright.catalog.chips import load_chip
from meshwright.catalog.designs.area import shared_area
from meshwright.catalog.designs.parts import load_link, load_memory
from meshwright.catalog.grids import parse_shape, shape_text
from meshwright.spec.chip import ChipSpec, MemoryLevel
from meshwright.spec.parts import LinkPart, MemoryPart
from meshwright.spec.system import LevelKind, NetworkLevel, SystemSpec

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
    """Of each dimension, the innermost first; one for all where it stands alone."""
    num_devices: int
    memory: str | None = None
    """None: the memory that the chip has."""
    shape: str | None = None
    """Sizes of the dimensions, the outermost first: ``128x8``; None: hosts of 8, or near-equal."""
    logic_area_mm2: float | None = None
    """Of the area that logic and memory share; None: as much as the chip has [mm2]."""

    @property
    def name(self) -> str:
        """One word that says all of it."""
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
        _level(f"{link.name}-{number}", kind, size, link)
        for number, (kind, size, link) in enumerate(zip(kinds, sides, each, strict=True))
        if size > 1
    ]
    return SystemSpec(
        name=design.name,
        chip=_chip(design),
        num_devices=design.num_devices,
        levels=tuple(levels),
    )


def _chip(design: Design) -> ChipSpec:
    """Return the chip with its memory."""
    chip = load_chip(design.chip)
    if design.memory is None and design.logic_area_mm2 is None:
        return chip
    if design.memory is None:
        raise SpecError(Fault("logic_area", "a memory that shares the area is missing", "memory"))
    part = load_memory(design.memory)
    if design.logic_area_mm2 is not None:
        chip, part = shared_area(chip, part, design.logic_area_mm2)
    return with_memory(chip, part)


def with_memory(chip: ChipSpec, part: MemoryPart) -> ChipSpec:
    """Return a chip with another main memory."""
    level = MemoryLevel(
        name=part.name.lower(),
        capacity_bytes=part.capacity_bytes,
        bandwidth_bytes_per_s=part.bandwidth_bytes_per_s,
        energy_j_per_byte=part.energy_j_per_byte,
    )
    near = chip.memories[:-1] if len(chip.memories) > 1 else chip.memories
    return chip.model_copy(update={"memories": (*near, level)})


def _level(name: str, kind: LevelKind, size: int, link: LinkPart) -> NetworkLevel:
    """Return one dimension of a network; a ring of two is a line."""
    return NetworkLevel(
        name=name.lower(),
        kind="mesh" if kind == "torus" and size == 2 else kind,
        size=size,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        message_half_bytes=link.message_half_bytes,
        energy_j_per_byte=link.energy_j_per_byte,
    )


def _sides(design: Design, kinds: tuple[LevelKind, ...]) -> tuple[int, ...]:
    """Return the sizes of the dimensions, the innermost first."""
    if design.shape is None:
        return standard_sides(design.num_devices, len(kinds), kinds[-1] in ("torus", "mesh"))
    shape = (
        parse_shape(design.shape)
        if "x" in design.shape
        else (int(design.shape),) if design.shape.isdigit() else None
    )  # fmt: skip
    if shape is None or len(shape) != len(kinds):
        message = f"{design.shape!r} is no shape of {len(kinds)} sides"
        raise SpecError(Fault("shape", message, f"{design.network} has {len(kinds)} dimensions"))
    if math.prod(shape) != design.num_devices:
        message = f"{shape_text(shape)} has {math.prod(shape)} devices, not {design.num_devices}"
        raise SpecError(Fault("shape", message))
    return tuple(reversed(shape))


def standard_sides(num_devices: int, num_dims: int, is_grid: bool) -> tuple[int, ...]:
    """Return sizes of dimensions whose product is a number of devices, the innermost first.

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
