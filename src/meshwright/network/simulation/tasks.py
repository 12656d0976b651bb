"""Tasks and their order: computations, transfers, dependencies; and the times of a run of them.

A computation occupies a serial resource: one task at a time on each track of a device. A transfer
takes bandwidth on every link of its route at one rate: along a path, or down a multicast tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.records import Listed, Rows
from meshwright.base.units import format_seconds
from meshwright.network.routing import Routes
from meshwright.topology.network import Network


@dataclass(frozen=True)
class TaskGraph:
    """Tasks as columns; the tasks that each waits for are in compressed rows."""

    names: tuple[str, ...]
    device: IntArray
    """Device that computes or sends."""
    track: IntArray
    """Index in ``tracks``: compute, or the axis that communicates."""
    tracks: tuple[str, ...]
    is_transfer: BoolArray
    duration_s: FloatArray
    """Seconds of a computation; 0 for transfers."""
    num_bytes: FloatArray
    """Payload of a transfer [bytes]; 0 for computations."""
    overhead_bytes: FloatArray
    """Bytes that a message occupies its links for on top of its payload: m_half."""
    latency_s: FloatArray
    """Seconds from the start of a transfer to its first byte; 0 for computations."""
    routes: Routes
    """Links of each transfer, each link once; an empty row for computations."""
    start_s: FloatArray
    """When a task may start at the earliest [s]."""
    needs_offsets: IntArray
    needs: IntArray
    """Task i waits for ``needs[needs_offsets[i]:needs_offsets[i + 1]]``."""

    def __len__(self) -> int:
        return len(self.device)


def offsets_of(counts: IntArray) -> IntArray:
    """Return the start of each compressed row, from the lengths, and the end of the last one."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def flow_graph(
    routes: Routes, num_bytes: FloatArray, latency_s: FloatArray, start_s: FloatArray,
    after: Sequence[Sequence[int]] = (),
) -> TaskGraph:  # fmt: skip
    """Return transfers without a message overhead, and the transfers that each waits for."""
    count = len(routes)
    none = np.zeros(count, dtype=np.int64)
    return TaskGraph(
        names=("",) * count,
        device=none,
        track=none,
        tracks=("transfer",),
        is_transfer=np.ones(count, dtype=bool),
        duration_s=np.zeros(count),
        num_bytes=num_bytes,
        overhead_bytes=np.zeros(count),
        latency_s=latency_s,
        routes=routes,
        start_s=start_s,
        needs_offsets=offsets_of(np.array([len(waits) for waits in after or [()] * count])),
        needs=np.array(list(chain.from_iterable(after)), dtype=np.int64),
    )


def links_before(route: IntArray, link: IntArray, network: Network) -> IntArray:
    """Return for each link of each route the place of the one that leads to it; -1 for none.

    Parameters
    ----------
    route, link
        Number of a route, and one of its links; -1 for no link.
    """
    begins = route * network.num_nodes + network.source[link]
    ends = route * network.num_nodes + network.target[link]
    begins[link < 0], ends[link < 0] = -1, -2
    order = np.argsort(ends, kind="stable")
    found = order[np.minimum(np.searchsorted(ends, begins, sorter=order), len(order) - 1)]
    return np.where(ends[found] == begins, found, -1)


def deepest_latency_s(routes: Routes, network: Network) -> FloatArray:
    """Return the latency of the longest way from the sender down each route [s].

    Of a path the sum of its links; of a tree that of the receiver which is reached last.
    """
    route = np.repeat(np.arange(len(routes)), routes.num_hops)
    link = routes.links
    follows = (route[1:] == route[:-1]) & (network.source[link[1:]] != network.target[link[:-1]])
    if not follows.any():
        return routes.latency_s(network)
    reach_s, before = network.latency_s[link], links_before(route, link, network)
    while (goes_on := before >= 0).any():
        reach_s = reach_s + np.where(goes_on, reach_s[before], 0.0)
        before = np.where(goes_on, before[before], -1)
    deepest = np.zeros(len(routes))
    np.maximum.at(deepest, route, reach_s)
    return deepest


