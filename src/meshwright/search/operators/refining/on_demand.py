"""Exact choices again and again, pricing on shared links only what was chosen.

What has not been priced there costs what it costs alone, which is less. So the cheapest choices
bound all others, and once all that they hold has been priced, they are the best ones.
"""

from __future__ import annotations

from meshwright.pricing.operators.price import Assigned
from meshwright.search.operators.assignment import Assignment, assign
from meshwright.search.operators.refining.table import SharedTable

MOST_ROUNDS = 40
"""Each one prices at least one option more."""
CLOSE = 1e-3
"""Gap at which the best choices found are good enough."""


def on_demand(table: SharedTable) -> Assignment | None:
    """Return the best choices on shared links, with the bound that proves them.

    None where none of the options fits, which happens only if level 1 found nothing.
    """
    best, bound_s = table.price(table.start), 0.0
    for _ in range(MOST_ROUNDS):
        found = assign(table.model, best.options)
        if found is None:
            return None
        bound_s = max(bound_s, found.lower_bound_s)
        is_known = table.knows(found.assigned.options)
        best = min(best, table.price(found.assigned.options), key=_total_s)
        if is_known or best.total_s <= bound_s * (1.0 + CLOSE):
            break
    return Assignment(table.model, best, min(bound_s, best.total_s))


def _total_s(assigned: Assigned) -> float:
    return assigned.total_s
