"""Laws of runs of random task graphs on a small mesh."""

import dataclasses

import numpy as np
from grid_networks import grid
from hypothesis import given
from hypothesis import strategies as st
from oracles.store_and_forward import store_and_forward

from meshwright.network.routing import default_routes
from meshwright.network.simulation.fluid import run_tasks, simulate_tasks
from meshwright.network.simulation.tasks import TaskGraphBuilder, flow_graph
from meshwright.network.traffic import Demands

MESH = grid(2, 3, bandwidth=2.0)
DEVICE = st.integers(0, MESH.num_devices - 1)
SIZE = st.integers(0, 12).map(lambda n: n / 4)


@st.composite
def graphs(draw):
    """Draw computations and messages, each after some of those before it."""
    graph = TaskGraphBuilder(MESH)
    for number in range(draw(st.integers(1, 25))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        source, target, size, start_s = draw(st.tuples(DEVICE, DEVICE, SIZE, SIZE))
        if draw(st.booleans()):
            track = draw(st.sampled_from(["compute", "copy"]))
            graph.compute(np.array([source]), size, after=after, track=track, start_s=start_s)
        else:
            one = [np.array([value]) for value in (source, target, size, 0, 0)]
            graph.transfer(default_routes(MESH, Demands(*one)), size, after=after)
    return graph.build()


@given(graphs())
def test_tasks_follow_what_they_need_and_take_turns_in_order_of_readiness(graph):
    timeline = simulate_tasks(graph, MESH)
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.needs_offsets))
    ready_s = graph.start_s.copy()
    np.maximum.at(ready_s, waiting, timeline.end_s[graph.needs])
    assert (timeline.start_s >= ready_s).all()
    computes = np.flatnonzero(~graph.is_transfer)
    np.testing.assert_allclose(
        timeline.end_s[computes], timeline.start_s[computes] + graph.duration_s[computes]
    )
    resource = graph.device * 8 + graph.track
    for one in np.unique(resource[computes]):
        own = computes[resource[computes] == one]
        # What becomes ready in the same instant takes turns in any order.
        own = own[np.lexsort((timeline.end_s[own], timeline.start_s[own], ready_s[own]))]
        before = np.concatenate(([0.0], timeline.end_s[own][:-1]))
        np.testing.assert_allclose(timeline.start_s[own], np.maximum(before, ready_s[own]))


@given(graphs())
def test_messages_end_as_flows_that_start_when_they_were_ready(graph):
    """The same flows without any dependency, each started when its message was."""
    timeline = simulate_tasks(graph, MESH)
    moves = graph.is_transfer
    starts = np.where(moves, timeline.start_s, 0.0)
    flows = flow_graph(graph.routes, graph.num_bytes, graph.latency_s, starts)
    alone = run_tasks(flows, MESH.bandwidth_bytes_per_s)
    np.testing.assert_allclose(alone.end_s[moves], timeline.end_s[moves], rtol=1e-9, atol=1e-12)


@given(graphs())
def test_storing_carries_the_same_bytes_and_twice_the_speed_takes_half_the_time(graph):
    hops, origin = store_and_forward(graph, MESH)
    stored, through = simulate_tasks(hops, MESH), simulate_tasks(graph, MESH)
    np.testing.assert_allclose(
        stored.carried_bytes(MESH.num_links), through.carried_bytes(MESH.num_links), atol=1e-9
    )
    assert set(origin.tolist()) == set(range(len(graph)))
    half = {name: getattr(graph, name) / 2 for name in ("duration_s", "latency_s", "start_s")}
    fast = dataclasses.replace(graph, **half)
    twice = run_tasks(fast, MESH.bandwidth_bytes_per_s * 2)
    np.testing.assert_allclose(twice.end_s, through.end_s / 2, rtol=1e-9)
