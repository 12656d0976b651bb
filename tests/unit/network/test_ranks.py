"""Ranks in blocks: devices that work, lattices of groups, and the largest whole grids."""

from dataclasses import replace
from itertools import combinations, product
from math import prod

import numpy as np
import pytest
from grid_networks import grid
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_problems import grid_system

from meshwright.network.blocks import all_block_shapes, clear_grids, digits
from meshwright.network.placement import block_ranks
from meshwright.topology.levels import network_of

AXES = ("tp", "tatp", "dp_shard", "pp")
FEW = settings(max_examples=60)


def neighbours(network):
    """Return the devices that each device has a link to."""
    near = {device: set() for device in range(network.num_devices)}
    for a, b in zip(network.source.tolist(), network.target.tolist(), strict=True):
        near[a].add(b)
    return near


def largest_part(network):
    """Return the working devices of the largest connected part; of equal ones the first."""
    near, left, parts = neighbours(network), set(network.alive.tolist()), []
    while left:
        part, frontier = set(), [min(left)]
        while frontier:
            device = frontier.pop()
            if device not in part:
                part.add(device)
                frontier += near[device]
        parts.append(part)
        left -= part
    return max(parts, key=len)


@st.composite
def faulty_grids(draw, most=4):
    """Return a grid that lost some devices and wires; at least one device works."""
    rows, columns = draw(st.integers(1, most)), draw(st.integers(2, most))
    network, devices = grid(rows, columns), range(rows * columns)
    dead = draw(st.sets(st.sampled_from(devices), max_size=len(devices) - 1))
    wires = sorted({(a, b) for a, b in network.link_between if a < b})
    cut = draw(st.sets(st.sampled_from(wires), max_size=4)) if wires else set()
    return network.without(dead, cut), (columns, rows)


def brute_grids(network, sides):
    """Return the sizes of all choices of rows and columns that work, of which none holds another.

    Sides innermost first: columns, rows.
    """
    works, (columns, rows) = largest_part(network), sides
    sizes = {
        (len(c), len(r))
        for n, m in product(range(1, columns + 1), range(1, rows + 1))
        for c in combinations(range(columns), n)
        for r in combinations(range(rows), m)
        if all(row * columns + column in works for row in r for column in c)
    }
    return {a for a in sizes if not any(b != a and b[0] >= a[0] and b[1] >= a[1] for b in sizes)}


@FEW
@given(case=faulty_grids())
def test_clear_grids_are_those_of_brute_force(case):
    network, sides = case
    assert set(clear_grids(network, sides)) == brute_grids(network, sides)


def test_a_grid_without_faults_is_one_grid():
    assert clear_grids(grid(3, 5), (5, 3)) == [(5, 3)]


def test_a_dead_corner_costs_a_row_or_a_column():
    """4x4 without device 0: three rows of four, or four rows of three."""
    assert set(clear_grids(grid(4, 4).without([0]), (4, 4))) == {(4, 3), (3, 4)}


def test_only_the_largest_connected_part_counts():
    """A 2x5 grid whose columns 1 and 2 are no longer joined: the right part has six devices."""
    network = grid(2, 5).without((), [(1, 2), (6, 7)])
    assert clear_grids(network, (5, 2)) == [(3, 2)]
    ranks = block_ranks(network, (5, 2), ("tp",), ((3, 2),))
    assert sorted(ranks.device.tolist()) == [2, 3, 4, 7, 8, 9]


@st.composite
def nested_blocks(draw):
    """Return a faulty grid or wafers in a row, and shapes of nested blocks for some axes."""
    if draw(st.booleans()):
        network, sides = draw(faulty_grids())
    else:
        sides = draw(st.sampled_from([(3, 2, 2), (2, 2, 3), (4, 1, 2)]))
        dead = draw(st.sets(st.integers(0, prod(sides) - 1), max_size=3))
        network = network_of(grid_system(*sides, dead_devices=tuple(sorted(dead))))
    degrees = tuple(draw(st.sampled_from([1, 2, 3])) for _ in AXES)
    shapes = list(all_block_shapes(degrees, sides))
    return network, sides, draw(st.sampled_from(shapes)) if shapes else None


