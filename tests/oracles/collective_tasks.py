"""Collectives on placed groups as task graphs: from who sends what to flows on routes.

Two ways: with the data dependencies of an algorithm, or in phases that wait for one another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.collectives.registry import Transfer
from meshwright.network.routing import Routes, default_routes
from meshwright.network.simulation.tasks import TaskGraph, offsets_of
from meshwright.network.traffic import Demands
from meshwright.topology.network import Network


def collective_tasks(
    transfers: Iterable[Transfer], nodes: IntArray, network: Network, name: str = "collective"
) -> TaskGraph:
    """Return the messages of an algorithm as tasks that wait for their data and for their turn.

    A message waits for every message of an earlier step that brings one of its chunks, and until
    the one before it on its lane has left: those of a lane leave in the order of their steps,
    whatever their channel. It occupies its links for its bytes and m_half, and arrives a latency
    later: two tasks, of which the next on the lane waits for the first, and those that need the
    data for the second.

    Parameters
    ----------
    transfers
        As :meth:`Algorithm.transfers` yields them.
    nodes
        Device of each member; the last one is the switch where an algorithm sends to it.
    network
        Messages take its default routes.
    """
    listed = sorted(transfers, key=lambda transfer: transfer.step)
    count = len(listed)
    needs = [
        [count + earlier for earlier in data] + turn
        for data, turn in zip(_data_needs(listed), _turn_needs(listed), strict=True)
    ]
    needs += [[sending] for sending in range(count)]
    demands = _demands(listed, nodes)
    routes = default_routes(network, demands)
    occupies = _graph(demands, routes, network, needs, name)
    nothing = np.zeros(count)
    return TaskGraph(
        names=(*occupies.names, *[f"{name} arrives"] * count),
        device=np.concatenate((occupies.device, demands.destination)),
        track=np.zeros(2 * count, dtype=np.int64),
        tracks=(name,),
        is_transfer=np.ones(2 * count, dtype=bool),
        duration_s=np.zeros(2 * count),
        num_bytes=np.concatenate((demands.num_bytes, nothing)),
        overhead_bytes=np.concatenate((occupies.overhead_bytes, nothing)),
        latency_s=np.concatenate((nothing, occupies.latency_s)),
        routes=Routes(np.concatenate((routes.offsets, [len(routes.links)] * count)), routes.links),
        start_s=np.zeros(2 * count),
        needs_offsets=occupies.needs_offsets,
        needs=occupies.needs,
    )


def phases_of(transfers: Iterable[Transfer], nodes: IntArray) -> list[Demands]:
    """Return what is sent in each step of an algorithm, in order."""
    steps: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        steps[transfer.step].append(transfer)
    return [_demands(steps[step], nodes) for step in sorted(steps)]


def phased_tasks(
    chains: Sequence[Sequence[Demands]], network: Network, name: str = "collective"
) -> TaskGraph:
    """Return chains of phases: a phase starts when all messages of the one before it have ended.

    Chains do not wait for one another; they share the links that they both use.
    """
    needs: list[list[int]] = []
    for chain in chains:
        before: list[int] = []
        for phase in chain:
            first = len(needs)
            needs += [before] * len(phase)
            before = list(range(first, first + len(phase)))
    demands = _joined([phase for chain in chains for phase in chain])
    return _graph(demands, default_routes(network, demands), network, needs, name)


def _graph(
    demands: Demands, routes: Routes, network: Network, needs: Sequence[Sequence[int]], name: str
) -> TaskGraph:
    """Return one transfer for each demand; each message pays the largest m_half on its route."""
    count = len(demands)
    return TaskGraph(
        names=(name,) * count,
        device=demands.source,
        track=np.zeros(count, dtype=np.int64),
        tracks=(name,),
        is_transfer=np.ones(count, dtype=bool),
        duration_s=np.zeros(count),
        num_bytes=demands.num_bytes,
        overhead_bytes=_largest(routes, network.message_half_bytes),
        latency_s=routes.latency_s(network),
        routes=routes,
        start_s=np.zeros(count),
        needs_offsets=offsets_of(np.array([len(row) for row in needs], dtype=np.int64)),
        needs=np.array([task for row in needs for task in row], dtype=np.int64),
    )


def _largest(routes: Routes, per_link: FloatArray) -> FloatArray:
    """Return the largest value over the links of each route."""
    largest = np.zeros(len(routes))
    of_row = np.repeat(np.arange(len(routes)), routes.num_hops)
    np.maximum.at(largest, of_row, per_link[routes.links])
    return largest


def _demands(transfers: Sequence[Transfer], nodes: IntArray) -> Demands:
    """Return messages between members as demands between devices."""
    count = len(transfers)
    return Demands(
        source=nodes[[transfer.source for transfer in transfers]],
        destination=nodes[[transfer.destination for transfer in transfers]],
        num_bytes=np.array([transfer.num_bytes for transfer in transfers]),
        payload=np.arange(count),
        operation=np.zeros(count, dtype=np.int64),
    )


def _joined(listed: Sequence[Demands]) -> Demands:
    """Return the rows of all demands, one after the other."""
    return Demands(
        source=np.concatenate([one.source for one in listed]),
        destination=np.concatenate([one.destination for one in listed]),
        num_bytes=np.concatenate([one.num_bytes for one in listed]),
        payload=np.arange(sum(len(one) for one in listed)),
        operation=np.concatenate([one.operation for one in listed]),
    )


def _data_needs(listed: Sequence[Transfer]) -> list[list[int]]:
    """Return for each message those of earlier steps that bring its chunks to its sender."""
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    needs: list[list[int]] = []
    step, pending = -1, list[int]()
    for index, transfer in enumerate(listed):
        if transfer.step != step:
            for earlier in pending:
                for chunk in listed[earlier].chunks:
                    arrivals[listed[earlier].destination, chunk].append(earlier)
            step, pending = transfer.step, []
        pending.append(index)
        sender = transfer.source
        brought = [arrivals[sender, c] for c in transfer.chunks if (sender, c) in arrivals]
        needs.append(sorted({earlier for row in brought for earlier in row}))
    return needs


def _turn_needs(listed: Sequence[Transfer]) -> list[list[int]]:
    """Return for each message the one before it on the same lane."""
    last: dict[tuple[int, int, int], int] = {}
    needs: list[list[int]] = []
    for index, transfer in enumerate(listed):
        place = (transfer.source, transfer.level, transfer.lane)
        needs.append([last[place]] if place in last else [])
        last[place] = index
    return needs
