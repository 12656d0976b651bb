"""Collectives among any devices of a network: the messages of each algorithm, routed and played.

A group that is no block of the levels of a system has no closed form. Its algorithms are those of a
flat group (a switch, a ring, a line); members stand in the order of a short tour, messages take the
default routes, share links fairly and wait for the chunks that they carry on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.bounds import TimedAlgorithm, bus_bytes
from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import (
    Transfer,
    affine_candidates,
    collective_algorithms,
    least_sent_bytes,
)
from meshwright.network.routing import Routes, default_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import deepest_latency_s, flow_graph
from meshwright.network.traffic import Demands
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.network import Network

MOST_MEMBERS = 256
"""Most members of a group with messages that are simulated one by one."""


def placed_algorithms(
    kind: CollectiveKind, num_bytes: float, devices: Sequence[int], network: Network
) -> list[TimedAlgorithm]:
    """Return the time of each algorithm among some devices, fastest first.

    Parameters
    ----------
    num_bytes
        Bytes of the full tensor on one rank.
    devices
        Two or more different ones.
    """
    members = tour(devices, network)
    bound_s = placed_bound_s(kind, num_bytes, devices, network)
    moved = bus_bytes(kind, num_bytes, float(len(members)))
    found = {}
    for group in _flat_groups(members, network):
        for name, _, _ in affine_candidates(kind, group):
            transfers = collective_algorithms[name].transfers(num_bytes, group)
            # Reduce-scatters list their last step first.
            sent = sorted(transfers, key=lambda one: one.step)
            ends = {t.destination for t in sent} | {t.source for t in sent}
            if name not in found and max(ends) < len(members):
                found[name] = played_s(sent, members, network)
    rows = [
        TimedAlgorithm(name, time_s, moved / time_s, bound_s / time_s)
        for name, time_s in found.items()
    ]
    return sorted(rows, key=lambda row: row.time_s)


def _flat_groups(members: IntArray, network: Network) -> Iterator[Group[float]]:
    """Yield a group as a switch, as a ring and as a line.

    The rate of the first link that leaves a member decides the number of pieces.
    """
    link = int(np.flatnonzero(network.source == members[0])[0])
    rates = (
        float(column[link])
        for column in (
            network.bandwidth_bytes_per_s, network.latency_s, network.message_half_bytes
        )
    )  # fmt: skip
    bandwidth, latency_s, half_bytes = rates
    size = float(len(members))
    for is_grid, closes in ((False, 1.0), (True, 1.0), (True, 0.0)):
        yield Group((Span(size, bandwidth, latency_s, half_bytes, closes, is_grid, False),))


def played_s(sent: Sequence[Transfer], members: IntArray, network: Network) -> float:
    """Return when the last of some messages arrives [s].

    A message waits for all of earlier steps that bring one of its chunks to its sender, and for the
    one before it from this sender to this receiver.

    Parameters
    ----------
    sent
        In the order of their steps.
    """
    arrivals: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    sends: dict[tuple[int, int], int] = {}
    after = []
    for number, one in enumerate(sent):
        waits = {
            earlier
            for chunk in one.chunks
            for step, earlier in arrivals[one.source, chunk]
            if step < one.step
        }
        before = sends.get((one.source, one.destination))
        if before is not None and sent[before].step < one.step:
            waits.add(before)
        sends[one.source, one.destination] = number
        after.append(sorted(waits))
        for chunk in one.chunks:
            arrivals[one.destination, chunk].append((one.step, number))
    source, destination = (
        members[[one.source for one in sent]], members[[one.destination for one in sent]]
    )  # fmt: skip
    routes = _routes(source, destination, network)
    first = routes.links[routes.offsets[:-1]]
    num_bytes = np.array([one.num_bytes for one in sent]) + network.message_half_bytes[first]
    latency_s = deepest_latency_s(routes, network)
    graph = flow_graph(routes, num_bytes, latency_s, np.zeros(len(sent)), after)
    return float(simulate_tasks(graph, network).makespan_s)


def placed_bound_s(
    kind: CollectiveKind, num_bytes: float, devices: Sequence[int], network: Network
) -> float:
    """Return the lower bound of any algorithm among some devices [s].

    All bytes that members must send leave over their own links, and the two members farthest apart
    exchange data.
    """
    leaving = np.bincount(
        network.source, network.bandwidth_bytes_per_s, minlength=network.num_nodes
    )
    sent = len(devices) * float(least_sent_bytes(kind, num_bytes, float(len(devices))))
    sends_s = sent / float(leaving[list(devices)].sum())
    latency_s = _between(np.array(devices), network)[1]
    farthest_s = float(latency_s[0].max() if kind is CollectiveKind.BROADCAST else latency_s.max())
    return max(sends_s, farthest_s)


def tour(devices: Sequence[int], network: Network) -> IntArray:
    """Return devices in the order of a short closed tour, by hops: nearest first, then 2-opt."""
    listed = np.array(devices, dtype=np.int64)
    hops, _ = _between(listed, network)
    order, left = [0], set(range(1, len(listed)))
    while left:
        here = order[-1]
        order.append(min(left, key=lambda one: (hops[here, one], one)))
        left.remove(order[-1])
    found, improves = np.array(order), True
    while improves:
        improves = False
        for i in range(1, len(found) - 1):
            for j in range(i + 1, len(found)):
                before, after = found[i - 1], found[(j + 1) % len(found)]
                saved = hops[before, found[i]] + hops[found[j], after]
                if hops[before, found[j]] + hops[found[i], after] < saved:
                    found[i : j + 1] = found[i : j + 1][::-1]
                    improves = True
    visited: IntArray = listed[found]
    return visited


def _between(devices: IntArray, network: Network) -> tuple[IntArray, FloatArray]:
    """Return hops and latencies [s] of the default routes between devices: (from, to)."""
    size = len(devices)
    source, destination = np.repeat(devices, size), np.tile(devices, size)
    differ = source != destination
    routes = _routes(source[differ], destination[differ], network)
    hops, latency_s = np.zeros(size * size, dtype=np.int64), np.zeros(size * size)
    hops[differ], latency_s[differ] = routes.num_hops, routes.latency_s(network)
    return hops.reshape(size, size), latency_s.reshape(size, size)


def _routes(source: IntArray, destination: IntArray, network: Network) -> Routes:
    count = len(source)
    demands = Demands(
        source, destination, np.ones(count), np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64), ("group",),
    )  # fmt: skip
    return default_routes(network, demands)
