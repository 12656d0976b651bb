"""Flows as text and as data: simulated, or with the routes that were found for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NotRequired, cast

import numpy as np
from typing_extensions import TypedDict

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.catalog.flow_files import written_scenario
from meshwright.network.flows import RoutedFlows, latency_s
from meshwright.network.simulation.timeline import Timeline
from meshwright.spec.flows import FlowScenario

PROVEN = 1e-6
"""Largest gap to the bound of a routing that counts as the best."""
MOST_FLOWS, MOST_LINKS = 12, 5
"""Lines of the tables: the last flows to end, and the links that carried most for longest."""


def flow_lines(scenario: FlowScenario, timeline: Timeline) -> Iterator[str]:
    """Yield the flows of a scenario that end last, and its hottest links."""
    span_s = timeline.makespan_s
    counts = f"{len(scenario.flow_ids)} flows, {len(scenario.link_ids)} links"
    yield f"{scenario.name[:48]}: {counts}, all done after {format_seconds(span_s)}"
    yield from _table_of_flows(scenario, timeline)
    yield from _table_of_links(scenario, timeline)
    yield ""


def _table_of_flows(scenario: FlowScenario, timeline: Timeline) -> Iterator[str]:
    order, first_byte_s = np.argsort(-timeline.end_s, kind="stable"), latency_s(scenario)
    if len(order):
        head = ("flow", "size", "hops", "start", "end", "against alone")
        yield f"  {head[0]:<24}{head[1]:>12}{head[2]:>6}{head[3]:>11}{head[4]:>11}{head[5]:>18}"
    for flow in order[:MOST_FLOWS].tolist():
        route = list(scenario.routes[flow] or ())
        start_s, end_s = timeline.start_s[flow], timeline.end_s[flow]
        slowest = scenario.bandwidth_bytes_per_s[route].min(initial=np.inf)
        alone_s = first_byte_s[flow] + scenario.num_bytes[flow] / slowest
        slower = f"{(end_s - start_s) / alone_s:.2f} x" if alone_s > 0 else "-"
        yield (
            f"  {str(scenario.flow_ids[flow])[:23]:<24}{format_bytes(scenario.num_bytes[flow]):>12}"
            f"{len(route):>6}{format_seconds(start_s):>11}{format_seconds(end_s):>11}{slower:>18}"
        )
    if len(order) > MOST_FLOWS:
        yield f"  and {len(order) - MOST_FLOWS} flows that end before"


def _table_of_links(scenario: FlowScenario, timeline: Timeline) -> Iterator[str]:
    carried = timeline.carried_bytes(len(scenario.link_ids))
    utilization = carried / scenario.bandwidth_bytes_per_s / (timeline.makespan_s or 1.0)
    hottest = [link for link in np.argsort(-utilization, kind="stable")[:MOST_LINKS].tolist()
               if carried[link] > 0]  # fmt: skip
    if hottest:
        yield f"  {'hottest links':<24}{'carried':>12}{'flows':>6}{'bandwidth':>11}{'in use':>11}"
    for link in hottest:
        num_flows = sum(link in (route or ()) for route in scenario.routes)
        bandwidth = format_si(float(scenario.bandwidth_bytes_per_s[link]), "B/s")
        yield (
            f"  {str(scenario.link_ids[link])[:23]:<24}{format_bytes(carried[link]):>12}"
            f"{num_flows:>6}{bandwidth:>11}{utilization[link]:>11.1%}"
        )


class FlowRecord(TypedDict):
    """Times at which a flow begins and ends."""

    id: str | int
    begin_s: float
    finish_s: float


class LinkRecord(TypedDict):
    """Load of a link over time."""

    id: str | int
    carried_bytes: float
    utilisation: float
    changes: Sequence[Sequence[float]]
    """Pairs of the time of a change [s] and the rate from then on [B/s]."""


class PlayedFlows(TypedDict):
    """A simulated scenario of flows."""

    name: str
    makespan_s: float
    flows: Sequence[FlowRecord]
    links: Sequence[LinkRecord]


class FlowsRecord(TypedDict):
    """Simulated scenarios of flows."""

    scenarios: Sequence[PlayedFlows]


def flow_record(scenario: FlowScenario, timeline: Timeline) -> PlayedFlows:
    """Return the times at which flows begin and end, and the load of each link, as data."""
    spans = zip(scenario.flow_ids, timeline.start_s.tolist(), timeline.end_s.tolist(), strict=True)
    carried = timeline.carried_bytes(len(scenario.link_ids))
    used = carried / scenario.bandwidth_bytes_per_s / (timeline.makespan_s or 1.0)
    changes: list[list[list[float]]] = [[] for _ in scenario.link_ids]
    for link, at_s, rate in zip(
        timeline.link.tolist(), timeline.change_s.tolist(), timeline.rate_bytes_per_s.tolist(),
        strict=True,
    ):  # fmt: skip
        changes[link].append([at_s, rate])
    loads = zip(scenario.link_ids, carried.tolist(), used.tolist(), changes, strict=True)
    return {
        "name": scenario.name,
        "makespan_s": timeline.makespan_s,
        "flows": [{"id": name, "begin_s": begin_s, "finish_s": end_s}
                  for name, begin_s, end_s in spans],
        "links": [{"id": name, "carried_bytes": num_bytes, "utilisation": share, "changes": rates}
                  for name, num_bytes, share, rates in loads],
    }  # fmt: skip


def routed_lines(routed: RoutedFlows) -> Iterator[str]:
    """Yield the quality of the routes by phase, and the links that are busy longest."""
    scenario = routed.scenario
    yield f"{scenario.name[:48]}: {len(scenario.flow_ids)} flows, {len(scenario.link_ids)} links"
    for number, phase in enumerate(routed.phases, start=1):
        proof, stated_s = phase.certificate, phase.stated_s
        ways = [("the file", stated_s)] if stated_s is not None else []
        ways += [("default paths", phase.default_s), ("routed", proof.z_s)]
        times = ", ".join(f"{format_seconds(time_s or 0.0)} {way}" for way, time_s in ways)
        yield f"  phase {number}, {len(phase.flows)} flows; busiest link: {times}"
        least = "no routing does with less"
        if proof.gap > PROVEN:
            least = f"at most {proof.gap:.1%} above the best: no routing is below "
            least += format_seconds(proof.bound_s)
        yield f"    {least} ({proof.method})"
    busy_s = routed.busy_s
    hottest = [link for link in np.argsort(-busy_s, kind="stable")[:MOST_LINKS].tolist()
               if busy_s[link] > 0]  # fmt: skip
    if hottest:
        yield f"  {'hottest links':<24}{'carried':>12}{'bandwidth':>12}{'busy':>11}"
    for link in hottest:
        bandwidth = format_si(float(scenario.bandwidth_bytes_per_s[link]), "B/s")
        yield (
            f"  {str(scenario.link_ids[link])[:23]:<24}"
            f"{format_bytes(routed.load_bytes[link]):>12}{bandwidth:>12}"
            f"{format_seconds(float(busy_s[link])):>11}"
        )
    yield ""


class PhaseRecord(TypedDict):
    """Quality of the routes of a phase, by the time of the busiest link."""

    num_flows: int
    stated_s: float | None
    """Time of the busiest link on the routes of the file."""
    default_s: float
    routed_s: float
    bound_s: float
    """Lower bound of all routings [s]."""
    bound_method: str


class LoadedLink(TypedDict):
    """A link as a flow file holds it, with its load."""

    id: str | int
    bw_Bps: float
    lat_s: float
    src: NotRequired[str | int]
    dst: NotRequired[str | int]
    carried_bytes: float
    busy_s: float


class RoutedFlow(TypedDict):
    """A flow as a flow file holds it, with its route."""

    id: str | int
    bytes: float
    start_s: NotRequired[float]
    src: NotRequired[str | int]
    dst: NotRequired[str | int | Sequence[str | int]]
    after: NotRequired[Sequence[str | int]]
    route: NotRequired[Sequence[str | int]]


class RoutedScenario(TypedDict):
    """A scenario with its routes as a flow file holds it, with loads and proofs."""

    name: str
    phases: Sequence[PhaseRecord]
    links: Sequence[LoadedLink]
    flows: Sequence[RoutedFlow]


class RoutesRecord(TypedDict):
    """Scenarios with their routes."""

    scenarios: Sequence[RoutedScenario]


def routed_record(routed: RoutedFlows) -> RoutedScenario:
    """Return a scenario with its routes as a flow file holds it, with loads and proofs."""
    phases: list[PhaseRecord] = [
        {
            "num_flows": len(phase.flows),
            "stated_s": phase.stated_s,
            "default_s": phase.default_s,
            "routed_s": phase.certificate.z_s,
            "bound_s": phase.certificate.bound_s,
            "bound_method": phase.certificate.method,
        }
        for phase in routed.phases
    ]
    record = written_scenario(routed.scenario, phases=phases)
    for link, num_bytes, busy_s in zip(
        record["links"], routed.load_bytes.tolist(), routed.busy_s.tolist(), strict=True
    ):
        link |= {"carried_bytes": num_bytes, "busy_s": busy_s}
    return cast(RoutedScenario, record)