NONE = -1
"""Marks that there is no task to wait for."""


class _TaskBlock(NamedTuple):
    """Tasks that were added together: one value for all of them, or a column."""

    name: str
    track: int
    size: int
    routes: Routes | None
    device: IntArray
    duration_s: float | FloatArray
    num_bytes: float | FloatArray
    overhead_bytes: float | FloatArray
    latency_s: float | FloatArray
    start_s: float
    needs: IntArray
    """Tasks that they wait for, entry by entry of ``after``: one for each task, or ``NONE``."""


class TaskGraphBuilder:
    """Collects blocks of tasks in order; each call returns the numbers of its tasks.

    Arguments are one value for all tasks of a block, or one for each. ``after`` lists the tasks
    they wait for: each entry is one task for all, or one for each, -1 where there is none.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._tracks: dict[str, int] = {}
        self._blocks: list[_TaskBlock] = []
        self._senders: dict[int, tuple[Routes, IntArray, FloatArray, FloatArray]] = {}
        self._count = 0

    def compute(
        self,
        device: IntArray,
        duration_s: float | FloatArray,
        *,
        after: Iterable[int | IntArray] = (),
        track: str = "compute",
        name: str = "",
        start_s: float = 0.0,
    ) -> IntArray:
        """Add one computation on each device, and return their numbers."""
        count = len(device)
        return self._add(_TaskBlock(
            name, self._track(track), count, None, device, duration_s, 0.0, 0.0, 0.0, start_s,
            _needs(after, count),
        ))  # fmt: skip

    def transfer(
        self,
        routes: Routes,
        num_bytes: float | FloatArray,
        *,
        after: Iterable[int | IntArray] = (),
        track: str = "transfer",
        name: str = "",
        start_s: float = 0.0,
    ) -> IntArray:
        """Add one transfer over each path or tree, and return their numbers.

        It arrives the latency of its longest way later, and occupies its links for m_half of the
        first one, which begins at the sender, in addition to its bytes.
        """
        if id(routes) not in self._senders:
            moves = routes.num_hops > 0
            first = routes.links[routes.offsets[:-1][moves]]
            device, overhead = np.zeros(len(routes), dtype=np.int64), np.zeros(len(routes))
            device[moves] = self.network.source[first]
            overhead[moves] = self.network.message_half_bytes[first]
            latency_s = deepest_latency_s(routes, self.network)
            self._senders[id(routes)] = routes, device, overhead, latency_s
        _, device, overhead, latency_s = self._senders[id(routes)]
        return self._add(_TaskBlock(
            name, self._track(track), len(routes), routes, device, 0.0, num_bytes, overhead,
            latency_s, start_s, _needs(after, len(routes)),
        ))  # fmt: skip

    def _track(self, name: str) -> int:
        return self._tracks.setdefault(name, len(self._tracks))

    def _add(self, block: _TaskBlock) -> IntArray:
        """Add a block, and return the numbers of its tasks."""
        self._blocks.append(block)
        self._count += block.size
        return np.arange(self._count - block.size, self._count)

    def build(self) -> TaskGraph:
        """Return the graph of everything that was added."""
        blocks = self._blocks
        sizes = np.array([block.size for block in blocks], dtype=np.int64)
        first = offsets_of(sizes)
        spans = list(zip(blocks, first[:-1].tolist(), first[1:].tolist(), strict=True))

        def column(name: str) -> FloatArray:
            values = np.empty(self._count)
            for block, begin, end in spans:
                values[begin:end] = getattr(block, name)
            return values

        hops = np.zeros(self._count, dtype=np.int64)
        for block, begin, end in spans:
            if block.routes is not None:
                hops[begin:end] = block.routes.num_hops
        # Needs are listed entry after entry; a task has the place of its own in each.
        num_needs = np.array([len(block.needs) for block in blocks], dtype=np.int64)
        place = np.arange(num_needs.sum()) - np.repeat(offsets_of(num_needs)[:-1], num_needs)
        waiting = np.repeat(first[:-1], num_needs) + place % np.repeat(sizes, num_needs)
        needs = _joined([block.needs for block in blocks])
        waiting, needs = waiting[needs != NONE], needs[needs != NONE]
        return TaskGraph(
            names=tuple(chain.from_iterable(repeat(b.name, b.size) for b in blocks)),
            device=_joined([block.device for block in blocks]),
            track=np.repeat(np.array([block.track for block in blocks], dtype=np.int64), sizes),
            tracks=tuple(self._tracks),
            is_transfer=hops > 0,
            duration_s=column("duration_s"),
            num_bytes=column("num_bytes"),
            overhead_bytes=column("overhead_bytes"),
            latency_s=column("latency_s"),
            routes=Routes(
                offsets_of(hops), _joined([b.routes.links for b in blocks if b.routes is not None])
            ),
            start_s=column("start_s"),
            needs_offsets=offsets_of(np.bincount(waiting, minlength=self._count)),
            needs=needs[np.argsort(waiting, kind="stable")],
        )


def _needs(after: Iterable[int | IntArray], count: int) -> IntArray:
    """Return the tasks that each task of a block waits for, entry by entry."""
    if isinstance(after, np.ndarray) and after.ndim == 2:
        return after.ravel()
    return _joined([n if isinstance(n, np.ndarray) else np.full(count, n) for n in after])


def _joined(columns: Sequence[IntArray]) -> IntArray:
    """Return columns after one another."""
    return np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Timeline(Listed):
    """A simulated run, as columns: one row for each task, and one for each change of a link."""

    task_name: tuple[str, ...]
    device: IntArray
    """Device that a task ran on or was sent from."""
    track: IntArray
    """Index in ``tracks``: compute, or the axis that communicates."""
    start_s: FloatArray
    end_s: FloatArray
    tracks: tuple[str, ...]
    link: IntArray
    """Links with a new rate."""
    change_s: FloatArray
    """When it changed, in order of time [s]."""
    rate_bytes_per_s: FloatArray
    """Rate of the link from then on [bytes/s]."""

    def brief(self) -> str:
        """Return when the last task ends."""
        return f"{len(self.task_name):,} tasks end within {format_seconds(self.makespan_s)}"

    def rows(self) -> Rows:
        """Return the tasks."""
        rows = zip(self.task_name, self.device.tolist(), self.track.tolist(),
                   self.start_s.tolist(), self.end_s.tolist(), strict=True)  # fmt: skip
        return [
            {"task": name, "device": device, "track": self.tracks[track], "start_s": start_s,
             "end_s": end_s}
            for name, device, track, start_s, end_s in rows
        ]  # fmt: skip

    @property
    def makespan_s(self) -> float:
        """End of the last task [s]."""
        return float(self.end_s.max(initial=0.0))

    def carried_bytes(self, num_links: int) -> FloatArray:
        """Return the total bytes of each link."""
        order = np.argsort(self.link, kind="stable")
        link, at_s, rate = self.link[order], self.change_s[order], self.rate_bytes_per_s[order]
        same = link[1:] == link[:-1]
        carried = (rate[:-1] * np.diff(at_s))[same]
        total: FloatArray = np.bincount(link[:-1][same], carried, num_links).astype(np.float64)
        return total


@dataclass(frozen=True)
class LinkLoad:
    """Mean load of links in each of several equal parts of a run."""

    edges_s: FloatArray
    """Starts of the parts, and the end of the last one [s]."""
    load_fraction: FloatArray
    """Rate of a link over its bandwidth, mean over the links and the part of the run [1]."""


def link_use(timeline: Timeline, network: Network, num_parts: int) -> LinkLoad:
    """Return the use of the links of a network over time."""
    link, at_s = timeline.link, timeline.change_s
    load = timeline.rate_bytes_per_s / network.bandwidth_bytes_per_s[link]
    edges_s = np.linspace(0.0, timeline.makespan_s, num_parts + 1)
    whole = network.num_links * np.diff(edges_s)
    area = _integral(link, at_s, load, edges_s)
    return LinkLoad(edges_s, area / np.where(whole > 0, whole, 1.0))


def _integral(
    link: IntArray, at_s: FloatArray, level: FloatArray, edges_s: FloatArray
) -> FloatArray:
    """Return the integral over each part of the sum over links of levels that change in steps."""
    times = np.concatenate(([0.0], at_s))
    slope = np.concatenate(([0.0], np.cumsum(level - _before(link, level))))
    area = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(times))))
    beyond = np.clip(edges_s - times[-1], 0.0, None) * slope[-1]
    parts: FloatArray = np.diff(np.interp(edges_s, times, area) + beyond)
    return parts


def _before(link: IntArray, level: FloatArray) -> FloatArray:
    """Return the level of each row's link before the row, in order of time."""
    order = np.argsort(link, kind="stable")
    before = np.zeros(len(level))
    follows = np.flatnonzero(np.diff(link[order]) == 0) + 1
    before[order[follows]] = level[order[follows - 1]]
    return before


