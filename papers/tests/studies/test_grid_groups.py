"""Groups of a grid, row after row and in blocks: TEMP Fig. 7."""

import numpy as np
import pytest
from grid_networks import grid, star

from meshwright.network.regions import hamiltonian_cycle, hamiltonian_path, make_region
from meshwright_papers.studies.temp.grid_groups import hop_distances, nested_blocks, row_major


def test_groups_of_two_axes():
    placement = row_major({"tatp": 2, "dp": 3})
    assert placement.groups("tatp").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert placement.groups("dp").tolist() == [[0, 2, 4], [1, 3, 5]]


def test_cycles():
    distances = hop_distances(grid(2, 3))
    placement = row_major({"tatp": 3, "dp": 2})
    assert not placement.are_cycles("tatp", distances).any()
    assert placement.are_cycles("dp", distances).all()


def test_blocks_by_hand():
    groups = nested_blocks({"tatp": (2, 2), "dp": (1, 2)}, grid(2, 4)).groups("tatp")
    assert groups.tolist() == [[0, 1, 5, 4], [2, 3, 7, 6]]


def test_distances_on_a_mesh_are_manhattan():
    row, column = np.divmod(np.arange(12), 4)
    manhattan = np.abs(row - row[:, None]) + np.abs(column - column[:, None])
    assert (hop_distances(grid(3, 4)) == manhattan).all()


def test_distances_around_dead_devices():
    distances = hop_distances(grid(1, 4).without([1]))
    assert distances.tolist() == [[0, -1, -1, -1], [-1, 0, -1, -1], [-1, -1, 0, 1], [-1, -1, 1, 0]]
    assert hop_distances(grid(2, 3).without([1]))[0, 2] == 4


def test_devices_do_not_forward_on_a_switch():
    assert (hop_distances(star(3)) == 2 * (1 - np.eye(3))).all()


def test_groups_of_six_on_six_by_nine():
    """TEMP Fig. 7: of nine groups of six in row-major order three are torn apart, none a ring.

    By hand: two rows of nine hold a line of six, a group of three and three at opposite ends, and
    a line of six. Blocks of 2x3 tile the wafer, and each is a ring.
    """
    network = grid(6, 9)
    region, distances = make_region(network), hop_distances(network)
    rows = row_major({"tatp": 6, "dp": 9})
    parts = [region.of(group.tolist()) for group in rows.groups("tatp")]
    assert sum(hamiltonian_path(part).groups is not None for part in parts) == 6
    assert sum(hamiltonian_cycle(part).groups is not None for part in parts) == 0
    blocks = nested_blocks({"tatp": (2, 3), "dp": (3, 3)}, network)
    assert sorted(blocks.devices.ravel().tolist()) == list(range(54))
    assert blocks.are_cycles("tatp", distances).tolist() == [True] * 9


@pytest.mark.parametrize("shape", [(2, 4), (4, 4)])
def test_published_degrees_tile_the_wafer_with_cycles(shape):
    network = grid(4, 8)
    outer = (4 // shape[0], 8 // shape[1])
    placement = nested_blocks({"tatp": shape, "dp": outer}, network)
    assert placement.are_cycles("tatp", hop_distances(network)).all()
