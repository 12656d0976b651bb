"""Blocks: which rectangle of a grid each axis of a strategy fills, innermost axis first.

Devices of the innermost axis fill a block; those of the next axis fill a block of such blocks, and
so on. An axis of degree d has a shape: its members on each level of the network, whose product
is d. Neighbours of an axis on a level are as far apart as all inner axes are long there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, groups_of
from meshwright.collectives.group import Reach
from meshwright.sharding.strategy import StrategyColumns
from meshwright.spec.system import NetworkLevel

Shape = tuple[int, ...]


@cache
def block_shapes(
    degrees: tuple[int, ...], sides: Shape, rates: tuple[float, ...]
) -> tuple[Shape, ...] | None:
    """Return the shape of each axis, or None where no blocks of these degrees fit.

    The innermost axis gets the shape whose members gather fastest, then the next one, as long as
    the outer axes still fit.

    Parameters
    ----------
    degrees
        Of the axes, innermost first.
    sides
        Room on each level of the network.
    rates
        Bandwidth of a link of each level [bytes/s].
    """
    return _shapes(degrees, sides, rates, (1,) * len(sides))


def _shapes(
    degrees: tuple[int, ...], sides: Shape, rates: tuple[float, ...], apart: Shape
) -> tuple[Shape, ...] | None:
    """Return the shapes of the axes outside of blocks that are ``apart`` long on each level."""
    if not degrees:
        return ()
    room = tuple(side // length for side, length in zip(sides, apart, strict=True))
    for shape in sorted(_factorings(degrees[0], room), key=lambda s: _gather_cost(s, rates, apart)):
        longer = tuple(length * size for length, size in zip(apart, shape, strict=True))
        rest = _shapes(degrees[1:], sides, rates, longer)
        if rest is not None:
            return (shape, *rest)
    return None


@cache
def _factorings(degree: int, room: Shape) -> list[Shape]:
    """Return every way to write a degree as a product of sizes that have room."""
    if len(room) == 1:
        return [(degree,)] if degree <= room[0] else []
    return [
        (size, *rest)
        for size in range(1, min(degree, room[0]) + 1)
        if degree % size == 0
        for rest in _factorings(degree // size, room[1:])
    ]


def _gather_cost(shape: Shape, rates: tuple[float, ...], apart: Shape) -> tuple[float, float]:
    """Return what sorts shapes: time per byte through the links of a corner, then hops.

    A link between neighbours that are k apart is shared by k groups.
    """
    spanned = [level for level, size in enumerate(shape) if size > 1]
    corner = sum(rates[level] / apart[level] for level in spanned)
    hops = sum((shape[level] - 1) * apart[level] for level in spanned)
    return (1.0 / corner if spanned else 0.0, float(hops))


def uses_blocks(levels: Sequence[NetworkLevel]) -> bool:
    """Tell whether axes fill blocks: on grids without wraps, of two sides or more.

    Where sides wrap, an axis that owns a whole side closes a ring, which blocks would break.
    """
    meshes = [level for level in levels if level.kind == "mesh" and level.size > 1]
    return len(meshes) > 1 and all(level.kind != "torus" for level in levels)


def block_reaches(
    levels: Sequence[NetworkLevel], axis_order: Sequence[str], strategy: StrategyColumns
) -> Mapping[str, Reach[FloatArray]]:
    """Return the reach of each axis for columns of strategies.

    Rows that fit no blocks get a reach of zero members at each level: they keep their numbers.
    """
    table = np.stack([getattr(strategy, axis) for axis in axis_order]).astype(np.int64)
    first, row_of = groups_of(table)
    distinct = table[:, first].T
    sides = tuple(level.size for level in levels)
    rates = tuple(level.bandwidth_bytes_per_s * level.links_per_device for level in levels)
    sizes = np.zeros((len(distinct), len(axis_order), len(levels)))
    for number, degrees in enumerate(distinct.tolist()):
        shapes = _padded(tuple(degrees), sides, rates)
        if shapes is not None:
            sizes[number] = shapes
    return reaches_of_shapes(axis_order, sizes[row_of.reshape(-1)])


def _padded(degrees: tuple[int, ...], sides: Shape, rates: tuple[float, ...]) -> list[Shape] | None:
    """Return the shapes of all axes; those of degree one are left out of the search for them."""
    if prod(degrees) > prod(sides):
        return None
    shapes = block_shapes(tuple(d for d in degrees if d > 1), sides, rates)
    if shapes is None:
        return None
    found = iter(shapes)
    return [next(found) if degree > 1 else (1,) * len(sides) for degree in degrees]


def all_block_shapes(degrees: tuple[int, ...], sides: Shape) -> Iterator[tuple[Shape, ...]]:
    """Yield every choice of shapes for axes, innermost first, that fits the sides."""
    if not degrees:
        yield ()
        return
    for shape in _factorings(degrees[0], sides):
        room = tuple(side // size for side, size in zip(sides, shape, strict=True))
        for rest in all_block_shapes(degrees[1:], room):
            yield (shape, *rest)


def sequential_shapes(degrees: Sequence[int], sides: Shape) -> tuple[Shape, ...] | None:
    """Return the shapes of axes that lie one after the other along the levels, innermost first.

    None where an axis would break off in the middle of a level: it fills no block then.
    """
    room = list(sides)
    shapes = []
    for degree in degrees:
        shape, left = [1] * len(sides), degree
        for level, free in enumerate(room):
            if left % free and free % left:
                return None
            shape[level] = min(left, free)
            room[level] //= shape[level]
            left //= shape[level]
        if left > 1:
            return None
        shapes.append(tuple(shape))
    return tuple(shapes)


def reaches_of_shapes(
    axis_order: Sequence[str], choices: Sequence[Sequence[Shape]] | FloatArray
) -> Mapping[str, Reach[FloatArray]]:
    """Return the reach of each axis, one row for each choice of shapes; 0 where there is none."""
    sizes = np.asarray(choices, dtype=float)
    apart = np.ones_like(sizes)
    apart[:, 1:] = np.cumprod(np.maximum(sizes, 1.0), axis=1)[:, :-1]
    return {
        axis: Reach(tuple(sizes[:, i].T), tuple(apart[:, i].T)) for i, axis in enumerate(axis_order)
    }
