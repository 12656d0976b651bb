"""Ranks on a grid of devices: nested blocks on lines that work, or ranks that others host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations, islice, permutations
from math import prod
from operator import and_, itemgetter
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.collectives.group import Reach
from meshwright.network.blocks import (
    Shape,
    all_block_shapes,
    blocks_of_experts,
    clear_lines,
    connected_devices,
    holds,
    num_working,
)
from meshwright.network.regions import hamiltonian_cycle, hamiltonian_path, make_region
from meshwright.network.visiting_orders import chain, closes_in
from meshwright.sharding.strategy import REUSED_AXES, PlanOptions, Strategy
from meshwright.topology.network import Network

LAID_IN = ("blocks", "paths", "cycles")
"""Nested blocks of the grid, or a cover of its working devices by paths or cycles of neighbours."""


@dataclass(frozen=True)
class Nesting:
    """A way to lay the axes of a strategy on a grid."""

    axes: tuple[str, ...]
    """Innermost first."""
    shapes: tuple[Shape, ...]
    """Members of each axis on each level, innermost level first."""
    devices: tuple[int, ...] = ()
    """Stated device of each rank, innermost axis first; empty: the devices of the blocks."""
    lies_in: str = "blocks"
    """One of ``LAID_IN``."""


def all_choices(
    plan_options: PlanOptions, strategy: Strategy, sides: Shape, grids: Sequence[Shape] = (),
    most: int | None = None,
) -> Sequence[Nesting]:  # fmt: skip
    """Return the ways to lay the axes in nested blocks; those of the plan's own order first.

    Parameters
    ----------
    grids
        Grids of which one has to hold all blocks, where not all of the sides can be used.
    most
        Number of ways after which the search may end.
    """
    degrees = tuple((axis, int(getattr(strategy, axis))) for axis in plan_options.axis_order)
    return _choices(degrees, sides, tuple(grids), most)


@lru_cache(maxsize=4096)
def _choices(
    degrees: tuple[tuple[str, int], ...], sides: Shape, grids: tuple[Shape, ...], most: int | None
) -> tuple[Nesting, ...]:
    return tuple(islice(_each_choice(degrees, sides, grids), most))


def _each_choice(
    degrees: Sequence[tuple[str, int]], sides: Shape, grids: Sequence[Shape]
) -> Iterator[Nesting]:
    used = [(axis, degree) for axis, degree in degrees if degree > 1]
    unused = tuple(axis for axis, degree in degrees if degree == 1)
    alone = tuple((1,) * len(sides) for _ in unused)
    every = [
        shapes
        for shapes in all_block_shapes(tuple(degree for _, degree in used), sides)
        if not grids or any(holds(grid, _lengths(shapes, sides)) for grid in grids)
    ]
    # Only the order of those axes counts that are longer than one on the same level.
    pairs = list(combinations(range(len(used)), 2))
    meeting = {shapes: tuple(_meet(shapes[a], shapes[b]) for a, b in pairs) for shapes in every}
    known: set[object] = set()
    for order in permutations(range(len(used))):
        goes_first = [order.index(a) < order.index(b) for a, b in pairs]
        axes = (*(used[number][0] for number in order), *unused)
        for shapes in sorted(every, key=itemgetter(*order)) if used else every:
            key = shapes, tuple(map(and_, meeting[shapes], goes_first))
            if key not in known:
                known.add(key)
                yield Nesting(axes, (*(shapes[number] for number in order), *alone))


def _meet(one: Shape, other: Shape) -> bool:
    """Tell whether blocks are both longer than one on a level."""
    return any(a > 1 and b > 1 for a, b in zip(one, other, strict=True))


def _lengths(shapes: Sequence[Shape], sides: Shape) -> Shape:
    """Return the sides of the block that nested blocks fill."""
    return tuple(prod(shape[level] for shape in shapes) for level in range(len(sides)))


@dataclass(frozen=True)
class Ranks:
    """Ranks on a grid of devices: each axis fills blocks, on some of the rows and columns."""

    axes: tuple[str, ...]
    """Innermost first."""
    shapes: tuple[Shape, ...]
    """Members of each axis on each level, innermost level (columns) first."""
    device: IntArray
    """Device of each rank: one array axis for each axis of the plan, innermost first."""
    cell: IntArray | None = None
    """Place of each rank in the blocks, where its device is another one."""
    experts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Distance of the ranks of each axis of the experts, among those of ``REUSED_AXES``, and their
    number."""

    @property
    def num_devices(self) -> int:
        """Devices in use."""
        return len(np.unique(self.device))

    @cached_property
    def _places(self) -> dict[str, AxisPlace]:
        """The places of axes that are known."""
        return {}

    @cached_property
    def is_host(self) -> BoolArray:
        """Whether each rank is the first one on its device: the others are hosted by it."""
        flat = self.device.ravel(order="F")
        is_first = np.zeros(flat.size, dtype=bool)
        is_first[np.unique(flat, return_index=True)[1]] = True
        return is_first.reshape(self.device.shape, order="F")

    def groups(self, axis: str) -> IntArray:
        """Return the devices of every group of an axis, or of several (``a*b``).

        Shape (groups, positions on the outermost level, ..., on the innermost level): neighbours
        along each level are in the order in which they are placed.
        """
        device = self._members(axis, self.device)
        cell = device if self.cell is None else self._members(axis, self.cell)
        sizes = np.prod([block for block, _ in self._blocks(axis)], axis=0)
        found = np.take_along_axis(device, np.argsort(cell, axis=1), axis=1)
        return found.reshape(-1, *sizes[::-1].tolist())

    def _members(self, axis: str, of_rank: IntArray) -> IntArray:
        """Return the values of the members of every group of an axis, shape (groups, members)."""
        names = axis.split("/")[0].split("*")
        among = REUSED_AXES if names[0] in self.experts else names
        chosen = [number for number, name in enumerate(self.axes) if name in among][::-1]
        last = np.moveaxis(of_rank, chosen, range(-len(chosen), 0))
        last = last.reshape(-1, prod(last.shape[len(self.axes) - len(chosen) :]))
        if names[0] not in self.experts:
            return last
        apart, size = self.experts[names[0]]
        return np.moveaxis(last.reshape(-1, size, apart), 1, 2).reshape(-1, size)

    def _blocks(self, axis: str) -> tuple[tuple[Shape, Shape], ...]:
        """Return the blocks of an axis, or of several: members on each level, and distances."""
        apart = np.cumprod([(1,) * len(self.shapes[0]), *self.shapes], axis=0)
        of_axis = {
            name: (self.shapes[number], tuple(apart[number].tolist()))
            for number, name in enumerate(self.axes)
        }
        names = axis.split("/")[0].split("*")
        if names[0] not in self.experts:
            return tuple(of_axis[name] for name in names)
        reaches, strides, stride = {}, {}, 1.0
        for name, shape in zip(self.axes, self.shapes, strict=True):
            strides[name] = np.array([stride])
            reaches[name] = Reach(
                *(tuple(np.array([1.0 * n]) for n in part) for part in of_axis[name])
            )
            stride *= prod(shape)
        start, size = (np.array([1.0 * number]) for number in self.experts[names[0]])
        return tuple(
            (
                tuple(int(n[0]) for n in reach.sizes),
                tuple(int(n[0]) for n in reach.apart),
            )
            for reach in blocks_of_experts(reaches, strides, start, size)
        )

    def fills_blocks(self, axis: str) -> bool:
        """Tell whether an axis, or several, fill blocks: those of experts need not."""
        return all(count > 0 for block, _ in self._blocks(axis) for count in block)

    def place(self, axis: str) -> AxisPlace:
        """Return the place of an axis, or of several (``a*b``): its groups, in any order."""
        if axis not in self._places:
            groups = self.groups(axis)
            groups = groups.reshape(len(groups), -1)
            in_order = groups[np.argsort(groups[:, 0], kind="stable")]
            self._places[axis] = AxisPlace(in_order.shape[1], in_order.tobytes(), self)
        return self._places[axis]

    def visit(self, axis: str, *, closes: bool, is_side_by_side: bool = False) -> IntArray:
        """Return the positions of an axis in its block, in an order that goes along neighbours.

        A cycle where it is requested and the block has one, else a snake; see :func:`chain`.
        """
        shape = self.shapes[self.axes.index(axis)]
        return chain(shape, closes=closes, is_side_by_side=is_side_by_side)


