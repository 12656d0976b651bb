"""Which tasks a run waited for: from the last end back to the start, each as late as its cause."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.simulation.tasks import TaskGraph
from meshwright.network.simulation.timeline import Timeline


def critical_path(graph: TaskGraph, timeline: Timeline) -> IntArray:
    """Return tasks, the last one first, of which each began when the next one ended.

    What a task waits for is the need that ended last, or the task before it on its track of its
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

    A task counts from the end of its cause, so what it waited (for a stated start) is its own.
    """
    ends = timeline.end_s[path]
    spent: FloatArray = ends - np.append(ends[1:], 0.0)
    totals = np.bincount(graph.track[path], spent, len(graph.tracks))
    return dict(zip(graph.tracks, totals.tolist(), strict=True))


def _cause(graph: TaskGraph, timeline: Timeline, before: IntArray, task: int) -> int:
    """Return what a task waited for; -1 where nothing came before it."""
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
