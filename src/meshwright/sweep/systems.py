"""The system of a point: a name of the catalog or a design in parts, and its price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

import numpy as np

from meshwright.catalog.design import Design, build, kinds_of, load_link, load_memory
from meshwright.catalog.systems import load_chip, load_system
from meshwright.network.faults import FaultRates, random_faults
from meshwright.spec.system import LevelKind, SystemSpec
from meshwright.sweep.run import Point
from meshwright.topology.levels import network_of

DESIGN = ("chip", "memory", "network", "links", "devices", "shape", "logic_area")
NEEDED = ("chip", "network", "links", "devices")


def is_design(point: Point) -> bool:
    """Tell whether a point names parts in place of a system."""
    return any(name in point for name in DESIGN)


def system_of(point: Point) -> SystemSpec:
    """Return the system of a point, with its drawn faults."""
    system = whole_system_of(point)
    return with_faults(system, point) if any(name in point for name in YIELDS) else system


YIELDS = ("die_yield", "link_yield", "core_yield")
"""Yields of dies, links and cores [1], each drawn on its own."""
DRAWN = (*YIELDS, "wafer", "spares")


def with_faults(system: SystemSpec, point: Point) -> SystemSpec:
    """Return a system with the dead parts of one drawn wafer.

    ``wafer`` is the seed of the draws: the same wafer at a lower yield keeps its dead parts.
    ``spares`` dies take the places of dead ones, those of the lowest numbers first.
    """
    network = network_of(system)
    die, link, core = (1.0 - float(point.get(name, 1.0)) for name in YIELDS)
    rates = FaultRates(link=link, device=die, core=core, num_cores=system.chip.num_cores or 1)
    drawn = random_faults(network, rates, int(point.get("wafer", 0)))
    speed = network.speed_factor * drawn.core_fraction
    dead = {
        *system.dead_devices,
        *drawn.dead_devices.tolist(),
        *np.flatnonzero(speed <= 0).tolist(),
    }
    dead = set(sorted(dead)[int(point.get("spares", 0)) :])
    cut = {pair for pair in drawn.dead_links if max(pair) < system.num_devices}
    slow = {device: float(factor) for device, factor in enumerate(speed) if 0.0 < factor < 1.0}
    return system.model_copy(
        update={
            "dead_devices": tuple(sorted(dead)),
            "dead_links": tuple(sorted({*system.dead_links, *cut})),
            "speed_factors": {n: factor for n, factor in slow.items() if n not in dead},
        }
    )


def whole_system_of(point: Point) -> SystemSpec:
    """Return the system of a point without drawn faults; ``links`` are joined by ``+``."""
    if not is_design(point):
        return load_system(str(point["on"]))
    return build(
        Design(
            chip=str(point["chip"]),
            network=str(point["network"]),
            links=tuple(str(point["links"]).split("+")),
            num_devices=int(point["devices"]),
            memory=str(point["memory"]) if "memory" in point else None,
            shape=str(point["shape"]) if "shape" in point else None,
            logic_area_mm2=float(point["logic_area"]) if "logic_area" in point else None,
        )
    )


def _links(point: Point) -> object:
    return [load_link(name) for name in str(point["links"]).split("+")]


PARTS: Mapping[str, Callable[[Point], object]] = {
    "chip": lambda point: load_chip(str(point["chip"])),
    "memory": lambda point: load_memory(str(point["memory"])),
    "links": _links,
    "network": lambda point: kinds_of(str(point["network"])),
}
"""Parts of a design, each with its own look-up."""


DRAM_PRICE, LINK_PRICE, SWITCH_PRICE = 1.0, 2.0, 24.0
"""Prices of each GB/s, in units of the peer."""
_GB = 1e9


class DimKind(StrEnum):
    """Connection of the members along one dimension of a network."""

    RING = "ring"
    FULL = "fully_connected"
    SWITCH = "switch"


@dataclass(frozen=True)
class NetworkDim:
    """One dimension of a network."""

    kind: DimKind
    size: int
    bandwidth_bytes_per_s: float
    """Bandwidth of one link."""


KINDS: dict[LevelKind, DimKind] = {
    "torus": DimKind.RING, "mesh": DimKind.RING,
    "switch": DimKind.SWITCH, "fully_connected": DimKind.FULL,
    "fat_tree": DimKind.SWITCH, "dragonfly": DimKind.SWITCH,
}  # fmt: skip


def price_units(system: SystemSpec) -> float:
    """Return the price of memories, links and switches in DFModel units; chips are free there.

    2 for each GB/s of a link, 24 for each of a switch port, 1 for each of DRAM (Ko et al. 2024,
    arXiv 2412.16432). A mesh costs the same as a torus, a fat tree and a dragonfly as a switch.
    Outer groups that are fully connected are joined by one link there; it is as wide as the links
    of all pairs of devices.
    """
    dims = network_dims(system)
    total = prod(dim.size for dim in dims)
    joined = [
        replace(dim, bandwidth_bytes_per_s=dim.bandwidth_bytes_per_s * total / dim.size)
        if place and dim.kind is DimKind.FULL
        else dim
        for place, dim in enumerate(dims)
    ]
    return network_price(joined, system.chip.main_memory.bandwidth_bytes_per_s or 0.0)


def network_price(dims: Sequence[NetworkDim], dram_bytes_per_s: float) -> float:
    """Return the price of memories, links and switches of all devices, chips left out."""
    total = prod(dim.size for dim in dims)
    price = DRAM_PRICE * total * dram_bytes_per_s / _GB
    for place, dim in enumerate(dims):
        links, switches = _links_and_ports(dim, total, is_inner=place == 0)
        rate = dim.bandwidth_bytes_per_s / _GB
        price += rate * (LINK_PRICE * links + SWITCH_PRICE * switches)
    return price


def _links_and_ports(dim: NetworkDim, total: int, *, is_inner: bool) -> tuple[float, float]:
    """Return the number of links and of switch ports of a dimension.

    A ring counts two ports. Outer groups that are fully connected are joined once, by switches.
    """
    n = dim.size
    if dim.kind is DimKind.RING:
        return total, 2.0 * total / n
    if dim.kind is DimKind.SWITCH:
        return total, total
    return (n * (n - 1) * total / n, 0.0) if is_inner else (n * (n - 1), n**2)


def network_dims(system: SystemSpec) -> list[NetworkDim]:
    """Return the network of a system as DFModel describes it, the innermost dimension first.

    In a fully connected group, a device spreads its rate over the links to all others.
    """
    found = []
    for level in system.levels:
        kind = KINDS[level.kind]
        links = level.size - 1 if kind is DimKind.FULL else 1
        rate = level.bandwidth_bytes_per_s * level.links_per_device / max(links, 1)
        found.append(NetworkDim(kind, level.size, rate))
    return found
