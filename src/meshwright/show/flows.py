"""Flows as data: simulated, or with the routes that were found for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, cast

import numpy as np
from typing_extensions import TypedDict

from meshwright.catalog.flow_files import written_scenario
from meshwright.network.flows import RoutedFlows, latency_s, routes_of
from meshwright.network.simulation.tasks import Timeline
from meshwright.spec.flows import FlowScenario


@dataclass(frozen=True)
class PlayedFlow:
    """Size of a flow, and the times at which it begins and ends."""

    id: str | int
    begin_s: float
    finish_s: float
    num_bytes: float
    num_hops: int
    alone_s: float
    """Time that it would take without other flows [s]."""


@dataclass(frozen=True)
class PlayedLink:
    """Load of a link over time."""

    id: str | int
    carried_bytes: float
    utilisation: float
    changes: Sequence[Sequence[float]] | None
    """Pairs of the time of a change [s] and the rate from then on [B/s]; with ``--rates``."""
    bandwidth_bytes_per_s: float
    num_flows: int


@dataclass(frozen=True)
class PlayedScenario:
    """A simulated scenario of flows."""

    name: str
    makespan_s: float
    flows: Sequence[PlayedFlow]
    links: Sequence[PlayedLink]


@dataclass(frozen=True)
class PlayedFlows:
    """Simulated scenarios of flows."""

    scenarios: Sequence[PlayedScenario]


def played_flows(
    runs: Sequence[tuple[FlowScenario, Timeline]], *, rates: bool = False
) -> PlayedFlows:
    """Return the times at which flows begin and end, and the load of each link.

    Parameters
    ----------
    rates
        Whether each link holds every change of its rate: hundreds for each flow where many share.
    """
    return PlayedFlows([_played(scenario, timeline, rates) for scenario, timeline in runs])


def _played(scenario: FlowScenario, timeline: Timeline, with_rates: bool) -> PlayedScenario:
    routes, num_links = routes_of(scenario), len(scenario.link_ids)
    rates, hops = scenario.bandwidth_bytes_per_s, routes.num_hops
    slowest = np.full(len(hops), np.inf)
    np.minimum.at(slowest, np.repeat(np.arange(len(hops)), hops), rates[routes.links])
    alone_s = latency_s(scenario) + scenario.num_bytes / slowest
    flows = zip(
        scenario.flow_ids, timeline.start_s.tolist(), timeline.end_s.tolist(),
        scenario.num_bytes.tolist(), hops.tolist(), alone_s.tolist(), strict=True,
    )  # fmt: skip
    carried = np.bincount(routes.links, np.repeat(scenario.num_bytes, hops), num_links)
    used = carried / rates / (timeline.makespan_s or 1.0)
    changes: list[list[list[float]] | None] = [None] * num_links
    if with_rates:
        order = np.argsort(timeline.link, kind="stable")
        pairs = np.column_stack((timeline.change_s, timeline.rate_bytes_per_s))[order]
        ends = np.cumsum(np.bincount(timeline.link, minlength=num_links))
        changes = [part.tolist() for part in np.split(pairs, ends[:-1])]
    taken = np.bincount(routes.links, minlength=num_links)
    links = zip(scenario.link_ids, carried.tolist(), used.tolist(), changes, rates.tolist(),
                taken.tolist(), strict=True)  # fmt: skip
    return PlayedScenario(
        scenario.name, timeline.makespan_s, [PlayedFlow(*flow) for flow in flows],
        [PlayedLink(*link) for link in links],
    )  # fmt: skip


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


@dataclass(frozen=True)
class ShownRoutes:
    """Scenarios with their routes."""

    scenarios: Sequence[RoutedScenario]


def shown_routes(found: Sequence[RoutedFlows]) -> ShownRoutes:
    """Return scenarios with their routes as a flow file holds them, with loads and proofs."""
    return ShownRoutes([_routed(routed) for routed in found])


def _routed(routed: RoutedFlows) -> RoutedScenario:
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
