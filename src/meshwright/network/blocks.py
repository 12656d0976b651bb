"""Blocks: the rectangle of a grid that each axis of a strategy fills, and grids that still work.

Devices of the innermost axis fill a block; those of the next axis fill a block of such blocks, and
so on. An axis of degree d has a shape: its members on each level of the network, whose product
is d. The distance of neighbours of an axis on a level is the length of all inner axes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import combinations, product
from math import comb, prod
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, groups_of, read_only
from meshwright.collectives.group import Reach
from meshwright.sharding.strategy import (
    REUSED_AXES,
    StrategyColumns,
)
from meshwright.spec.system import NetworkLevel
from meshwright.topology.network import Network, connected_components

Shape = tuple[int, ...]


@cache
def block_shapes(
    degrees: tuple[int, ...], sides: Shape, rates: tuple[float, ...]
) -> tuple[Shape, ...] | None:
    """Return the shape of each axis, or None where no blocks of these degrees fit.

    The innermost axis gets the shape of the fastest gather, then the next one, as long as the outer
    axes still fit.

    Parameters
    ----------
    degrees
        Degrees of the axes, innermost first.
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
    for shape in sorted(factorings(degrees[0], room), key=lambda s: _gather_cost(s, rates, apart)):
        longer = tuple(length * size for length, size in zip(apart, shape, strict=True))
        rest = _shapes(degrees[1:], sides, rates, longer)
        if rest is not None:
            return (shape, *rest)
    return None


