"""Better choices by changing one node at a time, until no single change helps."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.arrays import FloatArray
from meshwright.search.choices.graph import ChoiceGraph


def descend(graph: ChoiceGraph, choices: Sequence[int], s_per_byte: float = 0.0) -> tuple[int, ...]:
    """Return choices that no change of a single node makes cheaper, from some that are given."""
    found = list(choices)
    alone = [load.at_price(s_per_byte) for load in graph.nodes]
    bonds: list[list[tuple[int, FloatArray]]] = [[] for _ in alone]
    for (u, v), load in graph.edges.items():
        priced = load.at_price(s_per_byte)
        bonds[u].append((v, priced.T))
        bonds[v].append((u, priced))
    has_changed = True
    while has_changed:
        has_changed = False
        for node, costs in enumerate(alone):
            total = costs + sum(table[found[other]] for other, table in bonds[node])
            best = int(total.argmin())
            if total[best] < total[found[node]]:
                found[node], has_changed = best, True
    return tuple(found)
