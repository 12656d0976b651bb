"""Where a strategy runs on a grid: ways to lay its axes, bounded and priced, and a choice.

What is looked at, and what decides, is the mapper of the problem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from meshwright.base.arrays import column, take_rows
from meshwright.cost.problem import Mapper, Problem
from meshwright.cost.step import price_columns
from meshwright.network.placement import Choice, all_choices, sequential_shapes
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.wafer.price import PlacedPrice, choice_network, price_below_caps

MOST_CHOICES = 512
"""Ways to lay a strategy that are looked at; large grids with many axes have more."""
AT_ONCE = 2
"""Ways to lay a strategy whose link loads are worked out before the next bound is looked at."""


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
        return _time_s(self.price)


def place(
    problem: Problem, structure: PlanOptions, strategy: Strategy, physical: Network
) -> Placing | None:
    """Return the way to lay a strategy that the mapper of the problem chooses; None: none fits.

    The closed form of a way is a bound of its contended price, so ways are taken in its order
    until the next one cannot be better. GMap stops at the first one.
    """
    choices = list(islice(_choices_of(problem, structure, strategy), MOST_CHOICES))
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
        if best is not None and bound_s[order[num_priced]] >= _time_s(best):
            break
        now = order[num_priced : num_priced + AT_ONCE]
        num_priced += len(now)
        priced = price_below_caps(
            problem, structure, strategy, [choices[i] for i in now], physical,
            alone=take_rows(alone, now),
        )  # fmt: skip
        best = min([*([best] if best else []), *priced], key=_time_s, default=None)
    if best is None:
        return None
    priced_s = _time_s(best)
    left = np.sort(bound_s)[num_priced:]
    bound = min(priced_s, float(left.min(initial=np.inf)))
    return Placing(best, bound, len(choices), num_priced)


def routed(
    problem: Problem,
    structure: PlanOptions,
    strategy: Strategy,
    placing: Placing,
    physical: Network,
) -> Placing:
    """Return the same placement with its messages routed around shared links, where that helps."""
    ranks = placing.price.ranks
    choice = Choice(ranks.axes, ranks.shapes)
    anew = price_below_caps(
        problem, structure, strategy, [choice], physical,
        is_routed=True, alone=placing.price.closed_form,
    )  # fmt: skip
    best = min(*anew, placing.price, key=_time_s)
    return replace(placing, price=best, lower_bound_s=min(placing.lower_bound_s, _time_s(best)))


def _choices_of(problem: Problem, structure: PlanOptions, strategy: Strategy) -> Iterator[Choice]:
    """Yield the ways that the mapper of the problem looks at."""
    if problem.mapper is not Mapper.SMAP:
        yield from all_choices(structure, strategy, problem.grid_sides)
        return
    axes = structure.axis_order
    degrees = [int(getattr(strategy, axis)) for axis in axes]
    shapes = sequential_shapes(degrees, problem.grid_sides)
    if shapes is not None:
        yield Choice(axes, shapes)


def _time_s(price: PlacedPrice) -> float:
    return float(column(price.contended.step.time.total_s)[0])