@dataclass(frozen=True)
class AxisPlace:
    """Groups of devices of an axis, in the order of their first devices."""

    group_size: int
    groups: bytes
    ranks: Ranks = field(compare=False)


def block_ranks(
    network: Network, sides: Shape, axes: Sequence[str], shapes: Sequence[Shape], *,
    may_have_holes: bool = False,
) -> Ranks | None:  # fmt: skip
    """Return the ranks of axes in blocks of these shapes, clear of dead devices.

    Rows and columns that hold a dead device are left out where there are more than the blocks
    need: neighbours on both sides of a gap are two hops apart. None where the blocks do not fit.

    Parameters
    ----------
    sides
        Sides of the grid, or of grids side by side, innermost level first, as devices are numbered.
    may_have_holes
        Where no clear lines are left, another device hosts the ranks of a dead one.
    """
    shape = np.prod(np.array(shapes, dtype=np.int64).reshape(-1, len(sides)), axis=0)
    works, needed = connected_devices(network, sides), tuple(int(length) for length in shape)
    lines = clear_lines(works, needed)
    if lines is not None:
        return Ranks(tuple(axes), tuple(shapes), _in_blocks(sides, lines, shapes))
    if not may_have_holes or any(n > side for n, side in zip(needed, sides, strict=True)):
        return None
    lines = _soundest_lines(works, needed)
    ranks = Ranks(tuple(axes), tuple(shapes), _in_blocks(sides, lines, shapes))
    return _hosted(network, ranks, works)


