"""Slurm and Kubernetes start the script of a target on every host."""

import json
import subprocess

import pytest
import yaml

from meshwright.base.errors import UnknownNameError, UnsupportedError
from meshwright.cli.main import main
from meshwright.frameworks.launchers import LAUNCHERS
from meshwright.frameworks.registry import export, rendered
from meshwright.train.plan_file import save
from meshwright.train.writing import TARGETS

SRUN = """\
#!/usr/bin/env bash
export SLURM_NODEID=3
exec "$@"
"""
SCONTROL = """\
#!/usr/bin/env bash
printf 'first\\nsecond\\n'
"""
PROGRAM = """\
#!/usr/bin/env bash
printf '%s\\n' "$HEAD_ADDRESS" "$NODE_RANK" "$@"
"""
PLAIN = {
    "megatron": ({"tp": 8, "dp_shard": 8}, {"zero_stage": 1}, {}),
    "fsdp": ({"dp_shard": 64}, {"zero_stage": 3}, {}),
    "maxtext": ({"dp_shard": 64}, {"zero_stage": 3}, {}),
    "accelerate": ({"dp_shard": 64}, {"zero_stage": 3}, {}),
    "deepspeed": ({"dp_shard": 64}, {"zero_stage": 3}, {"optimizer": "deepspeed-adam"}),
    "torchtitan": ({"dp_shard": 64}, {"zero_stage": 3}, {}),
    "megatron-bridge": ({"tp": 8, "dp_shard": 8}, {"zero_stage": 1}, {}),
}


@pytest.fixture
def plan(make_plan):
    """Return a plain plan of 64 devices for a framework."""

    def of(name):
        degrees, plan_options, rest = PLAIN[name]
        return make_plan(degrees, plan_options, **rest)

    return of


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", TARGETS)
def test_the_files_of_the_target_stay_as_they_are(plan, name, launcher):
    alone = rendered(plan(name), TARGETS[name])
    together = rendered(plan(name), TARGETS[name], launcher)
    assert {file: together[file] for file in alone} == alone
    assert len(together) == len(alone) + 1


@pytest.mark.parametrize("name", TARGETS)
def test_slurm_starts_one_task_on_each_host(plan, tmp_path, name):
    """The batch script runs with commands in the place of Slurm's, and of the launchers'."""
    *_, batch = export(plan(name), TARGETS[name], tmp_path, launcher="slurm")
    text = batch.read_text("utf-8")
    assert "#SBATCH --nodes=8\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\n" in text
    commands = tmp_path / "commands"
    commands.mkdir()
    for command in ("torchrun", "accelerate", "python3"):
        (commands / command).write_text(PROGRAM, "utf-8")
    (commands / "srun").write_text(SRUN, "utf-8")
    (commands / "scontrol").write_text(SCONTROL, "utf-8")
    for file in commands.iterdir():
        file.chmod(0o755)
    environment = {"PATH": f"{commands}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "host[1-8]"}
    done = subprocess.run(
        ["bash", batch, "--added", "a b"], cwd=tmp_path, env=environment, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    head, rank, *words = done.stdout.splitlines()
    assert (head, rank) == ("first", "3")
    if name != "fsdp":  # device_mesh.py takes no options
        assert words.index("a b") == words.index("--added") + 1


@pytest.mark.parametrize("name", TARGETS)
def test_kubernetes_starts_one_pod_for_each_host(plan, name):
    files = rendered(plan(name), TARGETS[name], "kubernetes")
    *own, last = files.items()
    config, job = yaml.safe_load_all(last[1])
    assert config["data"] == dict(own)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == {
        "Master": 1, "Worker": 7,
    }  # fmt: skip
    for spec in replicas.values():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
        assert own[0][0] in container["command"][-1]
        subprocess.run(["bash", "-n", "-c", container["command"][-1]], check=True)
        assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]


def test_one_host_has_no_workers(make_plan):
    plan = make_plan({"dp_shard": 8}, {"zero_stage": 3})
    job = [*yaml.safe_load_all(rendered(plan, "torchtitan", "kubernetes")["torchtitan.k8s.yaml"])]
    assert set(job[1]["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_traces_are_started_by_nothing(make_plan):
    plan = make_plan({"dp_shard": 8}, {"zero_stage": 1})
    with pytest.raises(UnsupportedError, match="starts scripts"):
        rendered(plan, "chakra", "slurm")


def test_command_writes_the_launcher_too(plan, tmp_path, capsys):
    path = tmp_path / "plan.json"
    save(plan("megatron"), path)
    words = ["export", str(path), "megatron", "--launcher", "slurm", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert [name.rpartition("/")[2] for name in written] == [
        "pretrain_gpt.sh", "pretrain_gpt.sbatch",
    ]  # fmt: skip


def test_launchers_are_known_by_name(plan):
    with pytest.raises(UnknownNameError, match=r"unknown launcher 'slrum'; did you mean slurm"):
        rendered(plan("megatron"), TARGETS["megatron"], "slrum")
