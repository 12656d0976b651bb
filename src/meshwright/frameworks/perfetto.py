"""A simulated run, or a step over time, as a trace file that Perfetto and Chrome open.

In a run devices are processes, their tracks are threads, and the share of its bandwidth that each
link carries is a counter of the node at which it begins. Times are whole nanoseconds, the
resolution of these viewers. Tasks of one track that overlap are spread over several threads. In a
step pipeline stages are processes with two threads, and their memory is a counter.

Source: Trace Event Format (Google): complete, counter and metadata events, JSON object format.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.files import writing
from meshwright.network.flows import network_of_links, routes_of
from meshwright.network.routing import Routes
from meshwright.network.simulation.tasks import Timeline
from meshwright.spec.flows import FlowScenario
from meshwright.topology.network import Network
from meshwright.train.timeline import TASKS, StepTimeline

BLOCK_EVENTS = 10_000
"""Events per block of the file."""


def write_trace(
    timeline: Timeline,
    network: Network,
    path: Path,
    *,
    num_bytes: FloatArray | None = None,
    routes: Routes | None = None,
    notes: Mapping[str, object] | None = None,
    node_names: Sequence[str] | None = None,
    link_names: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """Write a timeline as a trace, whole or not at all; compressed where the name ends in .gz.

    Parameters
    ----------
    num_bytes
        Bytes that each task sends, (tasks,); shown for tasks that send any [bytes].
    routes
        Links that each task uses, one route for each; shown for tasks that use any.
    notes
        Origin of the trace: plan, fidelity.
    node_names, link_names
        Names of all nodes and links, where they are not devices with numbers.
    force
        Whether an existing file is replaced.
    """
    links = link_names or _link_names(network)
    events = chain(
        _process_names(timeline, network, node_names),
        _tasks(timeline, _details(timeline, links, num_bytes, routes)),
        _counters(timeline, network, links),
    )
    _write_whole(path, events, notes or {}, force=force)


def write_step_trace(
    timeline: StepTimeline, path: Path, *, notes: Mapping[str, object] | None = None,
    force: bool = False,
) -> None:  # fmt: skip
    """Write a step over time as a trace, whole or not at all; compressed where it ends in .gz.

    Parameters
    ----------
    notes
        Origin of the trace: plan, fidelity.
    """
    _write_whole(path, _stages(timeline), notes or {}, force=force)


def _stages(timeline: StepTimeline) -> Iterator[str]:
    """Yield each stage: its names, its tasks on two threads, its memory."""
    start, end = _nanoseconds(timeline.start_s), _nanoseconds(timeline.end_s)
    last = _micro(int(end.max()))
    waits = np.array([task.is_communication for task in TASKS])[timeline.task]
    has_chunks = bool((timeline.chunk > 0).any())
    for stage, memory in enumerate(timeline.memory):
        process = stage + 1
        yield _metadata("process_name", process, name=f"stage {stage}")
        yield _metadata("process_sort_index", process, sort_index=stage)
        threads = [2 * stage + 1, 2 * stage + 2]
        for thread, name in zip(threads, ("compute", "communication"), strict=True):
            yield _metadata("thread_name", process, thread, name=name)
            yield _metadata("thread_sort_index", process, thread, sort_index=thread)
        mine = timeline.stage == stage
        columns = (
            timeline.task, timeline.micro_batch, timeline.chunk, timeline.in_pass,
            np.where(waits, *reversed(threads)), start, end - start,
        )  # fmt: skip
        for task, micro_batch, chunk, of, thread, begin, duration in zip(
            *(column[mine].tolist() for column in columns), strict=True
        ):
            name, detail = str(TASKS[task]), ""
            if micro_batch >= 0:
                parts = {"micro_batch": micro_batch, "pass": str(TASKS[of])}
                parts |= {"chunk": chunk} if has_chunks else {}
                name, detail = f"{name} {micro_batch}", f',"args":{json.dumps(parts)}'
            yield (
                f'{{"ph":"X","name":{json.dumps(name)},"pid":{process},"tid":{thread},'
                f'"ts":{_micro(begin)},"dur":{_micro(duration)}{detail}}}'
            )
        changes = zip(_nanoseconds(memory.at_s).tolist(), memory.total_bytes.tolist(), strict=True)
        for at, size in {_micro(at): size for at, size in changes}.items():
            yield _memory(process, at, size)
        yield _memory(process, last, float(memory.total_bytes[-1]))


def _memory(process: int, at: str, size: float) -> str:
    """Return an event with the memory that a device holds from a time on [GiB]."""
    return (
        f'{{"ph":"C","name":"memory [GiB]","pid":{process},"ts":{at},'
        f'"args":{{"GiB":{size / 2**30:.6g}}}}}'
    )


def write_flow_trace(
    scenario: FlowScenario, timeline: Timeline, path: Path, *, force: bool = False
) -> None:
    """Write the flows of a file as a trace: each at the node that its first link leaves.

    Each link without stated ends begins at a separate node.
    """
    network, routes = network_of_links(scenario), routes_of(scenario)
    names = [f"from {name}" for name in scenario.link_ids for _ in range(2)]
    if scenario.link_ends:
        nodes = dict.fromkeys(node for ends in scenario.link_ends for node in ends)
        names = [f"node {node}" for node in nodes]
    first = [used[0] if len(used := routes.of(flow)) else -1 for flow in range(len(routes))]
    device = [int(network.source[link]) if link >= 0 else 0 for link in first]
    played = replace(
        timeline,
        task_name=tuple(f"flow {name}" for name in scenario.flow_ids),
        device=np.array(device, dtype=np.int64), track=np.zeros(len(device), dtype=np.int64),
        tracks=("flows",),
    )  # fmt: skip
    write_trace(
        played, network, path, num_bytes=scenario.num_bytes, routes=routes,
        notes={"flows": scenario.name, "fidelity": "simulated"},
        node_names=names or ["no link"], link_names=[str(name) for name in scenario.link_ids],
        force=force,
    )  # fmt: skip


def _write_whole(
    path: Path, events: Iterator[str], notes: Mapping[str, object], *, force: bool
) -> None:
    """Write a trace, whole or not at all; compressed where the name ends in .gz."""
    with writing(path, force=force) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                _write(packed, events, notes)
        else:
            _write(file, events, notes)


def _write(
    file: BinaryIO | gzip.GzipFile, events: Iterator[str], notes: Mapping[str, object]
) -> None:
    """Write the object: its notes, then the events block by block."""
    file.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(notes)},"traceEvents":['.encode())
    separator = "\n"
    while block := list(islice(events, BLOCK_EVENTS)):
        file.write((separator + ",\n".join(block)).encode())
        separator = ",\n"
    file.write(b"\n]}\n")


def _process_names(
    timeline: Timeline, network: Network, names: Sequence[str] | None
) -> Iterator[str]:
    """Yield a name for each node that works or from which a link carries anything.

    Viewers keep process 0 for themselves, so that the process of a node has its number plus one.
    """
    nodes = np.union1d(timeline.device, network.source[np.unique(timeline.link)])
    for node in nodes.tolist():
        name = names[node] if names else _node_name(node, network)
        yield _metadata("process_name", node + 1, name=name)
        yield _metadata("process_sort_index", node + 1, sort_index=node)


def _node_name(node: int, network: Network) -> str:
    """Return the name of a node, with its place on a grid."""
    if node >= network.num_devices:
        return f"node {node}"
    if not network.grid_shape:
        return f"device {node}"
    place = ", ".join(str(index) for index in np.unravel_index(node, network.grid_shape))
    return f"device {node} ({place})"


def _metadata(kind: str, process: int, thread: int = 0, **arguments: str | int) -> str:
    """Return an event that names or orders a process or a thread."""
    event = {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": arguments}
    return json.dumps(event, separators=(",", ":"))


def _tasks(timeline: Timeline, details: Iterator[str]) -> Iterator[str]:
    """Yield the names of the threads, then an event for each task."""
    start, end = _nanoseconds(timeline.start_s), _nanoseconds(timeline.end_s)
    place = timeline.device * len(timeline.tracks) + timeline.track
    lanes = _lanes(place, start, end)
    threads, thread = np.unique(np.stack([place, lanes]), axis=1, return_inverse=True)
    for index, (at, lane) in enumerate(threads.T.tolist(), start=1):
        device, track = divmod(at, len(timeline.tracks))
        name = timeline.tracks[track] + (f" ({lane + 1})" if lane else "")
        yield _metadata("thread_name", device + 1, index, name=name)
        yield _metadata("thread_sort_index", device + 1, index, sort_index=index)
    texts = {name: json.dumps(name) for name in set(timeline.task_name)}
    columns = (timeline.device + 1, thread.reshape(-1) + 1, start, end - start)
    rows = zip(timeline.task_name, *(column.tolist() for column in columns), details, strict=True)
    for name, process, number, begin, duration, detail in rows:
        yield (
            f'{{"ph":"X","name":{texts[name]},"pid":{process},"tid":{number},'
            f'"ts":{_micro(begin)},"dur":{_micro(duration)}{detail}}}'
        )


def _nanoseconds(seconds: FloatArray) -> IntArray:
    """Return times in whole nanoseconds [ns]."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _micro(nanoseconds: int) -> str:
    """Return nanoseconds as a JSON number of microseconds."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)


def _lanes(place: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Return a lane for each task, so that tasks of one place and lane never overlap.

    The lowest free lane is taken in order of start: as few lanes as tasks run at once.
    """
    order = np.lexsort((end, start, place))
    lanes = np.zeros(len(order), dtype=np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    here, used = -1, 0
    rows = zip(*(column[order].tolist() for column in (place, start, end)), strict=True)
    for row, (at, begin, finish) in enumerate(rows):
        if at != here:
            here, used, busy, free = at, 0, [], []
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, used)
            used += 1
        lane = heappop(free)
        heappush(busy, (finish, lane))
        lanes[order[row]] = lane
    return lanes


