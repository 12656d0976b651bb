"""Launchers that start the script of a target on every host: Slurm, Kubernetes.

Source: Slurm 25.05, ``sbatch``, ``srun``, ``scontrol show hostnames``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath

from meshwright.base.registry import Registry
from meshwright.frameworks.kubernetes import (
    FOLDER,
    RESOURCES,
    config_map,
    container,
    manifest_text,
    name_of,
    pod,
    training_job,
)
from meshwright.frameworks.launch import header, plan_launch, torchrun_words
from meshwright.train.answer import Plan

Texts = Mapping[str, str]


def with_launcher(plan: Plan, files: Texts, launcher: str) -> dict[str, str]:
    """Return the files of a target, its script first, and the files that start it on each host."""
    script = next(iter(files))
    return {**files, **LAUNCHERS[launcher](plan, files, script)}


def _command(plan: Plan, script: str) -> str:
    """Return the command of each host, run in the folder of the files."""
    if script.endswith(".sh"):
        return f"bash {script}"
    return " ".join([*torchrun_words(plan), script])


def _slurm(plan: Plan, files: Texts, script: str) -> dict[str, str]:
    """Return a batch script: one task on each host; the first host is the head."""
    launch = plan_launch(plan)
    file = f"{PurePath(script).stem}.sbatch"
    start = (
        f"export NODE_RANK=\"$SLURM_NODEID\"; exec {_command(plan, script)}"
        + (' "$@"' if script.endswith(".sh") else "")
    )  # fmt: skip
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={name_of(plan.model.name)}",
        f"#SBATCH --nodes={launch.num_hosts}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={launch.devices_per_host}",
        "#SBATCH --exclusive",
        *header(plan, "Slurm 25.05", (f"submit in the folder of {script}: sbatch {file}",)),
        "set -euo pipefail",
        'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        'export HEAD_ADDRESS="${hosts[0]}"',
        f"srun bash -c '{start}' {script} \"$@\"",
        "",
    ]
    return {file: "\n".join(lines)}


def _kubernetes(plan: Plan, files: Texts, script: str) -> dict[str, str]:
    """Return a job of the training operator, and the files that its containers mount."""
    name, launch = name_of(plan.model.name), plan_launch(plan)
    file = f"{PurePath(script).stem}.k8s.yaml"
    start = (
        f'export HEAD_ADDRESS="$MASTER_ADDR" NODE_RANK="$RANK"; cp {FOLDER}/* .; '
        f"exec {_command(plan, script)}"
    )
    devices = {RESOURCES[plan.system.chip.vendor]: launch.devices_per_host}
    each = pod(f"{name}-launch", container("pytorch", "IMAGE", start, devices=devices))
    notes = (f"set the image of your framework, then: kubectl apply -f {file}",)
    comments = header(plan, "Kubeflow Trainer v1, PyTorchJob", notes)
    manifests = config_map(f"{name}-launch", files), training_job(name, launch.num_hosts, each)
    return {file: manifest_text(comments, manifests)}


LAUNCHERS: Registry[Callable[[Plan, Texts, str], dict[str, str]]] = Registry("launcher")
LAUNCHERS.update(slurm=_slurm, kubernetes=_kubernetes)
"""Functions that write the files of each launcher, by name."""
