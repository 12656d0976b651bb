"""Paths, cycles and covers of small regions: the sweep and plain backtracking agree."""

import itertools
import random

import pytest
from grid_networks import grid

from meshwright.network.regions import (
    cover_region,
    hamiltonian_cycle,
    hamiltonian_path,
    make_region,
)

RANDOM = 400


def neighbours(region):
    return {
        device: [region.devices[near] for near in region.neighbours[index]]
        for index, device in enumerate(region.devices)
    }


def walks(near, walk, left):
    """Yield the paths that take ``left`` more devices."""
    if left == 0:
        yield walk
        return
    for device in near[walk[-1]]:
        if device not in walk:
            yield from walks(near, [*walk, device], left - 1)


def has_path(region, ends=None):
    near = neighbours(region)
    starts = region.devices if ends is None else ends[:1]
    paths = (path for start in starts for path in walks(near, [start], len(near) - 1))
    return any(ends is None or path[-1] == ends[1] for path in paths)


def has_cycle(region):
    near = neighbours(region)
    first = region.devices[0]
    paths = walks(near, [first], len(near) - 1)
    return any(first in near[path[-1]] for path in paths)


def has_cover(region, size, count, *, closed):
    """Try every set of disjoint groups."""
    near = neighbours(region)
    groups = {
        frozenset(path)
        for start in region.devices
        for path in walks(near, [start], size - 1)
        if not closed or start in near[path[-1]]
    }
    return any(
        len(frozenset().union(*chosen)) == size * count
        for chosen in itertools.combinations(groups, count)
    )


def is_legal(region, groups, size, count, *, closed):
    near = neighbours(region)
    devices = [device for group in groups for device in group]
    pairs = [pair for group in groups for pair in itertools.pairwise(group)]
    pairs += [(group[-1], group[0]) for group in groups if closed]
    return (
        [len(group) for group in groups] == [size] * count
        and len(set(devices)) == len(devices)
        and all(b in near[a] for a, b in pairs)
    )


def regions(rows, columns):
    """All sets of cells of a grid with at least two."""
    whole = make_region(grid(rows, columns))
    for count in range(2, rows * columns + 1):
        for devices in itertools.combinations(range(rows * columns), count):
            yield whole.of(devices)


def random_regions(seed, rows, columns, count):
    """Cells of a grid and dead wires at random."""
    chance = random.Random(seed)
    for _ in range(count):
        network = grid(rows, columns)
        wires = [pair for pair in network.link_between if pair[0] < pair[1]]
        devices = range(rows * columns)
        yield make_region(
            network.without(
                [device for device in devices if chance.random() < 0.15],
                [wire for wire in wires if chance.random() < 0.15],
            )
        )


def check_hamiltonian(region):
    size = len(region.devices)
    path, ring = hamiltonian_path(region), hamiltonian_cycle(region)
    assert path.is_proven
    assert ring.is_proven
    assert (path.groups is not None) == has_path(region)
    assert path.groups is None or is_legal(region, path.groups, size, 1, closed=False)
    if size > 2:
        assert (ring.groups is not None) == has_cycle(region)
        assert ring.groups is None or is_legal(region, ring.groups, size, 1, closed=True)


@pytest.mark.parametrize("shape", [(3, 3), (2, 5)])
def test_every_region_of_a_small_grid(shape):
    for region in regions(*shape):
        check_hamiltonian(region)


def test_regions_with_dead_wires():
    for region in random_regions(1, 3, 5, RANDOM):
        if len(region.devices) > 1:
            check_hamiltonian(region)


def test_fixed_ends():
    chance = random.Random(2)
    for region in random_regions(3, 3, 4, RANDOM):
        if len(region.devices) < 2:
            continue
        ends = tuple(chance.sample(region.devices, 2))
        found = hamiltonian_path(region, ends)
        assert found.is_proven
        assert (found.groups is not None) == has_path(region, ends)
        if found.groups is not None:
            assert (found.groups[0][0], found.groups[0][-1]) == ends
            assert is_legal(region, found.groups, len(region.devices), 1, closed=False)


@pytest.mark.parametrize(
    ("size", "count", "closed"),
    [(2, 4, False), (3, 3, False), (4, 2, False), (4, 2, True), (4, 3, True), (6, 1, True)],
)
def test_covers_with_idle_devices(size, count, closed):
    for region in random_regions(4, 3, 4, 60):
        found = cover_region(region, size, count, is_closed=closed)
        assert found.is_proven
        assert (found.groups is not None) == has_cover(region, size, count, closed=closed)
        if found.groups is not None:
            assert is_legal(region, found.groups, size, count, closed=closed)


def test_torus_wires_count():
    row = make_region(grid(1, 5, wraps=True))
    assert hamiltonian_cycle(row).groups == ((0, 1, 2, 3, 4),)
    assert make_region(grid(3, 3, wraps=True)).colours is None
    assert hamiltonian_cycle(make_region(grid(3, 3, wraps=True))).groups is not None
    assert hamiltonian_cycle(make_region(grid(3, 3))).groups is None
