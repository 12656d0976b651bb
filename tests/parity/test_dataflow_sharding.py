"""Elimination, the integer program and trying everything: the same ways to split cost least."""

from itertools import product

import pytest
from dataflow_graphs import random_tables
from sampled import sampled

from meshwright.dataflow.sharding import choose_sharding
from meshwright.search.choices.budget import solve_program

EXACT = {"rel": 1e-7, "abs": 1e-9}


def everything(tables):
    """Return cost and memory of all ways; what each demand costs is worked out for itself."""
    choices = tables
    ranges = (range(len(ways)) for ways in tables.splits)
    for ways in product(*ranges):
        held = sum(float(h[way]) for h, way in zip(tables.held_bytes, ways, strict=True))
        yield choices.cost(ways), held, ways


@pytest.mark.parametrize("seed", sampled(range(300), 30))
def test_three_ways_agree(seed):
    tables = random_tables(seed, 2 + seed % 4, repeats=1 + seed % 2)
    least = min(cost for cost, _, _ in everything(tables))
    found = choose_sharding(tables)
    assert found.cost == pytest.approx(least, **EXACT)
    assert tables.cost(found.ways) == pytest.approx(least, **EXACT)
    assert found.gap < 1e-6
    assert solve_program(tables.choices).time_s == pytest.approx(least, **EXACT)


@pytest.mark.parametrize("seed", sampled(range(60), 8))
def test_three_ways_agree_within_a_memory(seed):
    tables = random_tables(seed, 4)
    tried = sorted((held, cost) for cost, held, _ in everything(tables))
    room = tried[len(tried) // 7][0]
    least = min(cost for held, cost in tried if held <= room)
    found = choose_sharding(tables, room)
    assert found.held_bytes <= room
    assert found.cost == pytest.approx(least, **EXACT)
    program = solve_program(tables.choices, room)
    assert program.time_s == pytest.approx(least, **EXACT)


@pytest.mark.parametrize("seed", sampled(range(60), 8))
def test_equal_costs_are_decided_by_memory(seed):
    tables = random_tables(seed, 4)
    flat = tuple(0.0 * costs for costs in tables.costs)
    tables = type(tables)(**{**vars(tables), "costs": flat})
    tried = list(everything(tables))
    least = min(cost for cost, _, _ in tried)
    leanest = min(held for cost, held, _ in tried if cost <= least + 1e-9)
    assert choose_sharding(tables).held_bytes == leanest


def test_no_ways_fit_no_memory():
    tables = random_tables(3, 4)
    assert choose_sharding(tables, -1.0) is None


@pytest.mark.parametrize("seed", sampled(range(40), 6))
def test_a_graph_that_is_too_wide_has_a_gap_that_holds(seed):
    tables = random_tables(seed, 5, repeats=2)
    least = min(cost for cost, _, _ in everything(tables))
    found = choose_sharding(tables, most_entries=2, uses_program=False)
    assert found.lower_bound <= least * (1 + 1e-7)
    assert found.cost >= least * (1 - 1e-7)
    assert found.gap == pytest.approx(found.cost / found.lower_bound - 1)
