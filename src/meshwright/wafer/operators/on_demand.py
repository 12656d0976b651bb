"""Exact choices again and again, pricing on shared links only what was chosen.

What has not been priced there costs what it costs alone, which is less. So the cheapest choices
bound all others, and once all that they hold has been priced, they are the best ones.
"""

from __future__ import annotations

from meshwright.wafer.operators.assignment import (
    WINDOW_SHARES,
    Assignment,
    best_uniform,
    cheapest_fitting,
)
from meshwright.wafer.operators.price import Assigned
from meshwright.wafer.operators.table import SharedTable

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
    best, bound_s, is_narrow = table.price(table.start), 0.0, True
    for _ in range(MOST_ROUNDS):
        found, bound_s = cheapest_fitting(table.model, WINDOW_SHARES[0])
        plans = [found] if found else []
        if all(table.knows(plan.options) for plan in plans):
            plans += filter(None, [best_uniform(table.model)])
        is_known = all(table.knows(plan.options) for plan in plans)
        best = min([best, *(table.price(plan.options) for plan in plans)], key=_total_s)
        if bound_s >= min(best.total_s / (1.0 + CLOSE), enough_s):
            break
        if is_known and not (is_narrow and table.widen()):
            break
        is_narrow = is_narrow and not is_known
    for share in WINDOW_SHARES[1:]:
        if bound_s < min(best.total_s / (1.0 + CLOSE), enough_s):
            bound_s = max(bound_s, cheapest_fitting(table.model, share)[1])
    return Assignment(table.model, best, min(bound_s, best.total_s))


def _total_s(assigned: Assigned) -> float:
    return assigned.total_s
