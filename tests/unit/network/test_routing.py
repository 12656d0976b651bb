"""Default paths: dimension order on grids, shortest paths elsewhere and around what is dead."""

import numpy as np
import pytest
from grid_networks import demands_of, grid, network_of, star

from meshwright.base.errors import InfeasibleError
from meshwright.network.routing import default_routes, shortest_routes, xy_routes
from meshwright.topology.grid import mesh
from meshwright.topology.network import LinkSpec


def visited(network, routes):
    """Return the nodes of each path."""
    ends = [
        (network.source[links], network.target[links])
        for links in map(routes.of, range(len(routes)))
    ]
    return [[*source[:1].tolist(), *target.tolist()] for source, target in ends]


def test_xy_goes_along_the_row_first():
    network = grid(4, 4)
    routes, is_whole = xy_routes(network, demands_of([(0, 15), (12, 1), (6, 6)]))
    assert visited(network, routes) == [[0, 1, 2, 3, 7, 11, 15], [12, 13, 9, 5, 1], []]
    assert is_whole.all()


def test_yx_goes_along_the_column_first():
    network = grid(4, 4)
    routes, _ = xy_routes(network, demands_of([(0, 15)]), rows_first=True)
    assert visited(network, routes) == [[0, 4, 8, 12, 13, 14, 15]]


def test_a_torus_is_crossed_the_shorter_way_and_upwards_on_a_tie():
    network = grid(4, 5, wraps=True)
    routes, _ = xy_routes(network, demands_of([(0, 4), (0, 15), (0, 10), (4, 0), (3, 0)]))
    assert visited(network, routes) == [[0, 4], [0, 15], [0, 5, 10], [4, 0], [3, 4, 0]]


def test_a_side_of_two_is_no_ring():
    network = grid(2, 4, wraps=True)
    routes, is_whole = xy_routes(network, demands_of([(0, 4), (4, 0)]))
    assert visited(network, routes) == [[0, 4], [4, 0]]
    assert is_whole.all()


def test_a_grid_of_three_sides_is_crossed_side_by_side():
    """The last coordinate first: (0, 0, 0) to (1, 2, 3) in a 3x4x5 mesh is device 33."""
    network = mesh((3, 4, 5), LinkSpec(1.0)).build()
    routes, _ = xy_routes(network, demands_of([(0, 33)]))
    assert visited(network, routes) == [[0, 1, 2, 3, 8, 13, 33]]


def test_paths_avoid_a_dead_link_and_a_dead_device():
    network = grid(3, 3).without(dead_devices=[4], dead_links=[(0, 1)])
    routes = default_routes(network, demands_of([(0, 2), (3, 5), (6, 8)]))
    paths = visited(network, routes)
    assert [len(path) - 1 for path in paths] == [6, 4, 2]
    assert all(4 not in path for path in paths)


def test_devices_on_a_switch_do_not_pass_on():
    network = star(4)
    routes = default_routes(network, demands_of([(0, 3), (2, 1), (1, 1)]))
    assert visited(network, routes) == [[0, 4, 3], [2, 4, 1], []]


def test_latency_decides_and_hops_break_ties():
    network = network_of([(0, 3), (3, 1), (0, 4), (4, 5), (5, 1)], 3, 6)
    slow = network.latency_s.copy()
    slow[:2] = 1.6
    by_latency = type(network)(**{**vars(network), "latency_s": slow})
    even = type(network)(**{**vars(network), "latency_s": np.array([1.5, 1.5, 1.0, 1.0, 1.0])})
    asked = demands_of([(0, 1)])
    assert visited(by_latency, shortest_routes(by_latency, asked)) == [[0, 4, 5, 1]]
    assert visited(even, shortest_routes(even, asked)) == [[0, 3, 1]]


def test_a_device_that_is_cut_off_is_named():
    network = grid(2, 2).without(dead_links=[(0, 1), (1, 3)])
    with pytest.raises(InfeasibleError, match="device 1 cannot be reached from device 2"):
        default_routes(network, demands_of([(0, 3), (2, 1)]))