@cache
def factorings(degree: int, room: Shape) -> list[Shape]:
    """Return every way to write a degree as a product of sizes that have room."""
    if len(room) == 1:
        return [(degree,)] if degree <= room[0] else []
    return [
        (size, *rest)
        for size in range(1, min(degree, room[0]) + 1)
        if degree % size == 0
        for rest in factorings(degree // size, room[1:])
    ]


def _gather_cost(shape: Shape, rates: tuple[float, ...], apart: Shape) -> tuple[float, float]:
    """Return the sort key of shapes: time per byte through the links of a corner, then hops.

    A link between neighbours that are k apart is shared by k groups.
    """
    spanned = [level for level, size in enumerate(shape) if size > 1]
    corner = sum(rates[level] / apart[level] for level in spanned)
    hops = sum((shape[level] - 1) * apart[level] for level in spanned)
    return (1.0 / corner if spanned else 0.0, float(hops))


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
    for shape in factorings(degrees[0], sides):
        room = tuple(side // size for side, size in zip(sides, shape, strict=True))
        for rest in all_block_shapes(degrees[1:], room):
            yield (shape, *rest)


def sequential_shapes(degrees: Sequence[int], sides: Shape) -> tuple[Shape, ...] | None:
    """Return the shapes of axes placed one after the other along the levels, innermost first.

    The last axis may leave the rest of a level idle. None where another axis would break off in the
    middle of a level: it fills no block then.
    """
    room = list(sides)
    outermost = max((i for i, degree in enumerate(degrees) if degree > 1), default=0)
    shapes = []
    for i, degree in enumerate(degrees):
        shape, left = [1] * len(sides), degree
        for level, free in enumerate(room):
            if left % free and (left > free or (free % left and i < outermost)):
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
    """Return the reach of each axis, one row for each choice of shapes; 0 where it has no reach."""
    sizes = np.asarray(choices, dtype=float)
    apart = np.ones_like(sizes)
    apart[:, 1:] = np.cumprod(np.maximum(sizes, 1.0), axis=1)[:, :-1]
    return {
        axis: Reach(tuple(sizes[:, i].T), tuple(apart[:, i].T)) for i, axis in enumerate(axis_order)
    }


def digits(
    start: FloatArray, size: FloatArray, radices: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the digits in which ``size`` numbers differ that are ``start`` apart.

    Parameters
    ----------
    radices
        Radices of a mixed number, the lowest digit first.

    Returns
    -------
    tuple
        For each digit, the step between its values and their number. None, all of them 0,
        where numbers that begin at other multiples would differ in other digits.
    """
    before = start * 0.0 + 1.0
    steps, counts = [], []
    for radix in radices:
        radix = np.maximum(radix, 1.0)  # 0 where an axis fills no block
        low = np.clip(start / before, 1.0, radix)
        high = np.clip(start * size / before, 1.0, radix)
        is_whole = (low % 1.0 == 0.0) & (high % low == 0.0) & (radix % high == 0.0)
        steps.append(low)
        counts.append(np.where(is_whole, high / low, 0.0))
        before = before * radix
    fits = reduce(np.multiply, counts) == size
    return steps, [np.where(fits, count, 0.0) for count in counts]


def blocks_of_experts(
    reaches: Mapping[str, Reach[FloatArray]], strides: Mapping[str, FloatArray],
    start: FloatArray, size: FloatArray,
) -> list[Reach[FloatArray]]:  # fmt: skip
    """Return the blocks of an axis of the experts on each axis with devices that they re-use.

    Ranks of ``REUSED_AXES`` are counted from the innermost axis on, and along an axis from the
    innermost level on: the axis of the experts has ``size`` of them, ``start`` apart. No members
    where they are not the corners of a block.
    """
    # Digits of all axes, the innermost first: axes come in another order in each row.
    table = np.stack([strides[axis] for axis in REUSED_AXES])
    order = np.argsort(table, axis=0, kind="stable")
    sizes = np.stack([np.stack(reaches[axis].sizes) for axis in REUSED_AXES])
    radices = np.take_along_axis(sizes, order[:, None, :], axis=0).reshape(-1, sizes.shape[2])
    steps, counts = digits(start, size, list(radices))
    back = np.argsort(order, axis=0, kind="stable")[:, None, :]
    step, count = (
        np.take_along_axis(np.stack(part).reshape(sizes.shape), back, axis=0)
        for part in (steps, counts)
    )
    return [
        Reach(
            tuple(count[number]),
            tuple(apart * step[number, level] for level, apart in enumerate(reaches[axis].apart)),
        )
        for number, axis in enumerate(REUSED_AXES)
    ]


MOST_CHOICES = 1000
"""Choices of lines beyond which only those in a row, and the soundest ones, are tried."""


def sound_grids(network: Network, sides: Shape, least: float) -> set[int]:
    """Return the device counts of grids of consecutive lines with at least a share that works.

    Those that hold 7/8 of all devices that work and are connected.
    """
    works = connected_devices(network, sides)
    found = set()
    for shape in product(*(range(1, side + 1) for side in sides)):
        size = prod(shape)
        if size * 8 >= works.sum() * 7:
            most = num_working(works, shape).max()
            if most >= least * size and most * 8 >= works.sum() * 7:
                found.add(size)
    return found


def num_working(works: BoolArray, needed: Shape) -> IntArray:
    """Return the working devices in consecutive lines on each level, by their first lines."""
    windows = np.lib.stride_tricks.sliding_window_view(works, needed[::-1])
    counts: IntArray = windows.sum(axis=tuple(range(works.ndim, 2 * works.ndim)))
    return counts


def clear_grids(network: Network, sides: Shape) -> list[Shape]:
    """Return the largest grids of working, connected devices, innermost side first.

    Each is a choice of rows and columns (and more) with only working crossings; no other one is as
    long on every side. Without faults that is the whole grid.
    """
    works = connected_devices(network, sides)
    found: list[Shape] = []
    for outer in product(*(range(side, 0, -1) for side in sides[1:])):
        longest = next((n for n in range(sides[0], 0, -1) if clear_lines(works, (n, *outer))), 0)
        shape = (longest, *outer)
        if longest and not any(holds(other, shape) for other in found):
            found.append(shape)
    return [shape for shape in found if not any(holds(o, shape) for o in found if o != shape)]


def holds(outer: Shape, inner: Shape) -> bool:
    """Return whether a block has room in another one."""
    return all(a >= b for a, b in zip(outer, inner, strict=True))


def connected_devices(network: Network, sides: Shape) -> BoolArray:
    """Return whether each device works in the largest connected part, on the grid."""
    if network not in _WORKS:
        works = np.zeros(network.num_devices, dtype=bool)
        works[connected_parts(network)[0]] = True
        _WORKS[network] = read_only(works)
    return _WORKS[network].reshape(sides[::-1])


_WORKS: WeakKeyDictionary[Network, BoolArray] = WeakKeyDictionary()
"""Whether each device works in the largest connected part, by network."""


def clear_lines(works: BoolArray, needed: Shape) -> tuple[tuple[int, ...], ...] | None:
    """Return rows and columns, by level, with only working crossings; those with least gaps."""
    if any(length > side for length, side in zip(needed, works.shape[::-1], strict=True)):
        return None
    return _choose(works, needed, len(needed) - 1, ())


def _choose(
    works: BoolArray, needed: Shape, level: int, outer: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...] | None:
    """Return lines of this level and of those inside it, in the rest of the grid.

    Array axis 0 of ``works`` is this level; lines that are close together come first.
    """
    if level == 0:
        clear = np.flatnonzero(works)
        if len(clear) < needed[0]:
            return None
        return (_closest(clear.tolist(), needed[0]), *outer)
    for line in _candidates(works, needed[level]):
        left: BoolArray = np.logical_and.reduce(works[list(line)], axis=0)
        found = _choose(left, needed, level - 1, (line, *outer))
        if found is not None:
            return found
    return None


def _candidates(works: BoolArray, count: int) -> list[tuple[int, ...]]:
    """Return choices of this many lines, those closest together first.

    All of them where they are few; else those in a row, and those with the fewest faults.
    """
    num_lines = len(works)
    if comb(num_lines, count) <= MOST_CHOICES:
        return sorted(combinations(range(num_lines), count), key=lambda line: line[-1] - line[0])
    in_a_row = [tuple(range(first, first + count)) for first in range(num_lines - count + 1)]
    faults = (~works.reshape(num_lines, -1)).sum(axis=1)
    soundest = np.sort(np.argsort(faults, kind="stable")[:count])
    return [*in_a_row, tuple(soundest.tolist())]


def _closest(places: Sequence[int], count: int) -> tuple[int, ...]:
    """Return this many places in a row that are closest together."""
    runs = [tuple(places[first : first + count]) for first in range(len(places) - count + 1)]
    return min(runs, key=lambda run: run[-1] - run[0])


def connected_parts(network: Network) -> tuple[IntArray, ...]:
    """Return the working devices that reach each other, the largest part first."""
    working = network.alive
    label = connected_components(network)[working]
    parts = [working[label == number] for number in np.unique(label)]
    return tuple(sorted(parts, key=lambda part: (-len(part), int(part[0]))))
