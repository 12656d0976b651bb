"""What a framework can start: each rule on a plan that breaks it, and on one that does not."""

import pytest

from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.workloads import load_optimizer
from meshwright.sharding import launching
from meshwright.sharding.rules import Case, facts
from meshwright.sharding.strategy import (
    AXES,
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
    stack,
)
from meshwright.spec.workload import BatchRamp, Precision, SoftwareStack, Training

ONE = PlanOptions(zero_stage=0, sequence_parallel=False)
PLAIN = PlanOptions(zero_stage=3)
DDP = PlanOptions(zero_stage=0)
UNEVEN = {"pp": 3}
PP_INSIDE = ("tp", "tatp", "pp", "cp", "dp_shard", "dp_replicate")


def case_of(framework, plan_options, degrees, model="llama3-8b", matmul="bf16", **stated):
    stack_of = load_framework(framework).stack(family="hopper", precision="bf16")
    usual = {"optimizer": load_optimizer("megatron-adam")}
    workload = Training(
        global_batch_size=64, sequence_length=8192, software=stack_of,
        precision=Precision(matmul=matmul), **usual | stated,
    )  # fmt: skip
    return Case(load_model(model), workload, plan_options, stack([make_strategy(**degrees)]))


ADAPTERS = {"optimizer": load_optimizer("adapters")}
RAMP = {"batch_ramp": BatchRamp(start=16, increment=16, sequences=4800)}
BREAKING = {
    "launch-batch-ramp": ("torchtitan", PLAIN, {}, RAMP),
    "launch-model": ("torchtitan", PLAIN, {}, "gpt3-6.7b"),
    "launch-accumulation": ("maxtext", PLAIN, {"dp_shard": 2}, "llama3-8b", "fp8"),
    "launch-tp": ("llm-foundry", PLAIN, {"tp": 2}),
    "launch-cp": ("llm-foundry", PLAIN, {"cp": 2}),
    "launch-pp": ("accelerate", PLAIN, {"pp": 2}),
    "launch-vpp": ("megatron-deepspeed", ONE, {"pp": 2, "num_virtual_stages": 2}),
    "launch-ep": ("megatron==2021", ONE, {"ep": 2}),
    "launch-etp": ("torchtitan", PLAIN, {"etp": 2}),
    "launch-tatp": ("megatron", ONE, {"tatp": 2}),
    "launch-schedule": (
        "megatron", PlanOptions(zero_stage=0, schedule=ScheduleKind.ZERO_BUBBLE), {"pp": 2},
    ),
    "launch-stages": ("megatron==2021", ONE, UNEVEN),
    "launch-chunks": (
        "fsdp", PlanOptions(zero_stage=0, schedule=ScheduleKind.INTERLEAVED),
        {"pp": 3, "num_virtual_stages": 2},
    ),
    "launch-sequence-parallel": ("maxtext", ONE, {"tp": 2}),
    # megatron/training/arguments.py: "When using MoE and tensor parallelism, sequence
    # parallelism must be used."
    "launch-expert-tokens": ("megatron", ONE, {"tp": 2}, "mixtral-8x7b"),
    "launch-context": (
        "torchtitan", PlanOptions(zero_stage=3, context_kind=ContextKind.ULYSSES), {"cp": 2},
    ),
    "launch-adapters": ("torchtitan", PLAIN, {}, ADAPTERS),
    "launch-whole-sequences": ("torchtitan", PLAIN, {"cp": 2}, "gpt-oss-20b"),
    # torchtitan, models/common/decoder.py: "tensor_parallel_degree (16) must divide n_kv_heads (8)"
    "launch-tied-stages": ("torchtitan", ONE, {"pp": 2}, "llama3.2-1b"),
    "launch-kv-heads": ("torchtitan", ONE, {"tp": 16}, "llama3-8b"),
    # torchtitan 0.3.0, components/loss.py: "ChunkedLossWrapper sequence length must be divisible
    # by num_chunks"
    "launch-logit-tiles": ("torchtitan", ONE, {"cp": 3}),
    # Megatron-Bridge, models/gpt_oss: cp_comm_type "a2a" for the learned softmax.
    "launch-context-sinks": ("megatron-bridge", PLAIN, {"cp": 2}, "gpt-oss-20b"),
    # parallel_dims.py of torchtitan 0.3.0: efsdp = dp_shard 1 * cp 1 * tp 1 // ep 8 = 0
    "launch-experts": ("torchtitan", ONE, {"dp_replicate": 32, "ep": 8}, "qwen3-30b-a3b"),
    # _fsdp_param.py of PyTorch 2.13: "FSDP does not support uneven sharding on dim 1:
    # torch.Size([16, 2048, 7168]) (world size: 120)"
    "launch-expert-shards": (
        "torchtitan", PlanOptions(zero_stage=3), {"dp_shard": 1920, "ep": 16}, "deepseek-v3",
    ),
    "launch-vocabulary": ("megatron", PlanOptions(zero_stage=0, vocabulary_parallel=True), {}),
    "launch-async-tp": ("fsdp", PlanOptions(zero_stage=0, overlap_tensor_parallel=True), {"tp": 2}),
    # tensor_parallel.py of torchtitan: RuntimeError, "Async TP requires 'model' in
    # --compile.components and --compile.enable"
    "launch-compiled-overlap": (
        "torchtitan", PlanOptions(zero_stage=0, overlap_tensor_parallel=True), {"tp": 2},
    ),
    "launch-dp-replicate": ("deepspeed", PLAIN, {"dp_replicate": 2, "dp_shard": 2}),
    # DeepSpeed, runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline
    # parallelism"
    "launch-zero": ("megatron-deepspeed", PLAIN, {"pp": 2, "dp_shard": 2}),
    # accelerate/parallelism_config.py: tp or cp over 1 "cannot be used with pure data
    # parallelism (dp_replicate_size > 1 and dp_shard_size == 1)"
    "launch-shards": ("accelerate", PlanOptions(zero_stage=3), {"cp": 2, "dp_replicate": 4}),
    "launch-reshard": (
        "megatron", PlanOptions(zero_stage=3, reshard_after_forward=False), {"dp_shard": 2},
    ),
    "launch-overlap": (
        "torchtitan", PlanOptions(zero_stage=3, overlap_data_parallel=False), {"dp_shard": 2},
    ),
    "launch-recompute": ("accelerate", PlanOptions(recompute=Recompute.SELECTIVE), {}),
    "launch-recompute-modules": (
        "torchtitan",
        PlanOptions(
            zero_stage=3, recompute=Recompute.SELECTIVE, recompute_modules=("layernorm",)
        ),
        {},
    ),
    "launch-stored-tensors": (
        "torchtitan",
        PlanOptions(zero_stage=3, recompute=Recompute.SELECTIVE, kept_tensors=("query_proj",)),
        {},
    ),
    # megatron/core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm: with
    # pipelines it needs virtual stages, and excludes full recomputation and that of moe
    "launch-expert-overlap": (
        "megatron", PlanOptions(zero_stage=0, overlap_expert_parallel=True),
        {"pp": 2, "ep": 2, "dp_shard": 2}, "mixtral-8x7b",
    ),
    "launch-expert-recompute": (
        "megatron",
        PlanOptions(zero_stage=0, overlap_expert_parallel=True, recompute=Recompute.FULL),
        {"ep": 2, "dp_shard": 2}, "mixtral-8x7b",
    ),
    "launch-recompute-layers": (
        "fsdp", PlanOptions(zero_stage=0, recompute=Recompute.FULL, recompute_layers=2), {},
    ),
    "launch-recompute-run": (
        "fsdp", PlanOptions(zero_stage=0, recompute=Recompute.FULL, recompute_run=2), {},
    ),
    "launch-stage-layers": (
        "torchtitan", PlanOptions(zero_stage=0, stage_layers=(17, 15)), {"pp": 2},
    ),
    "launch-recompute-experts": (
        "megatron",
        PlanOptions(zero_stage=0, overlap_expert_parallel=True, recompute=Recompute.SELECTIVE,
                    recompute_modules=("moe",)),
        {"ep": 2, "dp_shard": 2}, "mixtral-8x7b",
    ),
    # DeepSpeed, docs/_pages/config-json.md: offload_param is valid with stage 3 alone
    "launch-offload": (
        "deepspeed", PlanOptions(zero_stage=2, offload=Offload.WEIGHTS), {"dp_shard": 2},
    ),
    "launch-order": (
        "torchtitan",
        PlanOptions(zero_stage=0, axis_order=PP_INSIDE),
        {"pp": 2, "dp_shard": 2},
    ),
}  # fmt: skip


