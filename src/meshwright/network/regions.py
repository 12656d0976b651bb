"""Cover a graph with disjoint paths or cycles of equal length: exact, by a sweep over its cells.

The cells are passed in a given order. The open ends of a part of a cover follow from the cells
at the border of the sweep alone: which of them are ends of one path, and how long it is. So a
search that goes deep first and never enters a state twice finds a cover soon where there are many,
and proves that there is none by a number of states that grows with the width of the border, not
with the number of paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from meshwright.topology.network import Network

INSIDE = -1
"""Mate of a cell that has both its neighbours."""
ENDED = -2
"""Mate of a cell on a path that ends behind the sweep."""

Edges = tuple[tuple[int, int], ...]


class Cover(NamedTuple):
    """Paths or cycles that cover the cells, or none."""

    groups: tuple[tuple[int, ...], ...] | None
    """Cells of each, neighbour after neighbour."""
    is_proven: bool
    """False where the search stopped at its limit: there may be a cover."""


@dataclass(frozen=True)
class CoverRules:
    """Requirements of a cover: paths or cycles, their length and their number."""

    group_size: int
    """Cells of each path or cycle."""
    num_groups: int
    is_closed: bool = False
    """Cycles instead of paths; of fewer than three cells, a path is both."""
    ends: frozenset[int] = frozenset()
    """The two ends of a single path; empty where any will do."""


class _State(NamedTuple):
    """Open ends that the sweep has left; the same slots for all states of one step."""

    mates: tuple[int, ...]
    """For each cell of the border: the other end of its path (itself: alone), or one of above."""
    sizes: tuple[int, ...]
    """Cells of the path that ends there; all 0 where one group takes every cell."""
    num_ends: int
    """Ends of paths behind the sweep."""
    num_idle: int
    """Cells that may still be left out."""


class _Move(NamedTuple):
    state: _State
    takes_edge: bool


class _SweepStep(Protocol):
    def moves(self, state: _State) -> list[_Move]:
        """Return the possible next moves, the most wanted first."""


@dataclass(frozen=True)
class _Enter:
    """A cell comes to the border, alone."""

    cell: int
    size: int

    def moves(self, state: _State) -> list[_Move]:
        mates, sizes = (*state.mates, self.cell), (*state.sizes, self.size)
        return [_Move(state._replace(mates=mates, sizes=sizes), False)]


@dataclass(frozen=True)
class _Join:
    """An edge to the newest cell is taken or not."""

    edge: tuple[int, int]
    slots: dict[int, int]
    rules: CoverRules
    is_sized: bool
    is_last: bool

    def moves(self, state: _State) -> list[_Move]:
        near, far = (self.slots[cell] for cell in self.edge)
        without = _Move(state, False)
        mates = state.mates[near], state.mates[far]
        if INSIDE in mates:
            return [without]
        if mates[0] == self.edge[1]:
            closes = self.rules.is_closed and self._is_whole(state, near, far)
            return [_Move(self._closed(state), True), without] if closes else [without]
        size = state.sizes[near] + state.sizes[far]
        has_both_ends = mates == (ENDED, ENDED)
        if size > self.rules.group_size or (
            self.is_sized and has_both_ends and size != self.rules.group_size
        ):
            return [without]
        return [_Move(self._joined(state, size), True), without]

    def _is_whole(self, state: _State, near: int, far: int) -> bool:
        """Tell whether the path from one slot to the other has all its cells."""
        if self.is_sized:
            return state.sizes[near] == self.rules.group_size
        others = (mate for slot, mate in enumerate(state.mates) if slot not in (near, far))
        return self.is_last and all(mate == INSIDE for mate in others)

    def _closed(self, state: _State) -> _State:
        """Return the state after the edge has closed a cycle."""
        mates, sizes = list(state.mates), list(state.sizes)
        for cell in self.edge:
            mates[self.slots[cell]], sizes[self.slots[cell]] = INSIDE, 0
        return state._replace(mates=tuple(mates), sizes=tuple(sizes))

    def _joined(self, state: _State, size: int) -> _State:
        """Return the state after the edge has made one path of two."""
        near, far = (state.mates[self.slots[cell]] for cell in self.edge)
        state = self._closed(state)
        mates, sizes = list(state.mates), list(state.sizes)
        for end, other in ((near, far), (far, near)):
            if end != ENDED:
                mates[self.slots[end]], sizes[self.slots[end]] = other, size
        return state._replace(mates=tuple(mates), sizes=tuple(sizes))


@dataclass(frozen=True)
class _Leave:
    """The border leaves a cell behind: it has its neighbours, ends a path, or stays idle."""

    cell: int
    slot: int
    slots: dict[int, int]
    rules: CoverRules
    is_sized: bool
    num_forced: int
    """Ends that the cells after this one force: those with fewer than two neighbours."""

    def moves(self, state: _State) -> list[_Move]:
        mate, size = state.mates[self.slot], state.sizes[self.slot]
        slot = self.slot
        left = state._replace(
            mates=state.mates[:slot] + state.mates[slot + 1 :],
            sizes=state.sizes[:slot] + state.sizes[slot + 1 :],
        )
        if mate == INSIDE:
            return [] if self.cell in self.rules.ends else [_Move(left, False)]
        if mate == self.cell:
            if left.num_idle == 0:
                return []
            return [_Move(left._replace(num_idle=left.num_idle - 1), False)]
        return self._ended(left, mate, size) if self._may_end(state) else []

    def _may_end(self, state: _State) -> bool:
        """Tell whether a path may end at the cell."""
        if self.rules.is_closed or (self.rules.ends and self.cell not in self.rules.ends):
            return False
        forced = self.num_forced - 2 * state.num_idle
        return state.num_ends + max(forced, 0) < 2 * self.rules.num_groups

    def _ended(self, left: _State, mate: int, size: int) -> list[_Move]:
        """Return the state after the cell has become the end of its path."""
        mates = list(left.mates)
        if mate != ENDED:
            mates[self.slots[mate]] = ENDED
        elif self.is_sized and size != self.rules.group_size:
            return []
        return [_Move(left._replace(mates=tuple(mates), num_ends=left.num_ends + 1), False)]


@lru_cache(maxsize=4096)
def cover(num_cells: int, edges: Edges, rules: CoverRules, limit: int) -> Cover:
    """Return disjoint paths or cycles of neighbours.

    Parameters
    ----------
    num_cells
        The cells are 0 to ``num_cells`` - 1, in the order of the sweep. The cells that the
        groups do not need stay idle.
    edges
        Pairs of neighbours, the smaller number first.
    limit
        States after which the search gives up.
    """
    num_idle = num_cells - rules.num_groups * rules.group_size
    if num_idle < 0:
        return Cover(None, is_proven=True)
    if rules.group_size == 1:
        return Cover(tuple((cell,) for cell in range(rules.num_groups)), is_proven=True)
    is_sized = rules.num_groups > 1 or num_idle > 0
    if rules.is_closed and rules.group_size == 2:
        rules = CoverRules(2, rules.num_groups)
    steps = _steps(num_cells, edges, rules, is_sized)
    start = _State((), (), 0, num_idle)
    taken, is_proven = _search(steps, start, limit)
    if taken is None:
        return Cover(None, is_proven)
    chosen = [step.edge for step in (steps[index] for index in taken) if isinstance(step, _Join)]
    return Cover(_walks(chosen), is_proven=True)


def _steps(num_cells: int, edges: Edges, rules: CoverRules, is_sized: bool) -> list[_SweepStep]:
    """Return the steps of the sweep; a cell leaves the border after its last neighbour."""
    earlier: list[list[int]] = [[] for _ in range(num_cells)]
    last = list(range(num_cells))
    for near, far in sorted(edges):
        earlier[far].append(near)
        last[near] = max(last[near], far)
    degrees = Counter(cell for edge in edges for cell in edge)
    missing = [max(0, 2 - degrees[cell]) for cell in range(num_cells)]
    forced = sum(missing)
    steps: list[_SweepStep] = []
    border: list[int] = []
    for cell in range(num_cells):
        border.append(cell)
        slots = {each: slot for slot, each in enumerate(border)}
        steps.append(_Enter(cell, 1 if is_sized else 0))
        is_last = cell == num_cells - 1
        steps += [_Join((near, cell), slots, rules, is_sized, is_last) for near in earlier[cell]]
        for each in [each for each in border if last[each] <= cell]:
            slot = border.index(each)
            border.remove(each)
            slots = {other: index for index, other in enumerate(border)}
            forced -= missing[each]
            steps.append(_Leave(each, slot, slots, rules, is_sized, forced))
    return steps


def _search(
    steps: Sequence[_SweepStep], start: _State, limit: int
) -> tuple[list[int] | None, bool]:
    """Return the steps with an edge that is taken, or None; and whether that is proven."""
    seen: set[tuple[int, _State]] = set()
    taken = [False]
    ways: list[Iterator[_Move]] = [iter(steps[0].moves(start))]
    while ways:
        move = next(ways[-1], None)
        depth = len(ways)
        if move is None:
            ways.pop()
            taken.pop()
        elif depth == len(steps):
            if move.state.num_idle == 0:
                return [step for step, is_taken in enumerate(taken[1:]) if is_taken], True
        elif (depth, move.state) not in seen:
            seen.add((depth, move.state))
            if len(seen) > limit:
                return None, False
            ways.append(iter(steps[depth].moves(move.state)))
            taken.append(move.takes_edge)
    return None, True


def _walks(edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the paths and cycles that edges form, each from its smallest end or cell."""
    neighbours: dict[int, list[int]] = {}
    for near, far in edges:
        neighbours.setdefault(near, []).append(far)
        neighbours.setdefault(far, []).append(near)
    ends_first = sorted(neighbours, key=lambda cell: (len(neighbours[cell]), cell))
    walks = []
    seen: set[int] = set()
    for first in ends_first:
        walk: list[int] = []
        cell: int | None = None if first in seen else first
        while cell is not None:
            walk.append(cell)
            seen.add(cell)
            cell = next((near for near in sorted(neighbours[cell]) if near not in seen), None)
        if walk:
            walks.append(tuple(walk))
    return tuple(sorted(walks))