def link_utilisation(timeline: Timeline, network: Network) -> FloatArray:
    """Return the share of its bandwidth that each link carried over the whole run [1]."""
    carried = timeline.carried_bytes(network.num_links)
    used: FloatArray = carried / (network.bandwidth_bytes_per_s * timeline.makespan_s)
    return used


def critical_path(graph: TaskGraph, timeline: Timeline) -> IntArray:
    """Return tasks, the last one first; each began when the next one ended.

    A task waits for the need that ended last, or for the task before it on its track of its
    device, whichever ended later.
    """
    before = _before_on_resource(graph, timeline)
    task = int(np.argmax(timeline.end_s))
    path = [task]
    while (cause := _cause(graph, timeline, before, task)) >= 0:
        path.append(cause)
        task = cause
    return np.array(path, dtype=np.int64)


def seconds_by_track(graph: TaskGraph, timeline: Timeline, path: IntArray) -> dict[str, float]:
    """Return the seconds of a critical path by track; they sum to the makespan [s].

    A task counts from the end of its cause, so its wait for a stated start counts as its own.
    """
    ends = timeline.end_s[path]
    spent: FloatArray = ends - np.append(ends[1:], 0.0)
    totals = np.bincount(graph.track[path], spent, len(graph.tracks))
    return dict(zip(graph.tracks, totals.tolist(), strict=True))


def _cause(graph: TaskGraph, timeline: Timeline, before: IntArray, task: int) -> int:
    """Return the task that a task waited for; -1 where nothing came before it."""
    needs = graph.needs[graph.needs_offsets[task] : graph.needs_offsets[task + 1]].tolist()
    causes = [*needs, *([int(before[task])] if before[task] >= 0 else [])]
    return max(causes, key=lambda cause: timeline.end_s[cause], default=-1)


def _before_on_resource(graph: TaskGraph, timeline: Timeline) -> IntArray:
    """Return the computation that ran before each one on its track of its device; -1 for none."""
    before = np.full(len(graph), -1, dtype=np.int64)
    computes = np.flatnonzero(~graph.is_transfer)
    resource = graph.device[computes] * len(graph.tracks) + graph.track[computes]
    order = computes[np.lexsort((computes, timeline.start_s[computes], resource))]
    same = np.diff(graph.device[order] * len(graph.tracks) + graph.track[order]) == 0
    before[order[1:][same]] = order[:-1][same]
    return before
