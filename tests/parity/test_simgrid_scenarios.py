"""Concurrent flows against a network simulator that others wrote, compiled and as written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshwright.catalog.flow_files import read_flow_file
from meshwright.network.flows import play_flows
from meshwright.network.routing import make_routes

DATA = Path(__file__).parents[1] / "data" / "simgrid_scenarios.json"
REFERENCE = {case["name"]: case for case in json.loads(DATA.read_text())["scenarios"]}
SCENARIOS = read_flow_file(DATA)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_ends_and_bytes_are_those_of_the_reference(scenario):
    timeline = play_flows(scenario)
    expected = [flow["finish_s"] for flow in REFERENCE[scenario.name]["flows"]]
    np.testing.assert_allclose(timeline.end_s, expected, rtol=1e-9, atol=0)
    routes, num_links = make_routes(scenario.routes), len(scenario.link_ids)
    sent = np.bincount(routes.links, np.repeat(scenario.num_bytes, routes.num_hops), num_links)
    np.testing.assert_allclose(timeline.carried_bytes(num_links), sent, rtol=1e-9)


def test_there_are_scenarios():
    assert len(SCENARIOS) == 16


@pytest.mark.slow
@pytest.mark.parametrize("disabled", ["0", "1"])
def test_compiled_and_plain_python_give_the_same_bits(disabled):
    code = (
        f"import {play_flows.__module__} as flows, test_simgrid_scenarios as case\n"
        "flows.SMALL_FLOWS = -1\n"
        "for s in case.SCENARIOS:\n"
        "    print(*[t.hex() for t in flows.play_flows(s).end_s.tolist()])"
    )
    environment = os.environ | {"NUMBA_DISABLE_JIT": disabled}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
        env=environment,
    )
    here = [play_flows(s).end_s.tolist() for s in SCENARIOS]
    assert done.stdout.splitlines() == [" ".join(t.hex() for t in ends) for ends in here]
