"""Level 2: options chosen again among the likeliest ones, where all of them share the links.

Level 1 knows the fastest way to lay each set of degrees alone. Here the options that it chose,
other ways to lay them, and the next best ones of each group of operators are priced with
contention; the choices among these are exact again.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.pricing.operators.contended import contended_prices
from meshwright.pricing.operators.resharding import Resharding
from meshwright.search.operators.assignment import Assignment, assign, fastest_ways
from meshwright.search.operators.layers import ModelGraph, moves_of
from meshwright.topology.network import Network

MOST_WAYS = 3
"""Ways to lay each set of degrees that level 1 chose."""
MOST_NEXT = 1
"""Options of each group of operators, fastest first."""


def with_contention(alone: Assignment, physical: Network) -> Assignment | None:
    """Return the best options among the likeliest ones on shared links.

    None where none of them fits, which happens only if level 1 found nothing.
    """
    model = alone.model
    rows = _likely(alone)
    problem, options = model.prices.problem, model.every_way.options.take(rows)
    prices = contended_prices(problem, options, physical)
    moves_s = moves_of(prices, Resharding(problem, options, physical))
    shared = ModelGraph(prices, model.every_way, rows, moves_s)
    number = {int(row): index for index, row in enumerate(rows)}
    known = [number[int(model.rows[option])] for option in alone.assigned.options]
    return assign(shared, known)


def _likely(alone: Assignment) -> IntArray:
    """Return the options to price with contention, as numbers among all ways."""
    model, every = alone.model, alone.model.every_way
    used = np.unique(model.rows[list(alone.assigned.options)])
    codes = every.options.codes
    ways = fastest_ways(every, MOST_WAYS)
    others = ways[np.isin(codes[ways], codes[used])]
    graph = model.graph_nodes(0.0)
    places = sorted(set(model.places))
    next_best = [
        model.rows[np.argsort(graph[model.places.index(place)].time_s, kind="stable")[:MOST_NEXT]]
        for place in places
    ]
    return np.unique(np.concatenate([used, others, *next_best]))
