"""Plans made by hand, with what searches seldom choose: the frameworks read them as meant."""

import pytest
from real_parsers import meant, read, told

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
    (
        {"tp": 4, "pp": 2, "cp": 2, "dp_shard": 4},
        {"zero_stage": 2, "context_kind": ContextKind.GATHER},
        {},
    ),
    (
        {"tp": 2, "pp": 4, "dp_shard": 8, "num_virtual_stages": 4},
        {"zero_stage": 3, "schedule": ScheduleKind.INTERLEAVED, "recompute": Recompute.FULL},
        {},
    ),
    ({"tp": 4, "pp": 5, "dp_shard": 2}, {"zero_stage": 3, "sequence_parallel": False}, {}),
    ({"dp_shard": 64, "ep": 8}, {"zero_stage": 3}, {"model": "qwen3-30b-a3b", "length": 4096}),
    ({"dp_shard": 64}, {"zero_stage": 3, "offload": Offload.STATE}, {}),
]
DEEPSPEED_PLANS = [
    ({"dp_shard": 64}, {"zero_stage": stage}, {"optimizer": "deepspeed-adam"}) for stage in range(4)
] + [
    (
        {"cp": 8, "dp_shard": 8, "micro_batch_size": 2},
        {"zero_stage": 3, "context_kind": ContextKind.ULYSSES, "offload": Offload.WEIGHTS},
        {"optimizer": "deepspeed-adam-fp32-gradients"},
    ),
    ({"dp_shard": 64}, {"zero_stage": 2, "offload": Offload.GRADIENTS}, {}),
    ({"dp_shard": 64}, {"zero_stage": 3, "offload": Offload.STATE}, {}),
]
WHOLE_TOKENS = {"sequence_parallel": False}
ACCELERATE_PLANS = [
    ({"dp_shard": 16}, {"zero_stage": 0, "recompute": Recompute.FULL}, {}),
    ({"tp": 8}, {"zero_stage": 0} | WHOLE_TOKENS, {}),
    (
        {"tp": 2, "cp": 2, "dp_shard": 8, "dp_replicate": 2},
        {"zero_stage": 3, "recompute": Recompute.FULL} | WHOLE_TOKENS,
        {},
    ),
    ({"dp_shard": 64}, {"zero_stage": 3, "reshard_after_forward": False}, {}),
    ({"dp_shard": 8}, {"zero_stage": 3, "offload": Offload.STATE}, {}),
]
OVERLAPPED = {"overlap_tensor_parallel": True}
MAXTEXT_PLANS = [
    ({"dp_shard": 64}, {"zero_stage": 0, "recompute": Recompute.FULL}, {"system": "64xTPU-v5p"}),
    (
        {"tp": 4, "pp": 4, "dp_shard": 4},
        {"zero_stage": 3, "schedule": ScheduleKind.GPIPE} | OVERLAPPED,
        {},
    ),
    (
        {"tp": 2, "cp": 4, "dp_shard": 4, "dp_replicate": 2},
        {"zero_stage": 3, "offload": Offload.OPTIMIZER} | OVERLAPPED,
        {"system": "64xMI300X"},
    ),
    ({"dp_shard": 32, "dp_replicate": 2, "ep": 8}, {"zero_stage": 3}, {"model": "mixtral-8x7b"}),
]
PLANS = {
    "megatron": MEGATRON_PLANS, "torchtitan": TORCHTITAN_PLANS, "fsdp": TORCH_PLANS,
    "deepspeed": DEEPSPEED_PLANS, "accelerate": ACCELERATE_PLANS,
    "megatron-bridge": MEGATRON_PLANS, "maxtext": MAXTEXT_PLANS,
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_every_part_is_read_as_it_was_planned(make_plan, tmp_path, name):
    plans = [
        make_plan(degrees, plan_options, **rest) for degrees, plan_options, rest in PLANS[name]
    ]
    cases = [told(name, plan, tmp_path / f"{number}") for number, plan in enumerate(plans)]
    assert read(name, cases) == [meant(name, plan) for plan in plans]
