"""Manifests of Kubernetes: a job that trains, workers that serve, and a job that measures them.

Workers of one host are a Deployment, those of several hosts a LeaderWorkerSet, whose controller
tells each pod its number and the address of the first one.

Source: Kubernetes API, ``apps/v1``, ``batch/v1`` and ``v1``; LeaderWorkerSet
``leaderworkerset.x-k8s.io/v1`` (kubernetes-sigs/lws, environment of its pods); Kubeflow Trainer v1,
``PyTorchJob`` of ``kubeflow.org/v1``, whose operator sets ``MASTER_ADDR`` and ``RANK`` of a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import yaml

Manifest = Mapping[str, object]
RESOURCES = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Intel": "gpu.intel.com/xe",
    "Google": "google.com/tpu",
}
"""Names of devices as the plugins of their vendors register them."""
FOLDER = "/launch"
"""Where the files lie in a container."""
LOADING_S = 3600
"""Longest time in which a server loads its weights [s]."""
PROBE_S = 10
"""Time between two probes of a server [s]."""


class _BlockScalar(str):
    """Text that YAML writes line by line."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes settings in their order, texts as blocks, and equal parts twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Return that equal parts are written out."""
        return True


_Dumper.add_representer(
    _BlockScalar,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|"),
)


def name_of(text: str) -> str:
    """Return a name for an object: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "plan"


def manifest_text(comments: Sequence[str], manifests: Sequence[Manifest]) -> str:
    """Return manifests as one YAML file under comment lines."""
    text = yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=1000)
    return "\n".join([*comments, text])


def config_map(name: str, files: Mapping[str, str]) -> Manifest:
    """Return the files that containers mount."""
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        "data": {key: _BlockScalar(text) for key, text in files.items()},
    }  # fmt: skip


def container(
    name: str, image: str, command: str, *, devices: Mapping[str, int] | None = None,
    more: Mapping[str, object] | None = None,
) -> dict[str, object]:  # fmt: skip
    """Return a container that runs a shell command beside the mounted files.

    Parameters
    ----------
    devices
        Number of its devices by the name of their resource.
    more
        Further fields: environment, ports, probes.
    """
    mounts = [{"name": "launch", "mountPath": FOLDER}]
    found: dict[str, object] = {
        "name": name, "image": image, "command": ["bash", "-c", command], **(more or {}),
    }  # fmt: skip
    if devices:
        found["resources"] = {"limits": dict(devices)}
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
    return found | {"volumeMounts": mounts}


def pod(config: str, one: Mapping[str, object], **more: object) -> dict[str, object]:
    """Return the pod of one container: the files of a ConfigMap, and shared memory."""
    volumes: list[dict[str, object]] = [{"name": "launch", "configMap": {"name": config}}]
    if "resources" in one:
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    return {**more, "containers": [dict(one)], "volumes": volumes}


def training_job(name: str, num_hosts: int, each: Mapping[str, object]) -> Manifest:
    """Return a job of the training operator: one pod for each host."""
    replicas = {"Master": 1} | ({"Worker": num_hosts - 1} if num_hosts > 1 else {})
    return {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count, "restartPolicy": "OnFailure", "template": {"spec": each},
                }
                for role, count in replicas.items()
            }
        },
    }  # fmt: skip


def deployment(name: str, number: int, each: Mapping[str, object]) -> Manifest:
    """Return workers of one pod each."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": number, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": each},
        },
    }  # fmt: skip


def leader_worker_set(
    name: str, number: int, num_hosts: int, first: Mapping[str, object], other: Mapping[str, object]
) -> Manifest:
    """Return workers of several pods each, which start and fail together.

    Parameters
    ----------
    first
        Pod that answers requests.
    other
        Pods of the other hosts.
    """
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": number,
            "leaderWorkerTemplate": {
                "size": num_hosts, "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": {"app": name}}, "spec": first},
                "workerTemplate": {"spec": other},
            },
        },
    }  # fmt: skip


def service(name: str, port: int) -> Manifest:
    """Return one address for all pods that have the name as their label."""
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": port, "targetPort": port}]},
    }  # fmt: skip


def run_once(name: str, each: Mapping[str, object]) -> Manifest:
    """Return a job that runs once and is not tried again."""
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": each}},
    }  # fmt: skip


def answers_at(port: int) -> dict[str, object]:
    """Return the port of a server, with probes that wait until its weights are loaded."""
    probe = {"httpGet": {"path": "/health", "port": port}, "periodSeconds": PROBE_S}
    return {
        "ports": [{"containerPort": port}],
        "startupProbe": {**probe, "failureThreshold": LOADING_S // PROBE_S},
        "readinessProbe": probe,
    }
