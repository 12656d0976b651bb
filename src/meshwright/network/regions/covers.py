"""Cover a graph with disjoint paths or cycles of equal length: exact, by a sweep over its cells.

The cells are passed in a given order. What a part of a cover leaves open is known from the cells
at the border of the sweep alone: which of them are ends of one path, and how long it is. So a
search that goes deep first and never enters a state twice finds a cover soon where there are many,
and proves that there is none by a number of states that grows with the width of the border, not
with the number of paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

INSIDE = -1
"""Mate of a cell that has both its neighbours."""
ENDED = -2
"""Mate of a cell whose path has its other end behind the sweep."""

Edges = tuple[tuple[int, int], ...]


class Cover(NamedTuple):
    """Paths or cycles that cover the cells, or none."""

    groups: tuple[tuple[int, ...], ...] | None
    """Cells of each, neighbour after neighbour."""
    is_proven: bool
    """False where the search stopped at its limit: there may be a cover."""


@dataclass(frozen=True)
class CoverRules:
    """What is asked for."""

    group_size: int
    """Cells of each path or cycle."""
    num_groups: int
    is_closed: bool = False
    """Cycles instead of paths; of fewer than three cells, a path is both."""
    ends: frozenset[int] = frozenset()
    """The two ends of a single path; empty where any will do."""


class _State(NamedTuple):
    """What the sweep has left open; the same slots for all states of one step."""

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


class _Step(Protocol):
    def moves(self, state: _State) -> list[_Move]:
        """Return what may follow, the most wanted first."""


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


def _steps(num_cells: int, edges: Edges, rules: CoverRules, is_sized: bool) -> list[_Step]:
    """Return the steps of the sweep; a cell leaves the border after its last neighbour."""
    earlier: list[list[int]] = [[] for _ in range(num_cells)]
    last = list(range(num_cells))
    for near, far in sorted(edges):
        earlier[far].append(near)
        last[near] = max(last[near], far)
    degrees = Counter(cell for edge in edges for cell in edge)
    missing = [max(0, 2 - degrees[cell]) for cell in range(num_cells)]
    forced = sum(missing)
    steps: list[_Step] = []
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


def _search(steps: Sequence[_Step], start: _State, limit: int) -> tuple[list[int] | None, bool]:
    """Return the steps whose edge is taken, or None; and whether that is proven."""
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
