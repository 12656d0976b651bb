"""What the placement of a plan file must be, so that everything that reads it may rely on it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshwright.base.errors import Fault
from meshwright.sharding.strategy import AXES
from meshwright.spec.system import SystemSpec
from meshwright.train.answer import Candidate, Placement


def placement_faults(path: str, candidate: Candidate, system: SystemSpec) -> Iterator[Fault]:
    """Yield what no placement of a candidate on a system can be, by field."""
    placement = candidate.placement
    if placement is None:
        return
    sides = tuple(level.size for level in system.levels[::-1])
    if placement.grid_shape != sides:
        expected = "x".join(map(str, sides))
        yield Fault(f"{path}.grid_shape", f"found {placement.grid_shape}", f"{expected}")
        return
    yield from _axis_faults(path, candidate, placement)
    yield from _device_faults(path, candidate, placement)


def _axis_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield what is wrong with the blocks of the axes."""
    degrees = {axis: getattr(candidate.strategy, axis) for axis in AXES}
    used = sorted(axis for axis, degree in degrees.items() if degree > 1)
    if sorted(placement.axes) != used:
        message = f"found {' '.join(placement.axes) or 'none'}"
        yield Fault(f"{path}.axes", message, f"those of more than one device: {' '.join(used)}")
    if sorted(placement.shapes) != used:
        yield Fault(f"{path}.shapes", f"found {' '.join(placement.shapes)}", " ".join(used))
    for axis, shape in placement.shapes.items():
        fits = len(shape) == len(placement.grid_shape) and min(shape, default=0) >= 1
        if not fits or prod(shape) != degrees.get(axis):
            message = f"found {shape}, expected sizes of a block of {degrees.get(axis, 0):g}"
            yield Fault(f"{path}.shapes.{axis}", message)
            return
    for level, side in enumerate(placement.grid_shape):
        length = prod(shape[level] for shape in placement.shapes.values())
        if length > side:
            message = f"blocks are {length} long on a side of {side}"
            yield Fault(f"{path}.shapes", message)


def _device_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield what is wrong with the devices that are named.

    A link may also begin or end at a node beyond the devices, such as an IO die.
    """
    room, devices = prod(placement.grid_shape), placement.devices
    if len(devices) != candidate.strategy.num_devices or len(set(devices)) != len(devices):
        message = f"found {len(set(devices))} devices in {len(devices)} places"
        yield Fault(f"{path}.devices", message, f"{candidate.strategy.num_devices:.0f} of them")
    for index, device in enumerate(devices):
        if not 0 <= device < room:
            yield Fault(f"{path}.devices.{index}", f"found {device}", f"0 to {room - 1}")
    for index, link in enumerate(placement.hottest_links):
        if min(link.source, link.target) < 0 or link.busy_s <= 0.0:
            message = f"found {link.source} to {link.target}, busy for {link.busy_s} s"
            yield Fault(f"{path}.hottest_links.{index}", message)
