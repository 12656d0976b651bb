"""The benchmark of fault maps runs: every map ends in one of the known actions."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fault_maps.py"


def test_the_small_run_prints_all_curves(capsys):
    script = runpy.run_path(str(SCRIPT), run_name="fault_maps")
    script["main"](["--small"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("20 maps, no crash: ")
    counts = lines[0].partition(": ")[2].partition(" (")[0].split(", ")
    assert sum(int(each.split()[0]) for each in counts) == 20
    wafers = [line.split()[0] for line in lines if line[:3] in ("4x8", "6x8")]
    assert wafers == (["4x8"] * 8 + ["6x8"] * 8) + (["4x8"] * 18 + ["6x8"] * 18)
