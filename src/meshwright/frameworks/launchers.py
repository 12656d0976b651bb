"""Launchers that start the script of a target on every host: Slurm, Kubernetes.

Source: Slurm 25.05, ``sbatch``, ``srun``, ``scontrol show hostnames``; Kubeflow Trainer v1,
``PyTorchJob`` of ``kubeflow.org/v1``; its operator sets ``MASTER_ADDR`` and ``RANK`` of a host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath

import yaml

from meshwright.base.registry import Registry
from meshwright.frameworks.launch import header, plan_launch, torchrun_words
from meshwright.train.answer import Plan

Texts = Mapping[str, str]
RESOURCES = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Intel": "gpu.intel.com/xe",
    "Google": "google.com/tpu",
}
"""Names of devices as the plugins of their vendors register them."""
FOLDER = "/launch"
"""Where the files lie in a container."""


class _BlockScalar(str):
    """Text that YAML writes line by line."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes settings in their order, and texts as blocks."""


_Dumper.add_representer(
    _BlockScalar,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"),
)


def with_launcher(plan: Plan, files: Texts, launcher: str) -> dict[str, str]:
    """Return the files of a target, its script first, and the files that start it on each host."""
    script = next(iter(files))
    return {**files, **LAUNCHERS[launcher](plan, files, script)}


def _command(plan: Plan, script: str) -> str:
    """Return the command of each host, run in the folder of the files."""
    if script.endswith(".sh"):
        return f"bash {script}"
    return " ".join([*torchrun_words(plan), script])


def _name(plan: Plan) -> str:
    """Return a name for a job: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")[:40] or "plan"


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
        f"#SBATCH --job-name={_name(plan)}",
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
    name, launch = _name(plan), plan_launch(plan)
    file = f"{PurePath(script).stem}.k8s.yaml"
    inside = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-launch"},
        "data": {key: _BlockScalar(text) for key, text in files.items()},
    }  # fmt: skip
    replicas = {"Master": 1} | ({"Worker": launch.num_hosts - 1} if launch.num_hosts > 1 else {})
    job = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count, "restartPolicy": "OnFailure",
                    "template": {"spec": _pod(plan, script, f"{name}-launch")},
                }
                for role, count in replicas.items()
            }
        },
    }  # fmt: skip
    notes = (f"set the image of your framework, then: kubectl apply -f {file}",)
    comments = "\n".join(header(plan, "Kubeflow Trainer v1, PyTorchJob", notes))
    text = yaml.dump_all([inside, job], Dumper=_Dumper, sort_keys=False, width=1000)
    return {file: f"{comments}\n{text}"}


def _pod(plan: Plan, script: str, config: str) -> dict[str, object]:
    """Return the pod of a host: all its devices, shared memory, and the files."""
    devices = {RESOURCES[plan.system.chip.vendor]: plan_launch(plan).devices_per_host}
    start = (
        f'export HEAD_ADDRESS="$MASTER_ADDR" NODE_RANK="$RANK"; cp {FOLDER}/* .; '
        f"exec {_command(plan, script)}"
    )
    return {
        "containers": [
            {
                "name": "pytorch",
                "image": "IMAGE",
                "command": ["bash", "-c", start],
                "resources": {"limits": devices},
                "volumeMounts": [
                    {"name": "launch", "mountPath": FOLDER},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "launch", "configMap": {"name": config}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }


LAUNCHERS: Registry[Callable[[Plan, Texts, str], dict[str, str]]] = Registry("launcher")
LAUNCHERS.update(slurm=_slurm, kubernetes=_kubernetes)
"""Functions that write the files of each launcher, by name."""