def test_every_rule_has_a_breaking_case():
    assert set(BREAKING) == {rule.name for rule in launching.rules()}


@pytest.mark.parametrize("name", BREAKING)
def test_a_rule_refuses_in_words_and_holds_without_a_framework(name):
    *given, last = BREAKING[name]
    case = case_of(*given, **last) if last is RAMP or last is ADAPTERS else case_of(*BREAKING[name])
    rule = next(rule for rule in launching.rules() if rule.name == name)
    assert rule.breaks(case).all()
    text = rule.message.format(**facts(case, 0))
    assert text.startswith(case.workload.software.framework)
    free = case.workload.model_copy(update={"software": SoftwareStack()})
    assert not rule.breaks(Case(case.model, free, case.plan_options, case.s)).any()


@pytest.mark.parametrize(
    ("framework", "plan_options", "degrees"),
    [
        ("megatron", PlanOptions(zero_stage=1), {"tp": 8, "pp": 4, "dp_shard": 4}),
        ("megatron", PlanOptions(zero_stage=0), UNEVEN),
        ("megatron", PlanOptions(zero_stage=0, schedule=ScheduleKind.INTERLEAVED),
         {"pp": 3, "num_virtual_stages": 2}),
        ("torchtitan", PlanOptions(zero_stage=3, head_layers=2), {"pp": 4}),
        ("torchtitan", PlanOptions(zero_stage=3, context_kind=ContextKind.GATHER),
         {"tp": 2, "cp": 2, "dp_shard": 4}),
        ("deepspeed", PlanOptions(zero_stage=3, offload=Offload.WEIGHTS), {"dp_shard": 8}),
        # DeepSpeed 0.19 runtime/tensor_parallel/config.py: autotp_size
        (
            "deepspeed", PlanOptions(zero_stage=2, sequence_parallel=False),
            {"tp": 4, "dp_shard": 2},
        ),
        (
            "maxtext", PlanOptions(zero_stage=3, overlap_tensor_parallel=True),
            {"tp": 2, "dp_shard": 4},
        ),
        ("llm-foundry", PLAIN, {"dp_shard": 8, "dp_replicate": 2}),
    ],
)  # fmt: skip
def test_plans_that_start_break_no_rule(framework, plan_options, degrees):
    case = case_of(framework, plan_options, degrees)
    assert [rule.name for rule in launching.rules() if rule.breaks(case).any()] == []


@pytest.mark.parametrize(
    ("used", "is_known"),
    [(("tp", "pp"), True), (("pp", "dp_shard"), False), (("dp_shard", "pp"), False), ((), True)],
)
def test_only_axes_that_are_used_have_an_order(used, is_known):
    """By hand: pp inside of dp differs from the order of the framework where both are used."""
    assert launching.is_order(PP_INSIDE, [AXES], used) is is_known
