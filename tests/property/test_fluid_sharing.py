"""Laws of max-min fair sharing, on random links, routes, sizes and starts."""

from itertools import pairwise

import numpy as np
import pytest
from fluid_reference import fair_rates, finish_times
from hypothesis import given
from hypothesis import strategies as st

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import run_tasks
from meshwright.network.simulation.tasks import flow_graph

CAPACITIES = st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0, 7.0])
SIZES = st.sampled_from([0.0, 1.0, 1.0, 2.0, 5.0]) | st.integers(1, 800).map(lambda n: n / 8)
STARTS = st.sampled_from([0.0, 0.0, 0.0, 1.0]) | st.integers(0, 64).map(lambda n: n / 16)


@st.composite
def cases(draw, starts=STARTS):
    """Draw bandwidths, routes (sets of links), sizes and starts."""
    capacity = draw(st.lists(CAPACITIES, min_size=1, max_size=9))
    link = st.integers(0, len(capacity) - 1)
    flow = st.tuples(st.lists(link, unique=True, max_size=4), SIZES, starts)
    flows = draw(st.lists(flow, min_size=1, max_size=14))
    routes, sizes, begins = zip(*flows, strict=True)
    return capacity, list(routes), np.array(sizes), np.array(begins)


def simulated(capacity, routes, num_bytes, start_s):
    graph = flow_graph(make_routes(routes), num_bytes, np.zeros(len(routes)), start_s)
    return run_tasks(graph, np.array(capacity))


@given(cases())
def test_ends_equal_exact_progressive_filling(case):
    expected = finish_times(*case)
    np.testing.assert_allclose(simulated(*case).end_s, expected, rtol=1e-12, atol=1e-12)


@given(cases())
def test_links_carry_all_bytes_and_never_more_than_they_can(case):
    capacity, routes, num_bytes, _ = case
    timeline = simulated(*case)
    sent = [sum(n for n, route in zip(num_bytes, routes, strict=True) if link in route)
            for link in range(len(capacity))]  # fmt: skip
    np.testing.assert_allclose(timeline.carried_bytes(len(capacity)), sent, rtol=1e-9, atol=1e-12)
    assert (timeline.rate_bytes_per_s <= np.array(capacity)[timeline.link] * (1 + 1e-11)).all()
    assert (np.diff(timeline.change_s) >= 0).all()


@given(cases(starts=st.just(0.0)))
def test_at_first_each_flow_has_a_full_link_on_which_none_is_faster(case):
    """The loads that are recorded at time 0 are the sums of the max-min fair rates."""
    capacity, routes, num_bytes, _ = case
    moving = [route for route, size in zip(routes, num_bytes, strict=True) if route and size]
    rates = [float(rate) for rate in fair_rates(capacity, moving)]
    load = np.zeros(len(capacity))
    timeline = simulated(*case)
    now = timeline.change_s == 0
    load[timeline.link[now]] = timeline.rate_bytes_per_s[now]
    for link in range(len(capacity)):
        on_link = [rate for rate, route in zip(rates, moving, strict=True) if link in route]
        assert load[link] == pytest.approx(sum(on_link), rel=1e-9, abs=1e-12)
    full = [link for link in range(len(capacity)) if load[link] > capacity[link] * (1 - 1e-9)]
    for rate, route in zip(rates, moving, strict=True):
        others = {link: [r for r, o in zip(rates, moving, strict=True) if link in o]
                  for link in route}  # fmt: skip
        assert any(link in full and rate >= max(others[link]) * (1 - 1e-9) for link in route)


@given(cases(), st.sampled_from([0.25, 3.0, 1e-6, 1e9]))
def test_time_scales_with_size_over_bandwidth(case, factor):
    capacity, routes, num_bytes, start_s = case
    ends = simulated(*case).end_s
    larger = simulated(capacity, routes, num_bytes * factor, start_s * factor).end_s
    wider = simulated(np.array(capacity) / factor, routes, num_bytes, start_s * factor).end_s
    np.testing.assert_allclose(larger, ends * factor, rtol=1e-9)
    np.testing.assert_allclose(wider, ends * factor, rtol=1e-9)


@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_flows_does_not_matter(case, random):
    capacity, routes, num_bytes, start_s = case
    order = list(range(len(routes)))
    random.shuffle(order)
    shuffled = simulated(capacity, [routes[i] for i in order], num_bytes[order], start_s[order])
    np.testing.assert_allclose(shuffled.end_s, simulated(*case).end_s[order], rtol=1e-12)


def test_many_flows_on_a_grid_equal_the_reference():
    """Enough flows that most changes leave most rates alone."""
    random = np.random.default_rng(11)
    rows, columns, count = 5, 6, 70
    routes = [row_then_column(columns, *random.integers(rows * columns, size=2))
              for _ in range(count)]  # fmt: skip
    links = {pair: number for number, pair in enumerate(sorted({p for r in routes for p in r}))}
    numbered = [[links[pair] for pair in route] for route in routes]
    capacity = random.integers(1, 4, len(links)).astype(float)
    case = capacity, numbered, random.integers(1, 40, count) / 4, random.integers(0, 9, count) / 2
    np.testing.assert_allclose(simulated(*case).end_s, finish_times(*case), rtol=1e-12)


def row_then_column(columns, source, target):
    """Return the links of an XY route as pairs of nodes."""
    (row, column), (last_row, last_column) = divmod(source, columns), divmod(target, columns)
    nodes = [(row, c) for c in steps(column, last_column)]
    nodes += [(r, last_column) for r in steps(row, last_row)[1:]]
    return list(pairwise(nodes))


def steps(first, last):
    return list(range(first, last + 1)) if first <= last else list(range(first, last - 1, -1))
