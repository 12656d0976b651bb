"""The system of a point: a name of the catalog or a design in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from meshwright.catalog.design import Design, build, kinds_of, load_link, load_memory
from meshwright.catalog.systems import load_chip, load_system
from meshwright.network.faults import FaultRates, random_faults
from meshwright.spec.system import SystemSpec
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
