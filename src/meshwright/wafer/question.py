"""A placement that the user states: any device for any rank of a plan, priced as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.base.errors import Fault, InfeasibleError, SpecError, UnsupportedError
from meshwright.spec.flows import PlacementFile
from meshwright.train.answer import Placement, Plan
from meshwright.wafer.answer import PlacedPlan, Placements, PlayedPlacement
from meshwright.wafer.price import physical_network
from meshwright.wafer.search import Placing, placed_candidate, price_as_placed
from meshwright.wafer.simulation import simulate


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
    keeps = dict(axes) == dict(placement.shapes)
    moved = replace(
        placement, axes=names, shapes=dict(axes), devices=stated.devices,
        lies_in=placement.lies_in if keeps else "blocks",
    )  # fmt: skip
    problem = plan.problem
    physical = physical_network(problem)
    price = price_as_placed(problem, replace(entry, placement=moved), physical)
    if price is None:
        raise InfeasibleError("a device of the placement is dead or cut off from the others")
    bound_s = min(placement.lower_bound_s, price.time_s)
    placing = Placing(price, bound_s, placement.num_choices + 1, 1)
    best = placed_candidate(problem, placing, physical)
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
            fix = f"{dims} sides with a product of {degree}"
            yield Fault(f"axes.{axis}", f"found {list(shape)}", fix)


def placed(plan: Plan) -> PlacedPlan:
    """Return the placement of a plan as a placement file holds it."""
    return PlacedPlan(**_placed(plan))


def _placed(plan: Plan) -> dict[str, Any]:
    placement = placement_of(plan)
    return {
        "plan": plan.best.text,
        "system": plan.system.name,
        "grid": tuple(placement.grid_shape),
        "axes": {axis: tuple(placement.shapes[axis]) for axis in placement.axes},
        "devices": tuple(placement.devices),
    }


def compared(planned: Plan, stated: Plan) -> Placements:
    """Return a plan in two placements, both simulated."""
    return Placements(planned.model.name, _played(planned), _played(stated))


def _played(plan: Plan) -> PlayedPlacement:
    placement = placement_of(plan)
    return PlayedPlacement(
        **_placed(plan),
        contended_s=plan.best.estimate.step_time_s,
        simulated_s=simulate(plan).step.step_time_s,
        closed_form_s=placement.closed_form_s,
        slowdown=dict(placement.slowdown),
        hottest_links=tuple(placement.hottest_links),
    )
