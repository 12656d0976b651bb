"""Descent: the best change of neighbouring groups to one option, until none helps.

Changes are compared by what touches the changed groups alone. An option that would help is priced
on shared links first, and must still help then.
"""

from __future__ import annotations

from itertools import combinations

from meshwright.wafer.operators.alike import AlikeGraph, Chosen, alike_graph
from meshwright.wafer.operators.price import Assigned
from meshwright.wafer.operators.table import SharedTable

MOST_STEPS = 400
GAIN = 1e-9
"""Least share of the time that a change must save."""


def descent(table: SharedTable) -> Assigned:
    """Return what a descent from level 1 comes to on shared links; level 1 if that is faster."""
    start = table.price(table.start)
    graph, chosen = local_best(table)
    return table.better(start, graph.spread(chosen))


def local_best(table: SharedTable) -> tuple[AlikeGraph, Chosen]:
    """Return choices that no change of neighbouring groups makes faster, and what all cost then."""
    graph = alike_graph(table.model)
    chosen = graph.collapsed(table.start)
    table.learn(chosen)
    for _ in range(MOST_STEPS):
        graph = alike_graph(table.model)
        changed = best_change(graph, chosen)
        if changed is None:
            break
        if table.knows(changed):
            chosen = changed
        table.learn(changed)
    return graph, chosen


def best_change(graph: AlikeGraph, chosen: Chosen) -> Chosen | None:
    """Return the choices after the best change; None where none helps.

    Places are in the order of the model, so that neighbours have neighbouring numbers.
    """
    least_s, best = graph.time_s(chosen) * (1.0 - GAIN), None
    for first, end in combinations(range(len(chosen) + 1), 2):
        time_s = graph.changed_s(chosen, range(first, end))
        option = int(time_s.argmin())
        if time_s[option] < least_s:
            least_s = float(time_s[option])
            best = (*chosen[:first], *(option,) * (end - first), *chosen[end:])
    return best
