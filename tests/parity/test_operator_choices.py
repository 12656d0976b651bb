"""Dynamic programming, the integer program and trying everything: the same choices cost least."""

from itertools import product

import numpy as np
import pytest
from sampled import sampled

from meshwright.search.choices import elimination
from meshwright.search.choices.budget import cheapest_within, solve_program
from meshwright.search.choices.elimination import (
    ChoiceGraph,
    cheapest,
    elimination_order,
    make_load,
)

EXACT = {"rel": 1e-9, "abs": 1e-12}
SEEDS = sampled(range(200), 30)


def load(rng, *shape):
    return make_load(rng.random(shape), rng.integers(0, 9, shape))


def residual_chain(seed):
    """Return a chain of operators with some choices each, and one or two skips over it."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 8))
    sizes = rng.integers(1, 5, count)
    pairs = [(n, n + 1) for n in range(count - 1)]
    first = int(rng.integers(0, count - 3))
    pairs.append((first, int(rng.integers(first + 2, count))))
    if pairs[-1][1] < count - 2:
        pairs.append((pairs[-1][1], count - 1))
    nodes = [load(rng, size) for size in sizes]
    return ChoiceGraph(nodes, {(u, v): load(rng, sizes[u], sizes[v]) for u, v in pairs})


def everything(graph):
    """Return time and bytes of all combinations."""
    ranges = (range(len(node.time_s)) for node in graph.nodes)
    return np.array([(graph.time_s(c), graph.num_bytes(c)) for c in product(*ranges)])


@pytest.mark.parametrize("seed", SEEDS)
def test_three_ways_agree(seed):
    graph = residual_chain(seed)
    best = cheapest(graph)
    assert best.value_s == pytest.approx(everything(graph)[:, 0].min(), **EXACT)
    assert graph.time_s(best.choices) == pytest.approx(best.value_s, **EXACT)
    solved = solve_program(graph)
    assert solved.is_proven
    assert solved.time_s == pytest.approx(best.value_s, **EXACT)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_ways_agree_within_a_budget(seed):
    graph = residual_chain(seed)
    tried = everything(graph)
    budget = float(np.quantile(tried[:, 1], np.random.default_rng(seed).uniform(0.0, 0.6)))
    expected = tried[tried[:, 1] <= budget, 0].min()
    chosen = cheapest_within(graph, budget)
    assert chosen.num_bytes <= budget
    assert chosen.time_s == pytest.approx(expected, **EXACT)
    assert chosen.lower_bound_s <= expected * (1 + 1e-9)
    assert chosen.gap <= 1e-6
    assert solve_program(graph, budget).time_s == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_a_price_of_memory_is_paid(seed):
    graph, price = residual_chain(seed), 0.07
    tried = everything(graph)
    assert cheapest(graph, price).value_s == pytest.approx(
        (tried[:, 0] + price * tried[:, 1]).min(), **EXACT
    )


def test_a_budget_that_nothing_fits():
    graph = ChoiceGraph([make_load([1.0, 2.0], [5.0, 4.0])], {})
    assert cheapest_within(graph, 3.0) is None
    assert solve_program(graph, 3.0).choices is None
    assert cheapest_within(graph, 4.0).choices == (1,)


def layers(rng, number, size=12):
    """Return equal layers of five operators with a skip in each; they share their tables."""
    nodes, edges, between = [load(rng, size) for _ in range(5)], {}, load(rng, size, size)
    inner = {pair: load(rng, size, size) for pair in ((0, 1), (1, 2), (0, 2), (2, 3), (3, 4))}
    for start in range(0, 5 * number, 5):
        edges |= {(start + u, start + v): table for (u, v), table in inner.items()}
        if start:
            edges[start - 1, start] = between
    return ChoiceGraph(nodes * number, edges)


def test_equal_layers_are_reduced_once(monkeypatch):
    products = []
    plain = elimination._done
    monkeypatch.setattr(
        elimination, "_done", lambda task, tables: products.append(task) or plain(task, tables)
    )
    graph = layers(np.random.default_rng(1), 40)
    best = cheapest(graph)
    assert (
        sum(len(task.summands[0].spans) == 2 for task in products) <= 2
    )  # the first layer has no operator before it
    assert graph.time_s(best.choices) == pytest.approx(best.value_s, **EXACT)


def test_one_order_serves_series_parallel_graphs_of_any_sizes():
    nodes, chain = (0,) * 4, (((0, 1), 1), ((1, 2), 1), ((0, 2), 1), ((2, 3), 1))
    ring = (*chain, ((0, 3), 1), ((1, 3), 1))
    sizes = (2, 3, 4, 5), (9, 9, 9, 9)

    def orders(edges, most_entries):
        return [elimination_order(each, nodes, edges, (), 2, most_entries) for each in sizes]

    same, other = orders(chain, 100)
    assert same is other
    assert not same.depends_on_sizes
    assert all(order.depends_on_sizes for order in orders(ring, 1000))
    assert [order.is_exact for order in orders(chain, 25)] == [True, False]


def test_equal_layers_cost_what_the_power_of_their_matrix_says():
    """A ring of min-plus products, once more by hand: from the first operator to the last."""
    rng = np.random.default_rng(2)
    graph = layers(rng, 9, size=5)
    node, table = graph.nodes, {pair: graph.edges[pair].time_s for pair in graph.edges}

    def times(a, b):
        return (a[:, :, None] + b[None, :, :]).min(axis=1)

    inside = times(table[0, 1] + node[1].time_s, table[1, 2]) + table[0, 2] + node[2].time_s
    for u in (2, 3):
        inside = times(inside, table[u, u + 1] + node[u + 1].time_s)
    inside += node[0].time_s[:, None]
    whole = inside
    for _ in range(8):
        whole = times(times(whole, table[4, 5]), inside)
    assert cheapest(graph).value_s == pytest.approx(whole.min(), **EXACT)


def test_a_budget_mixes_equal_layers():
    """Half of the layers take the lean choice: one of each pair of layers, whatever the order."""
    node = make_load([1.0, 3.0], [2.0, 1.0])
    graph = ChoiceGraph([node] * 10, {(n, n + 1): make_load(np.zeros((2, 2))) for n in range(9)})
    chosen = cheapest_within(graph, 15.0)
    assert sum(chosen.choices) == 5
    assert chosen.gap == 0.0
