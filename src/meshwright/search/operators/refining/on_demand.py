"""Exact choices again and again, pricing on shared links only what was chosen.

What has not been priced there costs what it costs alone, which is less. So the cheapest choices
bound all others, and once all that they hold has been priced, they are the best ones.
"""

from __future__ import annotations

from meshwright.pricing.operators.price import Assigned
from meshwright.search.operators.assignment import (
    WINDOW_SHARES,
    Assignment,
    best_uniform,
    cheapest_fitting,
)
from meshwright.search.operators.refining.table import SharedTable

MOST_ROUNDS = 40
"""Each one prices at least one option more."""
CLOSE = 1e-3
"""Gap at which the best choices found are good enough."""


def on_demand(table: SharedTable, enough_s: float = float("inf")) -> Assignment:
    """Return the best choices on shared links, with the bound that proves them.

    Parameters
    ----------
    enough_s
        The search ends where a bound shows that it takes no less [s].
    """
    best, bound_s = table.price(table.alone.assigned.options), 0.0
    for _ in range(MOST_ROUNDS):
        found, bound_s = cheapest_fitting(table.model, WINDOW_SHARES[0])
        plans = [plan.options for plan in (found, best_uniform(table.model)) if plan]
        options = {option for chosen in plans for option in chosen}
        is_known = table.knows(options)
        table.learn(options)
        best = min(best, *map(table.model.price, plans), key=_total_s)
        if is_known or bound_s >= min(best.total_s / (1.0 + CLOSE), enough_s):
            break
    for share in WINDOW_SHARES[1:]:
        if bound_s < min(best.total_s / (1.0 + CLOSE), enough_s):
            bound_s = max(bound_s, cheapest_fitting(table.model, share)[1])
    return Assignment(table.model, best, min(bound_s, best.total_s))


def _total_s(assigned: Assigned) -> float:
    return assigned.total_s