def _soundest_lines(works: BoolArray, needed: Shape) -> tuple[tuple[int, ...], ...]:
    """Return consecutive lines on each level, by level, with the most working crossings."""
    counts = num_working(works, needed)
    corner = np.unravel_index(int(counts.argmax()), counts.shape)[::-1]
    return tuple(
        tuple(range(int(first), int(first) + length))
        for first, length in zip(corner, needed, strict=True)
    )


def _hosted(network: Network, ranks: Ranks, works: BoolArray) -> Ranks | None:
    """Return ranks with those of dead devices moved to other devices.

    A group of ``tatp`` with dead devices goes through the rest of its block on a separate way
    (:func:`_stream_order`). The last device of that way hosts the missing ranks too: messages of
    the group pass through it. Where there is no such way, each missing rank is on the device that
    is nearest along the stream; ranks of groups in which nothing works are on the nearest device of
    their pipeline stage. None where nothing of a stage works.
    """
    cell, device = ranks.device, ranks.device.copy()
    inner, stage = ranks.axes.index("tatp"), ranks.axes.index("pp")
    closes = closes_in(ranks.shapes[inner])
    visited = ranks.visit("tatp", closes=closes)
    step = np.argsort(visited)
    places = np.stack(np.unravel_index(np.arange(works.size), works.shape))
    works = works.ravel()
    for hole in np.argwhere(~works[cell]).tolist():
        group = tuple(slice(None) if axis == inner else at for axis, at in enumerate(hole))
        own = cell[group]
        position = np.argsort(np.argsort(own))
        way = _stream_order(network, tuple(np.sort(own[works[own]]).tolist()), closes)
        if way:
            in_turn = np.array(way + way[-1:] * (len(own) - len(way)))
            device[group] = in_turn[step[position]]
            continue
        apart = np.abs(step[position] - step[position[hole[inner]]])
        if not works[own].any():
            own = cell.take(hole[stage], axis=stage).ravel()
            apart = np.abs(places[:, own] - places[:, [cell[tuple(hole)]]]).sum(axis=0)
        if not works[own].any():
            return None
        device[tuple(hole)] = own[np.where(works[own], apart, works.size).argmin()]
    return replace(ranks, device=device, cell=cell)


