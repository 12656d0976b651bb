"""The targets' own parsers read what is written; skipped where a target is not installed."""

import json
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest

from meshwright.frameworks.registry import rendered
from meshwright.sharding.strategy import ContextKind, Offload, Recompute, ScheduleKind

PIPELINE_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate", "tatp")

TORCH_PLANS = [
    ({"tp": 4, "pp": 2, "cp": 2, "dp_shard": 2, "dp_replicate": 2}, {"zero_stage": 3}, {}),
    ({"tp": 2, "pp": 4, "dp_shard": 8}, {"zero_stage": 1, "axis_order": PIPELINE_INSIDE}, {}),
    ({"tp": 2, "pp": 4, "dp_shard": 8, "ep": 8}, {"zero_stage": 1}, {"model": "mixtral-8x7b"}),
]
MEGATRON_PLANS = [
    ({"tp": 4, "pp": 2, "cp": 2, "dp_shard": 4}, {"zero_stage": 1}, {}),
    (
        {"tp": 8, "pp": 8, "num_virtual_stages": 6},
        {"schedule": ScheduleKind.INTERLEAVED, "recompute": Recompute.FULL},
        {"model": "gpt3-175b", "length": 2048},
    ),
    (
        {"tp": 2, "pp": 4, "dp_shard": 4, "dp_replicate": 2},
        {"zero_stage": 1, "recompute": Recompute.SELECTIVE, "axis_order": PIPELINE_INSIDE},
        {},
    ),
    ({"tp": 4, "dp_shard": 8, "dp_replicate": 2}, {"zero_stage": 2}, {}),
    (
        {"tp": 2, "pp": 4, "cp": 2, "dp_shard": 4},
        {"zero_stage": 1, "context_kind": ContextKind.ULYSSES, "offload": Offload.OPTIMIZER},
        {},
    ),
    ({"pp": 5, "dp_shard": 8}, {"zero_stage": 1}, {}),
    ({"tp": 4, "pp": 4, "dp_shard": 4}, {"zero_stage": 1}, {"model": "qwen3-235b-a22b"}),
    ({"tp": 8, "dp_shard": 8, "ep": 64}, {"zero_stage": 1}, {"model": "deepseek-v3"}),
]
TORCHTITAN_PLANS = [
    ({"tp": 4, "pp": 2, "cp": 2, "dp_shard": 4}, {"zero_stage": 2}, {}),
    (
        {"tp": 2, "pp": 4, "dp_shard": 8, "num_virtual_stages": 4},
        {"zero_stage": 3, "schedule": ScheduleKind.INTERLEAVED, "recompute": Recompute.FULL},
        {},
    ),
    ({"tp": 4, "pp": 5, "dp_shard": 2}, {"zero_stage": 3, "sequence_parallel": False}, {}),
    ({"dp_shard": 64, "ep": 8}, {"zero_stage": 3}, {"model": "qwen3-30b-a3b", "length": 4096}),
]

BUILD_GROUPS = """
import json, sys
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
script = {"__name__": "script"}
exec(compile(sys.stdin.read(), "device_mesh.py", "exec"), script)
script["DEVICE"] = "cpu"
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=script["NUM_DEVICES"])
groups = script["build_groups"](script["build_mesh"]())
if "build_expert_groups" in script:
    groups |= script["build_expert_groups"]()
print(json.dumps({name: group.size() for name, group in groups.items()}))
"""
READ_MEGATRON = """
import json, os, sys, types, typing
import typing_extensions
if not hasattr(typing, "override"):
    typing.override = typing_extensions.override
import torch
sizes = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, name="H100")
torch.cuda.get_device_capability = lambda *device: (9, 0)
torch.cuda.get_device_properties = lambda *device: sizes
words = json.load(sys.stdin)
sys.argv = ["pretrain_gpt.py", *words]
from megatron.training.arguments import parse_args, validate_args
from megatron.training.argument_utils import core_transformer_config_from_args
args = parse_args()
validate_args(args)
core_transformer_config_from_args(args)
print(json.dumps({"dp": args.data_parallel_size, "layers": args.num_layers}))
"""
READ_TORCHTITAN = """
import json, sys
from torchtitan.config import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
words = json.load(sys.stdin)
config = ConfigManager().parse_args(words[:-1])
parallelism = config.parallelism
ParallelDims.from_config(parallelism, int(words[-1]))
print(json.dumps({"tp": parallelism.tensor_parallel_degree, "steps": config.training.steps}))
"""


def answer(code: str, text: str, **environment: str) -> dict[str, int]:
    """Return what a fresh interpreter prints last, given a text on standard input."""
    import os

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=text, capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def words_behind(script: str, program: str) -> list[str]:
    """Return the words of a command behind its program, without the place of added ones."""
    text = script.partition(f"{program} ")[2].replace("\\\n", " ")
    return [word for word in shlex.split(text) if word != "$@"]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("case", TORCH_PLANS)
def test_pytorch_builds_the_mesh(make_plan, case):
    degrees, structure, rest = case
    (script,) = rendered(make_plan(degrees, structure, **rest), "torch").values()
    sizes = answer(BUILD_GROUPS, script)
    for axis in ("tp", "pp", "cp", "dp_shard", "dp_replicate", "ep"):
        assert sizes.get(axis, 1) == degrees.get(axis, 1)
    assert sizes["shards"] == degrees.get("dp_shard", 1) * degrees.get("cp", 1)
    assert sizes["gradients"] == sizes["shards"] * degrees.get("dp_replicate", 1)


def has_megatron() -> bool:
    """Whether the wheel that carries Megatron-LM's parser is there."""
    return find_spec("megatron") is not None and find_spec("megatron.training") is not None


@pytest.mark.skipif(not has_megatron(), reason="megatron-core 0.19 is not installed")
@pytest.mark.parametrize("case", MEGATRON_PLANS)
def test_megatron_reads_and_validates(make_plan, case):
    degrees, structure, rest = case
    plan = make_plan(degrees, structure, **rest)
    (script,) = rendered(plan, "megatron").values()
    words = words_behind(script, "pretrain_gpt.py")
    words += ["--no-rope-fusion", "--transformer-impl", "local", "--mock-data"]
    words += ["--tokenizer-type", "NullTokenizer", "--lr", "1e-4", "--train-iters", "50"]
    queues = "8" if "unset CUDA_DEVICE_MAX_CONNECTIONS" in script else "1"
    world = {"WORLD_SIZE": f"{plan.best.estimate.num_devices_used}", "RANK": "0"}
    read = answer(READ_MEGATRON, json.dumps(words), CUDA_DEVICE_MAX_CONNECTIONS=queues, **world)
    assert read == {"dp": plan.best.strategy.dp, "layers": plan.model.num_layers}


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="torchtitan is not installed")
@pytest.mark.parametrize("case", TORCHTITAN_PLANS)
def test_torchtitan_reads_and_checks_the_product(make_plan, case):
    degrees, structure, rest = case
    plan = make_plan(degrees, structure, **rest)
    (script,) = rendered(plan, "torchtitan").values()
    words = words_behind(script, "torchtitan.train")
    words[-1:-1] = ["--training.steps", "7"]
    read = answer(READ_TORCHTITAN, json.dumps([*words, f"{plan.best.estimate.num_devices_used}"]))
    assert read == {"tp": degrees.get("tp", 1), "steps": 7}
