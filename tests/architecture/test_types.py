"""A user's type checker knows what each verb returns, with its plots."""

import subprocess
import sys

import pytest

CODE = """
import meshwright as mw

asked = {"on": "8xH100", "seq": "1k", "global_batch": 16}
reveal_type(mw.plan("gpt2-medium", **asked))
reveal_type(mw.plan("gpt2-medium", pareto=True))
reveal_type(mw.plan("gpt2-medium", within="3d"))
reveal_type(mw.map("network.yaml"))
reveal_type(mw.serve("gpt2-medium", context="1k"))
reveal_type(mw.serve("gpt2-medium", disaggregated=True))
reveal_type(mw.serve("gpt2-medium", rate=5))
reveal_type(mw.explain("plan.json"))
reveal_type(mw.explain("plan.json", measured="3 s"))
reveal_type(mw.fuse("gpt3-175b-layer"))
reveal_type(mw.sweep("sweep.yaml"))
mw.plan("gpt2-medium").plot("time").save("time.svg")
mw.compare("gpt2-medium").to_dataframe("polars")
"""
KINDS = ["Plan", "Front", "Deadline", "GraphAnswer", "ServingPlan", "DisaggregatedPlan",
         "TrafficPlan", "Explanation", "Diagnosis", "FusionAnswer", "SweepAnswer"]  # fmt: skip


@pytest.mark.slow
def test_a_type_checker_knows_what_verbs_return(tmp_path):
    (tmp_path / "asked.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "asked.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    revealed = [line for line in done.stdout.splitlines() if "Revealed type" in line]
    assert [line.rpartition(".")[2].rstrip('"') for line in revealed] == KINDS, done.stdout
    assert done.returncode == 0, done.stdout