@FEW
@given(case=nested_blocks())
@pytest.mark.slow
def test_each_rank_has_a_working_device_of_its_own(case):
    network, sides, shapes = case
    ranks = block_ranks(network, sides, AXES, shapes) if shapes else None
    if ranks is None:
        return
    used = ranks.device.reshape(-1).tolist()
    assert len(set(used)) == len(used) == prod(prod(shape) for shape in shapes)
    assert set(used) <= largest_part(network)
    assert ranks.device.shape == tuple(prod(shape) for shape in shapes)


@FEW
@given(case=nested_blocks())
def test_groups_are_lattices_and_split_the_devices(case):
    network, sides, shapes = case
    ranks = block_ranks(network, sides, AXES, shapes) if shapes else None
    if ranks is None:
        return
    for axis in (*AXES, "tp*pp", "tatp*dp_shard", "tp*tatp*dp_shard*pp"):
        groups = ranks.groups(axis)
        chosen = [AXES.index(name) for name in axis.split("*")]
        degree = prod(ranks.device.shape[index] for index in chosen)
        assert groups[0].size == degree
        assert sorted(groups.reshape(-1)) == sorted(ranks.device.reshape(-1))
        sizes = np.prod([shapes[index] for index in chosen], axis=0)
        assert groups.shape[1:] == tuple(sizes[::-1])
        for group in groups:
            places = np.array(np.unravel_index(group, sides[::-1]))
            for level in range(len(sides)):
                own = np.moveaxis(places[level], level, 0)
                assert (own == own.reshape(len(own), -1)[:, :1].reshape(-1, *[1] * (own.ndim - 1))
                        ).all()  # fmt: skip
                assert (np.diff(own.reshape(len(own), -1)[:, 0]) > 0).all()


def test_members_of_a_group_differ_in_its_axes_alone():
    """tp2 along columns, pp2 along rows, dp2 along columns outside of tp: 2 rows of 4 columns."""
    ranks = block_ranks(grid(2, 4), (4, 2), ("tp", "pp", "dp_shard"), ((2, 1), (1, 2), (2, 1)))
    assert ranks.groups("tp").reshape(-1, 2).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks.groups("pp").reshape(-1, 2).tolist() == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert ranks.groups("dp_shard").reshape(-1, 2).tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert ranks.groups("pp*dp_shard").tolist() == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert ranks.groups("tp/kv_heads").tolist() == ranks.groups("tp").tolist()
    assert ranks.num_devices == 8


def test_experts_divide_the_devices_of_other_axes_anew_by_hand():
    """tp2 along columns, pp2 along rows, dp2 outside of tp: each stage is a row of four devices,
    numbered tp first. With etp 2 the experts of a row are on its halves; with ep 4 on all of it."""
    axes = ("tp", "pp", "dp_shard", "cp", "dp_replicate")
    ranks = block_ranks(grid(2, 4), (4, 2), axes, ((2, 1), (1, 2), (2, 1), (1, 1), (1, 1)))
    ranks = replace(ranks, experts={"etp": (1, 2), "ep": (2, 2), "edp": (4, 1)})
    assert ranks.groups("etp").tolist() == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    assert ranks.groups("ep").tolist() == [[[0, 2]], [[1, 3]], [[4, 6]], [[5, 7]]]
    assert ranks.groups("edp").reshape(-1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    ranks = replace(ranks, experts={"etp": (1, 1), "ep": (1, 4), "edp": (4, 1)})
    assert ranks.groups("ep").tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]


