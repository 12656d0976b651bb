"""Trees over the members of a group: binary trees, and trees nested over the levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import N
from meshwright.collectives.gathers import coordinates_of, rank_of

TREE_STREAMS = 4
"""Streams that leave one member of two trees: up, two down, and up as a leaf of the other."""

Parents = Sequence[int | None]
"""The parent of each position; None at the root."""


def ceil_log2(size: N) -> N:
    """Return the least k with 2**k >= size, exactly: the bits of size - 1."""
    bits: Any = np.frexp(size - 1.0)[1] * 1.0
    return bits  # type: ignore[no-any-return]


def binary_tree(size: int) -> list[int | None]:
    """Return a binary tree in order: 0 on top, odd positions are leaves, ceil(log2(size)) deep.

    The root of a range is its number that the highest power of two divides.
    """
    parents: list[int | None] = [None] * size
    ranges: list[tuple[int, int, int]] = [(1, size, 0)]
    while ranges:
        low, high, parent = ranges.pop()
        if low < high:
            root = max(range(low, high), key=lambda number: number & -number)
            parents[root] = parent
            ranges += [(low, root, root), (root + 1, high, root)]
    return parents


def second_tree(size: int) -> list[int | None]:
    """Return the tree whose inner members are leaves of the first: mirrored, or shifted by one."""
    first = binary_tree(size)
    if size % 2 == 0:
        place = [size - 1 - number for number in range(size)]
    else:
        place = [(number - 1) % size for number in range(size)]
    parents: list[int | None] = [None] * size
    for number, parent in enumerate(first):
        parents[place[number]] = None if parent is None else place[parent]
    return parents


def chain(size: int) -> list[int | None]:
    """Return the tree in which each position follows the one before it."""
    return [None, *range(size - 1)]


@dataclass(frozen=True)
class Edge:
    """One edge of a nested tree: the level it crosses, and the child's distance to the root."""

    child: int
    parent: int
    level: int
    depth: int


def nested_tree(
    shape: tuple[int, ...], coordinates: Sequence[Sequence[int]], tree: Callable[[int], Parents]
) -> list[Edge]:
    """Return a tree over all members: a tree inside each domain, then one over their roots."""
    levels = [tree(size) for size in shape]
    edges = []
    for place in coordinates:
        level = next((k for k, at in enumerate(place) if levels[k][at] is not None), None)
        if level is not None:
            above = list(place)
            above[level] = _known(levels[level][place[level]])
            depth = sum(_depth(levels[k], at) for k, at in enumerate(place))
            edges.append(Edge(rank_of(shape, place), rank_of(shape, above), level, depth))
    return edges


def _known(parent: int | None) -> int:
    assert parent is not None
    return parent


def _depth(parents: Parents, position: int) -> int:
    """Return the edges between a position and the root."""
    depth, above = 0, parents[position]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth


@dataclass(frozen=True)
class TreeMove:
    """One piece of one tree's half of the data goes one edge up (it reduces) or down."""

    step: int
    source: int
    destination: int
    tree: int
    piece: int
    level: int
    lane: int
    reduces: bool


def double_tree_moves(shape: tuple[int, ...], num_pieces: int) -> Iterator[TreeMove]:
    """Yield an all-reduce of two halves, each up and down a tree of its own, piece after piece."""
    places = list(coordinates_of(shape))
    for tree, parents_of in enumerate((binary_tree, second_tree)):
        edges = nested_tree(shape, places, parents_of)
        deepest = max((edge.depth for edge in edges), default=0)
        lanes = _down_lanes(edges, tree)
        for piece in range(num_pieces):
            for edge in edges:
                up, down = deepest - edge.depth + piece, deepest + edge.depth - 1 + piece
                yield TreeMove(
                    up, edge.child, edge.parent, tree, piece, edge.level, tree, reduces=True
                )
                yield TreeMove(
                    down, edge.parent, edge.child, tree, piece, edge.level, lanes[edge], False
                )


def _down_lanes(edges: list[Edge], tree: int) -> dict[Edge, int]:
    """Return the lane of each way down: lanes 0 and 1 go up, two for each tree go down."""
    used: dict[tuple[int, int], int] = defaultdict(int)
    lanes = {}
    for edge in edges:
        lanes[edge] = 2 + 2 * tree + used[edge.parent, edge.level]
        used[edge.parent, edge.level] += 1
    return lanes