def _details(
    timeline: Timeline, links: Sequence[str], num_bytes: FloatArray | None, routes: Routes | None
) -> Iterator[str]:
    """Yield the arguments of each task as text: the bytes that it sends, and its links."""
    names = [json.dumps(name) for name in links]
    sizes = np.zeros(len(timeline.device)) if num_bytes is None else num_bytes
    for task, size in enumerate(sizes.tolist()):
        parts = [f'"bytes":{size:.17g}'] if size else []
        if routes is not None and len(used := routes.of(task)):
            parts.append(f'"links":[{",".join(names[link] for link in used.tolist())}]')
        yield f',"args":{{{",".join(parts)}}}' if parts else ""


def _link_names(network: Network) -> list[str]:
    """Return a name for each link: its ends, and its number where links run in parallel."""
    pairs = zip(network.source.tolist(), network.target.tolist(), strict=True)
    return [
        f"{ends[0]} > {ends[1]}" + ("" if network.link_between[ends] == link else f" #{link}")
        for link, ends in enumerate(pairs)
    ]


def _counters(timeline: Timeline, network: Network, links: Sequence[str]) -> Iterator[str]:
    """Yield the share of its bandwidth that each link carries, whenever it changes [%].

    Of several changes within a nanosecond the last one counts.
    """
    at = _nanoseconds(timeline.change_s)
    order = np.lexsort((at, timeline.link))
    same = (np.diff(timeline.link[order]) == 0) & (np.diff(at[order]) == 0)
    kept = np.sort(order[np.append(~same, True)[: len(order)]])
    link = timeline.link[kept]
    share = 100.0 * timeline.rate_bytes_per_s[kept] / network.bandwidth_bytes_per_s[link]
    names = [json.dumps(f"link {name}") for name in links]
    processes = (network.source + 1).tolist()
    for which, begin, percent in zip(link.tolist(), at[kept].tolist(), share.tolist(), strict=True):
        yield (
            f'{{"ph":"C","name":{names[which]},"pid":{processes[which]},'
            f'"ts":{_micro(begin)},"args":{{"percent":{percent:.6g}}}}}'
        )
