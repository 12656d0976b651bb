"""When flows on shared links end, and what the links carry."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np

from meshwright.base.compiled import as_written
from meshwright.catalog.flow_files import FlowFile, FlowScenario, read_flow_file
from meshwright.network.routes import make_routes
from meshwright.network.simulation.run import run_tasks
from meshwright.network.simulation.tasks import flow_graph
from meshwright.network.simulation.timeline import Timeline

SMALL = 2000
"""Hops of all flows that plain Python plays in a fraction of a second; compiling takes longer."""


def load_flows(path: str | Path) -> FlowFile:
    """Return the scenarios of a flow file."""
    return read_flow_file(Path(path))


def simulate_flows(scenario: FlowScenario) -> Timeline:
    """Return when each flow of a scenario ends; flow i is task i of the timeline."""
    routes = make_routes(scenario.routes)
    latency_s = np.array([scenario.latency_s[list(route)].sum() for route in scenario.routes])
    graph = flow_graph(routes, scenario.num_bytes, latency_s, scenario.start_s)
    with as_written() if len(routes.links) <= SMALL else nullcontext():
        return run_tasks(graph, scenario.bandwidth_bytes_per_s)
