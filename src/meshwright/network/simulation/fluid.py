"""A heap of numbered items that can be moved while they are in it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.compiled import compiled_in_place, compiled_inline
from meshwright.network.simulation.tasks import TaskGraph, Timeline, offsets_of
from meshwright.topology.network import Network


class Heap(NamedTuple):
    """Items ordered by key, then by number; an item is in it once at most."""

    key: FloatArray
    items: IntArray
    place: IntArray
    """Index of each item in ``items``, or -1."""
    size: IntArray


def make_heap(num_items: int) -> Heap:
    """Return an empty heap of items 0 to ``num_items`` - 1."""
    return Heap(
        key=np.zeros(num_items),
        items=np.zeros(num_items, dtype=np.int64),
        place=np.full(num_items, -1),
        size=np.zeros(1, dtype=np.int64),
    )


@compiled_in_place
def rise(heap: Heap, place: int) -> None:
    """Move an item towards the top until the one above comes first."""
    item = heap.items[place]
    key = heap.key[item]
    while place > 0:
        above = heap.items[(place - 1) // 2]
        if heap.key[above] < key or (heap.key[above] == key and above < item):
            break
        heap.items[place] = above
        heap.place[above] = place
        place = (place - 1) // 2
    heap.items[place] = item
    heap.place[item] = place


@compiled_in_place
def sink(heap: Heap, place: int) -> None:
    """Move an item away from the top until those below come after it."""
    item, size = heap.items[place], heap.size[0]
    key = heap.key[item]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        below = heap.items[child]
        if child + 1 < size:
            other = heap.items[child + 1]
            first, second = heap.key[other], heap.key[below]
            if first < second or (first == second and other < below):
                child, below = child + 1, other
        if key < heap.key[below] or (key == heap.key[below] and item < below):
            break
        heap.items[place] = below
        heap.place[below] = place
        place = child
    heap.items[place] = item
    heap.place[item] = place


@compiled_in_place
def put(heap: Heap, item: int, key: float) -> None:
    """Insert an item, or move it to another key."""
    place = heap.place[item]
    if place < 0:
        place = heap.size[0]
        heap.size[0] += 1
        heap.items[place] = item
    heap.key[item] = key
    heap.place[item] = place
    rise(heap, place)
    sink(heap, heap.place[item])


@compiled_in_place
def pop(heap: Heap) -> int:
    """Remove the first item and return it."""
    first: int = heap.items[0]
    heap.place[first] = -1
    heap.size[0] -= 1
    if heap.size[0] > 0:
        heap.items[0] = heap.items[heap.size[0]]
        sink(heap, 0)
    return first


class FluidWork(NamedTuple):
    """Demands of a task graph; nothing here changes."""

    resource: IntArray
    """Serial resource of a computation; -1 for transfers."""
    wait_s: FloatArray
    """Seconds of a computation, or until the first byte of a transfer."""
    num_bytes: FloatArray
    """Bytes that a transfer moves over each of its links, overhead included."""
    offsets: IntArray
    links: IntArray
    """Links of task i: ``links[offsets[i]:offsets[i + 1]]``."""
    next_offsets: IntArray
    next_tasks: IntArray
    """Tasks that wait for task i, in compressed rows."""


class Progress(NamedTuple):
    """Progress of each task."""

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
    """Task that follows each task in its queue, or -1."""


class Sharing(NamedTuple):
    """Flows, the links they share, and the region that is solved again."""

    capacity: FloatArray
    """Bandwidth of each link [bytes/s]."""
    load: FloatArray
    """Sum of the rates on each link [bytes/s]."""
    level: FloatArray
    """Rate of the flows that each link holds back [bytes/s]; infinite without such flows."""
    num_flows: IntArray
    first_slot: IntArray
    """Flows on link l: ``slot_flow`` from here, ``num_flows`` of them."""
    slot_flow: IntArray
    slot_entry: IntArray
    """Place in ``Work.links`` that each slot belongs to."""
    entry_slot: IntArray
    """The slot of each place in ``Work.links``."""
    rate: FloatArray
    """Rate of each flow; 0 until it was given one [bytes/s]."""
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
    """Bandwidth of each link that is left for its flows without a new rate [bytes/s]."""
    num_open: IntArray
    """Number of flows without a new rate on each link."""
    beyond: IntArray
    """Links that hold back flows from outside of the region."""
    announced: FloatArray
    """Rate of each link that was last recorded [bytes/s]."""


class Log(NamedTuple):
    """Rates of links over time, each with its start; ``num_rows[0]`` rows are filled."""

    link: IntArray
    change_s: FloatArray
    rate: FloatArray
    num_rows: IntArray


def make_work(graph: TaskGraph) -> FluidWork:
    """Return the work of a task graph as arrays."""
    order = np.argsort(graph.needs, kind="stable")
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.needs_offsets))
    return FluidWork(
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


def make_sharing(work: FluidWork, capacity: FloatArray) -> Sharing:
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
        announced=np.zeros(num_links),
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
    """Return the log with twice the rows; the system hands out the new ones as they are filled."""
    longer = make_log(2 * len(log.link))
    for new, old in zip(longer, log, strict=True):
        new[: len(old)] = old
    return longer


TIE = 1e-12
"""Times and rates that differ by less than this fraction are taken as equal."""
WAITING, RELEASING, LATENT, FLOWING, RUNNING, DONE = range(6)
FLOWS, LINKS = 1, 2


@compiled_inline
def _take_in(item: int, item_stamp: IntArray, items: IntArray, stamp: IntArray, kind: int) -> bool:
    """Take a flow or a link into the region, and tell whether it was outside."""
    if item_stamp[item] == stamp[0]:
        return False
    item_stamp[item] = stamp[0]
    items[stamp[kind]] = item
    stamp[kind] += 1
    return True


@compiled_inline
def _include_held_back(sharing: Sharing, link: int) -> None:
    """Take the flows of a link into the region that are not below its floor."""
    start = sharing.first_slot[link]
    load = 0.0
    for slot in range(start, start + sharing.num_flows[link]):
        flow = sharing.slot_flow[slot]
        load += sharing.rate[flow]
        if sharing.rate[flow] >= sharing.floor[link]:
            _take_in(flow, sharing.flow_stamp, sharing.flows, sharing.stamp, FLOWS)
    sharing.load[link] = load


@compiled_inline
def _enter(work: FluidWork, sharing: Sharing, flow: int, now_s: float) -> None:
    """Put a flow on its links."""
    for entry in range(work.offsets[flow], work.offsets[flow + 1]):
        link = work.links[entry]
        slot = sharing.first_slot[link] + sharing.num_flows[link]
        sharing.slot_flow[slot] = flow
        sharing.slot_entry[slot] = entry
        sharing.entry_slot[entry] = slot
        sharing.num_flows[link] += 1
        sharing.watch_stamp[link] = sharing.stamp[0]
    sharing.rate[flow] = 0.0
    sharing.left_bytes[flow] = work.num_bytes[flow]
    sharing.since_s[flow] = now_s
    _take_in(flow, sharing.flow_stamp, sharing.flows, sharing.stamp, FLOWS)


@compiled_inline
def _leave(work: FluidWork, sharing: Sharing, flow: int) -> None:
    """Take a flow off its links."""
    for entry in range(work.offsets[flow], work.offsets[flow + 1]):
        link, slot = work.links[entry], sharing.entry_slot[entry]
        sharing.num_flows[link] -= 1
        last = sharing.first_slot[link] + sharing.num_flows[link]
        sharing.slot_flow[slot] = sharing.slot_flow[last]
        sharing.slot_entry[slot] = sharing.slot_entry[last]
        sharing.entry_slot[sharing.slot_entry[slot]] = slot
        sharing.load[link] -= sharing.rate[flow]
        if _take_in(link, sharing.link_stamp, sharing.members, sharing.stamp, LINKS):
            sharing.floor[link] = sharing.level[link] * (1 - 3 * TIE)
        if sharing.num_flows[link] == 0:
            sharing.load[link] = 0.0
            sharing.level[link] = np.inf


@compiled_inline
def _grow(work: FluidWork, sharing: Sharing, num_flows: int, num_links: int) -> None:
    """Take in the neighbours of the flows and links that the region got after these numbers."""
    while num_flows < sharing.stamp[FLOWS] or num_links < sharing.stamp[LINKS]:
        if num_links < sharing.stamp[LINKS]:
            link = sharing.members[num_links]
            num_links += 1
            if sharing.floor[link] < np.inf:
                _include_held_back(sharing, link)
            continue
        flow = sharing.flows[num_flows]
        num_flows += 1
        for entry in range(work.offsets[flow], work.offsets[flow + 1]):
            link = work.links[entry]
            if _take_in(link, sharing.link_stamp, sharing.members, sharing.stamp, LINKS):
                sharing.floor[link] = sharing.level[link] * (1 - 3 * TIE)


@compiled_inline
def _open(work: FluidWork, sharing: Sharing, shares: Heap) -> None:
    """Take the rates of the region's flows off its links, and order the links by fair share."""
    for index in range(sharing.stamp[LINKS]):
        link = sharing.members[index]
        sharing.level[link] = np.inf
        sharing.room[link] = sharing.capacity[link] - sharing.load[link]
        sharing.num_open[link] = 0
    for index in range(sharing.stamp[FLOWS]):
        flow = sharing.flows[index]
        sharing.new_rate[flow] = -1.0
        for entry in range(work.offsets[flow], work.offsets[flow + 1]):
            sharing.room[work.links[entry]] += sharing.rate[flow]
            sharing.num_open[work.links[entry]] += 1
    while shares.size[0] > 0:
        shares.size[0] -= 1
        shares.place[shares.items[shares.size[0]]] = -1
    for index in range(sharing.stamp[LINKS]):
        link = sharing.members[index]
        is_watched = sharing.floor[link] < np.inf or sharing.watch_stamp[link] == sharing.stamp[0]
        if is_watched and sharing.num_open[link] > 0:
            put(shares, link, sharing.room[link] / sharing.num_open[link])


