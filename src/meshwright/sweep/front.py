"""The front of a sweep from some of its points: those that a bound shows to be beaten are left out.

A bound is the best that a point can be; the search proves it without a search. A point is beaten
where an asked one is as good as its bound in all that is wanted, and better in something: it is not
on the front, and equals no point of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.choice import Record, has_value
from meshwright.sweep.quantities import QUANTITIES
from meshwright.sweep.run import Point, Swept
from meshwright.sweep.stores import Result

BEATEN: Result = {"status": "beaten", "reason": "an asked point is better than its bound"}
AT_ONCE = 32
"""Fewest points that are asked at once: each knows nothing of the others."""


def front_names(text: str, sweep: SweepSpec, bounded: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a front: results that have bounds, and varied fields that are numbers.

    Raises
    ------
    SpecError
        With all other names.
    """
    numbers = [name for name, values in sweep.vary.items()
               if all(isinstance(value, int | float) for value in values)]  # fmt: skip
    allowed, names = [*bounded, *numbers], tuple(text.split(","))
    wrong = [name for name in names if name not in allowed]
    if wrong:
        fix = f"one of: {', '.join(allowed)}"
        raise SpecError([Fault("--front", f"{name!r} has no bound", fix) for name in wrong])
    return names


def run_front(
    names: Sequence[str], points: Sequence[Point], bound: Callable[[Point], Result],
    ask: Callable[[Sequence[Point]], Swept], num_workers: int = 1,
) -> Swept:  # fmt: skip
    """Return the points with results of those that may be on the front; the others are beaten.

    Parameters
    ----------
    ask
        Function that asks some points; where one has no result, no other is asked.
    """
    results: list[Result | None] = [None] * len(points)
    num_new = 0

    def costs(places: IntArray) -> FloatArray | None:
        nonlocal num_new
        found = ask([points[place] for place in places])
        num_new += found.num_new
        for place, result in zip(places, found.results, strict=True):
            results[place] = result
        if not found.is_complete:
            return None
        answered = zip(found.points, found.results, strict=True)
        return np.array([costs_of(names, {**point, **(one or {})}, np.inf)
                         for point, one in answered])  # fmt: skip

    least = np.array([costs_of(names, {**point, **bound(point)}, -np.inf) for point in points])
    for place in np.flatnonzero(beaten(least, costs, max(AT_ONCE, 2 * num_workers))):
        results[place] = BEATEN
    return Swept(tuple(points), tuple(results), num_new)


def costs_of(names: Sequence[str], record: Record, unknown: float) -> list[float]:
    """Return the amounts of a point, the less the better; those that it lacks are ``unknown``."""
    return [
        (1.0 if name not in QUANTITIES or QUANTITIES[name].is_less_better else -1.0)
        * float(record[name])
        if has_value(record, name)
        else unknown
        for name in names
    ]


def beaten(
    least: FloatArray, costs: Callable[[IntArray], FloatArray | None], at_once: int = AT_ONCE
) -> BoolArray:
    """Return whether each point is beaten, (points,); the others were asked.

    Points with the least bounds come first, under many weights of what is wanted.

    Parameters
    ----------
    least
        Bounds of the costs, (points, names).
    costs
        Function that asks points, and returns their costs, (asked, names); None: the end.
    """
    bounds, kind_of = np.unique(least, axis=0, return_inverse=True)
    kind_of = kind_of.reshape(-1)
    places = np.argsort(kind_of, kind="stable")  # those of one bound in a row
    ends = np.cumsum(np.bincount(kind_of, minlength=len(bounds)))
    comes = np.concatenate([[0], ends[:-1]])
    is_beaten, is_asked = np.zeros(len(bounds), dtype=bool), np.zeros(len(least), dtype=bool)
    ranks = np.stack([np.unique(column, return_inverse=True)[1].reshape(-1)
                      for column in bounds.T], axis=1)  # fmt: skip
    ranks = ranks / np.maximum(ranks.max(axis=0, initial=0), 1)
    number = least.shape[1]
    drawn = np.random.default_rng(0).dirichlet(np.ones(number), at_once)
    weights = np.vstack([np.eye(number), drawn])
    while (left := np.flatnonzero(~is_beaten & (comes < ends))).size:
        kinds = np.unique(left[np.argmin(ranks[left] @ weights.T, axis=0)])
        chosen = places[comes[kinds]]
        found = costs(chosen)
        if found is None:
            break
        comes[kinds] += 1
        is_asked[chosen] = True
        for cost in found:
            is_beaten |= (cost <= bounds).all(axis=1) & (cost < bounds).any(axis=1)
    return np.asarray(is_beaten[kind_of] & ~is_asked)


def front_of(names: Sequence[str], records: Sequence[Record]) -> list[Mapping[str, Any]]:
    """Return the points that no other one beats, the best by the first name first."""
    found = [record for record in records if all(has_value(record, name) for name in names)]
    costs = np.array([costs_of(names, record, np.inf) for record in found])
    kept = [
        at for at, cost in enumerate(costs)
        if not ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any()
    ]  # fmt: skip
    return [found[at] for at in sorted(kept, key=lambda at: tuple(costs[at]))]
