"""Every collective algorithm, simulated on a private grid: never later than its closed form."""

import numpy as np
import pytest
from oracles.collective_tasks import collective_tasks
from sampled import one_in

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.spec.collective import CollectiveKind
from meshwright.topology.grid import mesh, torus
from meshwright.topology.network import LinkSpec

LINK = LinkSpec(1e9, 1e-6, 1e3)
GRIDS = {
    "line of 5": (mesh, (1, 5)),
    "mesh 3x3": (mesh, (3, 3)),
    "mesh 4x3": (mesh, (4, 3)),
    "mesh 2x5": (mesh, (2, 5)),
    "ring of 6": (torus, (1, 6)),
    "torus 4x3": (torus, (4, 3)),
}


def group_on(kind, sides):
    """Return what a group that owns a grid sees of it, innermost dimension first."""
    closes = 1.0 if kind is torus else 0.0
    own = (LINK.bandwidth_bytes_per_s, LINK.latency_s, LINK.message_half_bytes)
    return Group(tuple(Span(float(d), *own, closes, True, False) for d in reversed(sides)))


def snake(sides):
    """Return devices so that each is a neighbour of the one before."""
    rows = np.arange(np.prod(sides)).reshape(sides)
    rows[1::2] = rows[1::2, ::-1]
    return rows.ravel()


MANY = 1000
"""Chunks; what would have more runs on the smaller grids."""
IN_ORDER = 1 / 3
"""What it costs at most that pieces in channels of their own keep their order on a link."""
CASES = [
    pytest.param(name, kind, sides, id=f"{name}-{where}")
    for name in collective_algorithms
    for where, (kind, sides) in GRIDS.items()
    if collective_algorithms[name].applies(group_on(kind, sides))
    and collective_algorithms[name].num_chunks(group_on(kind, sides)) <= MANY
]


@pytest.mark.parametrize(("name", "kind", "sides"), one_in(6, CASES))
@pytest.mark.parametrize("num_bytes", [1e3, 1e8])
def test_simulated_as_the_form_says(name, kind, sides, num_bytes):
    algorithm = collective_algorithms[name]
    group, network = group_on(kind, sides), kind(sides, LINK).build()
    nodes = snake(sides) if algorithm.kind is CollectiveKind.SEND else np.arange(np.prod(sides))
    graph = collective_tasks(algorithm.transfers(num_bytes, group), nodes, network)
    simulated_s = simulate_tasks(graph, network).makespan_s
    form_s = float(algorithm.time_s(num_bytes, group))
    below = 0.02 if algorithm.replay_slack else 1e-9
    if "pipelined_hierarchical" in name:
        below = IN_ORDER
    assert simulated_s * (1 - below) <= form_s
    assert form_s <= simulated_s * (1 + algorithm.replay_slack + 1e-9)