@given(
    radices=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    start=st.integers(1, 12), size=st.integers(1, 12),
)  # fmt: skip
def test_digits_are_those_in_which_numbers_differ(radices, start, size):
    total = prod(radices)
    steps, counts = digits(
        np.array([1.0 * start]), np.array([1.0 * size]), [np.array([1.0 * r]) for r in radices]
    )
    found = [int(count[0]) for count in counts]
    groups = [
        [outer * start * size + k * start + inner for k in range(size)]
        for outer in range(total // (start * size)) for inner in range(start)
    ]  # fmt: skip
    members = [
        {tuple(digit - low for digit, low in zip(n, lowest, strict=True)) for n in of_group}
        for of_group in ([_digits_of(n, radices) for n in group] for group in groups)
        for lowest in [tuple(map(min, zip(*of_group, strict=True)))]
    ]
    if 0 in found or not groups:
        return
    step = [int(s[0]) for s in steps]
    expected = set(product(*(range(0, s * c, s) for s, c in zip(step, found, strict=True))))
    assert prod(found) == size
    assert all(group == expected for group in members)


def _digits_of(number, radices):
    found = []
    for radix in radices:
        found.append(number % radix)
        number //= radix
    return tuple(found)


def test_digits_of_powers_of_two_are_always_found():
    for start, size in ((1, 8), (2, 4), (4, 4), (8, 2)):
        columns = [np.array([4.0]), np.array([2.0]), np.array([2.0])]
        _, counts = digits(np.array([1.0 * start]), np.array([1.0 * size]), columns)
        assert prod(int(count[0]) for count in counts) == size


def test_rows_and_columns_that_lie_closest_are_taken():
    """1x6 without device 2: four in a row are 3 to 5 and 1, with one gap; three have none."""
    network = grid(1, 6).without([2])
    with_gap = block_ranks(network.without((), ()), (6, 1), ("tp",), ((3, 1),))
    assert with_gap.device.tolist() == [3, 4, 5]
    assert block_ranks(network, (6, 1), ("tp",), ((4, 1),)) is None


def test_what_does_not_fit_has_no_ranks():
    assert block_ranks(grid(2, 2), (2, 2), ("tp",), ((3, 1),)) is None
    assert block_ranks(grid(2, 2).without([0]), (2, 2), ("tp",), ((2, 2),)) is None


def test_a_dead_row_is_left_out_and_its_neighbours_are_used():
    """4x3 whose row 1 is dead: 2x3 blocks take rows 2 and 3, not 0 and 2."""
    network = grid(4, 3).without([3, 4, 5])
    ranks = block_ranks(network, (3, 4), ("tp",), ((3, 2),))
    assert sorted(ranks.device.tolist()) == [6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    ("sides", "shape"),
    [((4, 2), (4, 2)), ((4, 2), (4, 1)), ((3, 3), (3, 3)), ((4, 4), (2, 3)), ((2, 4), (2, 4)),
     ((5, 3), (4, 3)), ((3, 2, 2), (3, 2, 2)), ((2, 3, 3), (2, 3, 3)), ((3, 2, 2), (3, 1, 2)),
     ((3, 3, 2), (3, 3, 2)), ((1, 3, 2), (1, 3, 2))],
)  # fmt: skip
def test_a_visit_goes_along_neighbours(sides, shape, closes):
    """A block of two long sides or more with an even number of cells has a cycle."""
    network = network_of(grid_system(*sides))
    ranks = block_ranks(network, sides, ("pp",), (shape,))
    order = ranks.visit("pp", closes=closes)
    assert sorted(order) == list(range(prod(shape)))
    places = np.array(np.unravel_index(ranks.groups("pp")[0].reshape(-1)[order], sides[::-1])).T
    assert (np.abs(np.diff(places, axis=0)).sum(axis=1) == 1).all()
    if closes and sum(side > 1 for side in shape) > 1 and prod(shape) % 2 == 0:
        assert np.abs(places[0] - places[-1]).sum() == 1
