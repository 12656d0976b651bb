"""Two levels: options for each operator alone on its links, then what they cost with all others.

Level 1 is exact within its bound. Level 2 prices what was chosen with contention; its bound leaves
out resharding and contention and takes the best way to lay each option.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.pricing.operators.contended import contended_prices
from meshwright.pricing.operators.options import Frame
from meshwright.pricing.operators.price import Assigned
from meshwright.pricing.problem import Problem
from meshwright.search.operators.assignment import Assignment, assign, lower_bound_s, model_graph
from meshwright.topology.network import Network


@dataclass(frozen=True)
class OperatorPlan:
    """The best options of all operators, as they run with all others, and the two proofs."""

    frame: Frame
    level_one: Assignment
    contended: Assigned
    """The same options on shared links; their numbers count the options in use."""
    used: tuple[int, ...]
    """Options in use, as level 1 numbers them."""
    lower_bound_s: float
    """No plan of the frame takes less, wherever its operators lie [s]."""
    search_s: float
    """Wall-clock time [s]."""

    @property
    def gap(self) -> float:
        """How far the plan may lie above the best possible of its frame, as a fraction."""
        return max(self.contended.total_s / self.lower_bound_s - 1.0, 0.0)


def plan_operators(
    problem: Problem, frames: Sequence[Frame], physical: Network
) -> OperatorPlan | None:
    """Return the fastest plan over some frames; None where nothing fits under any of them."""
    found = [plan for frame in frames if (plan := plan_frame(problem, frame, physical))]
    return min(found, key=lambda plan: plan.contended.total_s, default=None)


def plan_frame(problem: Problem, frame: Frame, physical: Network) -> OperatorPlan | None:
    """Return the best options under one frame; None where none fit."""
    start_s = time.perf_counter()
    model = model_graph(problem, frame, physical)
    best = assign(model) if model is not None else None
    if model is None or best is None:
        return None
    used, numbers = np.unique(best.assigned.options, return_inverse=True)
    prices = contended_prices(problem, model.prices.options.take(used), physical)
    resharding = replace(model.resharding, options=prices.options)
    placed = replace(model, prices=prices, resharding=resharding)
    reshard_s = model.reshard_s(best.assigned.options)
    contended = placed.price(tuple(numbers.reshape(-1).tolist()), reshard_s)
    bound_s = min(lower_bound_s(model), contended.total_s)
    elapsed_s = time.perf_counter() - start_s
    return OperatorPlan(frame, best, contended, tuple(used.tolist()), bound_s, elapsed_s)
