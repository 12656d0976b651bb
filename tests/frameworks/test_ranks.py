"""Exported scripts under torchrun: four ranks on this computer answer in every group."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real_parsers import ADDED, READERS
from sampled import sampled

from meshwright.frameworks.launch import degrees
from meshwright.frameworks.registry import export
from meshwright.sharding.strategy import ContextKind

MIXTRAL = {"model": "mixtral-8x7b", "length": 4096}
PLANS = [
    ({"tp": 2, "dp_shard": 2}, {"zero_stage": 1}, {}),
    ({"pp": 2, "cp": 2}, {"zero_stage": 1}, {}),
    ({"dp_shard": 4, "ep": 2}, {"zero_stage": 1}, MIXTRAL),
]
AXES = ("tp", "pp", "cp", "ep")


def answered(command, folder):
    """Return how many ranks answer in each group: the dict that rank 0 prints."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {
        "PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join([str(READERS), *sys.path]),
        "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return next(ast.literal_eval(line) for line in done.stdout.splitlines() if line[:1] == "{")


@pytest.mark.parametrize("case", sampled(PLANS, 1), ids=["tp-dp", "pp-cp", "ep"])
def test_pytorch_builds_every_group(make_plan, tmp_path, case):
    plan = make_plan(case[0], case[1], system="4xH100", **case[2])
    (script,) = export(plan, "torch", tmp_path)
    found = answered(["torchrun", "--nproc-per-node=4", str(script)], tmp_path)
    assert {axis: found.get(axis, 1) for axis in AXES} == {a: degrees(plan)[a] for a in AXES}


@pytest.mark.parametrize("case", sampled(PLANS, 1), ids=["tp-dp", "pp-cp", "ep"])
def test_megatron_builds_every_group(make_plan, tmp_path, case):
    plan_options = case[1] | {"sequence_parallel": case[0].get("tp", 1) > 1}
    plan = make_plan(case[0], plan_options, system="4xH100", **case[2])
    (script,) = export(plan, "megatron", tmp_path)
    shutil.copy(READERS / "pretrain_gpt.py", tmp_path)
    found = answered(["bash", str(script), *ADDED["megatron"]], tmp_path)
    axes = (*AXES, "dp")
    assert {axis: found[axis] for axis in axes} == {axis: degrees(plan)[axis] for axis in axes}


@pytest.mark.parametrize(
    ("target", "degrees", "plan_options", "groups"),
    sampled([
        pytest.param(
            "accelerate", {"tp": 2, "dp_shard": 2}, {"sequence_parallel": False},
            {"tp": 2, "dp_shard": 2},
        ),
        pytest.param("accelerate", {"cp": 2, "dp_shard": 2}, {}, {"cp": 2, "dp_shard": 2}),
        pytest.param(
            "deepspeed", {"cp": 2, "dp_shard": 2}, {"context_kind": ContextKind.ULYSSES},
            {"cp": 2, "shards": 4},
        ),
    ], 1),
)  # fmt: skip
def test_the_trainer_builds_every_group(make_plan, tmp_path, target, degrees, plan_options, groups):
    plan = make_plan(degrees, plan_options | {"zero_stage": 3}, system="4xH100")
    (script, _) = export(plan, target, tmp_path)
    shutil.copy(READERS / "run_clm.py", tmp_path)
    found = answered(["bash", str(script)], tmp_path)
    assert found == groups
