"""Regions: devices of a network with the wires that live between them, and paths through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.network.regions.covers import Cover, CoverRules, Edges, cover
from meshwright.topology.network import Network

SEARCH_STATES = 100_000
"""States that one sweep of a search may visit before it gives up."""


@dataclass(frozen=True)
class Region:
    """Some devices, in the order of a sweep across the shorter side of what they span."""

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
        for part in self._parts:
            colours[part[0]] = 0
            for cell in part:
                for near in self.neighbours[cell]:
                    if colours[near] == colours[cell]:
                        return None
                    colours[near] = 1 - colours[cell]
        return tuple(colours)

    @cached_property
    def _parts(self) -> tuple[tuple[int, ...], ...]:
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

    @property
    def parts(self) -> tuple[IntArray, ...]:
        """Devices of each connected part, ascending; the largest part first."""
        parts = (np.sort(np.array(self.devices, dtype=np.int64)[list(p)]) for p in self._parts)
        return tuple(sorted(parts, key=lambda part: (-len(part), int(part[0]))))

    def of(self, devices: Iterable[int]) -> Region:
        """Return the region of some of the devices."""
        wanted = set(devices)
        kept = [index for index, device in enumerate(self.devices) if device in wanted]
        index_of = {index: new for new, index in enumerate(kept)}
        edges = ((index_of.get(near, -1), index_of.get(far, -1)) for near, far in self.edges)
        return Region(
            tuple(self.devices[index] for index in kept),
            tuple(edge for edge in edges if min(edge) >= 0),
        )

    def swept(self, indices: Sequence[int]) -> Region:
        """Return the same devices in another order, given by their indices."""
        place = {index: new for new, index in enumerate(indices)}
        pairs = ((place[near], place[far]) for near, far in self.edges)
        edges = tuple(sorted((min(pair), max(pair)) for pair in pairs))
        return Region(tuple(self.devices[index] for index in indices), edges)

    def with_hops(self, num_hops: int) -> Region:
        """Return the devices with an edge between any two that are at most so many hops apart."""
        reach = [{index} for index in range(len(self.devices))]
        for _ in range(num_hops):
            reach = [set().union(cells, *(self.neighbours[c] for c in cells)) for cells in reach]
        edges = ((near, far) for near, cells in enumerate(reach) for far in cells if near < far)
        return Region(self.devices, tuple(sorted(edges)))


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

    What blocks a cover is found late by one sweep and soon by another.
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
    """Tell whether counting alone proves that there is no cover."""
    num_idle = len(region.devices) - rules.num_groups * rules.group_size
    if num_idle < 0 or rules.group_size == 1:
        return num_idle < 0
    closes = rules.is_closed and rules.group_size > 2
    if _num_missing(region) > 2 * num_idle + (0 if closes else 2 * rules.num_groups):
        return True
    if num_idle == 0 and any(len(part) % rules.group_size for part in region._parts):
        return True
    return _is_off_balance(region, rules, num_idle, closes=closes)


def _num_missing(region: Region) -> int:
    """Return how many neighbours the devices lack to have two each."""
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