SEARCH_STATES = 100_000
"""States that one sweep of a search may visit before it gives up."""


@dataclass(frozen=True)
class Region:
    """Some devices, in the order of a sweep across the shorter side of their extent."""

    devices: tuple[int, ...]
    edges: Edges
    """Neighbours, as pairs of indices in ``devices``, the smaller first."""

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the neighbours of each device."""
        found: list[list[int]] = [[] for _ in self.devices]
        for near, far in self.edges:
            found[near].append(far)
            found[far].append(near)
        return tuple(tuple(each) for each in found)

    @cached_property
    def colours(self) -> tuple[int, ...] | None:
        """0 or 1 for each device so that neighbours differ; None where that cannot be."""
        colours = [-1] * len(self.devices)
        for part in self.parts:
            colours[part[0]] = 0
            for cell in part:
                for near in self.neighbours[cell]:
                    if colours[near] == colours[cell]:
                        return None
                    colours[near] = 1 - colours[cell]
        return tuple(colours)

    @cached_property
    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each connected part, each device after one of its neighbours."""
        seen: set[int] = set()
        parts = []
        for first in range(len(self.devices)):
            if first not in seen:
                part = [first]
                seen.add(first)
                for cell in part:
                    new = [near for near in self.neighbours[cell] if near not in seen]
                    part += new
                    seen.update(new)
                parts.append(tuple(part))
        return tuple(parts)

    def of(self, devices: Iterable[int]) -> Region:
        """Return the region of some of the devices."""
        wanted = set(devices)
        return self.swept([i for i, device in enumerate(self.devices) if device in wanted])

    def swept(self, indices: Sequence[int]) -> Region:
        """Return some or all of the devices, in another order, given by their indices."""
        place = {index: new for new, index in enumerate(indices)}
        pairs = ((place[a], place[b]) for a, b in self.edges if a in place and b in place)
        edges = tuple(sorted((min(pair), max(pair)) for pair in pairs))
        return Region(tuple(self.devices[index] for index in indices), edges)


