"""Genetic search: a population of choices, crossed group by group and mutated.

A gene is the option of one group: its degrees, what streams, and where its axes lie. The fitness is
the time on shared links, with a penalty for memory. The best ones stay.

Source: TEMP (Wang et al. 2025, arXiv 2512.14256), section VII; the numbers are ours.
"""

from __future__ import annotations

import numpy as np

from meshwright.wafer.operators.alike import AlikeGraph, Chosen, alike_graph
from meshwright.wafer.operators.price import Assigned
from meshwright.wafer.operators.table import SharedTable

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