_ORDERS: WeakKeyDictionary[Network, dict[tuple[Shape, bool], Shape]] = WeakKeyDictionary()
ORDER_STATES = 2_000
"""States that the search for one way through a group may visit."""


def _stream_order(network: Network, devices: Shape, closes: bool) -> Shape:
    """Return devices with consecutive ones as neighbours; empty where there is no such order.

    One that closes: the last is next to the first, or two hops from it over wires that the others
    leave free, as where the number is odd. Where nothing closes, any path.
    """
    known = _ORDERS.setdefault(network, {})
    if (devices, closes) not in known:
        known[devices, closes] = next(_stream_orders(network, devices, closes), ())
    return known[devices, closes]


def _stream_orders(network: Network, devices: Shape, closes: bool) -> Iterator[Shape]:
    if len(devices) < 2:
        return
    region = make_region(network, devices)
    if len(region.parts) > 1:
        return
    if closes and len(devices) > 2:
        found = hamiltonian_cycle(region, limit=ORDER_STATES).groups
        if found:
            yield found[0]
        near = [set(cells) for cells in region.neighbours]
        pairs = {pair for cells in region.neighbours for pair in combinations(sorted(cells), 2)}
        for pair in sorted(pairs, key=lambda pair: (len(near[pair[0]] & near[pair[1]]), pair)):
            between = near[pair[0]] & near[pair[1]]
            free = {(min(end, cell), max(end, cell)) for end in pair for cell in between}
            rest = replace(region, edges=tuple(e for e in region.edges if e not in free))
            ends = region.devices[pair[0]], region.devices[pair[1]]
            found = hamiltonian_path(rest, ends, limit=ORDER_STATES).groups
            if found:
                yield found[0]
    found = hamiltonian_path(region, limit=ORDER_STATES).groups
    if found:
        yield found[0]


_RANKS: WeakKeyDictionary[Network, dict[tuple[Shape, Nesting], Ranks | None]] = WeakKeyDictionary()


def stated_ranks(network: Network, sides: Shape, choice: Nesting) -> Ranks | None:
    """Return the ranks of a choice: on the devices that it states, or where its blocks fit."""
    known = _RANKS.setdefault(network, {})
    if (sides, choice) not in known:
        known[sides, choice] = _ranks(network, sides, choice)
    return known[sides, choice]


def _ranks(network: Network, sides: Shape, choice: Nesting) -> Ranks | None:
    if not choice.devices:
        return block_ranks(network, sides, choice.axes, choice.shapes, may_have_holes=True)
    if not connected_devices(network, sides).ravel()[list(choice.devices)].all():
        return None
    lengths = np.prod(np.array(choice.shapes, dtype=np.int64), axis=0)
    lines = tuple(tuple(range(int(length))) for length in lengths)
    cell = _in_blocks(tuple(lengths.tolist()), lines, choice.shapes)
    device = np.array(choice.devices, dtype=np.int64).reshape(cell.shape, order="F")
    return Ranks(choice.axes, choice.shapes, device, cell)


def _in_blocks(
    sides: Shape, lines: tuple[tuple[int, ...], ...], shapes: Sequence[Shape]
) -> IntArray:
    """Return the number of the cell of each rank, on these lines of a grid."""
    numbers = np.zeros(1, dtype=np.int64)
    weights = np.cumprod([1, *sides[:-1]])
    for level, line in enumerate(lines):
        places = np.array(line, dtype=np.int64) * weights[level]
        numbers = (places[:, None] + numbers[None, :]).reshape(-1)
    grid = numbers.reshape([len(line) for line in lines[::-1]])
    split = [size for level in range(len(sides))[::-1] for size in _outermost_first(shapes, level)]
    return _regrouped(grid.reshape(split), shapes)


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
