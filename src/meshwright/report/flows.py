"""Simulated flows as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.catalog.flow_files import FlowScenario
from meshwright.network.simulation.timeline import Timeline

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
    order = np.argsort(-timeline.end_s, kind="stable")
    if len(order):
        head = ("flow", "size", "hops", "start", "end", "against alone")
        yield f"  {head[0]:<24}{head[1]:>12}{head[2]:>6}{head[3]:>11}{head[4]:>11}{head[5]:>18}"
    for flow in order[:MOST_FLOWS].tolist():
        route = list(scenario.routes[flow])
        start_s, end_s = scenario.start_s[flow], timeline.end_s[flow]
        slowest = scenario.bandwidth_bytes_per_s[route].min(initial=np.inf)
        alone_s = scenario.latency_s[route].sum() + scenario.num_bytes[flow] / slowest
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
        num_flows = sum(link in route for route in scenario.routes)
        bandwidth = format_si(float(scenario.bandwidth_bytes_per_s[link]), "B/s")
        yield (
            f"  {str(scenario.link_ids[link])[:23]:<24}{format_bytes(carried[link]):>12}"
            f"{num_flows:>6}{bandwidth:>11}{utilization[link]:>11.1%}"
        )


def flow_record(scenario: FlowScenario, timeline: Timeline) -> dict[str, Any]:
    """Return when each flow ends, as data."""
    ends = zip(scenario.flow_ids, timeline.end_s.tolist(), strict=True)
    return {
        "name": scenario.name,
        "makespan_s": timeline.makespan_s,
        "flows": [{"id": name, "finish_s": end_s} for name, end_s in ends],
    }
