"""Busy devices and sending links of a simulated run, by hand."""

import numpy as np
from grid_networks import grid

from meshwright.network.routing import make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder
from meshwright_papers.studies.temp.tensor_parallelism import sending_fraction
from meshwright_papers.surrogate.dataset import busy_seconds

ROW = grid(1, 3, bandwidth=4.0)
RIGHT = [ROW.link_between[0, 1], ROW.link_between[1, 2]]


def played():
    """Return a run of 8 s: two flows of 8 bytes leave 0 for 1 and 2; 0 works from 0 to 2 s.

    Links carry from 1 s (one hop) to 5 s; three seconds of work on device 2 follow.
    """
    graph = TaskGraphBuilder(ROW)
    sent = graph.transfer(make_routes([RIGHT[:1], RIGHT]), 8.0)
    graph.compute(np.array([0, 0]), 1.0)
    graph.compute(np.array([2]), 3.0, after=[int(sent[1])])
    return simulate_tasks(graph.build(), ROW)


def test_devices_by_track():
    assert played().tracks == ("transfer", "compute")
    np.testing.assert_allclose(busy_seconds(played(), 3), [[5, 2], [0, 0], [0, 3]], atol=1e-12)


def test_share_of_a_run_in_which_anything_is_sent():
    assert sending_fraction(played()) == (5 - 1) / 8


def test_an_empty_run_is_idle():
    timeline = simulate_tasks(TaskGraphBuilder(ROW).build(), ROW)
    assert busy_seconds(timeline, 3).shape == (3, 0)
    assert sending_fraction(timeline) == 0.0