@compiled_inline
def _fair_level(sharing: Sharing, link: int, level: float) -> float:
    """Return the rate at which a link cuts its flows, from a level that is not above it.

    Flows outside of the region count with the rate they have, those inside with their new one,
    and without bound where they have none yet.
    """
    start = sharing.first_slot[link]
    while True:
        room, num_cut = sharing.capacity[link], 0
        for slot in range(start, start + sharing.num_flows[link]):
            flow = sharing.slot_flow[slot]
            is_inside = sharing.flow_stamp[flow] == sharing.stamp[0]
            rate = sharing.new_rate[flow] if is_inside else sharing.rate[flow]
            if rate < 0 or rate > level * (1 + TIE):
                num_cut += 1
            else:
                room -= rate
        raised = room / num_cut if num_cut > 0 else level
        if raised <= level:
            return level
        level = raised


@compiled_inline
def _settle(work: FluidWork, sharing: Sharing, link: int, level: float) -> int:
    """Give the open flows of a full link their rate; return their number."""
    start, num_settled = sharing.first_slot[link], 0
    sharing.level[link] = level
    for slot in range(start, start + sharing.num_flows[link]):
        flow = sharing.slot_flow[slot]
        if sharing.flow_stamp[flow] == sharing.stamp[0] and sharing.new_rate[flow] < 0:
            sharing.new_rate[flow] = level
            num_settled += 1
            for entry in range(work.offsets[flow], work.offsets[flow + 1]):
                sharing.room[work.links[entry]] -= level
                sharing.num_open[work.links[entry]] -= 1
    return num_settled


