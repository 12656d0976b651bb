"""Exported files read by the parsers of the frameworks themselves, each in a fresh process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from meshwright.catalog.megatron_models import VANILLA, bridge_recipe
from meshwright.frameworks.launch import degrees, micro_batches, plan_launch
from meshwright.frameworks.registry import export
from meshwright.graph.parameters import count_parameters
from meshwright.train.writing import TARGETS

READERS = Path(__file__).parent / "frameworks" / "readers"
LAUNCHER = """\
#!/usr/bin/env bash
printf '%s\\0' "$@" > "$RECORD/words"
env -0 > "$RECORD/environment"
"""
"""Takes the place of a launcher: what it is started with goes to a file."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "python3")


@dataclass(frozen=True)
class Started:
    """What an exported script starts: the words behind its launcher, and the environment."""

    words: list[str]
    environment: dict[str, str]
    folder: Path

    @property
    def of_program(self) -> list[str]:
        """The words behind the program, which is the first one that is not an option."""
        words = iter(self.words)
        for word in words:
            if word == "-m":
                next(words)
            if not word.startswith("-") or word == "-m":
                return list(words)
        return []


def start(script: Path, *added: str) -> Started:
    """Run a script with launchers that record what they are asked to start."""
    folder = script.parent
    commands = folder / "commands"
    commands.mkdir()
    for name in LAUNCHERS:
        (commands / name).write_text(LAUNCHER, "utf-8")
        (commands / name).chmod(0o755)
    environment = {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "RECORD": str(folder), "HEAD_ADDRESS": "localhost", "NODE_RANK": "0",
    }  # fmt: skip
    subprocess.run(["bash", script, *added], check=True, env=environment, cwd=folder)
    words = (folder / "words").read_text("utf-8").split("\0")[:-1]
    pairs = (folder / "environment").read_text("utf-8").split("\0")[:-1]
    return Started(words, dict(pair.split("=", 1) for pair in pairs), folder)


def told(name: str, plan, folder: Path) -> dict[str, object]:
    """Return the case of a reader: what the script of a plan starts."""
    script = export(plan, TARGETS[name], folder)[0]
    if script.suffix == ".py":
        return {"script": str(script)}
    started = start(script, *ADDED.get(name, ()))
    return {
        "words": started.words if name == "accelerate" else started.of_program,
        "folder": str(folder),
        "environment": started.environment | {"WORLD_SIZE": str(used(plan)), "RANK": "0"},
        "num_devices": used(plan),
        "num_slices": 1 if plan.system.chip.vendor == "Google" else plan_launch(plan).num_hosts,
    }


