"""Places of kernels on a mesh of cores: loads by hand, by walking, and the order that is found."""

from itertools import permutations

import numpy as np
import pytest

from meshwright.dataflow.fusion.fuse import fuse_graph
from meshwright.dataflow.fusion.places import Region, mesh_of
from meshwright.dataflow.fusion.question import FusionQuestion, target_named
from meshwright.dataflow.question import load_graph


def region(num_cores, cores, tensors):
    """Return kernels on a mesh of links of 1 B/s."""
    mesh, path = mesh_of(num_cores, 1.0)
    return Region(mesh, path, cores, tensors)


def test_a_path_winds_through_the_mesh():
    mesh, path = mesh_of(12, 1.0)
    assert path.tolist() == [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11]
    assert mesh.num_devices == 12


def test_two_kernels_in_a_row_by_hand():
    """Two pieces of 3 bytes leave core 0 of a row of three: one stops at 1, one goes on to 2.

    On a square of four, 0 sends to 3 by 1, and 1 to 2 by 0: four links with 3 bytes each.
    """
    mesh, path = mesh_of(3, 1.0)
    assert path.tolist() == [0, 1, 2]
    assert Region(mesh, path, (1, 2), ((0, 1, 6.0),)).load((0, 1))[:2] == (6.0, 9.0)
    assert region(4, (2, 2), ((0, 1, 6.0),)).load((0, 1))[:2] == (3.0, 12.0)


def walked(one, order):
    """Return the load of the busiest link and the byte hops, piece by piece along XY routes."""
    first, place, loads, hops = {}, 0, {}, 0.0
    for kernel in order:
        first[kernel] = place
        place += one.cores[kernel]
    number = one.mesh.num_devices
    columns = number // next(n for n in range(int(number**0.5), 0, -1) if number % n == 0)
    for writer, reader, num_bytes in one.tensors:
        own, other = one.cores[writer], one.cores[reader]
        count = max(own, other)
        for piece in range(count):
            at = int(one.path[first[writer] + piece * own // count])
            to = int(one.path[first[reader] + piece * other // count])
            while at != to:
                column, goal = at % columns, to % columns
                step = (1 if goal > column else -1) if goal != column else (
                    columns if to > at else -columns
                )  # fmt: skip
                loads[at, at + step] = loads.get((at, at + step), 0.0) + num_bytes / count
                hops += num_bytes / count
                at += step
    return max(loads.values(), default=0.0), hops


@pytest.mark.parametrize("seed", range(12))
def test_random_regions_against_a_walk(seed):
    drawn = np.random.default_rng(seed)
    cores = tuple(drawn.integers(1, 4, 4).tolist())
    tensors = tuple(
        (writer, reader, float(drawn.integers(1, 100)))
        for writer in range(4) for reader in range(writer + 1, 4) if drawn.random() < 0.7
    )  # fmt: skip
    one = region(12, cores, tensors)
    orders = list(permutations(range(4)))
    for order in orders[:6]:
        assert one.load(order)[:2] == pytest.approx(walked(one, order))
    assert one.best()[:2] == pytest.approx(min(walked(one, order) for order in orders))


def test_swaps_never_end_above_the_given_order():
    drawn = np.random.default_rng(4)
    tensors = tuple((n, n + 1 + int(drawn.integers(0, 7 - n)), 5.0 + n) for n in range(7))
    one = region(24, (3,) * 8, tensors)
    found = one.best()
    assert found[:2] <= one.load(tuple(range(8)))[:2]
    assert sorted(found[2]) == list(range(8))


def test_a_chip_with_links_between_cores_gets_places():
    graph = load_graph("gpt3-6.7b", tokens=512)
    found = fuse_graph(FusionQuestion(graph, target_named("TEMP-die"), tile=64))
    assert len(found.places) == len(found.partitions)
    for place, part in zip(found.places, found.partitions, strict=True):
        assert sorted(place.order) == sorted(kernel.name for kernel in part.kernels)
        assert sum(kernel.cores for kernel in part.kernels) <= found.num_cores
        assert place.exposed_s == max(place.noc_s - part.busy_s, 0.0)
        assert (place.noc_s > 0.0) == (place.byte_hops > 0.0)
    assert any(place.noc_s > 0.0 for place in found.places)


def test_a_chip_without_stated_links_gets_none():
    graph = load_graph("gpt3-6.7b", tokens=512)
    assert fuse_graph(FusionQuestion(graph, target_named("SN10"), tile=64)).places == ()
