"""Two levels: options for each operator alone on its links, then what they cost with all others.

Both are exact within their bounds. The bound of the whole plan leaves out resharding and contention
and takes the best way to lay each option.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.pricing.problem import Problem
from meshwright.search.operators.assignment import Assignment, assign, lower_bound_s, model_graph
from meshwright.search.operators.frames import Base
from meshwright.search.operators.layers import ModelGraph
from meshwright.search.operators.refining.bound import bound_with_moves_s
from meshwright.search.operators.refining.on_demand import on_demand
from meshwright.search.operators.refining.table import SharedTable
from meshwright.topology.network import Network

PROVEN = 0.05
"""Gap above which the bound is worked out again with what resharding costs at least."""


@dataclass(frozen=True)
class Planned:
    """The best options of all operators, as they run with all others, and the two proofs."""

    level_one: Assignment
    """Alone on their links."""
    level_two: Assignment
    """On shared links: the plan."""
    lower_bound_s: float
    """No plan of the frames takes less, wherever its operators lie [s]."""
    search_s: float
    """Wall-clock time [s]."""

    @property
    def time_s(self) -> float:
        """Of a step [s]."""
        return self.level_two.assigned.total_s

    @property
    def gap(self) -> float:
        """How far the plan may lie above the best possible of its frames, as a fraction."""
        return max(self.time_s / self.lower_bound_s - 1.0, 0.0)


def plan_operators(problem: Problem, bases: Sequence[Base], physical: Network) -> Planned | None:
    """Return the fastest plan over some frames; None where nothing fits under any of them."""
    best: Planned | None = None
    for base in bases:
        best = _faster(best, plan_base(problem, base, physical))
    return best


def plan_base(problem: Problem, base: Base, physical: Network) -> Planned | None:
    """Return the best options under the frames that share their layers; None where none fit.

    A frame whose options, free to lie where they like, are slower than a plan that was found is
    not looked at any further.
    """
    start_s = time.perf_counter()
    model = model_graph(problem, base.frame, physical)
    if model is None:
        return None
    frames = [model.under(structure) for structure in base.structures]
    bounds_s = [lower_bound_s(frame) for frame in frames]
    best = _over_frames(frames, bounds_s, physical)
    if best is None:
        return None
    enough_s = best.time_s / (1.0 + PROVEN)
    bounds_s = [
        bound_with_moves_s(frame, physical, enough_s) if bound_s < enough_s else bound_s
        for frame, bound_s in zip(frames, bounds_s, strict=True)
    ]
    bound_s = min(*bounds_s, best.time_s)
    return replace(best, lower_bound_s=bound_s, search_s=time.perf_counter() - start_s)


def _over_frames(
    frames: Sequence[ModelGraph], bounds_s: Sequence[float], physical: Network
) -> Planned | None:
    """Return the best options of frames with the same layers, not proven yet; None if none fit."""
    best: Planned | None = None
    table: SharedTable | None = None
    for frame, bound_s in zip(frames, bounds_s, strict=True):
        enough_s = best.time_s if best else float("inf")
        alone = assign(frame) if bound_s < enough_s else None
        if alone and alone.lower_bound_s < enough_s:
            table = SharedTable(alone, physical, table)
            best = _faster(best, Planned(alone, on_demand(table, enough_s), 0.0, 0.0))
    return best


def _faster(first: Planned | None, second: Planned | None) -> Planned | None:
    """Return the faster one of two plans; one where there is only one."""
    both = [entry for entry in (first, second) if entry is not None]
    return min(both, key=lambda entry: entry.time_s, default=None)
