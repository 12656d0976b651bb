"""Manifests of servers against the schemas of Kubernetes 1.37."""

import kubernetes_validate
import pytest
import yaml

import meshwright as mw
from meshwright.frameworks.deployment import served

TRAFFIC = {"on": "8xH100", "prompt": "1k", "answer": 128, "rate": 20, "tp": 1}
REQUESTS = {"batch": 64, "prompt": "2k", "answer": 64}
CASES = {
    "traffic": ("llama3.1-8b", TRAFFIC),
    "prefixes": ("llama3.1-8b", {**TRAFFIC, "shared_prefix": 256, "max_ttft": "2s"}),
    "closed loop": ("llama3-8b", {"on": "4xH100", **REQUESTS}),
    "prefill": ("llama3-8b", {"on": "4xH100", "batch": 8, "prompt": "2k"}),
    "decode": ("llama3-70b", {"on": "8xH100", "batch": 64, "context": "2k"}),
    "experts": ("mixtral-8x7b", {"on": "8xH100", "batch": 64, "context": "2k", "tp": 4, "ep": 8}),
    "apart": (
        "llama3-8b", {"on": "8xH100", "disaggregated": True, "max_ttft": "1s", **REQUESTS},
    ),
    "hosts": ("llama3.1-405b", {"on": "16xH100", "batch": 16, "context": "4k", "tp": 8, "pp": 2}),
}  # fmt: skip
NOT_WRITTEN = {("apart", "tensorrt-llm"), ("hosts", "tensorrt-llm"), ("experts", "tensorrt-llm")}
PAIRS = [(case, server) for case in CASES for server in ("vllm", "sglang", "tensorrt-llm")
         if (case, server) not in NOT_WRITTEN]  # fmt: skip


@pytest.mark.parametrize(("case", "server"), PAIRS)
def test_every_object_is_one_of_kubernetes(case, server):
    """LeaderWorkerSet has no schema there: its pods are read as those of a Deployment."""
    model, asked = CASES[case]
    files = served(mw.serve(model, **asked), server, "kubernetes")
    for found in yaml.safe_load_all(files[f"{server}.k8s.yaml"]):
        if found["kind"] == "LeaderWorkerSet":
            group = found["spec"]["leaderWorkerTemplate"]
            for pod in (group["leaderTemplate"], group["workerTemplate"]):
                label = {"app": "host"}
                whole = {
                    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": found["metadata"],
                    "spec": {
                        "selector": {"matchLabels": label},
                        "template": {"metadata": {"labels": label}, "spec": pod["spec"]},
                    },
                }  # fmt: skip
                kubernetes_validate.validate(whole, "1.37", strict=True)
        else:
            kubernetes_validate.validate(found, "1.37", strict=True)
