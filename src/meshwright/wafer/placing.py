"""Where a strategy runs on a grid: ways to lay its axes, bounded and priced, and a choice.

What is looked at, and what decides, is the mapper of the problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import column, take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.base.units import format_seconds
from meshwright.cost.parts import TimePart
from meshwright.cost.problem import Mapper, Problem
from meshwright.cost.step import price_columns
from meshwright.network.placement import Choice, all_choices, sequential_shapes
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.train.answer import Candidate, HotLink, Placement
from meshwright.train.estimate import candidate_of
from meshwright.wafer.contention import PROVEN
from meshwright.wafer.messages import only
from meshwright.wafer.price import (
    PlacedPrice,
    choice_network,
    price_below_caps,
    step_links,
    with_link_energy,
)

MOST_CHOICES = 512
"""Ways to lay a strategy that are looked at; large grids with many axes have more."""
AT_ONCE = 2
"""Ways to lay a strategy whose link loads are worked out before the next bound is looked at."""
NUM_HOTTEST = 6
MOST_DEVICES = 1024
"""Larger grids keep their closed form: link loads of all groups would take too long."""


@dataclass(frozen=True)
class Placing:
    """The best way found to lay a strategy, and what proves it."""

    price: PlacedPrice
    lower_bound_s: float
    """No way among the choices to lay it in nested blocks is faster with default routes [s]."""
    num_choices: int
    num_priced: int
    """The others are bounded by their closed form."""

    @property
    def time_s(self) -> float:
        """Step time with contention [s]."""
        return self.price.time_s


def place(
    problem: Problem, structure: PlanOptions, strategy: Strategy, physical: Network
) -> Placing | None:
    """Return the way to lay a strategy that the mapper of the problem chooses; None: none fits.

    The closed form of a way is a bound of its contended price, so ways are taken in its order
    until the next one cannot be better. GMap stops at the first one.
    """
    every: Iterable[Choice] = all_choices(structure, strategy, problem.grid_sides)
    if problem.mapper is Mapper.SMAP:
        degrees = [int(getattr(strategy, axis)) for axis in structure.axis_order]
        shapes = sequential_shapes(degrees, problem.grid_sides)
        every = [] if shapes is None else [Choice(structure.axis_order, shapes)]
    choices = list(islice(every, MOST_CHOICES))
    if not choices:
        return None
    network = choice_network(problem, strategy, choices)
    alone = price_columns(problem, structure, network.strategy, network)
    bound_s = column(alone.step.time.total_s)
    order = np.argsort(bound_s, kind="stable").tolist()
    if problem.mapper is Mapper.GMAP:
        order = order[:1]
    best: PlacedPrice | None = None
    num_priced = 0
    while num_priced < len(order):
        if best is not None and bound_s[order[num_priced]] >= best.time_s:
            break
        now = order[num_priced : num_priced + AT_ONCE]
        num_priced += len(now)
        priced = price_below_caps(
            problem, structure, strategy, [choices[i] for i in now], physical,
            alone=take_rows(alone, now),
        )  # fmt: skip
        best = min([*([best] if best else []), *priced], key=attrgetter("time_s"), default=None)
    if best is None:
        return None
    left = np.sort(bound_s)[num_priced:]
    bound = min(best.time_s, float(left.min(initial=np.inf)))
    return Placing(best, bound, len(choices), num_priced)


def routed(
    problem: Problem, structure: PlanOptions, strategy: Strategy, placing: Placing,
    physical: Network,
) -> Placing:  # fmt: skip
    """Return the same placement with its messages routed around shared links, where that helps."""
    price = placing.price
    anew = price_below_caps(
        problem, structure, strategy, [Choice(price.ranks.axes, price.ranks.shapes)], physical,
        is_routed=True, alone=price.closed_form,
    )  # fmt: skip
    best = min(*anew, price, key=attrgetter("time_s"))
    return replace(placing, price=best, lower_bound_s=min(placing.lower_bound_s, best.time_s))


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
    shapes += [alone for _ in unused]
    choice = Choice((*placement.axes, *unused), tuple(shapes), placement.devices)
    found = [
        price
        for is_routed in (True, False)
        for price in price_below_caps(
            problem, entry.structure, entry.strategy, [choice], physical, is_routed=is_routed
        )
    ]
    return min(found, key=attrgetter("time_s"), default=None)


def placed_candidate(
    problem: Problem, structure: PlanOptions, strategy: Strategy, placing: Placing,
    physical: Network,
) -> Candidate:  # fmt: skip
    """Return a candidate with its contended price and its placement."""
    price, ranks = placing.price, placing.price.ranks
    links = step_links(problem, structure, strategy, price, physical)
    contended = with_link_energy(problem, structure, price.contended, links)
    used = [i for i in range(len(ranks.axes)) if ranks.device.shape[i] > 1]
    busy_s, total_s = price.contention.busy_s, price.contention.hottest
    hottest = [
        HotLink(
            int(physical.source[link]),
            int(physical.target[link]),
            float(total_s[link]),
            {axis: float(seconds[link]) for axis, seconds in busy_s.items() if seconds[link] > 0},
        )
        for link in np.argsort(-total_s, kind="stable")[:NUM_HOTTEST].tolist()
        if total_s[link] > 0
    ]
    # What the busiest device does in a step, each as if it did nothing else.
    pipeline, time, rates = price.contended.pipeline, price.contended.step.time, problem.rates
    hbm_s = only(pipeline.memory_traffic_bytes) / only(rates.memory_bytes_per_s)
    work_s = {
        "compute": only(pipeline.flops) / only(rates.matmul_flops_per_s),
        "hbm": hbm_s + only(time[TimePart.OPTIMIZER]),
        "d2d": links.busiest_s,
        "exposed": sum(only(column) for part, column in time.columns.items() if part.axis),
    }
    placement = Placement(
        grid_shape=problem.grid_sides[::-1],
        axes=tuple(ranks.axes[i] for i in used),
        shapes={ranks.axes[i]: ranks.shapes[i][::-1] for i in used},
        devices=tuple(ranks.device.reshape(-1, order="F").tolist()),
        slowdown=dict(price.contention.slowdown),
        hottest_links=tuple(hottest),
        routing=_routing(price, physical),
        closed_form_s=only(price.closed_form.step.time.total_s),
        lower_bound_s=placing.lower_bound_s,
        num_choices=placing.num_choices,
        busy_s=work_s,
    )
    entry = candidate_of(problem, strategy, contended, fidelity="contended")
    return replace(entry, placement=placement)


def _routing(price: PlacedPrice, physical: Network) -> str:
    shared = price.contention
    proof = shared.certificate
    default = "dimension order" if physical.grid_shape else "shortest ways"
    routes = f"{default}, all {shared.num_routes} routes"
    if shared.num_rerouted:
        routes = f"{shared.num_rerouted} of {shared.num_routes} routes leave the dimension order"
    if proof is None or proof.z_s <= 0:
        return routes
    least = (
        "no routing does with less" if proof.gap < PROVEN else f"{proof.gap:.1%} above the bound"
    )
    return f"{routes}; busiest link {format_seconds(proof.z_s)}, {least} ({proof.method})"
