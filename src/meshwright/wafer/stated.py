"""A placement that the user states: any device for any rank of a plan, priced as it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from typing_extensions import TypedDict

from meshwright.base.errors import Fault, InfeasibleError, SpecError, UnsupportedError
from meshwright.base.units import format_seconds
from meshwright.spec.flows import PlacementFile
from meshwright.train.answer import Candidate, Placement, Plan
from meshwright.train.question import problem_of
from meshwright.view.screen import wrapped
from meshwright.wafer.placing import Placing, placed_candidate, price_as_placed
from meshwright.wafer.price import physical_network
from meshwright.wafer.simulation import SimulatedPlan


def placement_of(plan: Plan) -> Placement:
    """Return the placement of a plan.

    Raises
    ------
    UnsupportedError
        It has no placement.
    """
    if plan.best.placement is None:
        raise UnsupportedError(f"the plan for {plan.system.name} is not placed on a grid")
    return plan.best.placement


def place_on(plan: Plan, stated: PlacementFile) -> Plan:
    """Return a plan with its ranks on other devices, with the contended price that this has.

    Collectives and streams keep the order of their members in the blocks of the axes; each message
    takes the links between the devices where these members are. The wait of a message for its first
    byte stays that of neighbours in the blocks.

    Raises
    ------
    SpecError
        The file names other axes, more or fewer devices, or a device that the system lacks.
    InfeasibleError
        A device is dead, or cut off from the others.
    """
    placement, entry = placement_of(plan), plan.best
    faults = list(_faults(plan, placement, stated))
    if faults:
        raise SpecError(faults)
    axes = placement.shapes if stated.axes is None else stated.axes
    names = placement.axes if stated.axes is None else tuple(stated.axes)
    moved = replace(placement, axes=names, shapes=dict(axes), devices=stated.devices)
    problem = problem_of(plan)
    physical = physical_network(problem)
    price = price_as_placed(problem, replace(entry, placement=moved), physical)
    if price is None:
        raise InfeasibleError("a device of the placement is dead or cut off from the others")
    bound_s = min(placement.lower_bound_s, price.time_s)
    placing = Placing(price, bound_s, placement.num_choices + 1, 1)
    best = placed_candidate(problem, entry.plan_options, entry.strategy, placing, physical)
    return replace(plan, best=best, fastest_s=min(plan.fastest_s, price.time_s), operators=None)


def _faults(plan: Plan, placement: Placement, stated: PlacementFile) -> Iterator[Fault]:
    """Yield the faults of a placement file for the plan."""
    if len(stated.devices) != len(placement.devices):
        found, needed = len(stated.devices), len(placement.devices)
        yield Fault("devices", f"{found} devices, but the plan has {needed} ranks", f"{needed}")
    for rank, device in enumerate(stated.devices):
        if device >= plan.system.num_devices:
            last = plan.system.num_devices - 1
            yield Fault(f"devices[{rank}]", f"no device {device}", f"0 to {last}")
    if stated.axes is None:
        return
    if set(stated.axes) != set(placement.axes):
        yield Fault("axes", f"found {', '.join(stated.axes)}", ", ".join(placement.axes))
        return
    for axis, shape in stated.axes.items():
        degree, dims = prod(placement.shapes[axis]), len(placement.grid_shape)
        if prod(shape) != degree or len(shape) != dims:
            fix = f"{dims} sides whose product is {degree}"
            yield Fault(f"axes.{axis}", f"found {list(shape)}", fix)


class PlacementRecord(TypedDict):
    """A placement as a placement file holds it."""

    plan: str
    system: str
    grid: Sequence[int]
    axes: Mapping[str, Sequence[int]]
    """Sides of the block that the members of each axis fill, in units of inner blocks."""
    devices: Sequence[int]
    """Device of each rank."""


class PlayedPlacement(PlacementRecord):
    """A placement, and the step that it gives."""

    contended_s: float
    simulated_s: float
    slowdown: Mapping[str, float]
    """Slowdown by axis: time on shared links over that on private links."""


PlacementsRecord = TypedDict(
    "PlacementsRecord", {"as planned": PlayedPlacement, "as stated": PlayedPlacement}
)
"""A plan in two placements."""


def placement_record(plan: Plan) -> PlacementRecord:
    """Return the placement of a plan as a placement file holds it."""
    placement = placement_of(plan)
    return {
        "plan": plan.best.text,
        "system": plan.system.name,
        "grid": list(placement.grid_shape),
        "axes": {axis: list(placement.shapes[axis]) for axis in placement.axes},
        "devices": list(placement.devices),
    }


def compared_lines(played: dict[str, SimulatedPlan]) -> Iterator[str]:
    """Yield a plan in several placements, next to each other."""
    plan = next(iter(played.values())).plan
    yield f"{plan.model.name} on {plan.system.name}: {plan.best.text}"
    yield f"{'':<24}" + "".join(f"{name:>18}" for name in played)
    times = {
        "contended": [one.plan.best.estimate.step_time_s for one in played.values()],
        "simulated": [one.step.step_time_s for one in played.values()],
        "without sharing links": [placement_of(one.plan).closed_form_s for one in played.values()],
    }
    for name, seconds in times.items():
        yield f"{name:<24}" + "".join(f"{format_seconds(each):>18}" for each in seconds)
    entries = [one.plan.best for one in played.values()]
    axes = dict.fromkeys(axis for entry in entries for axis in _slowdown(entry))
    for axis in axes:
        row = "".join(f"{f'{_slowdown(entry).get(axis, 1.0):.2f} x':>18}" for entry in entries)
        yield f"{f'slowdown of {axis}':<24}{row}"
    for name, one in played.items():
        hot = [
            f"{link.source} > {link.target} {format_seconds(link.busy_s)}"
            for link in placement_of(one.plan).hottest_links[:3]
        ]
        yield from wrapped(f"hottest links, {name}: ", ", ".join(hot) or "none")


def _slowdown(entry: Candidate) -> dict[str, float]:
    """Return the factor by which shared links slow down the axes of a candidate."""
    return {} if entry.placement is None else dict(entry.placement.slowdown)


def compared_record(played: dict[str, SimulatedPlan]) -> dict[str, PlayedPlacement]:
    """Return both simulated placements as data."""
    return {
        name: {
            **placement_record(one.plan),
            "contended_s": one.plan.best.estimate.step_time_s,
            "simulated_s": one.step.step_time_s,
            "slowdown": _slowdown(one.plan.best),
        }
        for name, one in played.items()
    }
