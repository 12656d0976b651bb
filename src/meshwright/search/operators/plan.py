"""Two levels: options for each operator alone on its links, then what they cost with all others.

Both are exact within their bounds. The bound of the whole plan leaves out resharding and contention
and takes the best way to lay each option.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.pricing.problem import Problem
from meshwright.search.operators.assignment import Assignment, assign, lower_bound_s, model_graph
from meshwright.search.operators.elimination import cheapest
from meshwright.search.operators.frames import Base
from meshwright.search.operators.sharing import with_contention
from meshwright.topology.network import Network


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
        found = plan_base(problem, base, physical)
        if found and (best is None or found.time_s < best.time_s):
            best = found
    return best


def plan_base(problem: Problem, base: Base, physical: Network) -> Planned | None:
    """Return the best options under the frames that share their layers; None where none fit."""
    start_s = time.perf_counter()
    model = model_graph(problem, base.frame, physical)
    if model is None:
        return None
    models = [model.under(structure) for structure in base.structures]
    best: Assignment | None = None
    for one in models:
        if best is None or cheapest(one.graph()).value_s < best.assigned.total_s:
            best = _faster(best, assign(one))
    if best is None:
        return None
    shared = with_contention(best, physical)
    if shared is None:
        return None
    bound_s = min(min(lower_bound_s(one) for one in models), shared.assigned.total_s)
    return Planned(best, shared, bound_s, time.perf_counter() - start_s)


def _faster(first: Assignment | None, second: Assignment | None) -> Assignment | None:
    """Return the faster one of two assignments; one where there is only one."""
    both = [entry for entry in (first, second) if entry is not None]
    return min(both, key=lambda entry: entry.assigned.total_s, default=None)
