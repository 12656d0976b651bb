"""How busy links and devices were, by hand."""

import numpy as np
from grid_networks import grid

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder, link_use

ROW = grid(1, 3, bandwidth=4.0)
RIGHT = [ROW.link_between[0, 1], ROW.link_between[1, 2]]


def played():
    """Return a run of 8 s: two flows of 8 bytes leave 0 for 1 and 2; 0 works from 0 to 2 s.

    They share the first link from 1 s (one hop) and 2 s (two hops) on: 4 bytes are sent alone,
    2 x 4 at half speed until 4 s, then 4 at full speed until 5; three seconds of work follow.
    """
    graph = TaskGraphBuilder(ROW)
    sent = graph.transfer(make_routes([RIGHT[:1], RIGHT]), 8.0)
    graph.compute(np.array([0, 0]), 1.0)
    graph.compute(np.array([2]), 3.0, after=[int(sent[1])])
    return simulate_tasks(graph.build(), ROW)


def test_links_over_time():
    """The links of the other direction are idle."""
    use = link_use(played(), ROW, 4)
    np.testing.assert_allclose(use.edges_s, [0, 2, 4, 6, 8])
    np.testing.assert_allclose(use.load_fraction, [4 / 32, (8 + 4) / 32, (4 + 4) / 32, 0])


def test_one_part_is_the_mean_of_all_links():
    use = link_use(played(), ROW, 1)
    carried = played().carried_bytes(ROW.num_links)
    np.testing.assert_allclose(use.load_fraction, [carried.sum() / (4 * 4.0 * 8)])


def test_an_empty_run_is_idle():
    timeline = simulate_tasks(TaskGraphBuilder(ROW).build(), ROW)
    assert link_use(timeline, ROW, 2).load_fraction.tolist() == [0.0, 0.0]
