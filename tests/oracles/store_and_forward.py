"""Store and forward: a message is received whole at each hop before it goes on.

Without it a message is cut through: one flow over all its links, whose latencies add up.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.network.routing import Routes
from meshwright.network.simulation.tasks import TaskGraph, links_before, offsets_of
from meshwright.topology.network import Network


def store_and_forward(graph: TaskGraph, network: Network) -> tuple[TaskGraph, IntArray]:
    """Return the graph with one transfer for each link of a route, and whose part each task is.

    A hop waits for the one before it (in a tree: for the one that leads to it), the first hops
    for what the transfer waited for; its dependents wait for all last hops. Each hop is a message
    of its own, with the latency and m_half of its link.
    """
    hops = graph.routes.num_hops
    if not hops.any():
        return graph, np.arange(len(graph))
    origin = np.repeat(np.arange(len(graph)), np.maximum(hops, 1))
    link = np.full(len(origin), -1)
    link[hops[origin] > 0] = graph.routes.links
    moves = link >= 0
    waiting, needed = _hop_needs(graph, origin, link, network)
    order = np.argsort(waiting, kind="stable")
    by_hop = replace(
        graph,
        names=tuple(graph.names[task] for task in origin.tolist()),
        device=np.where(moves, network.source[link], graph.device[origin]),
        latency_s=np.where(moves, network.latency_s[link], graph.latency_s[origin]),
        overhead_bytes=np.where(moves, network.message_half_bytes[link], 0.0),
        routes=Routes(offsets_of(moves.astype(np.int64)), graph.routes.links),
        needs_offsets=offsets_of(np.bincount(waiting, minlength=len(origin))),
        needs=needed[order],
        track=graph.track[origin],
        is_transfer=graph.is_transfer[origin],
        duration_s=graph.duration_s[origin],
        num_bytes=graph.num_bytes[origin],
        start_s=graph.start_s[origin],
    )
    return by_hop, origin


def _hop_needs(
    graph: TaskGraph, origin: IntArray, link: IntArray, network: Network
) -> tuple[IntArray, IntArray]:
    """Return pairs of hops, of which the first waits for the second."""
    parent = links_before(origin, link, network)
    is_last = np.ones(len(origin), dtype=bool)
    is_last[parent[parent >= 0]] = False
    later = np.flatnonzero(parent >= 0)
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.needs_offsets))
    waiting, needed = _each(waiting, graph.needs, origin, is_last)
    needed, waiting = _each(needed, waiting, origin, parent < 0)
    return np.concatenate((later, waiting)), np.concatenate((parent[later], needed))


def _each(
    kept: IntArray, tasks: IntArray, origin: IntArray, chosen: BoolArray
) -> tuple[IntArray, IntArray]:
    """Return pairs in which a task is replaced by each of its chosen hops."""
    hops = np.flatnonzero(chosen)
    counts = np.bincount(origin[hops], minlength=int(origin.max(initial=-1)) + 1)
    first = offsets_of(counts)
    repeats = counts[tasks]
    step = np.arange(repeats.sum()) - np.repeat(offsets_of(repeats)[:-1], repeats)
    return np.repeat(kept, repeats), hops[np.repeat(first[tasks], repeats) + step]