def make_region(network: Network, devices: Iterable[int] | None = None) -> Region:
    """Return the region of some working devices (all if not given).

    Neighbours have a link in both directions. On a grid the sweep goes along its longer side.
    """
    working = network.alive
    chosen = working if devices is None else np.intersect1d(working, list(devices))
    if len(network.grid_shape) == 2:
        row, column = np.divmod(chosen, network.grid_shape[1])
        is_wide = np.ptp(column) >= np.ptp(row) if len(chosen) else True
        chosen = chosen[np.lexsort((row, column) if is_wide else (column, row))]
    index_of = np.full(network.num_nodes, -1, dtype=np.int64)
    index_of[chosen] = np.arange(len(chosen))
    near, far = index_of[network.source], index_of[network.target]
    is_inside = (near >= 0) & (far >= 0)
    pairs = set(zip(near[is_inside].tolist(), far[is_inside].tolist(), strict=True))
    edges = tuple(sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs))
    return Region(tuple(chosen.tolist()), edges)


def hamiltonian_path(
    region: Region, ends: tuple[int, int] | None = None, *, limit: int = SEARCH_STATES
) -> Cover:
    """Return a path of neighbours through every device; from one given device to another if given.

    The answer is proven where the search was not cut short; that of 24 cells of a grid never is.
    """
    if ends is None:
        return cover_region(region, len(region.devices), limit=limit)
    if len(set(ends) & set(region.devices)) < min(2, len(region.devices)):
        return Cover(None, is_proven=True)
    cells = frozenset(region.devices.index(device) for device in ends)
    rules = CoverRules(len(region.devices), 1, ends=cells)
    if _is_refused(region, rules):
        return Cover(None, is_proven=True)
    found = _named(region, cover(len(region.devices), region.edges, rules, limit))
    if found.groups is None or found.groups[0][0] == ends[0]:
        return found
    return Cover((found.groups[0][::-1],), found.is_proven)


