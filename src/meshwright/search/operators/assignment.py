"""The best option of each operator under one frame, within the memory of a device, with a proof."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.pricing.operators.options import Frame, all_options
from meshwright.pricing.operators.price import Assigned
from meshwright.pricing.operators.resharding import Resharding
from meshwright.pricing.operators.tables import OperatorPrices, operator_prices
from meshwright.pricing.problem import Problem
from meshwright.search.operators.budget import cheapest_within
from meshwright.search.operators.graph import ChoiceGraph
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
    """Return the choices of all operators under a frame; None where no option is legal.

    Every set of degrees keeps the ways to lay it that are fastest for some group, or for all.
    """
    options = all_options(problem, frame)
    if options is None:
        return None
    prices = operator_prices(problem, options)
    rows = _fastest_ways(prices)
    kept = prices.take(rows)
    return ModelGraph(kept, Resharding(problem, kept.options, physical), prices)


def _fastest_ways(prices: OperatorPrices) -> IntArray:
    """Return, for each set of degrees, the fastest way to lay it for the whole model."""
    problem = prices.problem
    counts = [piece.count for piece in problem.pieces]
    whole_s = np.sum(
        [
            count * cost.layer.total_s
            for count, piece in zip(counts, prices.costs, strict=True)
            for cost in piece
        ],
        axis=0,
    )
    order = np.lexsort((whole_s, prices.options.codes))
    codes = prices.options.codes[order]
    first: IntArray = order[np.append(True, codes[1:] != codes[:-1])]
    return np.sort(first)


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
    capacity = _capacity_bytes(model)
    room, bound_s = _room_bytes(model), None
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
    capacity = _capacity_bytes(model)
    time_s = sum(load.time_s for load in graph.nodes)
    fits = np.flatnonzero(sum(load.num_bytes for load in graph.nodes) <= capacity)
    likely = fits[np.argsort(np.asarray(time_s)[fits], kind="stable")][:MOST_UNIFORM]
    priced = [model.price((option,) * len(model.places)) for option in likely.tolist()]
    fitting = [plan for plan in priced if plan.memory_bytes <= capacity]
    return min(fitting, key=lambda plan: plan.total_s, default=None)


def lower_bound_s(model: ModelGraph) -> float:
    """Return a bound of every plan of the frame, wherever its operators lie [s].

    Each operator takes its best option in the best way to lay it, and nothing is passed between
    them; only the memory of a device ties them together.
    """
    anywhere = replace(model, prices=model.every_way)
    bounds = []
    for share in WINDOW_SHARES:
        alone = ChoiceGraph(anywhere.graph_nodes(share), {})
        chosen = cheapest_within(alone, _room_bytes(anywhere))
        bounds.append(0.0 if chosen is None else chosen.lower_bound_s)
    return max(bounds)


def _capacity_bytes(model: ModelGraph) -> float:
    return model.prices.problem.system.chip.main_memory.capacity_bytes


def _room_bytes(model: ModelGraph) -> float:
    """Return what memory has room for beside buffers, margin and the least work at hand [bytes]."""
    constants, capacity = model.prices.problem.calibration, _capacity_bytes(model)
    fixed = float(np.asarray(constants.communication_buffer_bytes))
    fixed += float(np.asarray(constants.memory_margin_fraction)) * capacity
    costs = (cost for piece in model.prices.costs for cost in piece)
    return capacity - fixed - max(float(np.min(cost.layer.working_bytes)) for cost in costs)
