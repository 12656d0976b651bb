"""Ranks, groups and distances by hand; Fig. 7 of TEMP."""

import numpy as np
import pytest
from grid_networks import grid, star

from meshwright.base.errors import InfeasibleError
from meshwright.network.embeddings import block_embedding, hop_distances, sequential
from meshwright.network.regions import hamiltonian_cycle, hamiltonian_path, make_region


def test_groups_of_two_axes():
    placement = sequential({"tatp": 2, "dp": 3}, grid(2, 3))
    assert placement.device_of_rank.tolist() == [0, 1, 2, 3, 4, 5]
    assert placement.groups("tatp").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert placement.groups("dp").tolist() == [[0, 2, 4], [1, 3, 5]]
    assert placement.degrees == {"tatp": 2, "dp": 3}
    assert placement.num_ranks == 6


def test_lines_and_cycles():
    network = grid(2, 3)
    distances = hop_distances(network)
    placement = sequential({"tatp": 3, "dp": 2}, network)
    assert placement.hops("tatp", distances).tolist() == [[1, 1, 2], [1, 1, 2]]
    assert placement.are_lines("tatp", distances).all()
    assert not placement.are_cycles("tatp", distances).any()
    assert placement.are_cycles("dp", distances).all()


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


def test_dead_devices_are_left_out():
    placement = sequential({"dp": 3}, grid(1, 5).without([1]))
    assert placement.devices.tolist() == [0, 2, 3]
    with pytest.raises(InfeasibleError, match=r"dp 5 needs 5 devices; 4 of 5 work"):
        sequential({"dp": 5}, grid(1, 5).without([1]))


def test_groups_of_six_on_six_by_nine():
    """TEMP Fig. 7: of nine groups of six in row-major order three are torn apart, none a ring.

    By hand: two rows of nine hold a line of six, a group of three and three at opposite ends, and
    a line of six. Blocks of 2x3 tile the wafer, and each is a ring.
    """
    network = grid(6, 9)
    region, distances = make_region(network), hop_distances(network)
    degrees = {"tatp": 6, "dp": 9}
    rows = sequential(degrees, network)
    parts = [region.of(group.tolist()) for group in rows.groups("tatp")]
    assert [len(part.parts) for part in parts] == [1, 2, 1] * 3
    assert sum(hamiltonian_path(part).groups is not None for part in parts) == 6
    assert sum(hamiltonian_cycle(part).groups is not None for part in parts) == 0
    assert rows.are_lines("tatp", distances).tolist() == [True, False, True] * 3
    blocks = block_embedding({"tatp": (2, 3), "dp": (3, 3)}).placement(degrees, network)
    assert sorted(blocks.device_of_rank.tolist()) == list(range(54))
    assert blocks.are_cycles("tatp", distances).tolist() == [True] * 9


@pytest.mark.parametrize(("shape", "tatp"), [((2, 4), 8), ((4, 4), 16)])
def test_published_degrees_tile_the_wafer_with_cycles(shape, tatp):
    network = grid(4, 8)
    outer = (4 // shape[0], 8 // shape[1])
    placement = block_embedding({"tatp": shape, "dp": outer}).placement(
        {"tatp": tatp, "dp": 32 // tatp}, network
    )
    assert placement.are_cycles("tatp", hop_distances(network)).all()
