"""The best option of each operator under one frame, within the memory of a device, with a proof."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.pricing.operators.price import Assigned
from meshwright.pricing.operators.resharding import Resharding
from meshwright.pricing.operators.tables import Frame, OperatorPrices, all_options
from meshwright.pricing.problem import Problem
from meshwright.search.operators.budget import cheapest_within
from meshwright.search.operators.layers import ModelGraph
from meshwright.topology.network import Network

MOST_TRIES = 6
MOST_UNIFORM = 12
WINDOW_SHARES = (0.0, 0.5, 1.0)


@dataclass(frozen=True)
class Assignment:
    """The best options found under a frame, and a bound for all of them."""

    model: ModelGraph
    assigned: Assigned
    lower_bound_s: float
    """No choice of options under this frame takes less [s]."""

    @property
    def gap(self) -> float:
        """How far the options may lie above the best ones, as a fraction."""
        return max(self.assigned.total_s / self.lower_bound_s - 1.0, 0.0)


def model_graph(problem: Problem, frame: Frame, physical: Network) -> ModelGraph | None:
    """Return the choices of all operators under a frame; None where no option is legal."""
    options = all_options(problem, frame)
    if not len(options):
        return None
    prices = OperatorPrices(problem, options)
    return ModelGraph(prices, Resharding(problem, options, physical))


def assign(model: ModelGraph) -> Assignment | None:
    """Return the best options within the memory of a device; None where none fit.

    Several bounds of what data-parallel messages show are tried; each leads to choices, and the
    choices with the lowest price are taken. One option for all operators is among them.
    """
    found = [_with_bound(model, share) for share in WINDOW_SHARES]
    known = [entry for entry in found if entry is not None]
    uniform = best_uniform(model)
    plans = [entry.assigned for entry in known] + ([uniform] if uniform else [])
    if not plans:
        return None
    best = min(plans, key=lambda assigned: assigned.total_s)
    bound_s = max((entry.lower_bound_s for entry in known), default=best.total_s)
    return Assignment(model, best, min(bound_s, best.total_s))


def _with_bound(model: ModelGraph, window_share: float) -> Assignment | None:
    """Return the cheapest options under one bound of the data-parallel messages.

    Memory for the work at hand is one figure for the whole model: it is left at its least for the
    bound, then raised to what the chosen options need until they fit.
    """
    problem, constants = model.prices.problem, model.prices.problem.calibration
    capacity = problem.system.chip.main_memory.capacity_bytes
    fixed = float(np.asarray(constants.communication_buffer_bytes))
    fixed += float(np.asarray(constants.memory_margin_fraction)) * capacity
    room, bound_s = capacity - fixed - _least_working(model), None
    graph = model.graph(window_share)
    for _ in range(MOST_TRIES):
        chosen = cheapest_within(graph, room)
        if chosen is None:
            return None
        bound_s = chosen.lower_bound_s if bound_s is None else bound_s
        assigned = model.price(chosen.choices)
        if assigned.memory_bytes <= capacity:
            return Assignment(model, assigned, bound_s)
        room -= assigned.memory_bytes - capacity
    return None


def best_uniform(model: ModelGraph) -> Assigned | None:
    """Return the best single option for all operators; None where none fits."""
    graph = model.graph()
    capacity = model.prices.problem.system.chip.main_memory.capacity_bytes
    time_s = sum(load.time_s for load in graph.nodes)
    fits = np.flatnonzero(sum(load.num_bytes for load in graph.nodes) <= capacity)
    likely = fits[np.argsort(np.asarray(time_s)[fits], kind="stable")][:MOST_UNIFORM]
    priced = [model.price((option,) * len(model.places)) for option in likely.tolist()]
    fitting = [plan for plan in priced if plan.memory_bytes <= capacity]
    return min(fitting, key=lambda plan: plan.total_s, default=None)


def _least_working(model: ModelGraph) -> float:
    """Return the least memory for the work at hand under any choice [bytes]."""
    costs = (cost for piece in model.prices.costs for cost in piece)
    return max(float(np.min(cost.layer.working_bytes)) for cost in costs)
