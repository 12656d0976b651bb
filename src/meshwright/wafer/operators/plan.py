"""Two levels: options for each operator alone on its links, then what they cost with all others.

Both are exact within their bounds. The bound of the whole plan leaves out contention, and
resharding where it is close enough without, and takes the best way to lay each option.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.cost.problem import Problem
from meshwright.topology.network import Network
from meshwright.wafer.operators.assignment import Assignment, assign, lower_bound_s, model_graph
from meshwright.wafer.operators.bound import bound_with_moves_s
from meshwright.wafer.operators.frames import Base
from meshwright.wafer.operators.layers import ModelGraph
from meshwright.wafer.operators.on_demand import on_demand
from meshwright.wafer.operators.table import SharedTable

PROVEN = 0.05
"""Gap above which the bound is worked out again with what resharding costs at least."""
LITTLE = 0.01
"""Gain for which no further frame is looked at on shared links."""
Levels = tuple[Assignment, Assignment]
"""Alone on their links, and on shared ones."""


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
    start_s = time.perf_counter()
    best: Levels | None = None
    frames: list[ModelGraph] = []
    for base in bases:
        model = model_graph(problem, base.frame, physical)
        mine = [model.under(structure) for structure in base.structures] if model else []
        best, frames = _over_frames(mine, best), frames + mine
    if best is None:
        return None
    found_s = best[1].assigned.total_s
    bound_s = min(_bound_s(frame, found_s) for frame in frames)
    return Planned(*best, min(bound_s, found_s), time.perf_counter() - start_s)


def _over_frames(frames: Sequence[ModelGraph], best: Levels | None) -> Levels | None:
    """Return the best options of frames with the same layers, or what is known if it is faster.

    Those that are fastest alone come first; what can gain little more is left to the bound.
    """
    alone = [found for found in map(assign, frames) if found is not None]
    table: SharedTable | None = None
    for found in sorted(alone, key=lambda found: found.assigned.total_s):
        known_s = best[1].assigned.total_s if best else float("inf")
        enough_s = known_s / (1.0 + LITTLE)
        if found.assigned.total_s < enough_s:
            table = SharedTable(found, table)
            shared = on_demand(table, enough_s)
            best = (found, shared) if shared.assigned.total_s < known_s else best
    return best


def _bound_s(frame: ModelGraph, found_s: float) -> float:
    """Return a bound of every plan of a frame, better worked out where it lies far below [s]."""
    enough_s = found_s / (1.0 + PROVEN)
    bound_s = lower_bound_s(frame, enough_s)
    return bound_s if bound_s >= enough_s else bound_with_moves_s(frame, enough_s)
