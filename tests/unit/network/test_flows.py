"""Flows of files: routed phase by phase with a proof, cut into parts, played over trees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.network.flows import latency_s, links_of, network_of_links, play_flows, route_flows
from meshwright.spec.flows import FlowScenario
from meshwright.topology.grid import mesh, torus
from meshwright.topology.network import LinkSpec
from meshwright.topology.switched import fat_tree

LINK = LinkSpec(2.0, 1.0)


def scenario(network, flows, routes=None, after=None):
    """Return flows (sender, receivers, bytes) over the links of a network."""
    links, count = links_of(network), len(flows)
    return FlowScenario(
        name="case",
        link_ids=tuple(link["id"] for link in links),
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s,
        latency_s=network.latency_s,
        link_ends=tuple((link["src"], link["dst"]) for link in links),
        flow_ids=tuple(range(count)),
        num_bytes=np.array([float(size) for *_, size in flows]),
        start_s=np.zeros(count),
        ends=tuple((source, tuple(receivers)) for source, receivers, _ in flows),
        routes=tuple(routes or [None] * count),
        after=tuple(after or [()] * count),
    )


def test_the_links_of_a_network_are_a_network_again():
    network = torus((3, 4), LINK).build()
    again = network_of_links(scenario(network, []))
    names = {}
    for node in np.stack([network.source, network.target], axis=1).ravel().tolist():
        names.setdefault(node, len(names))
    assert [names[node] for node in network.source.tolist()] == again.source.tolist()
    assert [names[node] for node in network.target.tolist()] == again.target.tolist()
    two = links_of(torus((2,), LINK).build())
    assert [link["id"] for link in two] == ["0>1", "1>0", "1>0 (2)", "0>1 (2)"]


def test_two_flows_over_one_link_leave_it():
    """Both cross the first row of a 2x2 mesh by dimension order: 4 s; one goes round: 2 s."""
    network = mesh((2, 2), LINK).build()
    flows = [(0, [1], 4), (0, [3], 4)]
    routed = route_flows(scenario(network, flows), network)
    (phase,) = routed.phases
    assert (phase.stated_s, phase.default_s) == (None, 4.0)
    assert (phase.certificate.z_s, phase.certificate.bound_s) == (2.0, 2.0)
    stated = route_flows(routed.scenario, network).phases[0]
    assert stated.stated_s == 2.0


def test_flows_that_wait_are_routed_by_themselves():
    network = mesh((1, 3), LINK).build()
    flows = [(0, [2], 2), (0, [1], 6), (0, [1], 2)]
    routed = route_flows(scenario(network, flows, after=[(), (0,), ()]), network)
    first, second = routed.phases
    assert (first.flows.tolist(), second.flows.tolist()) == ([0, 2], [1])
    assert (first.certificate.z_s, second.certificate.z_s) == (2.0, 3.0)
    assert routed.busy_s.max() == 5.0


def test_a_tree_carries_its_bytes_once_and_ends_with_its_longest_way():
    """4 bytes at 2 B/s behind two hops of 1 s: 4 s; as three messages the first link has 6 s."""
    network = mesh((1, 4), LINK).build()
    routed = route_flows(scenario(network, [(0, [1, 2], 4)]), network)
    assert (routed.phases[0].default_s, routed.phases[0].certificate.z_s) == (4.0, 2.0)
    assert latency_s(routed.scenario).tolist() == [2.0]
    assert play_flows(routed.scenario).makespan_s == 4.0


def test_equal_parts_take_ways_of_their_own():
    """Two ways round a 2x2 mesh carry half each, and what waits for the flow waits for both."""
    network = mesh((2, 2), LINK).build()
    flows = [(0, [3], 8), (3, [2], 2)]
    routed = route_flows(scenario(network, flows, after=[(), (0,)]), network, max_paths=2)
    found = routed.scenario
    assert found.flow_ids == ("0/1", "0/2", "1/1", "1/2")
    assert found.num_bytes.tolist() == [4.0, 4.0, 1.0, 1.0]
    assert found.after == ((), (), (0, 1), (0, 1))
    assert routed.phases[0].certificate.z_s == 2.0


def test_nodes_that_are_no_devices_and_devices_that_are_cut_off():
    network = fat_tree(2, LINK).build()
    with pytest.raises(SpecError, match="7 is not a device"):
        route_flows(scenario(network, [(0, [7], 1)]), network)
    row = mesh((1, 3), LINK).build().without(dead_links=[(1, 2)])
    with pytest.raises(InfeasibleError):
        route_flows(scenario(row, [(0, [2], 1)]), row)


@given(st.integers(0, 2**32 - 1))
def test_no_routing_is_below_its_bound_or_above_the_default(seed):
    random = np.random.default_rng(seed)
    network = (mesh if random.random() < 0.5 else torus)((3, 3), LINK).build()
    flows = [
        (int(random.integers(9)), set(random.integers(9, size=random.integers(1, 4)).tolist()),
         float(random.integers(1, 9)))
        for _ in range(random.integers(1, 12))
    ]  # fmt: skip
    after = [tuple(range(max(0, n - 1), n)) if random.random() < 0.3 else () for n in range(12)]
    routed = route_flows(scenario(network, flows, after=after[: len(flows)]), network)
    for phase in routed.phases:
        proof = phase.certificate
        assert proof.bound_s <= proof.z_s * (1 + 1e-9) <= phase.default_s * (1 + 2e-9)
    # Together the phases send what the flows hold, each link of a route once.
    sent = sum(
        size * len(route)
        for size, route in zip(
            routed.scenario.num_bytes.tolist(), routed.scenario.routes, strict=True
        )
    )
    assert routed.load_bytes.sum() == pytest.approx(sent)
    timeline = play_flows(routed.scenario)
    for flow, waits in enumerate(routed.scenario.after):
        for before in waits:
            assert timeline.start_s[flow] >= timeline.end_s[before]
    # No play is faster than the busiest link of a phase.
    assert timeline.makespan_s >= max(p.certificate.z_s for p in routed.phases) * (1 - 1e-9)
