"""Store and forward: each hop waits for the whole message; fluid sharing on each link."""

from itertools import pairwise

import numpy as np
import pytest
from grid_networks import grid
from oracles.store_and_forward import store_and_forward

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder, deepest_latency_s

ROW = grid(1, 5, bandwidth=4.0)


def path(*nodes):
    return [ROW.link_between[pair] for pair in pairwise(nodes)]


@pytest.mark.parametrize("hops", [1, 2, 4])
def test_a_message_takes_its_bytes_once_or_at_each_hop(hops):
    graph = TaskGraphBuilder(ROW)
    sent = graph.transfer(make_routes([path(*range(hops + 1))]), 8.0)
    graph.compute(np.array([hops]), 1.0, after=[sent])
    built = graph.build()
    stored, origin = store_and_forward(built, ROW)
    assert simulate_tasks(built, ROW).makespan_s == hops + 2.0 + 1.0
    assert simulate_tasks(stored, ROW).makespan_s == hops * (1.0 + 2.0) + 1.0
    assert origin.tolist() == [0] * hops + [1]
    assert stored.device.tolist() == [*range(hops), hops]


def test_a_tree_goes_on_from_each_device_and_dependents_wait_for_all_ends():
    """1 to 0 and to 4: 3 s for one hop, 9 for three; the computation waits for the last."""
    graph = TaskGraphBuilder(ROW)
    tree = [*path(1, 2), *path(3, 4), *path(2, 3), *path(1, 0)]
    before = graph.compute(np.array([1]), 2.0)
    sent = graph.transfer(make_routes([tree]), 8.0, after=[before])
    graph.compute(np.array([4]), 1.0, after=[sent])
    stored, _ = store_and_forward(graph.build(), ROW)
    assert simulate_tasks(stored, ROW).end_s.tolist() == [2.0, 5.0, 11.0, 8.0, 5.0, 12.0]
    assert np.diff(stored.needs_offsets).tolist() == [0, 1, 1, 1, 1, 2]


def test_a_graph_without_messages_stays_as_it_is():
    graph = TaskGraphBuilder(ROW)
    graph.compute(np.array([0, 1]), 1.0)
    built = graph.build()
    assert store_and_forward(built, ROW)[0] is built


def test_the_latency_of_a_tree_is_that_of_its_longest_way():
    routes = make_routes([path(0, 1, 2), [*path(2, 3), *path(2, 1), *path(1, 0)], [], path(3, 4)])
    assert deepest_latency_s(routes, ROW).tolist() == [2.0, 2.0, 0.0, 1.0]
