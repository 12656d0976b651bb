"""The benchmark of contiguous cuts runs and prints a line for each case."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "contiguous_partition.py"


def test_the_small_case_is_measured(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["contiguous_partition.py", "--small"])
    runpy.run_path(str(SCRIPT), run_name="contiguous")["main"]()
    head, *lines = capsys.readouterr().out.splitlines()
    assert "greedy ms" in head
    kinds = ["none", "small", "as layers", "larger"]
    found = [(*line[:16].split(), line[16:28].strip()) for line in lines]
    assert found == [("200", "8", kind) for kind in kinds]
