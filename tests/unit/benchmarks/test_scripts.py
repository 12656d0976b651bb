"""Every script of the benchmarks: its imports are there, and it runs once on its smallest size."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "benchmarks", ROOT / "papers" / "benchmarks")
SCRIPTS = {path.name: path for folder in FOLDERS for path in sorted(folder.glob("*.py"))}
SMALLEST = {
    "audit_campaign.py": "--number 4",
    "audit_mutants.py": "weights_halved",
    "baselines.py": "--small",
    "cluster_at_scale.py": "--workers 10",
    "contiguous_partition.py": "--small",
    "faulty_grids.py": "--grids 1 --strategies 2",
    "fault_maps.py": "--small",
    "flow_simulation.py": "--small",
    "fusion.py": "--no-program",
    "graphs.py": "--small",
    "grid_bounds.py": "--problems 1 --plans 2",
    "interchip.py": "--small",
    "model_families.py": "--only gpt2 lfm2",
    "mutants.py": "schedule --number 1",
    "calculon_space.py": "--small",
    "level_two.py": "--small",
    "operator_search.py": "--small",
    "same_answers.py": "--against HEAD show",
    "search_speed.py": "--small",
    "simulated_plans.py": "--small",
    "surrogate_data.py": "--train-only",
    "surrogate_ranking.py": "--configurations 1 --plans 2",
    "tcme_gaps.py": "--sets 2",
    "tcme_speed.py": "--small",
    "traffic.py": "--small",
    "trillion_search.py": "--small",
    "wafer_plans.py": "--small",
    "executed_experts.py": "--report",
    "executed_memory.py": "--small",
    "wide_graphs.py": "--no-programs",
}
"""Arguments; the others take none."""
SKIPPED = {
    "normalise_kernels.py": "reads raw tables that sources publish",
    "normalise_measurements.py": "reads raw tables that sources publish",
    "calculon_parity.py": "writes a page; papers/tests/calculon runs its functions",
    "where_tatp_wins.py": "writes a page; test_where_tatp_wins.py runs its functions",
}


def test_every_script_that_is_named_is_there():
    assert {*SMALLEST, *SKIPPED} <= set(SCRIPTS)
    assert not set(SMALLEST) & set(SKIPPED)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_imports_of_ours_is_there(name):
    for node in ast.walk(ast.parse(SCRIPTS[name].read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwright"):
            module = importlib.import_module(node.module)
            for entry in node.names:
                if not hasattr(module, entry.name):
                    importlib.import_module(f"{node.module}.{entry.name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in SKIPPED])
def test_a_script_runs_on_its_smallest_size(name):
    words = [sys.executable, str(SCRIPTS[name]), *SMALLEST.get(name, "").split()]
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
