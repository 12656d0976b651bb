"""Runs a task graph on links: when each task starts and ends, and what the links carry."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.network.simulation.fluid import play, start
from meshwright.network.simulation.heap import make_heap
from meshwright.network.simulation.state import (
    longer_log,
    make_log,
    make_progress,
    make_sharing,
    make_work,
)
from meshwright.network.simulation.tasks import TaskGraph
from meshwright.network.simulation.timeline import Timeline
from meshwright.topology.network import Network


def simulate(graph: TaskGraph, network: Network, *, record_links: bool = True) -> Timeline:
    """Return when the tasks of a graph run on a network.

    Parameters
    ----------
    record_links
        Whether the timeline holds what each link carries over time.

    Raises
    ------
    ValueError
        When tasks wait for one another in a circle.
    """
    return run_tasks(graph, network.bandwidth_bytes_per_s, record_links=record_links)


def run_tasks(
    graph: TaskGraph, bandwidth_bytes_per_s: FloatArray, *, record_links: bool = True
) -> Timeline:
    """Return when the tasks of a graph run on links of these bandwidths; see :func:`simulate`."""
    work = make_work(graph)
    num_resources = int(work.resource.max(initial=-1)) + 1
    progress = make_progress(graph, num_resources)
    num_links = len(bandwidth_bytes_per_s)
    sharing, shares = make_sharing(work, bandwidth_bytes_per_s), make_heap(num_links)
    events = make_heap(len(graph))
    log = make_log(2 * (len(work.links) + num_links) + 1 if record_links else 0)
    start(work, progress, events)
    while not play(work, progress, sharing, shares, events, log):
        log = longer_log(log)
    stuck = np.flatnonzero(np.isnan(progress.end_s))
    if len(stuck):
        first = ", ".join(f"{task} {graph.names[task]}".rstrip() for task in stuck[:3].tolist())
        raise ValueError(f"{len(stuck)} tasks wait for one another in a circle: {first}")
    used = log.num_rows[0]
    return Timeline(
        task_name=graph.names,
        device=graph.device,
        track=graph.track,
        start_s=progress.begin_s,
        end_s=progress.end_s,
        tracks=graph.tracks,
        link=log.link[:used],
        change_s=log.change_s[:used],
        rate_bytes_per_s=log.rate[:used],
    )
