"""Background beside a pass: by hand, and equal to a simulation of rounds on one link."""

from dataclasses import replace

import numpy as np
import pytest
from grid_networks import demands_of, grid
from hypothesis import given
from hypothesis import strategies as st

from meshwright.network.routing import default_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder
from meshwright.wafer.fair_sharing import beside_background_s, in_flight, slowdown_of_parts


def test_messages_share_their_busiest_link_with_background_by_hand():
    """Two flows of 2 s beside one take 3 s where that one fills the link, 8/3 s where it needs a
    quarter of it, and 2 s on a link without background."""
    alone = np.full((1, 3), 2.0)
    flows, background = np.full((1, 3), 2.0), np.array([4.0, 1.0, 0.0])
    found = beside_background_s(alone, flows, background, np.ones(3))
    assert found.tolist() == [[3.0, pytest.approx(8 / 3), 2.0]]


def test_background_is_in_flight_as_long_as_links_leave_it_time_by_hand():
    """Three parts of 4 s with messages of 3 s leave 3 s; 3 s of idle links are a quarter of 12."""
    parts, alone = np.full(3, 4.0), np.full((3, 1), 3.0)
    assert in_flight(parts, alone, np.array([1.5])) == (0.5, 0.5, 0.0)
    assert in_flight(parts, alone, np.array([4.0])) == (1.0, 1.0, 1.0)
    late = in_flight(parts, alone, np.array([4.0]), first_s=4.0)
    assert late == (1.0, 1.0, pytest.approx(2.0))
    assert in_flight(parts, alone, np.array([1.5]), 3.0) == (0.5, 0.75, 0.0)
    assert in_flight(parts, alone, np.zeros(1)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("total_s", "slowdown"), [(5.0, 1.0), (8.0, 2.0), (12.0, 3.0), (3.0, 1 / 3)]
)
def test_the_slowdown_of_two_parts_by_hand(total_s, slowdown):
    """Links of 1 s beside 2 s and of 3 s beside 1 s: 2 + 3, 2 + 6, 3 + 9; hidden up to 1/3."""
    found = slowdown_of_parts(total_s, np.array([1.0, 3.0]), np.array([2.0, 1.0]))
    assert found == pytest.approx(slowdown)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 5)), min_size=1, max_size=6),
       st.floats(1, 4))  # fmt: skip
def test_a_slowdown_gives_its_parts_back(parts, slowdown):
    private_s, compute_s = np.array(parts).T
    total_s = float(np.maximum(slowdown * private_s, compute_s).sum())
    found = slowdown_of_parts(total_s, private_s, compute_s)
    assert np.maximum(found * private_s, compute_s).sum() == pytest.approx(total_s)
    assert found >= slowdown * (1 - 1e-9)


@given(st.floats(0.1, 2), st.floats(0, 2), st.floats(0, 60))
def test_rounds_beside_background_take_as_long_as_their_simulation(link_s, compute_s, background_s):
    """Forty rounds of one stream on a link, and a gradient beside them; equal to one round."""
    number, network = 40, grid(1, 2)
    network = replace(network, latency_s=np.zeros(2), message_half_bytes=np.zeros(2))
    tasks = TaskGraphBuilder(network)
    one = default_routes(network, demands_of([(0, 1, 1.0, 0)]))
    gradient = tasks.transfer(one, background_s, track="dp")
    last = np.array([-1])
    for _ in range(number):
        sent = tasks.transfer(one, link_s, after=[last], track="tatp")
        done = tasks.compute(np.zeros(1, dtype=np.int64), compute_s, after=[last])
        last = tasks.compute(np.zeros(1, dtype=np.int64), 0.0, after=[sent, done], track="wait")
    timeline = simulate_tasks(tasks.build(), network)
    busy = np.full((number, 1), link_s)
    background = np.array([background_s])
    slower = beside_background_s(busy, np.ones((number, 1)), background, np.ones(1))
    part_s = np.maximum(slower.max(axis=1), compute_s)
    flight = in_flight(part_s, busy, background)
    free_s = np.maximum(busy.max(axis=1), compute_s)
    total_s = free_s.sum() + flight.on_links * (part_s - free_s).sum()
    assert timeline.end_s[last[0]] == pytest.approx(total_s, abs=2.0 * part_s.max())
    ends_s = max(total_s + flight.left_s, timeline.end_s[last[0]])
    assert timeline.makespan_s == pytest.approx(ends_s, abs=2.0 * part_s.max())
    assert timeline.end_s[gradient[0]] <= timeline.makespan_s
