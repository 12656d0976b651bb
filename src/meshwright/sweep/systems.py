"""The system of a point: a name of the catalog, or a design in parts."""

from __future__ import annotations

from meshwright.catalog.designs.design import Design, build
from meshwright.catalog.systems import load_system
from meshwright.spec.system import SystemSpec
from meshwright.sweep.points import Point

DESIGN = ("chip", "memory", "network", "links", "devices", "shape")
NEEDED = ("chip", "network", "links", "devices")


def is_design(point: Point) -> bool:
    """Tell whether a point names parts in place of a system."""
    return any(name in point for name in DESIGN)


def system_of(point: Point) -> SystemSpec:
    """Return the system that a point asks for; ``links`` are joined by ``+``."""
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
        )
    )
