"""Choices that are the same in all equal layers, as a small graph of groups.

The cost of changing some groups to one option is known for all options at once, from what touches
these groups alone: the delta of a local search, and the fitness of a genetic one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.wafer.operators.assignment import room_bytes
from meshwright.wafer.operators.layers import ModelGraph
from meshwright.wafer.operators.price import Place

Chosen = tuple[int, ...]
"""The option of each place."""


@dataclass(frozen=True)
class AlikeGraph:
    """Places (groups of each kind of layer, embedding, head), what they cost, and what passes."""

    places: tuple[Place, ...]
    alone_s: FloatArray
    """(places, options): in the whole step [s]."""
    held_bytes: FloatArray
    """(places, options) [bytes]."""
    passed_s: dict[tuple[int, int], FloatArray]
    """Between two places (a place and itself too): (options, options), whole step [s]."""
    room_bytes: float
    of_node: tuple[int, ...]
    """The place of each node of the model."""

    def time_s(self, chosen: Chosen) -> float:
        """Return the time of one option for each place [s]."""
        at = np.arange(len(chosen))
        passed = sum(float(t[chosen[u], chosen[v]]) for (u, v), t in self.passed_s.items())
        return float(self.alone_s[at, list(chosen)].sum()) + passed

    def num_bytes(self, chosen: Chosen) -> float:
        """Return the memory of one option for each place [bytes]."""
        return float(self.held_bytes[np.arange(len(chosen)), list(chosen)].sum())

    def changed_s(self, chosen: Chosen, changed: Sequence[int]) -> FloatArray:
        """Return the time when some places take one option, for all options at once, (options,).

        Infinite where memory has no room for it.
        """
        inside = set(changed)
        rest = [p for p in range(len(chosen)) if p not in inside]
        time_s = self.alone_s[list(changed)].sum(axis=0)
        time_s = time_s + sum(self.alone_s[p, chosen[p]] for p in rest)
        for (u, v), table in self.passed_s.items():
            if u in inside and v in inside:
                time_s = time_s + np.diagonal(table)
            elif u in inside:
                time_s = time_s + table[:, chosen[v]]
            else:
                time_s = time_s + (table[chosen[u]] if v in inside else table[chosen[u], chosen[v]])
        held = self.held_bytes[list(changed)].sum(axis=0)
        held = held + sum(self.held_bytes[p, chosen[p]] for p in rest)
        return np.where(held <= self.room_bytes, time_s, np.inf)

    def collapsed(self, choices: Sequence[int]) -> Chosen:
        """Return the option that most layers have at each place."""
        counts = [Counter[int]() for _ in self.places]
        for node, option in enumerate(choices):
            counts[self.of_node[node]][option] += 1
        return tuple(count.most_common(1)[0][0] for count in counts)

    def spread(self, chosen: Chosen) -> tuple[int, ...]:
        """Return the option of each node of the model."""
        return tuple(chosen[place] for place in self.of_node)


def alike_graph(model: ModelGraph) -> AlikeGraph:
    """Return the graph of a model whose equal layers have equal options."""
    graph = model.graph()
    places = tuple(dict.fromkeys(model.places))
    number = {place: index for index, place in enumerate(places)}
    of_node = tuple(number[place] for place in model.places)
    counts = Counter(of_node)
    first = [of_node.index(place) for place in range(len(places))]
    passed: dict[tuple[int, int], FloatArray] = {}
    for load, pairs in graph.equal_edges:
        ends = Counter((of_node[u], of_node[v]) for u, v in pairs.T.tolist())
        for pair, times in ends.items():
            passed[pair] = passed.get(pair, 0.0) + times * load.time_s
    return AlikeGraph(
        places,
        np.stack([counts[p] * graph.nodes[node].time_s for p, node in enumerate(first)]),
        np.stack([counts[p] * graph.nodes[node].num_bytes for p, node in enumerate(first)]),
        passed,
        room_bytes(model),
        of_node,
    )
