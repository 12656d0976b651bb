"""Regions by hand, and answers that are not known."""

import random

import pytest
from grid_networks import grid, network_of, star

from meshwright.network.regions import (
    Cover,
    CoverRules,
    Region,
    cover,
    cover_region,
    hamiltonian_cycle,
    hamiltonian_path,
    make_region,
)


def test_the_sweep_crosses_the_shorter_side():
    assert make_region(grid(2, 3)).devices == (0, 3, 1, 4, 2, 5)
    assert make_region(grid(3, 2)).devices == (0, 1, 2, 3, 4, 5)


def test_dead_devices_and_half_wires_are_no_neighbours():
    network = grid(1, 4).without([3], [(0, 1)])
    assert make_region(network).devices == (0, 1, 2)
    assert make_region(network).edges == ((1, 2),)


def test_a_link_of_one_direction_makes_no_neighbours():
    pair = network_of([(0, 1)], 2, shape=(1, 2))
    assert make_region(pair).edges == ()
    assert make_region(grid(1, 2)).edges == ((0, 1),)


def test_devices_on_a_switch_have_no_wires_between_them():
    assert make_region(star(4)).edges == ()
    assert hamiltonian_path(make_region(star(4))) == Cover(None, is_proven=True)


@pytest.mark.parametrize("side", [3, 5, 7, 31])
def test_odd_squares_have_paths_and_no_cycles(side):
    region = make_region(grid(side, side))
    assert hamiltonian_path(region).groups is not None
    assert hamiltonian_cycle(region) == Cover(None, is_proven=True)


def test_odd_squares_have_no_cycle_by_search_either():
    region = make_region(grid(5, 5))
    assert cover(25, region.edges, CoverRules(25, 1, is_closed=True), 10**6) == Cover(
        None, is_proven=True
    )


@pytest.mark.parametrize("shape", [(2, 2), (2, 9), (3, 4), (6, 8), (8, 8), (5, 16), (32, 32)])
def test_blocks_with_an_even_side_have_cycles(shape):
    found = hamiltonian_cycle(make_region(grid(*shape)))
    assert found.groups is not None
    assert len(found.groups[0]) == shape[0] * shape[1]


def test_a_corner_and_the_cell_of_other_colour_beside_it_are_no_ends_of_two_rows():
    region = make_region(grid(2, 4))
    assert hamiltonian_path(region, (0, 4)).groups == ((0, 1, 2, 3, 7, 6, 5, 4),)
    assert hamiltonian_path(region, (1, 5)) == Cover(None, is_proven=True)
    assert hamiltonian_path(region, (0, 2)) == Cover(None, is_proven=True)


def test_ends_outside_of_the_region():
    assert hamiltonian_path(make_region(grid(2, 2)), (0, 9)) == Cover(None, is_proven=True)


def test_one_and_two_devices():
    assert hamiltonian_path(make_region(grid(1, 1)), (0, 0)).groups == ((0,),)
    assert hamiltonian_cycle(make_region(grid(1, 2))).groups == ((0, 1),)


def test_a_short_search_says_that_it_does_not_know():
    region = make_region(grid(8, 8).without([9, 28, 50]))
    assert cover_region(region, 61, limit=10) == Cover(None, is_proven=False)


def test_two_hops_pass_through_a_device():
    cross = make_region(grid(3, 3)).of([1, 3, 4, 5, 7])
    assert hamiltonian_path(cross).groups is None


def test_the_same_answer_each_time():
    region = make_region(grid(6, 8).without([5], [(8, 9), (30, 31)]))
    cover.cache_clear()
    first = cover_region(region, 8, 5)
    cover.cache_clear()
    assert cover_region(region, 8, 5) == first
    assert first.groups is not None


def grown(chance, num_cells, neighbours):
    """Return cells that grow from one, each beside some earlier one."""
    cells = [chance.randrange(len(neighbours))]
    while len(cells) < num_cells:
        beside = [near for cell in cells for near in neighbours[cell] if near not in cells]
        cells.append(chance.choice(beside))
    return cells


def test_24_cells_are_always_decided():
    whole = make_region(grid(8, 8))
    chance = random.Random(24)
    for _ in range(150):
        cells = grown(chance, 24, whole.neighbours)
        region = whole.of([whole.devices[cell] for cell in cells])
        wires = tuple(edge for edge in region.edges if chance.random() < 0.97)
        region = Region(region.devices, wires)
        ends = tuple(chance.sample(region.devices, 2))
        assert hamiltonian_path(region).is_proven
        assert hamiltonian_cycle(region).is_proven
        assert hamiltonian_path(region, ends).is_proven


@pytest.mark.parametrize("shape", [(4, 6), (6, 8), pytest.param((32, 32), marks=pytest.mark.slow)])
def test_whole_blocks_are_covered_without_a_step_back(shape):
    """Each cell enters and leaves, each wire is taken or not: one state each."""
    region = make_region(grid(*shape))
    size = shape[0] * shape[1]
    found = cover(size, region.edges, CoverRules(size, 1), 2 * size + len(region.edges))
    assert found.groups is not None
