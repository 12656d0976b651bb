"""Which device each rank of a plan runs on, and the groups of its axes as they lie on the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.network.blocks import Shape
from meshwright.network.regions.orders import chain
from meshwright.topology.network import Network, connected_components

MOST_CHOICES = 1000
"""Choices of lines beyond which only those in a row, and the soundest ones, are tried."""


@dataclass(frozen=True)
class Ranks:
    """Ranks on a grid of devices: each axis fills blocks, on some of the rows and columns."""

    axes: tuple[str, ...]
    """Innermost first."""
    shapes: tuple[Shape, ...]
    """Members of each axis on each level, innermost level (columns) first."""
    lines: tuple[tuple[int, ...], ...]
    """The columns, rows, ... of the grid that are in use, level by level."""
    device: IntArray
    """Device of each rank: one array axis for each axis of the plan, innermost first."""

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return self.device.size

    def groups(self, axis: str) -> IntArray:
        """Return the devices of every group of an axis, or of several (``a*b``).

        Shape (groups, positions on the outermost level, ..., on the innermost level): neighbours
        along each level stand in the order in which they lie.
        """
        names = axis.split("/")[0].split("*")
        chosen = [self.axes.index(name) for name in names]
        members = np.moveaxis(self.device, chosen, range(-len(chosen), 0))
        flat = members.reshape(-1, prod(members.shape[len(self.axes) - len(chosen) :]))
        sizes = np.prod([self.shapes[index] for index in chosen], axis=0)
        return np.sort(flat, axis=1).reshape(-1, *sizes[::-1].tolist())

    def visit(self, axis: str, *, closes: bool, is_side_by_side: bool = False) -> IntArray:
        """Return the positions of an axis in its block, in an order that goes along neighbours.

        A cycle where one is asked for and the block has it, else a snake; see :func:`chain`.
        """
        shape = self.shapes[self.axes.index(axis)]
        return chain(shape, closes=closes, is_side_by_side=is_side_by_side)


def block_ranks(
    network: Network, sides: Shape, axes: Sequence[str], shapes: Sequence[Shape]
) -> Ranks | None:
    """Return the ranks of axes in blocks of these shapes, clear of dead devices.

    Rows and columns that hold a dead device are left out where there are more than the blocks
    need: neighbours beside a gap are two hops apart. None where the blocks do not fit.

    Parameters
    ----------
    sides
        Of the grid, or of grids side by side, innermost level first; devices are numbered along it.
    """
    needed = tuple(np.prod(np.array(shapes, dtype=np.int64).reshape(-1, len(sides)), axis=0))
    lines = _clear_lines(_connected(network, sides), tuple(int(length) for length in needed))
    if lines is None:
        return None
    numbers = np.zeros(1, dtype=np.int64)
    weights = np.cumprod([1, *sides[:-1]])
    for level, line in enumerate(lines):
        places = np.array(line, dtype=np.int64) * weights[level]
        numbers = (places[:, None] + numbers[None, :]).reshape(-1)
    grid = numbers.reshape([len(line) for line in lines[::-1]])
    split = [size for level in range(len(sides))[::-1] for size in _outermost_first(shapes, level)]
    return Ranks(tuple(axes), tuple(shapes), lines, _regrouped(grid.reshape(split), shapes))


def _outermost_first(shapes: Sequence[Shape], level: int) -> list[int]:
    """Return the sizes of all axes on one level, the outermost axis first."""
    return [shape[level] for shape in shapes][::-1]


def _regrouped(grid: IntArray, shapes: Sequence[Shape]) -> IntArray:
    """Return devices by axis (innermost first) from devices by level and axis (outermost first)."""
    num_axes, num_levels = len(shapes), len(shapes[0])
    order = [
        level * num_axes + (num_axes - 1 - axis)
        for axis in range(num_axes)
        for level in range(num_levels)
    ]
    return grid.transpose(order).reshape([prod(shape) for shape in shapes])


def clear_grids(network: Network, sides: Shape) -> list[Shape]:
    """Return the largest grids of working, connected devices, innermost side first.

    Each is a choice of rows and columns (and more) whose crossings all work; no other one is as
    long on every side. Without faults that is the whole grid.
    """
    works = _connected(network, sides)
    found: list[Shape] = []
    for outer in product(*(range(side, 0, -1) for side in sides[1:])):
        longest = next((n for n in range(sides[0], 0, -1) if _clear_lines(works, (n, *outer))), 0)
        shape = (longest, *outer)
        if longest and not any(_holds(other, shape) for other in found):
            found.append(shape)
    return [shape for shape in found if not any(_holds(o, shape) for o in found if o != shape)]


def _holds(outer: Shape, inner: Shape) -> bool:
    return all(a >= b for a, b in zip(outer, inner, strict=True))


def _connected(network: Network, sides: Shape) -> BoolArray:
    """Return whether each device works in the largest connected part, on the grid."""
    part = connected_components(network)[: network.num_devices]
    alive = network.alive
    works = np.zeros(network.num_devices, dtype=bool)
    works[alive] = part[alive] == np.bincount(part[alive]).argmax()
    return works.reshape(sides[::-1])


def _clear_lines(works: BoolArray, needed: Shape) -> tuple[tuple[int, ...], ...] | None:
    """Return rows and columns, by level, whose crossings all work; those with least gaps."""
    if any(length > side for length, side in zip(needed, works.shape[::-1], strict=True)):
        return None
    return _choose(works, needed, len(needed) - 1, ())


def _choose(
    works: BoolArray, needed: Shape, level: int, outer: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...] | None:
    """Return lines of this level and of those inside it, given what is left of the grid.

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
    """Return choices of so many lines, those that lie closest together first.

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
    """Return so many places in a row that lie closest together."""
    runs = [tuple(places[first : first + count]) for first in range(len(places) - count + 1)]
    return min(runs, key=lambda run: run[-1] - run[0])
