"""The program of JAX on four devices of this computer: its shards, and the loss of one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.catalog.models import read_config
from meshwright.frameworks.registry import export

SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "tie_word_embeddings": False,
}  # fmt: skip
DENSE = read_config(SMALL | {"architectures": ["LlamaForCausalLM"]})
EXPERTS = read_config(
    SMALL | {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
             "num_experts_per_tok": 2, "moe_intermediate_size": 32}
)  # fmt: skip
PLANS = [
    (DENSE, {"tp": 2, "dp_shard": 2}, {"zero_stage": 3}, {"query": (2, 32, 2, 16)}),
    (DENSE, {"dp_shard": 2, "dp_replicate": 2}, {"zero_stage": 1, "recompute": "selective"},
     {"query": (2, 64, 4, 16)}),
    (DENSE, {"tp": 4, "micro_batch_size": 2}, {"recompute": "full"}, {"gate": (2, 64, 32)}),
    (EXPERTS, {"tp": 2, "dp_shard": 2, "ep": 4}, {"zero_stage": 3}, {"gate": (2, 1, 64, 32)}),
    (EXPERTS, {"dp_shard": 4, "ep": 2}, {"zero_stage": 3}, {"gate": (2, 2, 32, 32)}),
]  # fmt: skip


def trained(plan, folder):
    """Return the losses of four steps, and the shape of each weight on the first device."""
    script, _ = export(plan, "jax", folder)
    devices = int(plan.best.strategy.num_devices)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }  # fmt: skip
    words = ["bash", str(script), "--steps", "4", "--learning-rate", "1e-2", "--shards"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    losses = [float(rest.split()[-1]) for name, rest in lines if name == "step"]
    shapes = {
        name.removeprefix("layers."): tuple(int(n) for n in rest.strip("()").split(",") if n)
        for name, rest in lines
        if name != "step"
    }
    return losses, shapes


@pytest.fixture(scope="module")
def alone(make_plan, tmp_path_factory):
    """Return the losses of each model on one device."""
    return {
        id(model): trained(small(make_plan, model, {}, {}), tmp_path_factory.mktemp("one"))[0]
        for model in (DENSE, EXPERTS)
    }


def small(make_plan, model, degrees, plan_options):
    """Return a plan in FP32 whose numbers do not depend on how it is split."""
    overlaps = {"overlap_tensor_parallel": degrees.get("tp", 1) > 1}
    return make_plan(
        degrees, plan_options | overlaps, model=model, system="4xH100", batch=4, length=32,
        optimizer="fsdp-mixed", precision={"matmul": "fp32"},
    )  # fmt: skip


@pytest.mark.parametrize("case", PLANS, ids=["zero3", "zero1", "tp", "experts-tp", "experts"])
def test_four_devices_train_as_one_does(make_plan, alone, tmp_path, case):
    model, degrees, plan_options, shapes = case
    losses, found = trained(small(make_plan, model, degrees, plan_options), tmp_path)
    assert losses == pytest.approx(alone[id(model)], abs=2e-3)
    assert losses[-1] < losses[0] - 0.5
    assert {name: found[name] for name in shapes} == shapes
