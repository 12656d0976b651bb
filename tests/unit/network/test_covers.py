"""Axes along covers of grids with faults, worked out by hand."""

import numpy as np
from grid_networks import grid

from meshwright.network.covers import cover_choices, ordered_cover
from meshwright.network.regions import make_region
from meshwright.network.visiting_orders import chain


def hops(groups, columns):
    """Return the links between equal members of consecutive groups, all together."""
    place = np.stack(np.divmod(groups, columns), axis=-1)
    return np.abs(np.diff(place, axis=0)).sum()


def are_neighbours(devices, columns):
    place = np.stack(np.divmod(np.array(devices), columns), axis=-1)
    return bool((np.abs(np.diff(place, axis=0)).sum(axis=1) == 1).all())


def test_six_of_a_2x4_without_two_corners_are_two_paths_of_three():
    """. 1 2 3 over 4 5 6 .: equal members are at least one row apart, and two hops on average."""
    groups = ordered_cover(make_region(grid(2, 4).without([0, 7])), (4, 2), 3, 2)
    assert sorted(groups.reshape(-1).tolist()) == [1, 2, 3, 4, 5, 6]
    assert all(are_neighbours(group, 4) for group in groups)
    assert hops(groups, 4) <= 6


def test_pairs_of_a_2x4_follow_each_other_as_columns_do():
    """Four pairs, three steps, both members one hop each: 6 links."""
    groups = ordered_cover(make_region(grid(2, 4)), (4, 2), 2, 4)
    assert hops(groups, 4) == 6


def test_eight_around_a_dead_die_are_a_path_and_a_cycle():
    region = make_region(grid(3, 3).without([4]))
    path, cycle = cover_choices(region, (("dp_shard", 1), ("tatp", 8)), (3, 3))
    assert (path.lies_in, path.axes, path.shapes) == (
        "paths", ("tatp", "dp_shard"), ((8, 1), (1, 1)),
    )  # fmt: skip
    assert (cycle.lies_in, cycle.shapes) == ("cycles", ((4, 2), (1, 1)))
    assert are_neighbours(path.devices, 3)
    around = np.array(cycle.devices)[chain((4, 2), closes=True)].tolist()
    assert are_neighbours([*around, around[0]], 3)
    assert set(around) == {0, 1, 2, 3, 5, 6, 7, 8}


def test_axes_share_a_path_or_follow_each_other():
    """Two axes on a line of six: both along it in either order, or one along and one across."""
    choices = cover_choices(make_region(grid(1, 6)), (("tp", 2), ("pp", 3)), (6, 1))
    assert [(choice.axes, choice.shapes) for choice in choices] == [
        (("tp", "pp"), ((2, 1), (1, 3))),
        (("tp", "pp"), ((2, 1), (3, 1))),
        (("pp", "tp"), ((3, 1), (1, 2))),
        (("pp", "tp"), ((3, 1), (2, 1))),
    ]
    assert choices[1].devices in ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0))


def test_where_no_path_passes_all_devices_follow_each_other_as_near_as_they_are():
    """A plus of five dies has no path through all: the middle is passed more than once."""
    region = make_region(grid(3, 3).without([0, 2, 6, 8]))
    assert ordered_cover(region, (3, 3), 5, 1) is None
    (choice,) = cover_choices(region, (("tp", 5),), (3, 3))
    assert choice.shapes == ((1, 5),)
    assert hops(np.array(choice.devices)[:, None], 3) == 1 + 1 + 2 + 2
