"""The picture of a plan on its grid."""

from __future__ import annotations

import numpy as np

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.units import format_seconds
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.train.question import problem_of
from meshwright.wafer.answer import price_as_placed
from meshwright.wafer.map.picture import WaferMap
from meshwright.wafer.price import PlacedPrice, physical_network


def draw(plan: Plan, axis: str | None = None) -> WaferMap:
    """Return the picture of a plan on its grid: groups of an axis, ranks, and link heat.

    Parameters
    ----------
    axis
        Whose groups have colours; the innermost one where it is not given.

    Raises
    ------
    UnsupportedError
        The plan has no placement.
    SpecError
        The axis has one device.
    """
    problem, placement = problem_of(plan), plan.best.placement
    physical = physical_network(problem)
    price = price_as_placed(problem, plan.best, physical)
    if placement is None or price is None:
        raise UnsupportedError(f"the plan for {plan.system.name} has no placement to draw")
    if axis is not None and axis not in placement.axes:
        fault = Fault("axis", f"{axis!r} has one device", ", ".join(placement.axes))
        raise SpecError(fault, origin=plan.best.text)
    ranks, shown = price.ranks, axis or (placement.axes[0] if placement.axes else "tp")
    groups = ranks.groups(shown).reshape(-1, ranks.device.shape[ranks.axes.index(shown)])
    group = np.full(physical.num_devices, -1, dtype=np.int64)
    group[groups] = np.arange(len(groups))[:, None]
    hottest = price.contention.hottest
    most_s = float(hottest.max(initial=0.0))
    return WaferMap(
        network=physical,
        title=f"{plan.model.name} on {plan.system.name}: {plan.best.text}",
        caption="seconds that links are busy in the backward pass of a micro-batch; contended",
        group=group,
        group_names=tuple(f"{shown} group {number}" for number in range(len(groups))),
        labels=_labels(price, physical),
        load_share=hottest / most_s if most_s > 0 else hottest,
        load_note=f"100 % = {format_seconds(most_s)} busy, the hottest link",
        dead_wires=plan.system.dead_links,
    )


def _labels(price: PlacedPrice, physical: Network) -> tuple[str, ...]:
    """Return the coordinates of the rank on each device, one axis a line."""
    ranks = price.ranks
    labels = [""] * physical.num_devices
    used = [i for i, degree in enumerate(ranks.device.shape) if degree > 1]
    for position, device in np.ndenumerate(ranks.device):
        labels[int(device)] = "\n".join(f"{ranks.axes[i]} {position[i]}" for i in used)
    return tuple(labels)
