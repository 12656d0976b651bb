"""Level 2 by three methods: in order with each other and with their bounds."""

from functools import cache

import numpy as np
import pytest
from oracles.operator_refining import (
    alike_graph,
    best_change,
    descent,
    fitness_s,
    genetic,
    local_best,
)
from small_problems import level, model, problem, system

from meshwright.sharding.strategy import PlanOptions
from meshwright.wafer.operators.assignment import (
    SharedTable,
    assign,
    bound_with_moves_s,
    capacity_bytes,
    lower_bound_s,
    model_graph,
    on_demand,
)
from meshwright.wafer.operators.options import SharedChoices
from meshwright.wafer.price import physical_network


@cache
def level_one(zero_stage=1, capacity_bytes=4e9):
    grid = system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=capacity_bytes)
    what = problem(model(num_layers=4), grid, sequence_length=4096, global_batch_size=16)
    plan_options = PlanOptions(zero_stage=zero_stage)
    graph = model_graph(what, SharedChoices(plan_options, 8, 8), physical_network(what))
    return assign(graph)


@pytest.fixture(params=[1, 3], ids=["zero 1", "zero 3"])
def alone(request):
    return level_one(request.param)


def test_sharing_links_never_makes_an_option_faster(alone):
    table = SharedTable(alone)
    places = len(table.model.places)
    for option in range(0, len(table.model.rows), 4):
        before = table.model.price((option,) * places).total_s
        assert table.price((option,) * places).total_s >= before * (1 - 1e-12)


def test_on_demand_is_as_good_as_pricing_everything(alone):
    few, all_of_them = SharedTable(alone), SharedTable(alone)
    all_of_them.learn(range(len(alone.model.rows)))
    found, known = on_demand(few), on_demand(all_of_them)
    assert found.assigned.total_s == pytest.approx(known.assigned.total_s, rel=2e-3)
    assert few.num_priced <= all_of_them.num_priced
    assert found.lower_bound_s <= known.assigned.total_s * (1 + 1e-12)


def by_default(table):
    return on_demand(table).assigned


@pytest.mark.parametrize("method", [by_default, descent, genetic], ids=lambda m: m.__name__)
def test_methods_start_from_level_one_and_stay_above_the_bound(method, alone):
    table = SharedTable(alone)
    start = table.price(table.start)
    found = method(table)
    assert found.total_s <= start.total_s * (1 + 1e-12)
    assert found.memory_bytes <= capacity_bytes(table.model)
    assert found.total_s >= on_demand(SharedTable(alone)).lower_bound_s * (1 - 1e-12)
    priced = SharedTable(alone).price(found.options) if method is not by_default else None
    assert priced is None or priced.total_s == pytest.approx(found.total_s)


@pytest.mark.slow
def test_the_same_seed_finds_the_same(alone):
    one, other = (genetic(SharedTable(alone), seed=3) for _ in range(2))
    assert one.options == other.options


def test_changes_cost_what_the_whole_costs(alone):
    graph = alike_graph(alone.model)
    rng = np.random.default_rng(0)
    num_options, size = graph.alone_s.shape[1], len(graph.places)
    for _ in range(20):
        chosen = tuple(rng.integers(num_options, size=size).tolist())
        first, end = sorted(rng.choice(size + 1, 2, replace=False).tolist())
        changed_s = graph.changed_s(chosen, range(first, end))
        for option in rng.integers(num_options, size=3).tolist():
            whole = (*chosen[:first], *(option,) * (end - first), *chosen[end:])
            if graph.num_bytes(whole) <= graph.room_bytes:
                assert changed_s[option] == pytest.approx(graph.time_s(whole))
            else:
                assert changed_s[option] == np.inf
        spread = graph.spread(chosen)
        assert graph.collapsed(spread) == chosen
        assert graph.time_s(chosen) == pytest.approx(alone.model.graph().time_s(spread))
        assert fitness_s(graph, chosen) >= graph.time_s(chosen)


def test_nothing_helps_where_a_descent_ends(alone):
    table = SharedTable(alone)
    graph, chosen = local_best(table)
    assert best_change(graph, chosen) is None
    assert table.knows(chosen)


def test_a_bound_with_moves_is_higher_and_still_a_bound(alone):
    plain_s = lower_bound_s(alone.model)
    bound_s = bound_with_moves_s(alone.model, float("inf"))
    assert bound_s >= plain_s * (1 - 1e-9)
    assert bound_s <= alone.assigned.total_s * (1 + 1e-9)


def test_frames_share_what_is_known_where_they_send_the_same():
    first = SharedTable(level_one(1))
    on_demand(first)
    assert SharedTable(level_one(2), first).num_priced == first.num_priced
    assert SharedTable(level_one(3), first).num_priced == 0
