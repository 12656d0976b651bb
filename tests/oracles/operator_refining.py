"""Local and genetic search for options: other algorithms that exact choices are compared with.

The cost of changing some groups to one option is known for all options at once, from what touches
these groups alone: the delta of a local search, and the fitness of a genetic one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.wafer.operators.assignment import SharedTable, room_bytes
from meshwright.wafer.operators.model import Assigned, ModelGraph
from meshwright.wafer.operators.prices import Place

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


NUM_INDIVIDUALS, NUM_GENERATIONS, NUM_ELITE = 64, 60, 4
MUTATION = 0.1
NUM_RIVALS = 3
"""Individuals of whom the fittest becomes a parent."""


def genetic(table: SharedTable, *, seed: int = 0) -> Assigned:
    """Return the fittest choices of the last generation, or those of level 1 if they are faster."""
    rng = np.random.default_rng(seed)
    start = table.price(table.start)
    graph = alike_graph(table.model)
    people = _first(graph, graph.collapsed(table.start), rng)
    for _ in range(NUM_GENERATIONS):
        table.learn({option for person in people for option in person})
        graph = alike_graph(table.model)
        people = _next(sorted(set(people), key=lambda person: fitness_s(graph, person)), graph, rng)
    fittest = min(people, key=lambda person: fitness_s(graph, person))
    return table.better(start, graph.spread(fittest))


def fitness_s(graph: AlikeGraph, person: Chosen) -> float:
    """Return the time, and ten times as much for the share by which memory is exceeded [s]."""
    excess = max(graph.num_bytes(person) / graph.room_bytes - 1.0, 0.0)
    return graph.time_s(person) * (1.0 + 10.0 * excess)


def _first(graph: AlikeGraph, start: Chosen, rng: np.random.Generator) -> list[Chosen]:
    """Return what level 1 chose, the best single options for all, and random ones near both."""
    size, options = graph.alone_s.shape
    uniform = [(option,) * size for option in range(options)]
    people = [start, *sorted(uniform, key=lambda person: fitness_s(graph, person))]
    people = people[: NUM_INDIVIDUALS // 2]
    return people + [
        _mutated(people[int(rng.integers(len(people)))], options, rng)
        for _ in range(NUM_INDIVIDUALS - len(people))
    ]


def _next(ranked: list[Chosen], graph: AlikeGraph, rng: np.random.Generator) -> list[Chosen]:
    """Return the next generation: the fittest, and children of fit parents."""
    options = graph.alone_s.shape[1]

    def parent() -> Chosen:
        return ranked[int(rng.integers(len(ranked), size=NUM_RIVALS).min())]

    children = [
        _mutated(_crossed(parent(), parent(), rng), options, rng)
        for _ in range(NUM_INDIVIDUALS - NUM_ELITE)
    ]
    return [*ranked[:NUM_ELITE], *children]


def _crossed(one: Chosen, other: Chosen, rng: np.random.Generator) -> Chosen:
    """Return a child that has each gene from either parent."""
    takes = rng.random(len(one)) < 0.5
    return tuple(b if taken else a for a, b, taken in zip(one, other, takes, strict=True))


def _mutated(person: Chosen, options: int, rng: np.random.Generator) -> Chosen:
    """Return a person some of whose genes are other options."""
    drawn = rng.integers(options, size=len(person))
    changes = rng.random(len(person)) < MUTATION
    return tuple(
        int(new) if changed else old
        for old, new, changed in zip(person, drawn, changes, strict=True)
    )
