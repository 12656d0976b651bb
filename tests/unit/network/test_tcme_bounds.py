"""Bounds by hand: cuts, whole messages, lengths, the linear program."""

import numpy as np
import pytest
from grid_networks import demands_of, grid, network_of, star
from oracles.routing_bounds import lp_bound

from meshwright.network.tcme.bounds import (
    Certificate,
    common_divisor,
    cut_bound,
    dual_bound,
    node_sets,
    round_up,
)
from meshwright.network.tcme.moves import make_messages, split_in
from meshwright.network.tcme.optimiser import optimise


def messages_of(rows, num_nodes):
    return make_messages(demands_of(rows), num_nodes)[0]


BOUNDS = [cut_bound, dual_bound, lp_bound]


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_corner_has_two_links_in(bound):
    """Six units into the corner of a 3x3 mesh over two links."""
    messages = messages_of([(n, 0) for n in range(3, 9)], 9)
    assert bound(grid(3, 3), messages) == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_multicast_crosses_a_cut_once(bound):
    """One unit from the left column of 2x2 to both on the right, and one from each of them."""
    messages = messages_of([(0, 1, 1.0, 7), (0, 3, 1.0, 7), (0, 2, 1.0, 7)], 4)
    assert bound(grid(2, 2), messages) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("bound", BOUNDS)
def test_any_holder_may_serve(bound):
    """Both ends of a line of three hold the payload; the middle takes half from each."""
    line = grid(1, 3)
    messages = messages_of([(0, 1, 4.0, 1), (2, 1, 4.0, 1)], 3)
    assert bound(line, messages) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("bound", BOUNDS)
def test_devices_on_a_switch_have_one_link_each(bound):
    messages = messages_of([(0, 1), (2, 1), (3, 1), (1, 0)], 5)
    assert bound(star(4), messages) == pytest.approx(3.0, rel=0.02)


@pytest.mark.parametrize("bound", BOUNDS)
def test_bandwidth_counts(bound):
    network = network_of([(0, 2), (2, 1), (0, 3), (3, 1)], 2, 4, bandwidth=2.0)
    assert bound(network, messages_of([(0, 1, 8.0, 1)], 4)) == pytest.approx(2.0, rel=0.02) or (
        bound is cut_bound
    )


def test_of_three_messages_on_two_links_two_share_one():
    """5, 4 and 3 bytes over two links: 4 + 3 on one; the share alone would be 6."""
    rows = [(0, 1, 5.0, 1), (0, 1, 4.0, 2), (0, 1, 3.0, 3)]
    network = grid(2, 2)
    assert cut_bound(network, messages_of(rows, 4)) == 7.0
    assert optimise(network, demands_of(rows)).z_s == 7.0


def test_parts_are_bounded_as_parts():
    messages = split_in(messages_of([(0, 1, 4.0, 1)], 4), 2)
    assert messages.num_bytes.tolist() == [2.0, 2.0]
    assert cut_bound(grid(2, 2), messages) == 2.0


def test_what_is_joined_only_to_members_of_a_set_belongs_to_it():
    """Three devices and a switch: with all devices inside, so is the switch."""
    sets = node_sets(star(3))
    assert [True] * 4 in sets.tolist()
    assert sets.shape[1] == 4


def test_a_large_grid_has_fewer_sets():
    assert len(node_sets(grid(4, 4))) == 16 + 10 * 10
    assert len(node_sets(grid(10, 10))) == 100 + 55 * 55
    assert len(node_sets(grid(12, 12))) == 144 + 23 * 23


@pytest.mark.parametrize(
    ("sizes", "divisor"),
    [([4.0, 6.0], 2.0), ([0.5, 0.75], 0.25), ([3.0], 3.0), ([], 0.0), ([1.0, 2**0.5], 0.0)],
)
def test_common_divisor(sizes, divisor):
    assert common_divisor(np.array(sizes)) == pytest.approx(divisor)


def test_a_bound_is_rounded_up_to_whole_messages():
    assert round_up(2.25, 1.0, np.ones(3)) == 3.0
    assert round_up(3.0 + 1e-12, 1.0, np.ones(3)) == 3.0
    assert round_up(2.25, 1.0, np.array([1.0, 2.0])) == 2.5
    assert round_up(2.25, 0.0, np.ones(3)) == 2.25


def test_a_gap_is_relative_to_the_bound():
    assert Certificate(3.0, 2.0, "cut").gap == 0.5
    assert Certificate(0.0, 0.0, "none").gap == 0.0