def read(name: str, cases: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return what the parser of a framework makes of each case; an error is part of the answer."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(READERS / f"read_{name.replace('-', '_')}.py")],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def meant(name: str, plan) -> dict[str, object]:
    """Return what the reader of a framework must answer for a plan."""
    return MEANT[name](plan)


def used(plan) -> int:
    """Return the devices that a plan uses."""
    return int(plan.best.strategy.num_devices)


def _megatron(plan) -> dict[str, object]:
    sizes, plan_options = degrees(plan), plan.best.plan_options
    named = ("tp", "pp", "cp", "ep", "etp", "dp", "num_virtual_stages", "micro_batch_size")
    return {name: sizes[name] for name in named} | {
        "global_batch_size": plan.workload.global_batch_size,
        "num_layers": plan.model.num_layers,
        "hidden_size": plan.model.hidden_size,
        "recompute": str(plan_options.recompute),
        "zero": plan_options.zero_stage > 0,
    }


def _torchtitan(plan) -> dict[str, object]:
    sizes = degrees(plan)
    return {name: sizes[name] for name in ("tp", "pp", "cp", "ep", "dp")} | {
        "global_batch_size": plan.workload.global_batch_size,
        "sequence_length": plan.workload.sequence_length,
        "steps": 7,
        "num_params": count_parameters(plan.model).num_params - _correction_biases(plan.model),
    }


def _correction_biases(model) -> int:
    """Return the numbers that torchtitan does not train: the biases of DeepSeek-V3's routers."""
    if model.architecture != "DeepseekV3ForCausalLM":
        return 0
    kinds = [model.layer_kinds[kind].experts for kind in model.layer_pattern]
    return sum(experts.num_experts for experts in kinds if experts)


def _fsdp(plan) -> dict[str, object]:
    sizes = degrees(plan)
    shards = sizes["dp_shard"] * sizes["cp"]
    found = {name: sizes[name] for name in ("tp", "pp", "cp", "dp_shard", "dp_replicate")}
    found |= {"data": sizes["dp"], "shards": shards, "gradients": shards * sizes["dp_replicate"]}
    if sizes["ep"] * sizes["etp"] == 1:
        return found
    copies = sizes["dp"] * sizes["cp"] * sizes["tp"] // (sizes["ep"] * sizes["etp"])
    return found | {"expert_dp": copies, "ep": sizes["ep"], "etp": sizes["etp"]}


def _trainer(plan) -> dict[str, object]:
    plan_options, precision = plan.best.plan_options, plan.workload.precision.matmul
    return {
        "micro_batch_size": degrees(plan)["micro_batch_size"],
        "num_micro_batches": micro_batches(plan),
        "sequence_length": plan.workload.sequence_length,
        "precision": precision,
        "recompute": str(plan_options.recompute),
    }


def _deepspeed(plan) -> dict[str, object]:
    plan_options, sizes = plan.best.plan_options, degrees(plan)
    return _trainer(plan) | {
        "tp": sizes["tp"],
        "cp": sizes["cp"],
        "global_batch_size": plan.workload.global_batch_size,
        "zero_stage": plan_options.zero_stage,
        "overlaps": plan_options.zero_stage > 0 and plan_options.overlap_data_parallel,
        "offload": str(plan_options.offload),
    }


def _accelerate(plan) -> dict[str, object]:
    plan_options, sizes = plan.best.plan_options, degrees(plan)
    is_sharded = plan_options.zero_stage >= 2
    found = _trainer(plan) | {
        "num_devices": used(plan),
        "num_hosts": plan_launch(plan).num_hosts,
        "is_sharded": is_sharded,
    }
    if is_sharded or sizes["tp"] > 1:
        found |= {axis: sizes[axis] for axis in ("tp", "cp", "dp_shard", "dp_replicate")}
    if is_sharded:
        found |= {
            "reshards": plan_options.zero_stage == 3 and plan_options.reshard_after_forward,
            "offload": str(plan_options.offload),
        }
    return found


def _bridge(plan) -> dict[str, object]:
    sizes, plan_options, work = degrees(plan), plan.best.plan_options, plan.workload
    named = ("tp", "pp", "cp", "ep", "etp", "num_virtual_stages", "micro_batch_size")
    brings_its_model = bridge_recipe(plan.model) != VANILLA
    model = {"num_layers": plan.model.num_layers, "hidden_size": plan.model.hidden_size}
    return (
        {name: sizes[name] for name in named}
        | {
            "global_batch_size": work.global_batch_size,
            "sequence_length": work.sequence_length,
            "recompute": str(plan_options.recompute),
            "zero": plan_options.zero_stage > 0,
            "sums_in_fp32": work.optimizer.gradient_bytes_per_param > 2,
            "is_bf16": work.precision.matmul != "fp16",
        }
        | ({} if brings_its_model else model)
    )


def _maxtext(plan) -> dict[str, object]:
    sizes, plan_options = degrees(plan), plan.best.plan_options
    data = sizes["dp"] // sizes["ep"]
    shards = sizes["dp_shard"] // sizes["ep"] if plan_options.zero_stage else 1
    last = plan.model.layer_kinds[-1]
    attention, experts = last.attention, last.experts
    policy = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
    found = {
        "axes": {
            "expert": sizes["ep"], "tensor": sizes["tp"], "context": sizes["cp"],
            "fsdp": shards, "pipeline": sizes["pp"], "data": data // shards,
        },
        "sequence_length": plan.workload.sequence_length,
        "global_batch_size": plan.workload.global_batch_size,
        "hidden_size": plan.model.hidden_size,
        "num_layers": plan.model.num_layers,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "num_experts": experts.num_experts if experts else 1,
        "top_k": experts.top_k if experts else 1,
        "vocab_size": plan.model.vocab_size,
        "remat_policy": "custom" if plan_options.stored_tensors
        else policy[str(plan_options.recompute)],
    }  # fmt: skip
    if sizes["pp"] == 1:
        return found
    return found | {
        "num_micro_batches": micro_batches(plan),
        "num_virtual_stages": sizes["num_virtual_stages"],
    }


MEANT = {
    "megatron-bridge": _bridge,
    "maxtext": _maxtext,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "fsdp": _fsdp,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
}
ADDED = {
    "megatron": (
        "--no-rope-fusion", "--transformer-impl", "local", "--mock-data",
        "--tokenizer-type", "NullTokenizer", "--lr", "1e-4", "--train-iters", "50",
    ),
    "torchtitan": ("--training.steps", "7"),
    "deepspeed": ("--use_cpu", "true"),
    "accelerate": ("--use_cpu", "true"),
}  # fmt: skip
"""What a plan does not hold, or a computer without devices lacks."""
