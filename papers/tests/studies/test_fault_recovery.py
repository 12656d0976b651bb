"""What is done to stream groups, one kind of fault at a time."""

import numpy as np
import pytest
from grid_networks import grid, star

from meshwright_papers.studies.temp.fault_curves import stream_throughput
from meshwright_papers.studies.temp.grid_groups import hop_distances, nested_blocks
from meshwright_papers.studies.temp.recovery import Action, recover

WHOLE = grid(4, 8)
LINES = nested_blocks({"tatp": (2, 4), "dp": (2, 2)}, WHOLE).groups("tatp")


def test_nothing_is_broken():
    for is_closed in (False, True):
        found = recover(WHOLE, LINES, is_closed=is_closed)
        assert found.action is Action.KEPT
        assert np.array_equal(found.groups, LINES)
        assert found.is_closed is is_closed
        assert found.idle.size == 0


def test_a_dead_link_beside_the_path_changes_nothing():
    closing = (int(LINES[0, -1]), int(LINES[0, 0]))
    broken = WHOLE.without((), [closing])
    assert recover(broken, LINES).action is Action.KEPT


def test_a_dead_link_on_the_path_reorders_the_group():
    broken = WHOLE.without((), [(int(LINES[0, 1]), int(LINES[0, 2]))])
    found = recover(broken, LINES)
    assert found.action is Action.REORDERED
    assert [set(group) for group in found.groups.tolist()] == [set(g) for g in LINES.tolist()]


def test_a_cut_block_is_regrouped():
    """Four dead links cut 2x4 into two squares: only other blocks of eight have paths."""
    broken = WHOLE.without((), [(1, 2), (9, 10)])
    found = recover(broken, LINES)
    assert found.action is Action.REGROUPED
    assert sorted(found.groups.ravel().tolist()) == list(range(32))
    assert (hop_distances(broken)[found.groups[:, :-1], found.groups[:, 1:]] == 1).all()


def test_a_cycle_opens_to_a_path():
    """A corner with a single link is in no cycle."""
    broken = WHOLE.without((), [(0, 1)])
    found = recover(broken, LINES, is_closed=True)
    assert found.action is Action.REORDERED
    assert not found.is_closed


def test_members_two_hops_apart():
    """A cross of five has four leaves: no path of neighbours, one that passes its middle."""
    cross = grid(3, 3).without([0, 2, 6, 8])
    found = recover(cross, np.array([[1, 3, 4, 5, 7]]))
    assert found.action is Action.DILATED
    assert found.longest_hop == 2
    assert found.undecided == frozenset()


def test_the_rate_chooses_between_distance_and_size():
    """At t_m = 0.8 t_c a pass of 3 takes 3 (5/3)^2, with two hops a pass of 5 takes 4 x 1.6 + 1."""
    cross = grid(3, 3).without([0, 2, 6, 8])
    group = np.array([[1, 3, 4, 5, 7]])
    for link_share, action in ((0.8, Action.DILATED), (2.0, Action.SHRUNK)):
        found = recover(cross, group, rate=stream_throughput(1, 5, link_share))
        assert found.action is action
    nothing_fits = recover(cross, group, rate=lambda network, recovery: 0.0)
    assert nothing_fits.action is Action.DILATED


def test_a_dead_device_shrinks_the_groups():
    broken = WHOLE.without([0])
    found = recover(broken, LINES)
    assert found.action is Action.SHRUNK
    assert found.groups.shape == (4, 7)
    assert len(found.idle) == 3


def test_a_spare_device_takes_over():
    groups = np.array([[0, 1, 2, 3], [8, 9, 10, 11]])
    found = recover(WHOLE.without([1]), groups)
    assert found.action is Action.REGROUPED
    assert found.groups.shape == (2, 4)


def test_too_few_devices_give_the_nearest_choice():
    found = recover(grid(1, 4).without([1]), np.array([[0], [1], [2], [3]]))
    assert found.action is Action.IMPOSSIBLE
    assert found.groups.tolist() == [[2], [3]]
    assert found.idle.tolist() == [0]


def test_everything_is_dead():
    found = recover(grid(2, 2).without(range(4)), np.array([[0, 1], [2, 3]]))
    assert found.action is Action.IMPOSSIBLE
    assert found.groups.shape == (0, 1)


@pytest.mark.parametrize(
    ("dead", "action", "shape"),
    [
        ([], Action.KEPT, (2, 3)),
        ([0], Action.REGROUPED, (2, 3)),
        ([0, 1, 2], Action.SHRUNK, (2, 2)),
    ],
)
def test_devices_on_a_switch(dead, action, shape):
    found = recover(star(8).without(dead), np.array([[0, 1, 2], [3, 4, 5]]))
    assert found.action is action
    assert found.groups.shape == shape
