"""The benchmark of the search runs, and its counts sum to the space."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "search_speed.py"


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT), run_name="search_speed")


@pytest.mark.parametrize("prune", [True, False])
def test_the_small_case_is_covered(script, prune):
    cells = script["row"](script["CASES"]["small"], prune=prune).split()
    total, *parts = (int(cell.replace(",", "")) for cell in cells[3:9])
    assert cells[:3] == ["llama3-8b", "8xH100", "pruned" if prune else "all"]
    assert total == sum(parts) > 100_000


def test_a_fresh_process_tells_its_time_and_memory(script):
    line = script["alone"]("one space", "covered(s.CASES['small'], prune=True).best")
    assert line.startswith("one space")
    assert "GiB  tp" in line


def test_the_plan_of_a_wafer_tells_its_price_and_its_simulated_step(script):
    line = script["placed"](script["WAFERS"]["small"])
    assert line.startswith("tp")
    assert " s, simulated " in line