@compiled_inline
def _fill(work: FluidWork, sharing: Sharing, shares: Heap) -> None:
    """Raise the rates of the region together; a link that is full settles those on it.

    Faster flows from outside of the region count as if they were cut to the same rate.
    """
    num_unsettled = sharing.stamp[FLOWS]
    while num_unsettled > 0:
        link = shares.items[0]
        if sharing.num_open[link] == 0:
            pop(shares)
            continue
        share = sharing.room[link] / sharing.num_open[link]
        if share < sharing.floor[link]:
            share = _fair_level(sharing, link, share)
        if share > shares.key[link]:
            shares.key[link] = share
            sink(shares, 0)
        else:
            num_unsettled -= _settle(work, sharing, link, share)


@compiled_inline
def _lower_floors(sharing: Sharing) -> int:
    """List the links above their capacity, and lower their floors to the cut."""
    num_beyond = 0
    for index in range(sharing.stamp[LINKS]):
        link = sharing.members[index]
        if sharing.room[link] < -3 * TIE * sharing.capacity[link]:
            sharing.watch_stamp[link] = sharing.stamp[0]
            level = _fair_level(sharing, link, 0.0) * (1 - 3 * TIE)
            sharing.floor[link] = min(sharing.floor[link], level)
            sharing.beyond[num_beyond] = link
            num_beyond += 1
    return num_beyond


