"""Candidates on their devices: placement, link loads, and the price with contention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Problem
from meshwright.network.placement import Choice
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.train.answer import Candidate, HotLink, Placement
from meshwright.train.estimate import candidate_of
from meshwright.wafer.contention import PROVEN
from meshwright.wafer.price import (
    PlacedPrice,
    only,
    price_below_caps,
    step_links,
    with_link_energy,
)
from meshwright.wafer.search import Placing, place

NUM_HOTTEST = 6
MOST_DEVICES = 1024
"""Larger grids keep their closed form: link loads of all groups would take too long."""


def has_placement(problem: Problem) -> bool:
    """Tell whether ranks of a system can be placed: on grids, and not too many of them."""
    is_small = problem.system.num_devices <= MOST_DEVICES
    return bool(problem.grid_sides) and is_small and not problem.num_experts


def place_or_none(
    problem: Problem, structure: PlanOptions, strategy: Strategy, physical: Network
) -> Placing | None:
    """Return the best placement of a strategy; None where it has none or cannot be routed."""
    try:
        return place(problem, structure, strategy, physical)
    except InfeasibleError:
        return None


def price_as_placed(problem: Problem, entry: Candidate, physical: Network) -> PlacedPrice | None:
    """Return the price of a candidate in the placement that its plan states."""
    placement = entry.placement
    if placement is None:
        return None
    unused = tuple(a for a in entry.structure.axis_order if a not in placement.axes)
    shapes = [placement.shapes[axis][::-1] for axis in placement.axes]
    alone = (1,) * len(placement.grid_shape)
    choice = Choice((*placement.axes, *unused), (*shapes, *(alone for _ in unused)))
    found = [
        price
        for is_routed in (True, False)
        for price in price_below_caps(
            problem, entry.structure, entry.strategy, [choice], physical, is_routed=is_routed
        )
    ]
    return min(found, key=lambda price: only(price.contended.step.time.total_s), default=None)


def placed_candidate(
    problem: Problem,
    structure: PlanOptions,
    strategy: Strategy,
    placing: Placing,
    physical: Network,
) -> Candidate:
    """Return a candidate with its contended price and its placement."""
    links = step_links(problem, structure, strategy, placing.price, physical)
    contended = with_link_energy(problem, structure, placing.price.contended, links)
    entry = candidate_of(problem, strategy, contended, fidelity="contended")
    return replace(entry, placement=_placement(problem, placing, physical, links.busiest_s))


def _placement(problem: Problem, placing: Placing, physical: Network, d2d_s: float) -> Placement:
    """Return the placement as a plan states it."""
    price, ranks = placing.price, placing.price.ranks
    used = [i for i in range(len(ranks.axes)) if ranks.device.shape[i] > 1]
    return Placement(
        grid_shape=problem.grid_sides[::-1],
        axes=tuple(ranks.axes[i] for i in used),
        shapes={ranks.axes[i]: ranks.shapes[i][::-1] for i in used},
        devices=tuple(ranks.device.reshape(-1, order="F").tolist()),
        slowdown=dict(price.contention.slowdown),
        hottest_links=tuple(_hottest(price, physical)),
        routing=_routing(price, physical),
        closed_form_s=only(price.closed_form.step.time.total_s),
        lower_bound_s=placing.lower_bound_s,
        num_choices=placing.num_choices,
        busy_s=_busy(problem, price, d2d_s),
    )


def _routing(price: PlacedPrice, physical: Network) -> str:
    shared = price.contention
    proof = shared.certificate
    default = "dimension order" if physical.grid_shape else "shortest ways"
    way = f"{default}, all {shared.num_routes} routes"
    if shared.num_rerouted:
        way = f"{shared.num_rerouted} of {shared.num_routes} routes leave the dimension order"
    if proof is None or proof.z_s <= 0:
        return way
    least = (
        "no routing does with less" if proof.gap < PROVEN else f"{proof.gap:.1%} above the bound"
    )
    return f"{way}; busiest link {format_seconds(proof.z_s)}, {least} ({proof.method})"


def _hottest(price: PlacedPrice, physical: Network) -> Iterator[HotLink]:
    """Yield the links that are busy longest."""
    total = price.contention.hottest
    for link in np.argsort(-total, kind="stable")[:NUM_HOTTEST].tolist():
        if total[link] > 0:
            shares = {a: float(b[link]) for a, b in price.contention.busy_s.items() if b[link] > 0}
            yield HotLink(
                int(physical.source[link]), int(physical.target[link]), float(total[link]), shares
            )


def _busy(problem: Problem, price: PlacedPrice, d2d_s: float) -> dict[str, float]:
    """Return what the busiest device does in a step, each as if it did nothing else [s]."""
    pipeline, time, rates = price.contended.pipeline, price.contended.step.time, problem.rates
    hbm_s = only(pipeline.memory_traffic_bytes) / only(rates.memory_bytes_per_s)
    return {
        "compute": only(pipeline.flops) / only(rates.matmul_flops_per_s),
        "hbm": hbm_s + only(time[TimePart.OPTIMIZER]),
        "d2d": d2d_s,
        "exposed": sum(only(column) for part, column in time.columns.items() if part.axis),
    }
