"""Task graphs by hand: links of 4 bytes/s and 1 s latency, unless a test says otherwise."""

from itertools import pairwise

import numpy as np
import pytest
from grid_networks import grid

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder

ROW = grid(1, 4, bandwidth=4.0)


def path(*nodes, network=ROW):
    return [network.link_between[pair] for pair in pairwise(nodes)]


def devices(*numbers):
    return np.array(numbers)


def test_a_computation_waits_for_data_and_data_for_the_computation_before():
    """2 s of work, 1 s of latency and 8 / 4 s of bytes, 3 s of work: 2, 5, 8."""
    graph = TaskGraphBuilder(ROW)
    first = graph.compute(devices(0), 2.0)
    sent = graph.transfer(make_routes([path(0, 1)]), 8.0, after=[first])
    graph.compute(devices(1), 3.0, after=[sent])
    timeline = simulate_tasks(graph.build(), ROW)
    assert timeline.start_s.tolist() == [0.0, 2.0, 5.0]
    assert timeline.end_s.tolist() == [2.0, 5.0, 8.0]
    assert timeline.makespan_s == 8.0
    assert timeline.link.tolist() == path(0, 1) * 2
    assert timeline.change_s.tolist() == [3.0, 5.0]
    assert timeline.rate_bytes_per_s.tolist() == [4.0, 0.0]


def test_a_track_runs_one_task_at_a_time_first_ready_first_then_by_number():
    graph = TaskGraphBuilder(ROW)
    graph.compute(devices(0), 2.0, start_s=1.0)
    graph.compute(devices(0, 0), 1.0)
    graph.compute(devices(0), 5.0, track="other")
    timeline = simulate_tasks(graph.build(), ROW)
    assert timeline.start_s.tolist() == [2.0, 0.0, 1.0, 0.0]
    assert timeline.end_s.tolist() == [4.0, 1.0, 2.0, 5.0]


def test_what_became_ready_earlier_goes_first_whatever_its_number():
    """The second task is ready at 1, the first at 2; the device is busy until 3."""
    graph = TaskGraphBuilder(ROW)
    graph.compute(devices(0), 1.0, start_s=2.0)
    graph.compute(devices(0), 1.0, start_s=1.0)
    graph.compute(devices(0), 3.0)
    assert simulate_tasks(graph.build(), ROW).start_s.tolist() == [4.0, 3.0, 0.0]


def test_a_flow_that_comes_and_goes_slows_another():
    """8 bytes each from 1 and from 2 s on: 4 bytes alone, then 2 bytes/s each.

    The first has 4 bytes left at 2 s and ends at 4; the second then has 4 left, and ends at 5.
    """
    graph = TaskGraphBuilder(ROW)
    graph.transfer(make_routes([path(0, 1, 2)[:1], path(0, 1)]), 8.0, start_s=np.array([0.0, 1.0]))
    timeline = simulate_tasks(graph.build(), ROW)
    assert timeline.end_s.tolist() == [4.0, 5.0]


def test_a_dependent_of_a_split_message_waits_for_all_its_routes():
    """12 bytes over two routes of 1 and 3 links: 9 bytes end at 1 + 9/4, 3 at 3 + 3/4."""
    square = grid(2, 2, bandwidth=4.0)
    routes = make_routes([path(0, 1, network=square), path(0, 2, 3, 1, network=square)])
    graph = TaskGraphBuilder(square)
    parts = graph.transfer(routes, np.array([9.0, 3.0]))
    graph.compute(devices(1), 1.0, after=list(parts))
    assert simulate_tasks(graph.build(), square).end_s.tolist() == [3.25, 3.75, 4.75]


def test_a_multicast_tree_takes_bandwidth_once_on_each_link():
    """1 sends 8 bytes to 0, 2 and 3 down three links; the last link is shared with 2 > 3.

    Latency 2 to the far end; the other flow has had 4 bytes by then, and both end at 4 + 2.
    """
    graph = TaskGraphBuilder(ROW)
    tree = [*path(2, 3), *path(1, 0), *path(1, 2)]
    graph.transfer(make_routes([tree, path(2, 3)]), np.array([8.0, 12.0]))
    timeline = simulate_tasks(graph.build(), ROW)
    assert timeline.end_s.tolist() == [6.0, 6.0]
    assert sorted(timeline.carried_bytes(ROW.num_links).tolist()) == [0, 0, 0, 8, 8, 20]


def test_a_message_occupies_its_links_for_m_half_more():
    """(8 + 4) / 4 s of occupation and 1 s of latency; a second one waits for bandwidth only."""
    network = grid(1, 2, bandwidth=4.0)
    network.message_half_bytes[:] = 4.0
    graph = TaskGraphBuilder(network)
    one = graph.transfer(make_routes([path(0, 1, network=network)]), 8.0)
    graph.transfer(make_routes([path(0, 1, network=network)]), 0.0, after=[one])
    assert simulate_tasks(graph.build(), network).end_s.tolist() == [4.0, 5.0]


def test_a_device_that_sends_to_itself_takes_no_time():
    graph = TaskGraphBuilder(ROW)
    graph.transfer(make_routes([[]]), 8.0, start_s=3.0)
    assert simulate_tasks(graph.build(), ROW).end_s.tolist() == [3.0]


def test_nothing_to_do_takes_no_time():
    timeline = simulate_tasks(TaskGraphBuilder(ROW).build(), ROW)
    assert timeline.makespan_s == 0.0
    assert len(timeline.link) == 0


def test_tasks_in_a_circle_are_named():
    graph = TaskGraphBuilder(ROW)
    graph.compute(devices(0), 1.0)
    graph.compute(devices(0), 1.0, name="forward", after=[2])
    graph.compute(devices(1), 1.0, after=[1])
    with pytest.raises(ValueError, match="2 tasks wait for one another in a circle: 1 forward, 2"):
        simulate_tasks(graph.build(), ROW)


def test_a_long_record_is_whole():
    """Many more changes than the record begins with: each flow starts and ends by itself."""
    graph = TaskGraphBuilder(ROW)
    starts = np.arange(500) / 8
    graph.transfer(make_routes([path(0, 1), path(0, 1, 2, 3)] * 250), 3.0, start_s=starts)
    built = graph.build()
    timeline = simulate_tasks(built, ROW)
    expected = built.routes.link_load_bytes(built.num_bytes, ROW)
    np.testing.assert_allclose(timeline.carried_bytes(ROW.num_links), expected)


def test_blocks_of_many_needs_are_the_tasks_one_by_one():
    """Columns, single tasks, tables of needs and none of them, against lists of each task."""
    random = np.random.default_rng(3)
    graph, expected, count = TaskGraphBuilder(ROW), [], 0
    for _ in range(200):
        size = int(random.integers(1, 5))
        table = random.integers(-1, max(count, 1), (int(random.integers(0, 4)), size))
        table[table >= count] = -1
        single = int(random.integers(-1, count)) if count else -1
        is_table = bool(random.random() < 0.5)
        made = graph.compute(
            np.zeros(size, dtype=int), 1.0, after=table if is_table else [*table, single]
        )
        assert made.tolist() == list(range(count, count + size))
        last = [] if is_table else [single]
        expected += [[n for n in [*column, *last] if n >= 0] for column in table.T.tolist()]
        count += size
    built = graph.build()
    needs = np.split(built.needs, built.needs_offsets[1:-1])
    assert [row.tolist() for row in needs] == expected