@compiled_inline
def _share_anew(
    work: FluidWork, sharing: Sharing, shares: Heap, events: Heap, now_s: float
) -> None:
    """Solve the region of this instant, and move the ends of flows with a new rate."""
    _grow(work, sharing, 0, 0)
    while True:
        _open(work, sharing, shares)
        _fill(work, sharing, shares)
        num_beyond = _lower_floors(sharing)
        if num_beyond == 0:
            break
        num_flows, num_links = sharing.stamp[FLOWS], sharing.stamp[LINKS]
        for index in range(num_beyond):
            _include_held_back(sharing, sharing.beyond[index])
        _grow(work, sharing, num_flows, num_links)
    for index in range(sharing.stamp[FLOWS]):
        flow = sharing.flows[index]
        old, new = sharing.rate[flow], sharing.new_rate[flow]
        if abs(new - old) > TIE * old:
            sharing.left_bytes[flow] -= old * (now_s - sharing.since_s[flow])
            sharing.since_s[flow] = now_s
            sharing.rate[flow] = new
            for entry in range(work.offsets[flow], work.offsets[flow + 1]):
                sharing.load[work.links[entry]] += new - old
            put(events, flow, now_s + max(sharing.left_bytes[flow], 0.0) / new)


@compiled_inline
def _make_ready(progress: Progress, task: int) -> None:
    """Note that no need holds a task up any more."""
    put(progress.ready, task, 0.0)


@compiled_inline
def _finish(work: FluidWork, progress: Progress, task: int, end_s: float) -> None:
    """End a task; tasks that waited for it alone become ready."""
    progress.stage[task] = DONE
    progress.end_s[task] = end_s
    for index in range(work.next_offsets[task], work.next_offsets[task + 1]):
        other = work.next_tasks[index]
        progress.ready_s[other] = max(progress.ready_s[other], end_s)
        progress.num_missing[other] -= 1
        if progress.num_missing[other] == 0:
            _make_ready(progress, other)


@compiled_inline
def _run(work: FluidWork, progress: Progress, events: Heap, task: int, from_s: float) -> None:
    """Start a computation on its resource, which is free."""
    progress.running[work.resource[task]] = task
    progress.stage[task] = RUNNING
    progress.begin_s[task] = max(progress.ready_s[task], from_s)
    put(events, task, progress.begin_s[task] + work.wait_s[task])


@compiled_inline
def _begin(work: FluidWork, progress: Progress, events: Heap, task: int) -> None:
    """Start a task that is ready: a transfer waits for its latency, a computation may queue."""
    resource = work.resource[task]
    if resource < 0:
        progress.stage[task] = LATENT
        progress.begin_s[task] = progress.ready_s[task]
        put(events, task, progress.ready_s[task] + work.wait_s[task])
    elif progress.running[resource] < 0:
        _run(work, progress, events, task, progress.ready_s[task])
    else:
        if progress.head[resource] < 0:
            progress.head[resource] = task
        else:
            progress.behind[progress.tail[resource]] = task
        progress.tail[resource] = task


@compiled_inline
def _free(work: FluidWork, progress: Progress, events: Heap, resource: int, now_s: float) -> None:
    """Hand a resource to the first task in its queue."""
    progress.running[resource] = -1
    task = progress.head[resource]
    if task >= 0:
        progress.head[resource] = progress.behind[task]
        _run(work, progress, events, task, now_s)


