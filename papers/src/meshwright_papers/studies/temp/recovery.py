"""Recovery of stream groups after faults, the least change first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.network.blocks import connected_parts
from meshwright.network.regions import Cover, Region, cover_region, make_region
from meshwright.topology.network import Network

RECOVERY_STATES = 10_000
"""States that one search may visit before it gives up."""


class Action(StrEnum):
    """Kinds of recovery, the least change first."""

    KEPT = "kept"
    REORDERED = "reordered"
    """Each group has the devices it had, in another order."""
    REGROUPED = "regrouped"
    """Groups of the same size from other devices."""
    DILATED = "dilated"
    """Some neighbours of a group are two hops apart: their messages pass through a device."""
    SHRUNK = "shrunk"
    """Equally many groups, of fewer devices."""
    IMPOSSIBLE = "impossible"
    """Fewer devices reach each other than there are groups."""


@dataclass(frozen=True)
class Recovery:
    """The groups after faults; single devices where no groups are possible."""

    action: Action
    groups: IntArray
    """Devices of each group, neighbour after neighbour, (num_groups, group_size)."""
    is_closed: bool
    """Whether the groups are cycles."""
    longest_hop: int
    """Links between consecutive members, at most."""
    idle: IntArray
    """Devices that work and are not used."""
    undecided: frozenset[Action]
    """Lesser changes, or larger groups, that may be possible: their search hit its limit."""

    @property
    def group_size(self) -> int:
        """Devices of each group."""
        return int(self.groups.shape[1])


@dataclass(frozen=True)
class _Attempt:
    """One way to go on."""

    action: Action
    found: Cover
    is_closed: bool = False
    longest_hop: int = 1


Rate = Callable[[Network, Recovery], float]
"""Rate of a recovered plan on the rest of a network, relative to the whole one [1]."""


def recover(
    network: Network,
    groups: IntArray,
    *,
    is_closed: bool = False,
    rate: Rate | None = None,
    limit: int = RECOVERY_STATES,
) -> Recovery:
    """Return groups of consecutive neighbours on working devices, with the least change found.

    Kept; the same devices in another order; other devices; cycles opened to paths; paths with
    members two hops apart; equally many groups of the largest size that works. All groups are in
    the largest connected part. On a switch any device is as near as any other.

    Parameters
    ----------
    network
        The network with its faults.
    groups
        Devices of each group before them, (num_groups, group_size).
    is_closed
        Whether the groups are cycles.
    rate
        Chooses between members two hops apart and smaller groups; 0 where memory does not suffice.
        If not given, the groups keep their size where they can.
    limit
        States after which each sweep of a search gives up; then the next way is tried.
    """
    parts = connected_parts(network)
    largest = parts[0] if parts else np.zeros(0, dtype=np.int64)
    if len(largest) < len(groups):
        single = _as_cover(largest.reshape(-1, 1))
        return _recovery(network, _Attempt(Action.IMPOSSIBLE, single), set())
    region = make_region(network, largest.tolist())
    ways = _on_wires if region.edges else _on_switches
    undecided: set[Action] = set()
    found = []
    for attempt in ways(region, groups, is_closed, limit):
        if attempt.found.groups is not None:
            found.append(_recovery(network, attempt, undecided))
            if rate is None or attempt.action is not Action.DILATED:
                break
        elif not attempt.found.is_proven:
            undecided.add(attempt.action)
    if rate is None:
        return found[0]
    rates = [rate(network, recovery) for recovery in found]
    return found[rates.index(max(rates))]


def _as_cover(groups: IntArray) -> Cover:
    """Return groups unchanged."""
    return Cover(tuple(tuple(group) for group in groups.tolist()), is_proven=True)


def _recovery(network: Network, attempt: _Attempt, undecided: set[Action]) -> Recovery:
    """Return the recovery that an attempt has found."""
    found = attempt.found.groups or ()
    groups = np.array(found, dtype=np.int64).reshape(len(found), -1 if found else 1)
    idle = np.setdiff1d(network.alive, groups)
    hop = attempt.longest_hop
    closed = attempt.is_closed
    return Recovery(attempt.action, groups, closed, hop, idle, frozenset(undecided))


def _on_wires(region: Region, groups: IntArray, is_closed: bool, limit: int) -> Iterator[_Attempt]:
    """Yield the ways to go on where devices have wires between them, the least change first."""
    num_groups, size = groups.shape
    kept = _as_cover(groups) if _are_whole(region, groups, is_closed) else _NONE
    yield _Attempt(Action.KEPT, kept, is_closed)
    for closes in (True, False) if is_closed else (False,):
        yield _Attempt(Action.REORDERED, _reordered(region, groups, closes, limit), closes)
        found = cover_region(region, size, num_groups, is_closed=closes, limit=limit)
        yield _Attempt(Action.REGROUPED, found, closes)
    found = cover_region(_with_hops(region, 2), size, num_groups, limit=limit)
    yield _Attempt(Action.DILATED, found, longest_hop=2)
    for smaller in range(min(size - 1, len(region.devices) // num_groups), 0, -1):
        found = cover_region(region, smaller, num_groups, limit=limit)
        yield _Attempt(Action.SHRUNK, found)


def _with_hops(region: Region, num_hops: int) -> Region:
    """Return the devices with an edge between any two that are at most this many hops apart."""
    reach = [{index} for index in range(len(region.devices))]
    for _ in range(num_hops):
        reach = [set().union(cells, *(region.neighbours[c] for c in cells)) for cells in reach]
    edges = ((near, far) for near, cells in enumerate(reach) for far in cells if near < far)
    return Region(region.devices, tuple(sorted(edges)))


def _on_switches(
    region: Region, groups: IntArray, is_closed: bool, limit: int
) -> Iterator[_Attempt]:
    """Yield the ways to go on where all devices are as near to each other."""
    num_groups, size = groups.shape
    kept = _as_cover(groups) if np.isin(groups, region.devices).all() else _NONE
    yield _Attempt(Action.KEPT, kept, is_closed)
    fits = min(size, len(region.devices) // num_groups)
    chosen = np.array(region.devices[: num_groups * fits]).reshape(num_groups, fits)
    action = Action.REGROUPED if fits == size else Action.SHRUNK
    yield _Attempt(action, _as_cover(chosen), is_closed)


_NONE = Cover(None, is_proven=True)


def _are_whole(region: Region, groups: IntArray, is_closed: bool) -> bool:
    """Tell whether all devices work and consecutive ones are neighbours."""
    pairs = {(region.devices[near], region.devices[far]) for near, far in region.edges}
    ahead = np.roll(groups, -1, axis=1)
    steps = np.stack((groups, ahead), axis=2)[:, : None if is_closed else -1].reshape(-1, 2)
    if groups.shape[1] == 1:
        return bool(np.isin(groups, region.devices).all())
    return all((a, b) in pairs or (b, a) in pairs for a, b in steps.tolist())


def _reordered(region: Region, groups: IntArray, is_closed: bool, limit: int) -> Cover:
    """Return each group with its own devices as a path or cycle, if all of them have one."""
    size = groups.shape[1]
    found: list[tuple[int, ...]] = []
    for group in groups.tolist():
        cover = cover_region(region.of(group), size, is_closed=is_closed, limit=limit)
        if cover.groups is None:
            return cover
        found += cover.groups
    return Cover(tuple(found), is_proven=True)
