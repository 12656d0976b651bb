"""What a target cannot express is refused by name, all at once, with the nearest fix."""

import pytest

from meshwright.base.errors import UnknownNameError, UnsupportedError
from meshwright.catalog.models import load_model
from meshwright.frameworks.registry import refusals, rendered
from meshwright.sharding.strategy import ContextKind, Offload, Recompute, ScheduleKind
from meshwright.spec.workload import Precision, SoftwareStack

ALL = ("megatron", "torch", "torchtitan")
"""With tp, cp, pp and experts; the others have fewer axes and stand in a table of their own."""
OUTSIDE = ("tp", "dp_shard", "dp_replicate", "cp", "pp", "tatp")

REFUSED = [
    # targets, degrees, plan options, rest of the plan, path, words, fix
    (ALL, {"tatp": 8}, {}, {}, "strategy.tatp", "has no tensor streams: tatp 8", "tatp=1"),
    (ALL, {"tp": 4}, {}, {"system": "wafer-4x8"}, "system.chip", "does not run on TEMP-die",
     "NVIDIA"),
    (ALL, {"dp_shard": 12}, {}, {"batch": 12}, "strategy", "hosts of 8", "8 devices"),
    (ALL, {"dp_shard": 48}, {"zero_stage": 1}, {}, "workload.global_batch_size",
     "128 is not divisible by dp 48 x micro-batch 1", "global_batch_size=144"),
    (ALL, {"dp_shard": 32, "micro_batch_size": 3}, {"zero_stage": 1}, {},
     "workload.global_batch_size", "dp 32 x micro-batch 3", "micro_batch_size=2"),
    (ALL, {"dp_shard": 8}, {"sequence_parallel": True}, {}, "strategy",
     "[sp-without-tp]", "sequence_parallel=false"),
    (ALL, {"pp": 4, "num_virtual_stages": 2, "micro_batch_size": 64},
     {"schedule": ScheduleKind.INTERLEAVED}, {}, "strategy",
     "2 micro-batches are not divisible by pp 4", "micro_batch_size=32"),
    (ALL, {"tp": 3}, {}, {}, "strategy", "[tp-heads]", "tp="),
    (ALL, {"tp": 4}, {"axis_order": ("tp", "cp", "pp")}, {}, "plan_options.axis_order",
     "names dp_shard 0 times", "tp,cp,dp_shard,dp_replicate,pp"),
    (("torch", "torchtitan"), {"cp": 4}, {"context_kind": ContextKind.ULYSSES}, {},
     "plan_options.context_kind", "has no ulysses attention over cp 4", "context_kind="),
    (ALL, {"dp_shard": 8}, {"zero_stage": 2, "offload": Offload.OPTIMIZER}, {},
     "plan_options.offload", "the host: optimizer, ZeRO 2", "offload=none"),
    (("megatron", "torchtitan"), {"dp_shard": 8}, {"zero_stage": 2, "offload": Offload.ALL}, {},
     "plan_options.offload", "the host: all", "offload=none"),
    (ALL, {"dp_shard": 8}, {"zero_stage": 2, "offload": Offload.WEIGHTS}, {},
     "plan_options.offload", "the host: weights", "offload=none"),
    (ALL, {"dp_shard": 8}, {"zero_stage": 2}, {"optimizer": "adafactor"},
     "workload.optimizer", "adafactor keeps 8.01 bytes", "plan with optimizer"),
    (ALL, {"pp": 4}, {"schedule": ScheduleKind.ZERO_BUBBLE}, {},
     "plan_options.schedule", "has no pipeline schedule zero_bubble", "schedule=1f1b"),
    (("megatron",), {"pp": 4}, {"schedule": ScheduleKind.GPIPE}, {},
     "plan_options.schedule", "has no pipeline schedule gpipe", "schedule=1f1b"),
    (("megatron",), {"dp_shard": 8}, {"zero_stage": 3, "reshard_after_forward": False}, {},
     "plan_options.reshard_after_forward", "gathers weights again", "reshard_after_forward=true"),
    (ALL, {"tp": 2}, {"sequence_parallel": False, "overlap_tensor_parallel": True}, {},
     "plan_options.overlap_tensor_parallel", "sequence parallelism", "_parallel="),
    # megatron/training/arguments.py: "When using MoE and tensor parallelism, sequence
    # parallelism must be used."
    (("megatron",), {"tp": 2}, {"sequence_parallel": False}, {"model": "mixtral-8x7b"},
     "plan_options.sequence_parallel", "experts", "sequence_parallel=true"),
    (("megatron",), {"dp_shard": 8}, {"zero_stage": 1}, {"optimizer": "fsdp-mixed"},
     "workload.optimizer", "fsdp-mixed keeps 16 bytes per parameter, Adam here 18",
     "megatron-adam"),
    (("megatron",), {}, {}, {"model": "falcon-40b"}, "model.architecture",
     "FalconForCausalLM has no counterpart", "one of"),
    (("megatron",), {}, {}, {"model": "gemma2-9b"}, "model.architecture",
     "Gemma2ForCausalLM has no counterpart", "one of"),
    (("torch",), {"tp": 2}, {"overlap_tensor_parallel": True}, {},
     "plan_options.overlap_tensor_parallel", "or not at all", "false"),
    (("torch", "torchtitan"), {"dp_shard": 8},
     {"zero_stage": 2, "overlap_data_parallel": False}, {},
     "plan_options.overlap_data_parallel", "fixes whether", "true"),
    (("torchtitan",), {"dp_shard": 8}, {"zero_stage": 1}, {},
     "plan_options.zero_stage", "has no ZeRO stage 1", "zero_stage=3"),
    (("torchtitan",), {"cp": 2}, {"zero_stage": 0}, {},
     "plan_options.zero_stage", "has no ZeRO stage 0 with pp 1, cp 2", "zero_stage=3"),
    (("torchtitan",), {"tp": 2, "etp": 2}, {}, {"model": "qwen3-30b-a3b"},
     "strategy.etp", "inside of experts: etp 2", "etp=1"),
    (("torchtitan",), {"cp": 2}, {"zero_stage": 3}, {"model": "gpt-oss-20b"},
     "strategy.cp", "does not split sequences of GptOssForCausalLM", "cp=1 dp_shard=2"),
    (("torchtitan",), {}, {"recompute": Recompute.SELECTIVE},
     {"software": SoftwareStack(selective_recompute="all_but_products")},
     "plan_options.recompute", "every second product", "recompute=full or none"),
    (("torchtitan",), {"pp": 2}, {}, {"software": SoftwareStack(cuda_graphs=True)},
     "workload.software.cuda_graphs", "pipeline", "false"),
    # NVIDIA/Megatron-LM, transformer_config.py: "Full recompute is only supported with full
    # iteration CUDA graph", "CUDA graphs not supported with CPU offloading"
    (("megatron",), {}, {"recompute": Recompute.FULL},
     {"software": SoftwareStack(cuda_graphs=True)}, "plan_options.recompute", "not recorded",
     "recompute=selective or none"),
    (("torchtitan",), {}, {}, {"model": "mixtral-8x7b"}, "model.architecture",
     "no module for MixtralForCausalLM", "llama3"),
    (("torch",), {}, {}, {"precision": Precision(matmul="fp8")}, "workload.precision.matmul",
     "fp8", "bf16"),
    (ALL, {}, {}, {"precision": Precision(matmul="fp4")},
     "workload.precision.matmul", "fp4", "bf16"),
    (("megatron", "torchtitan"), {}, {}, {"causal": False}, "workload.causal", "causally", "true"),
]  # fmt: skip