@compiled_inline
def _advance(
    work: FluidWork, progress: Progress, sharing: Sharing, events: Heap, task: int, now_s: float
) -> None:
    """Advance a task to its next event, when its time has come."""
    stage = progress.stage[task]
    if stage == RELEASING:
        _make_ready(progress, task)
    elif stage == RUNNING:
        _finish(work, progress, task, now_s)
        _free(work, progress, events, work.resource[task], now_s)
    elif stage == FLOWING:
        _leave(work, sharing, task)
        _finish(work, progress, task, now_s)
    elif work.offsets[task] == work.offsets[task + 1] or work.num_bytes[task] <= 0:
        _finish(work, progress, task, now_s)
    else:
        progress.stage[task] = FLOWING
        _enter(work, sharing, task, now_s)


@compiled_inline
def _release(work: FluidWork, progress: Progress, events: Heap, until_s: float) -> None:
    """Begin the tasks that became ready, in order of their number, or when they may start."""
    while progress.ready.size[0] > 0:
        task = pop(progress.ready)
        if progress.ready_s[task] <= until_s:
            _begin(work, progress, events, task)
        else:
            progress.stage[task] = RELEASING
            put(events, task, progress.ready_s[task])


@compiled_inline
def _play_instant(work: FluidWork, progress: Progress, sharing: Sharing, events: Heap) -> float:
    """Play all events of the next instant; return its time [s]."""
    now_s: float = events.key[events.items[0]]
    until_s = now_s + TIE * now_s
    sharing.stamp[0] += 1
    sharing.stamp[FLOWS] = sharing.stamp[LINKS] = 0
    while events.size[0] > 0 and events.key[events.items[0]] <= until_s:
        while events.size[0] > 0 and events.key[events.items[0]] <= until_s:
            task = pop(events)
            now_s = max(now_s, events.key[task])
            _advance(work, progress, sharing, events, task, events.key[task])
        _release(work, progress, events, until_s)
    return now_s


@compiled_inline
def _record(sharing: Sharing, log: Log, now_s: float) -> None:
    """Note the rates of the region's links that have changed."""
    for index in range(sharing.stamp[LINKS]):
        link = sharing.members[index]
        rate = sharing.load[link]
        if abs(rate - sharing.announced[link]) > TIE * sharing.capacity[link]:
            sharing.announced[link] = rate
            row = log.num_rows[0]
            log.link[row], log.change_s[row], log.rate[row] = link, now_s, rate
            log.num_rows[0] += 1


@compiled_in_place
def play(
    work: FluidWork, progress: Progress, sharing: Sharing, shares: Heap, events: Heap, log: Log
) -> bool:
    """Run until everything is done (True), or until the log needs more room (False)."""
    while events.size[0] > 0:
        if log.num_rows[0] + len(sharing.capacity) > len(log.link):
            return False
        now_s = _play_instant(work, progress, sharing, events)
        if sharing.stamp[FLOWS] + sharing.stamp[LINKS] > 0:
            _share_anew(work, sharing, shares, events, now_s)
            _record(sharing, log, now_s)
    return True


@compiled_in_place
def start(work: FluidWork, progress: Progress, events: Heap) -> None:
    """Begin the tasks that wait for no other."""
    for task in range(len(progress.stage)):
        if progress.num_missing[task] == 0:
            _make_ready(progress, task)
    _release(work, progress, events, 0.0)


def simulate_tasks(graph: TaskGraph, network: Network) -> Timeline:
    """Return when the tasks of a graph run on a network.

    Raises
    ------
    ValueError
        When tasks wait for one another in a circle.
    """
    return run_tasks(graph, network.bandwidth_bytes_per_s)


def run_tasks(graph: TaskGraph, bandwidth_bytes_per_s: FloatArray) -> Timeline:
    """Return when tasks run on links of these bandwidths, as :func:`simulate_tasks`."""
    work = make_work(graph)
    num_resources = int(work.resource.max(initial=-1)) + 1
    progress = make_progress(graph, num_resources)
    num_links = len(bandwidth_bytes_per_s)
    sharing, shares = make_sharing(work, bandwidth_bytes_per_s), make_heap(num_links)
    events = make_heap(len(graph))
    log = make_log(2 * (len(work.links) + num_links) + 1)
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
