"""Collectives in phases on meshes, against a network simulator that others wrote.

Our own generators say who sends what in each phase; the fluid engine runs the phases.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from oracles.collective_tasks import phased_tasks, phases_of

from meshwright.collectives.block import hamiltonian_cycle
from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.collectives.ring import SpanOrder, all_gather_transfers
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.traffic import Demands
from meshwright.topology.grid import mesh
from meshwright.topology.network import LinkSpec

TABLE = json.loads((Path(__file__).parents[1] / "data" / "simgrid_phased.json").read_text())
LINK = LinkSpec(TABLE["bandwidth_bytes_per_s"], TABLE["latency_s"])


def logical(kind, *sizes):
    """Return a group as its members number themselves; placing it is left to the nodes."""
    is_grid = kind == "grid"
    spans = [Span(float(size), 1.0, 0.0, 0.0, float(not is_grid), is_grid, False) for size in sizes]
    return Group(tuple(spans))


def cycle_nodes(rows, columns):
    return np.array([row * columns + column for row, column in hamiltonian_cycle(rows, columns)])


def ring(nodes, shard_bytes):
    algorithm, group = collective_algorithms["ring_all_gather"], logical("ring", len(nodes))
    return phases_of(algorithm.transfers(shard_bytes * len(nodes), group), nodes)


def beside(first, second):
    """Return phases that hold the messages of both."""
    return [
        Demands(*(np.concatenate(both) for both in zip(*map(columns, pair), strict=True)))
        for pair in zip(first, second, strict=True)
    ]


def columns(demands):
    return tuple(vars(demands).values())[:-1]


def logical_ring_allgather(case):
    return [ring(np.arange(case["rows"] * case["columns"]), case["shard_bytes"])]


def bidirectional_relay_allgather(case):
    count = case["columns"]
    algorithm, group = collective_algorithms["line_all_gather"], logical("grid", count)
    sent = algorithm.transfers(case["shard_bytes"] * count, group)
    return [phases_of(sent, np.arange(count))]


def hamiltonian_allgather(case):
    return [ring(cycle_nodes(case["rows"], case["columns"]), case["shard_bytes"])]


def hamiltonian_bidir_allgather(case):
    nodes, half = cycle_nodes(case["rows"], case["columns"]), case["shard_bytes"] / 2
    return [beside(ring(nodes, half), ring(nodes[::-1], half))]


def shift_alltoall(case):
    count = case["rows"] * case["columns"]
    algorithm, group = collective_algorithms["direct_all_to_all"], logical("switch", count)
    return [phases_of(algorithm.transfers(case["shard_bytes"] * count, group), np.arange(count))]


def two_halves_line_allgather(case):
    """Each half in a channel of its own, with its own barriers."""
    group = logical("grid", case["columns"], case["rows"])
    count = case["rows"] * case["columns"]
    streams = [SpanOrder((0, 1), channel=0), SpanOrder((1, 0), channel=1)]
    sent = list(all_gather_transfers(case["shard_bytes"] * count, group, streams))
    halves = [[one for one in sent if one.channel == channel] for channel in (0, 1)]
    return [phases_of(half, np.arange(count)) for half in halves]


PATTERNS = {
    "logical_ring_allgather": logical_ring_allgather,
    "bidirectional_relay_allgather": bidirectional_relay_allgather,
    "hamiltonian_allgather": hamiltonian_allgather,
    "hamiltonian_bidir_allgather": hamiltonian_bidir_allgather,
    "rowmajor_ring_allgather": logical_ring_allgather,
    "shift_alltoall": shift_alltoall,
    "two_halves_line_allgather": two_halves_line_allgather,
}
CASES = [
    pytest.param(case, id=f"{case['pattern']}-{case['rows']}x{case['columns']}-{k}")
    for k, case in enumerate(TABLE["cases"])
]


@pytest.mark.parametrize("case", CASES)
def test_phases_end_as_in_simgrid(case):
    network = mesh((case["rows"], case["columns"]), LINK).build()
    chains = PATTERNS[case["pattern"]](case)
    timeline = simulate_tasks(phased_tasks(chains, network), network)
    ends, first = [], 0
    for chain in chains:
        for phase in chain:
            ends.append(timeline.end_s[first : first + len(phase)].max())
            first += len(phase)
    if len(chains) == 2:
        ends = [ends[len(chains[0]) - 1], ends[-1]]
    elif len(case["end_s"]) == 2:
        ends = [ends[0], ends[-1]]
    assert ends == pytest.approx(case["end_s"], rel=1e-9)
