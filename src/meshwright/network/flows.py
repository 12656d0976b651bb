"""Flows of a file: their links as a network, routed on request, and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.compiled import as_written
from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief, Listed, Rows
from meshwright.base.units import format_seconds
from meshwright.network.routing import Routes, make_routes
from meshwright.network.simulation.fluid import run_tasks
from meshwright.network.simulation.tasks import Timeline, deepest_latency_s, flow_graph
from meshwright.network.tcme.bounds import Certificate
from meshwright.network.tcme.optimiser import optimise
from meshwright.network.traffic import Demands
from meshwright.spec.flows import FlowScenario, Label, depths_of
from meshwright.topology.network import Network

SMALL_FLOWS = 2000
"""Hops of all flows that plain Python plays in a fraction of a second; compiling takes longer."""


def links_of(network: Network) -> list[dict[str, object]]:
    """Return the links of a network as a flow file holds them; ``0>1`` leads from node 0 to 1."""
    seen: dict[str, int] = {}
    links: list[dict[str, object]] = []
    for source, target, bandwidth, latency_s in zip(
        network.source.tolist(), network.target.tolist(),
        network.bandwidth_bytes_per_s.tolist(), network.latency_s.tolist(), strict=True,
    ):  # fmt: skip
        name = f"{source}>{target}"
        seen[name] = seen.get(name, 0) + 1
        name += f" ({seen[name]})" if seen[name] > 1 else ""
        links.append({"id": name, "bw_Bps": bandwidth, "lat_s": latency_s,
                      "src": source, "dst": target})  # fmt: skip
    return links


def network_of_links(scenario: FlowScenario) -> Network:
    """Return the links of a scenario as a network; its nodes all send, receive and pass on.

    Nodes are numbered in the order in which the links name them. Each link without stated ends
    has two separate nodes.
    """
    number: dict[Label, int] = {}
    for ends in scenario.link_ends:
        for node in ends:
            number.setdefault(node, len(number))
    num_links = len(scenario.link_ids)
    joined = np.arange(2 * num_links).reshape(num_links, 2)
    if scenario.link_ends:
        joined = np.array([[number[a], number[b]] for a, b in scenario.link_ends])
    num_nodes = int(joined.max(initial=-1)) + 1
    return Network(
        num_devices=num_nodes,
        num_nodes=num_nodes,
        source=joined[:, 0],
        target=joined[:, 1],
        bandwidth_bytes_per_s=scenario.bandwidth_bytes_per_s,
        latency_s=scenario.latency_s,
        message_half_bytes=np.zeros(num_links),
        level=np.zeros(num_links, dtype=np.int64),
        forwards=np.ones(num_nodes, dtype=np.int64),
        position_m=np.zeros((num_nodes, 2)),
        speed_factor=np.ones(num_nodes),
    )


@dataclass(frozen=True)
class FlowPhase(Brief):
    """Flows in flight together: each waits for an equal number of others one after the other."""

    flows: IntArray
    stated_s: float | None
    """Seconds of the busiest link on the routes of the file; None where a flow has no route."""
    default_s: float
    """Seconds of the busiest link on default paths: dimension order on a grid, else shortest
    ones."""
    certificate: Certificate
    """Busiest link of the routes found, and a bound that no routing beats."""


@dataclass(frozen=True)
class RoutedFlows(Listed):
    """A scenario with a route for each flow, or for each part of one."""

    scenario: FlowScenario
    network: Network
    phases: tuple[FlowPhase, ...]
    load_bytes: FloatArray
    """Load of each link, of all phases [bytes]."""

    @property
    def busy_s(self) -> FloatArray:
        """Return the busy time of each link [s]."""
        seconds: FloatArray = self.load_bytes / self.network.bandwidth_bytes_per_s
        return seconds

    def brief(self) -> str:
        """Return the time of the busiest link, and the bound that no routing beats, as a text."""
        routed_s = sum(phase.certificate.z_s for phase in self.phases)
        bound_s = sum(phase.certificate.bound_s for phase in self.phases)
        return (
            f"{self.scenario.name}: {len(self.scenario.flow_ids)} flows routed over "
            f"{len(self.scenario.link_ids)} links\nthe busiest link takes "
            f"{format_seconds(routed_s)}; no routing is below {format_seconds(bound_s)}"
        )

    def rows(self) -> Rows:
        """Return the links with their loads."""
        rows = zip(self.scenario.link_ids, self.scenario.bandwidth_bytes_per_s.tolist(),
                   self.load_bytes.tolist(), self.busy_s.tolist(), strict=True)  # fmt: skip
        return [
            {"id": str(link), "bandwidth_bytes_per_s": bandwidth, "carried_bytes": carried,
             "busy_s": busy_s}
            for link, bandwidth, carried, busy_s in rows
        ]  # fmt: skip


def route_flows(
    scenario: FlowScenario, network: Network | None = None, *, seed: int = 0, max_paths: int = 1
) -> RoutedFlows:
    """Return routes for flows, phase by phase, so that the busiest link is done early.

    A flow that starts later (``start_s``) counts as in flight with the others of its phase.

    Parameters
    ----------
    network
        Network with the links of the scenario, in their order; made from them where not given.
    max_paths
        Equal parts into which each flow is cut, each with its own route.

    Raises
    ------
    InfeasibleError
        Where a receiver cannot be reached.
    """
    nodes: dict[Label, int] | None = None
    if network is None:
        network = network_of_links(scenario)
        named = (node for ends in scenario.link_ends for node in ends)
        nodes = {node: number for number, node in enumerate(dict.fromkeys(named))}
    rows = [
        (_number(source, nodes, network), _number(receiver, nodes, network), flow)
        for flow, (source, receivers) in enumerate(scenario.ends)
        for receiver in receivers
    ]
    depth = np.array(depths_of(scenario.after), dtype=np.int64)
    parts: list[list[tuple[int, ...]]] = [[()] for _ in scenario.flow_ids]
    load_bytes, phases = np.zeros(network.num_links), []
    for level in range(int(depth.max(initial=-1)) + 1):
        flows = np.flatnonzero(depth == level)
        source, target, flow = (
            np.array(column, dtype=np.int64)
            for column in zip(*(row for row in rows if depth[row[2]] == level), strict=True)
        )
        sizes = scenario.num_bytes[flow]
        demands = Demands(source, target, sizes, flow, np.zeros_like(flow))
        is_small = len(demands) * network.num_links <= SMALL_FLOWS
        with as_written() if is_small else nullcontext():
            routed = optimise(network, demands, seed, max_paths=max_paths)
        for number, first in zip(flow.tolist(), routed.first_route.tolist(), strict=True):
            if first >= 0:
                found = range(first, first + routed.num_paths)
                parts[number] = [tuple(routed.routes.of(route).tolist()) for route in found]
        stated = [(scenario.routes[f], float(scenario.num_bytes[f])) for f in flows.tolist()]
        phases.append(
            FlowPhase(flows, _stated_s(stated, network), routed.default_z_s, routed.certificate)
        )
        load_bytes += routed.link_load_bytes
    return RoutedFlows(_in_parts(scenario, parts), network, tuple(phases), load_bytes)


def _number(node: Label | None, nodes: dict[Label, int] | None, network: Network) -> int:
    """Return the number of a node, which must be a device of a system."""
    if nodes is not None and node is not None:
        return nodes[node]
    if not isinstance(node, int) or not 0 <= node < network.num_devices:
        allowed = f"0 to {network.num_devices - 1}"
        raise SpecError(Fault("flows", f"{node!r} is not a device of the system", allowed))
    return node


def _stated_s(
    stated: Sequence[tuple[tuple[int, ...] | None, float]], network: Network
) -> float | None:
    """Return the time of the busiest link on stated routes; None where one is missing [s]."""
    routes = [route for route, _ in stated if route is not None]
    if len(routes) < len(stated):
        return None
    sizes = np.array([num_bytes for _, num_bytes in stated])
    load = make_routes(routes).link_load_bytes(sizes, network)
    return float((load / network.bandwidth_bytes_per_s).max(initial=0.0))


def _in_parts(scenario: FlowScenario, parts: Sequence[Sequence[tuple[int, ...]]]) -> FlowScenario:
    """Return a scenario with these routes of its flows: one each, or one for each equal part."""
    if all(len(routes) == 1 for routes in parts):
        return replace(scenario, routes=tuple(routes[0] for routes in parts))
    first = np.cumsum([0, *map(len, parts)]).tolist()
    of = [flow for flow, routes in enumerate(parts) for _ in routes]
    share = np.array([1 / len(parts[flow]) for flow in of])
    return replace(
        scenario,
        flow_ids=tuple(
            name if len(routes) == 1 else f"{name}/{part + 1}"
            for name, routes in zip(scenario.flow_ids, parts, strict=True)
            for part in range(len(routes))
        ),
        num_bytes=scenario.num_bytes[of] * share,
        start_s=scenario.start_s[of],
        ends=tuple(scenario.ends[flow] for flow in of),
        routes=tuple(route for routes in parts for route in routes),
        after=tuple(
            tuple(part for before in scenario.after[flow]
                  for part in range(first[before], first[before + 1]))
            for flow in of
        ),
    )  # fmt: skip


def latency_s(scenario: FlowScenario) -> FloatArray:
    """Return the seconds that each flow waits for its first byte.

    The latency of its path; for a tree, where links state their ends, of its longest branch.
    """
    network, routes = network_of_links(scenario), routes_of(scenario)
    return (deepest_latency_s if scenario.link_ends else Routes.latency_s)(routes, network)


def routes_of(scenario: FlowScenario) -> Routes:
    """Return the routes of the flows; one of no links where none is stated."""
    return make_routes(route or () for route in scenario.routes)


def play_flows(scenario: FlowScenario) -> Timeline:
    """Return when each flow begins and ends; flow i is task i of the timeline.

    A flow begins when those that it waits for have ended and its start has come.
    """
    routes, waits_s = routes_of(scenario), latency_s(scenario)
    graph = flow_graph(routes, scenario.num_bytes, waits_s, scenario.start_s, scenario.after)
    with as_written() if len(routes.links) <= SMALL_FLOWS else nullcontext():
        return run_tasks(graph, scenario.bandwidth_bytes_per_s)
