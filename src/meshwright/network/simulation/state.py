"""The arrays that the engine works on; made once for a run, changed by the kernels in ``fluid``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.simulation.heap import Heap, make_heap
from meshwright.network.simulation.tasks import TaskGraph, offsets_of


class Work(NamedTuple):
    """What a task graph asks for; nothing here changes."""

    resource: IntArray
    """Serial resource of a computation; -1 for transfers."""
    wait_s: FloatArray
    """How long a computation takes, or a transfer waits for its first byte [s]."""
    num_bytes: FloatArray
    """What a transfer moves over each of its links, overhead included [bytes]."""
    offsets: IntArray
    links: IntArray
    """Links of task i: ``links[offsets[i]:offsets[i + 1]]``."""
    next_offsets: IntArray
    next_tasks: IntArray
    """Tasks that wait for task i, in compressed rows."""


class Progress(NamedTuple):
    """How far each task has come."""

    num_missing: IntArray
    """Tasks that it still waits for."""
    stage: IntArray
    ready_s: FloatArray
    begin_s: FloatArray
    end_s: FloatArray
    ready: Heap
    """Tasks that became ready at this instant."""
    running: IntArray
    """Task on each serial resource, or -1."""
    head: IntArray
    tail: IntArray
    """First and last task in the queue of each resource, or -1."""
    behind: IntArray
    """Task that stands behind each task in its queue, or -1."""


class Sharing(NamedTuple):
    """Flows, the links they share, and the region that is solved anew."""

    capacity: FloatArray
    """Of each link [bytes/s]."""
    load: FloatArray
    """Sum of the rates on each link [bytes/s]."""
    level: FloatArray
    """Rate of the flows that each link holds back [bytes/s]; infinite where it holds back none."""
    num_flows: IntArray
    first_slot: IntArray
    """Flows on link l: ``slot_flow`` from here, ``num_flows`` of them."""
    slot_flow: IntArray
    slot_entry: IntArray
    """Place in ``Work.links`` that each slot belongs to."""
    entry_slot: IntArray
    """The slot of each place in ``Work.links``."""
    rate: FloatArray
    """Of each flow; 0 until it was given one [bytes/s]."""
    left_bytes: FloatArray
    since_s: FloatArray
    """When ``left_bytes`` was true."""
    stamp: IntArray
    """The number of this instant, then flows and links in the region."""
    flow_stamp: IntArray
    link_stamp: IntArray
    """Equal to the number of this instant: in the region."""
    watch_stamp: IntArray
    """Equal to the number of this instant: a link that may become full, though it was not."""
    flows: IntArray
    """Flows of the region; ``stamp[1]`` of them."""
    members: IntArray
    """Links of the region; ``stamp[2]`` of them."""
    new_rate: FloatArray
    """-1 while a flow of the region has none."""
    floor: FloatArray
    """All flows on a link of the region that are at least as fast are in the region as well."""
    room: FloatArray
    """What the flows without a new rate have on a link [bytes/s]."""
    num_open: IntArray
    """How many they are."""
    beyond: IntArray
    """Links that hold back flows from outside of the region."""
    told: FloatArray
    """Rate of each link that was last recorded [bytes/s]."""


class Log(NamedTuple):
    """What links carry from when on; ``num_rows[0]`` rows are filled."""

    link: IntArray
    change_s: FloatArray
    rate: FloatArray
    num_rows: IntArray


def make_work(graph: TaskGraph) -> Work:
    """Return what a task graph asks for."""
    order = np.argsort(graph.needs, kind="stable")
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.needs_offsets))
    return Work(
        resource=np.where(graph.is_transfer, -1, graph.device * len(graph.tracks) + graph.track),
        wait_s=np.where(graph.is_transfer, graph.latency_s, graph.duration_s),
        num_bytes=graph.num_bytes + np.where(graph.num_bytes > 0, graph.overhead_bytes, 0.0),
        offsets=graph.routes.offsets,
        links=graph.routes.links,
        next_offsets=offsets_of(np.bincount(graph.needs, minlength=len(graph))),
        next_tasks=waiting[order],
    )


def make_progress(graph: TaskGraph, num_resources: int) -> Progress:
    """Return the state in which nothing was begun."""
    count = len(graph)
    return Progress(
        num_missing=np.diff(graph.needs_offsets),
        stage=np.zeros(count, dtype=np.int64),
        ready_s=graph.start_s.copy(),
        begin_s=np.full(count, np.nan),
        end_s=np.full(count, np.nan),
        ready=make_heap(count),
        running=np.full(num_resources, -1),
        head=np.full(num_resources, -1),
        tail=np.full(num_resources, -1),
        behind=np.full(count, -1),
    )


def make_sharing(work: Work, capacity: FloatArray) -> Sharing:
    """Return links without flows."""
    num_tasks, num_links, num_entries = len(work.wait_s), len(capacity), len(work.links)
    per_link = np.bincount(work.links, minlength=num_links)
    return Sharing(
        capacity=capacity,
        load=np.zeros(num_links),
        level=np.full(num_links, np.inf),
        num_flows=np.zeros(num_links, dtype=np.int64),
        first_slot=offsets_of(per_link),
        slot_flow=np.zeros(num_entries, dtype=np.int64),
        slot_entry=np.zeros(num_entries, dtype=np.int64),
        entry_slot=np.zeros(num_entries, dtype=np.int64),
        rate=np.zeros(num_tasks),
        left_bytes=np.zeros(num_tasks),
        since_s=np.zeros(num_tasks),
        stamp=np.zeros(3, dtype=np.int64),
        flow_stamp=np.zeros(num_tasks, dtype=np.int64),
        link_stamp=np.zeros(num_links, dtype=np.int64),
        watch_stamp=np.zeros(num_links, dtype=np.int64),
        flows=np.zeros(num_tasks, dtype=np.int64),
        members=np.zeros(num_links, dtype=np.int64),
        new_rate=np.zeros(num_tasks),
        floor=np.zeros(num_links),
        room=np.zeros(num_links),
        num_open=np.zeros(num_links, dtype=np.int64),
        beyond=np.zeros(num_links, dtype=np.int64),
        told=np.zeros(num_links),
    )


def make_log(num_rows: int) -> Log:
    """Return a log without entries."""
    return Log(
        link=np.zeros(num_rows, dtype=np.int64),
        change_s=np.zeros(num_rows),
        rate=np.zeros(num_rows),
        num_rows=np.zeros(1, dtype=np.int64),
    )


def longer_log(log: Log) -> Log:
    """Return the log with twice the rows."""
    return Log(
        link=np.concatenate((log.link, np.zeros_like(log.link))),
        change_s=np.concatenate((log.change_s, np.zeros_like(log.change_s))),
        rate=np.concatenate((log.rate, np.zeros_like(log.rate))),
        num_rows=log.num_rows,
    )