def hamiltonian_cycle(region: Region, *, limit: int = SEARCH_STATES) -> Cover:
    """Return a cycle of neighbours through every device; one wire makes a cycle of two."""
    return cover_region(region, len(region.devices), is_closed=True, limit=limit)


def cover_region(
    region: Region,
    group_size: int,
    num_groups: int = 1,
    *,
    is_closed: bool = False,
    limit: int = SEARCH_STATES,
) -> Cover:
    """Return disjoint paths (or cycles) of neighbours, ``group_size`` devices each.

    The devices that the groups do not need stay idle. Short sweeps from all sides come first.
    """
    rules = CoverRules(group_size, num_groups, is_closed)
    if _is_refused(region, rules):
        return Cover(None, is_proven=True)
    found = Cover(None, is_proven=False)
    for states in (limit // 10, limit):
        for sweep in _sweeps(region):
            found = cover(len(sweep.devices), sweep.edges, rules, states)
            if found.is_proven:
                return _named(sweep, found)
    return found


def _sweeps(region: Region) -> Iterator[Region]:
    """Yield the region as it is, from its other end, and both ways in the order of the numbers.

    An obstacle to a cover is found late by one sweep and soon by another.
    """
    forward = tuple(range(len(region.devices)))
    by_number = tuple(sorted(forward, key=lambda index: region.devices[index]))
    for indices in dict.fromkeys((forward, forward[::-1], by_number, by_number[::-1])):
        yield region if indices == forward else region.swept(indices)


def _named(region: Region, found: Cover) -> Cover:
    """Return a cover by the numbers of the devices."""
    if found.groups is None:
        return found
    groups = tuple(tuple(region.devices[cell] for cell in group) for group in found.groups)
    return Cover(groups, found.is_proven)


def _is_refused(region: Region, rules: CoverRules) -> bool:
    """Tell whether counts alone prove that there is no cover."""
    num_idle = len(region.devices) - rules.num_groups * rules.group_size
    if num_idle < 0 or rules.group_size == 1:
        return num_idle < 0
    closes = rules.is_closed and rules.group_size > 2
    if _num_missing(region) > 2 * num_idle + (0 if closes else 2 * rules.num_groups):
        return True
    if num_idle == 0 and any(len(part) % rules.group_size for part in region.parts):
        return True
    return _is_off_balance(region, rules, num_idle, closes=closes)


def _num_missing(region: Region) -> int:
    """Return the number of neighbours that the devices lack to have two each."""
    return sum(max(0, 2 - len(near)) for near in region.neighbours)


def _is_off_balance(region: Region, rules: CoverRules, num_idle: int, *, closes: bool) -> bool:
    """Tell whether one colour of the chessboard has too many devices.

    A path takes the colours in turn, so it has at most one more of one of them; a cycle has as
    many of each.
    """
    if region.colours is None:
        return False
    is_odd = rules.group_size % 2
    if closes and is_odd:
        return True
    surplus = 2 * sum(region.colours) - len(region.devices)
    if abs(surplus) > num_idle + is_odd * rules.num_groups:
        return True
    ends = [1 if region.colours[cell] else -1 for cell in rules.ends]
    return len(ends) == 2 and sum(ends) != 2 * surplus
