"""The benchmark of graphs runs."""

import runpy
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "graphs.py"


def test_the_small_run_prints_a_row_for_each_graph(capsys):
    script = runpy.run_path(str(SCRIPT), run_name="graphs")
    script["main"](["--small"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["gpt3-175b-layer", "dlrm-a"]
