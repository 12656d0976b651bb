"""Axes laid along covers of a grid with faults: disjoint paths or cycles of working neighbours.

The innermost axes go along each path, and the outer ones from path to path, in an order in which
neighbours are near. So plans use devices that no block reaches: six of a 2x4 without two corners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, read_only
from meshwright.network.blocks import Shape
from meshwright.network.placement import LAID_IN, Nesting
from meshwright.network.regions import Region, cover_region
from meshwright.network.visiting_orders import chain

COVER_STATES = 2_000
"""States that each sweep of the search for one cover may visit: then its groups are not tried."""
MOST_STARTS = 8
"""Groups of a cover with which the order of all of them may begin."""


@lru_cache(maxsize=4096)
def cover_choices(
    region: Region, degrees: tuple[tuple[str, int], ...], sides: Shape
) -> tuple[Nesting, ...]:
    """Return the ways to lay axes along covers of a region of a grid of two sides.

    Parameters
    ----------
    degrees
        Axes with their degrees; those of one device come last in each way.
    sides
        Sides of the grid, innermost first: devices are numbered along the first one.
    """
    return tuple(_each_choice(region, degrees, sides))


def _each_choice(
    region: Region, degrees: Sequence[tuple[str, int]], sides: Shape
) -> Iterator[Nesting]:
    used = [(axis, degree) for axis, degree in degrees if degree > 1]
    unused = tuple(axis for axis, degree in degrees if degree == 1)
    alone = ((1, 1),) * len(unused)
    number = prod(degree for _, degree in used)
    is_path = ordered_cover(region, sides, number, 1) is not None
    for order in permutations(used):
        axes = (*(axis for axis, _ in order), *unused)
        for inner in range(is_path, len(order) + 1):
            size = prod(degree for _, degree in order[:inner])
            outer = tuple((1, degree) for _, degree in order[inner:])
            for lies_in in LAID_IN[1 : 2 + (inner == 1)]:
                closes = lies_in == "cycles"
                groups = ordered_cover(region, sides, size, number // size, is_closed=closes)
                if groups is None:
                    continue
                shapes = tuple((degree, 1) for _, degree in order[:inner])
                if closes:
                    shapes = ((size // 2, 2),)
                    groups = groups[:, np.argsort(chain(shapes[0], closes=True))]
                devices = tuple(groups.reshape(-1).tolist())
                yield Nesting(axes, (*shapes, *outer, *alone), devices, lies_in)


@lru_cache(maxsize=4096)
def ordered_cover(
    region: Region, sides: Shape, group_size: int, num_groups: int, *, is_closed: bool = False
) -> IntArray | None:
    """Return a cover, (num_groups, group_size), each group near the one before, member by member.

    None where there is none, or none is found soon. Cycles have four members or more: of fewer a
    path is both.
    """
    if is_closed and group_size < 4:
        return None
    found = cover_region(
        region, group_size, num_groups, is_closed=is_closed, limit=COVER_STATES
    ).groups
    if found is None:
        return None
    groups = np.array(found, dtype=np.int64)
    turns = _turns(group_size, is_closed=is_closed)
    return read_only(_in_order(groups, turns, np.stack(np.divmod(groups, sides[0]), axis=-1)))


def _turns(size: int, *, is_closed: bool) -> IntArray:
    """Return the ways to count the members of a path (two) or of a cycle, (ways, members)."""
    first = np.arange(size if is_closed else 1)[:, None]
    ahead = (first + np.arange(size)) % size
    return np.concatenate((ahead, ahead[:, ::-1])) if size > 1 else ahead


def _in_order(groups: IntArray, turns: IntArray, place: IntArray) -> IntArray:
    """Return groups with the nearest one next, each turned so that equal members are near.

    Of several first groups the one that leaves the least hops between equal members of neighbours.
    """
    best_hops, best = np.inf, groups
    for first in range(0, len(groups), max(1, len(groups) // MOST_STARTS)):
        ways = place[:, turns].astype(np.int16)  # (groups, ways, members, 2)
        taken, now, hops = [(first, 0)], ways[first, 0], 0.0
        left = np.delete(np.arange(len(groups)), first)
        while len(left):
            apart: FloatArray = np.abs(ways[left] - now).sum(axis=(2, 3))
            nearest, turn = np.unravel_index(int(apart.argmin()), apart.shape)
            hops += float(apart[nearest, turn])
            taken.append((int(left[nearest]), int(turn)))
            now = ways[taken[-1]]
            left = np.delete(left, nearest)
        if hops < best_hops:
            best_hops, best = hops, np.array([groups[g][turns[t]] for g, t in taken])
    return best
