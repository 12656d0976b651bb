"""Results of a run: the times of tasks on devices, and the rates of the links over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.records import Listed, Rows
from meshwright.base.units import format_seconds
from meshwright.network.simulation.tasks import TaskGraph
from meshwright.topology.network import Network


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