NARROWER = load_model("deepseek-v3").model_copy(update={"hidden_size": 6144})
(PLAIN,) = load_model("llama3.2-1b").layer_kinds
BIAS = {"qkv_bias": True, "output_bias": True}
WITH_BIAS = PLAIN.model_copy(update={"attention": PLAIN.attention.model_copy(update=BIAS)})
BIASED = load_model("llama3.2-1b").model_copy(update={"layer_kinds": (WITH_BIAS,)})
FEWER_AXES = [
    (("megatron", "torch"), {"tp": 2, "cp": 2, "dp_shard": 2},
     {"zero_stage": 2, "axis_order": OUTSIDE}, {}, "plan_options.axis_order", "innermost first",
     "tp,cp,dp_shard,dp_replicate,pp"),
    (("megatron", "torch"), {"cp": 2, "dp_shard": 2, "dp_replicate": 2},
     {"zero_stage": 2, "axis_order": OUTSIDE}, {}, "plan_options.axis_order", "innermost first",
     "tp,cp,dp_shard,dp_replicate,pp"),
    (("torchtitan",), {"tp": 2, "cp": 2, "dp_shard": 2},
     {"zero_stage": 3, "axis_order": OUTSIDE, "context_kind": ContextKind.GATHER}, {},
     "plan_options.axis_order", "innermost first", "tp,cp,dp_shard,dp_replicate,pp"),
    # DeepSpeed 0.19 runtime/engine.py, _configure_tensor_parallel_states: ZeRO up to 2 beside tp
    (("deepspeed",), {"tp": 2, "dp_shard": 4}, {"sequence_parallel": False, "zero_stage": 3}, {},
     "plan_options.zero_stage", "has no ZeRO stage 3 with pp 1, cp 1, tp 2", "zero_stage=2"),
    (("deepspeed", "accelerate"), {"pp": 2}, {}, {}, "strategy.pp",
     "has no pipeline parallelism: pp 2", "pp=1"),
    (("deepspeed",), {"cp": 2}, {"zero_stage": 1}, {}, "plan_options.context_kind",
     "has no ring attention over cp 2", "context_kind"),
    (("accelerate",), {"cp": 2}, {"zero_stage": 2, "context_kind": ContextKind.ULYSSES}, {},
     "plan_options.context_kind", "has no ulysses attention over cp 2", "context_kind"),
    (("accelerate",), {"tp": 2, "dp_shard": 4}, {"sequence_parallel": False}, {},
     "plan_options.zero_stage", "has no ZeRO stage 0 with pp 1, cp 1, tp 2", "zero_stage=3"),
    # accelerate/parallelism_config.py, __post_init__
    (("accelerate",), {"cp": 2, "dp_replicate": 4}, {"zero_stage": 3}, {},
     "strategy.dp_shard", "has no 1 shards of dp for 4 replicas", "dp_shard=2"),
    (("accelerate",), {"tp": 2, "dp_shard": 4}, {"zero_stage": 3}, {},
     "plan_options.sequence_parallel", "fixes sequence parallelism", "sequence_parallel=false"),
    (("deepspeed", "accelerate"), {"dp_shard": 8}, {"zero_stage": 2}, {"causal": False},
     "workload.causal", "run_clm.py masks causally", "true"),
    (("deepspeed", "accelerate"), {"dp_shard": 8}, {"zero_stage": 2}, {"optimizer": "adafactor"},
     "workload.optimizer", "adafactor keeps 8.01 bytes", "plan with optimizer"),
    (("deepspeed",), {"dp_shard": 8}, {"zero_stage": 2, "offload": Offload.WEIGHTS}, {},
     "plan_options.offload", "the host: weights, ZeRO 2", "offload=none"),
    (("maxtext",), {"tp": 4, "cp": 2, "dp_shard": 2, "ep": 8},
     {"zero_stage": 3, "overlap_tensor_parallel": True}, {"model": "mixtral-8x7b"},
     "strategy.ep", "has no ranks for ep 8 x etp 1 with dp_shard 2 of dp 2", "ep=2"),
    (("maxtext",), {"dp_shard": 8}, {"zero_stage": 3}, {"precision": Precision(matmul="fp8")},
     "strategy.micro_batch_size", "does not accumulate gradients", "micro_batch_size=16"),
    (("maxtext",), {"dp_shard": 8}, {"zero_stage": 3}, {"model": "falcon-40b"},
     "model.architecture", "has no model of the architecture FalconForCausalLM", "another"),
    (("torchtitan", "maxtext"), {"dp_shard": 8}, {"zero_stage": 3}, {"model": BIASED}, "model",
     "has no biases", "--framework megatron"),
    (("maxtext",), {"dp_shard": 8}, {"zero_stage": 2}, {}, "plan_options.zero_stage",
     "has no ZeRO stage 2", "zero_stage="),
    (("megatron-bridge",), {"dp_shard": 8}, {"zero_stage": 1},
     {"model": NARROWER}, "model.attention", "latent attention is in recipes",
     "--framework megatron"),
    (("megatron-bridge",), {}, {}, {"software": SoftwareStack(flash_attention=False)},
     "workload.software.flash_attention", "overrides leave the attention kernel", "true"),
    (("megatron-bridge",), {"pp": 2}, {"offload": Offload.ACTIVATIONS}, {},
     "plan_options.offload", "without pipelines only", "pp=1"),
    (("deepspeed", "accelerate"), {}, {"recompute": Recompute.SELECTIVE}, {},
     "plan_options.recompute", "no recomputation of this form: selective", "recompute=full"),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [*REFUSED, *FEWER_AXES], ids=lambda case: f"{case[4]}-{case[5]}"[:48]
)
def test_refused_by_name_with_a_fix(make_plan, case):
    targets, degrees, plan_options, rest, path, words, fix = case
    plan = make_plan(degrees, plan_options, **rest)
    for target in targets:
        with pytest.raises(UnsupportedError) as caught:
            rendered(plan, target)
        found = [fault for fault in caught.value.faults if fault.path == path]
        assert any(words in fault.message and fix in fault.fix for fault in found), caught.value


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[4]}-{case[5]}"[:48])
def test_refused_by_these_targets_only(make_plan, case):
    targets, degrees, plan_options, rest, path, words, _ = case
    plan = make_plan(degrees, plan_options, **rest)
    for target in set(ALL) - set(targets):
        found = refusals(plan, target)
        assert not [f for f in found if f.path == path and words in f.message]


def test_all_faults_are_told_at_once(make_plan):
    plan_options = {"schedule": ScheduleKind.GPIPE, "offload": Offload.WEIGHTS}
    with pytest.raises(UnsupportedError) as caught:
        rendered(make_plan({"pp": 4, "tatp": 2}, plan_options), "megatron")
    paths = {fault.path for fault in caught.value.faults}
    assert {"strategy.tatp", "plan_options.schedule", "plan_options.offload"} <= paths
    assert str(caught.value).startswith("Megatron-LM (megatron-core 0.19.2) cannot express")


def test_estimate_that_belongs_to_other_degrees(make_plan):
    from dataclasses import replace

    plan = make_plan({"tp": 4})
    wrong = replace(plan.best.estimate, num_devices_used=8)
    with pytest.raises(UnsupportedError, match="multiply to 4 devices, the estimate uses 8"):
        rendered(replace(plan, best=replace(plan.best, estimate=wrong)), "torch")


def test_unknown_target(make_plan):
    with pytest.raises(UnknownNameError, match="did you mean megatron"):
        rendered(make_plan({"tp": 4}), "megatorn")
