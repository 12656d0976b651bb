"""Graphs of any width: elimination, the integer program and trying everything agree."""

from itertools import combinations, product

import numpy as np
import pytest
from sampled import sampled

from meshwright.search.choices.budget import cheapest_within, solve_program
from meshwright.search.choices.elimination import ChoiceGraph, Reduced, cheapest, make_load

EXACT = {"rel": 1e-9, "abs": 1e-12}


def wide_graph(seed, density=0.6):
    """Return a graph of four to seven operators in which any two may be bound to each other."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, int(rng.integers(4, 8)))
    bound = [pair for pair in combinations(range(len(sizes)), 2) if rng.random() < density]
    loads = [make_load(rng.random(size), rng.integers(0, 9, size)) for size in sizes]
    edges = {(u, v): make_load(rng.random((sizes[u], sizes[v]))) for u, v in bound}
    return ChoiceGraph(loads, edges)


def everything(graph):
    return list(product(*(range(len(node.time_s)) for node in graph.nodes)))


@pytest.mark.parametrize("seed", sampled(range(150), 25))
def test_three_ways_agree(seed):
    graph = wide_graph(seed)
    best = cheapest(graph)
    assert best.is_exact
    assert best.value_s == pytest.approx(min(map(graph.time_s, everything(graph))), **EXACT)
    assert graph.time_s(best.choices) == pytest.approx(best.value_s, **EXACT)
    assert solve_program(graph).time_s == pytest.approx(best.value_s, **EXACT)


@pytest.mark.parametrize("seed", sampled(range(40), 10))
def test_the_table_over_nodes_that_are_left_has_the_best_of_the_others(seed):
    graph = wide_graph(seed)
    kept = (1, 3)
    reduced = Reduced(graph, kept=kept)
    assert reduced.table.shape == tuple(len(graph.nodes[node].time_s) for node in kept)
    for at in np.ndindex(reduced.table.shape):
        fixed = dict(zip(kept, at, strict=True))
        best = min(
            graph.time_s(c) for c in everything(graph) if all(c[n] == v for n, v in fixed.items())
        )
        choices = reduced.choices(fixed)
        assert reduced.table[at] == pytest.approx(best, **EXACT)
        assert graph.time_s(choices) == pytest.approx(best, **EXACT)
        assert all(choices[node] == choice for node, choice in fixed.items())


@pytest.mark.parametrize("seed", sampled(range(40), 10))
def test_tables_that_are_too_large_leave_a_bound(seed):
    graph = wide_graph(seed, density=1.0)
    best = cheapest(graph, most_entries=4)
    least = min(map(graph.time_s, everything(graph)))
    assert best.value_s <= least * (1 + 1e-9)
    assert graph.time_s(best.choices) >= least * (1 - 1e-9)


def test_a_bound_that_is_not_tight_goes_to_the_integer_program():
    graph = wide_graph(7, density=1.0)
    least = min(map(graph.time_s, everything(graph)))
    assert not cheapest(graph, most_entries=4).is_exact
    bounded = cheapest_within(graph, float("inf"), most_entries=4, uses_program=False)
    proven = cheapest_within(graph, float("inf"), most_entries=4)
    assert bounded.lower_bound_s <= least * (1 + 1e-9)
    assert bounded.gap > 0.0
    assert proven.time_s == pytest.approx(least, **EXACT)
    assert proven.gap < 1e-6


@pytest.mark.parametrize("seed", sampled(range(30), 6))
def test_what_a_bound_misses_within_a_budget_the_program_finds(seed):
    graph = wide_graph(seed, density=1.0)
    tried = sorted((graph.num_bytes(c), graph.time_s(c)) for c in everything(graph))
    budget = tried[0][0]
    least = min(time_s for held, time_s in tried if held <= budget)
    chosen = cheapest_within(graph, budget, most_entries=1)
    assert chosen.num_bytes <= budget
    assert chosen.time_s == pytest.approx(least, **EXACT)
    assert chosen.lower_bound_s <= least * (1 + 1e-9)
