"""From a source to a question: what is stated is taken, what is not follows once, else a reason."""

import pytest
from measured_rows import rows_of, source_rows

from meshwright.calibration.jobs import job_of
from meshwright.calibration.rows import Reason, RefusedError
from meshwright.catalog.models import load_model
from meshwright.sharding.strategy import Recompute, ScheduleKind
from meshwright_papers.measurements.fields import FlopsRule, HardwareFields, PrecisionFields
from meshwright_papers.measurements.questions import system_of
from meshwright_papers.measurements.words import (
    StatedHardware,
    between_nodes,
    chip_name_of,
    flops_rule_of,
    hardware_of,
    precision_of,
    recompute_of,
)

LLAMA = {"layers": 32, "hidden": 4096, "ffn": 14336, "ffn_gated": True, "heads": 32,
         "kv_heads": 8, "head_dim": 128, "vocab": 128256, "seq": 8192}  # fmt: skip
ROW = {
    "id": "a", "group": "torchtitan", "model": LLAMA,
    "hardware": {"chip_id": "H100 SXM 80GB", "chips": 64}, "precision": "bf16",
    "parallelism": {"tp": 2, "fsdp": True}, "micro_batch": 2, "global_batch": 64,
    "measured": {"tokens_per_s": 1e5},
}  # fmt: skip


def row_of(**changes):
    return rows_of([ROW | changes])[0]


def job(**changes):
    return job_of(row_of(**changes), "uncalibrated")


@pytest.mark.parametrize(
    ("stated", "framework"),
    [
        ({"group": "megatron-bridge"}, "megatron-bridge"),
        ({"group": "bigscience-a100"}, "megatron-deepspeed"),
        ({"group": "llm-foundry"}, "llm-foundry"),
        ({"group": "internevo", "parallelism": {"tp": 8}}, "internevo"),
        ({"group": "internevo", "parallelism": {"zero_stage": 3}}, "fsdp"),
        ({"group": "lab", "source": {"repo": "pytorch/torchtitan"}}, "torchtitan"),
        ({"group": "lab", "framework": "MaxText"}, "maxtext"),
        ({"group": "lab"}, "fsdp"),
        ({"group": "lab", "parallelism": {"tp": 8}}, None),
        (
            {
                "group": "megatron-ci",
                "hardware": {"chip_id": "A100 SXM 80GB"},
                "features": {"transformer-impl": "transformer_engine"},
            },
            "megatron",
        ),
        ({"group": "megatron-sc21", "hardware": {"chip_id": "A100 SXM 80GB"}}, "megatron==2021"),
        (
            {
                "group": "megatron-lm",
                "hardware": {"chip_id": "A100 SXM 80GB"},
                "flash_attention": True,
            },
            "megatron-bridge",
        ),
        ({"group": "lab", "hardware": {"chip_id": "TPU v5e"}, "parallelism": {}}, "maxtext"),
    ],
)
def test_framework_of_a_row(stated, framework):
    assert row_of(**stated).framework == framework


def test_degrees_that_are_not_stated_follow():
    asked = job()
    s = asked.strategy
    assert (s.tp, s.pp, s.dp, s.micro_batch_size, s.num_devices) == (2, 1, 32, 2, 64)
    assert asked.plan_options.zero_stage == 3
    assert asked.plan_options.sequence_parallel
    assert asked.problem.model.num_layers == 32


def test_stages_are_interleaved_where_chunks_are_stated():
    asked = job(parallelism={"tp": 2, "pp": 4, "vpp": 2, "fsdp": False})
    assert asked.plan_options.schedule is ScheduleKind.INTERLEAVED
    assert (asked.strategy.num_virtual_stages, asked.plan_options.zero_stage) == (2, 1)


def test_stated_accumulation_decides_the_micro_batch():
    plan = {"tp": 2, "pp": 2, "dp": 16}
    unstated = {"parallelism": plan, "micro_batch": None, "global_batch": 256}
    # 16 sequences of a rank: as many micro-batches as stages, in each of two rounds
    assert job(**unstated).strategy.micro_batch_size == 8
    assert job(**unstated, grad_accum=2).strategy.micro_batch_size == 4
    megatron = unstated | {"group": "megatron-sc21"}
    assert job(**megatron).strategy.micro_batch_size == 1
    assert job(**megatron, grad_accum=2).strategy.micro_batch_size == 8


def test_batches_of_chips_become_batches_of_ranks():
    asked = job(group="maxtext", micro_batch=1, global_batch=64)
    assert (asked.strategy.tp, asked.strategy.micro_batch_size) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "inference"}, Reason.TASK),
        ({"hardware": {"chips": 8}}, Reason.CHIP),
        ({"hardware": {"chip_id": "Abacus 9", "chips": 8}}, Reason.CHIP),
        ({"hardware": {"chip_id": "H100"}}, Reason.COUNT),
        ({"hardware": {"chip_id": "TPU v5p", "chips": 7}}, Reason.SYSTEM),
        ({"model": LLAMA | {"heads": None, "name": "Own 8B"}}, Reason.DIMS),
        ({"model": LLAMA | {"name": "t5 12x768"}}, Reason.DIMS),
        ({"model": LLAMA | {"name": "bert 24x1024"}}, Reason.DIMS),
        ({"model": LLAMA | {"seq": None}}, Reason.SEQUENCE),
        ({"micro_batch": None, "global_batch": None}, Reason.BATCH),
        ({"parallelism": {"tp": 3, "fsdp": True}}, Reason.DEGREES),
        ({"parallelism": {"tp": 64, "fsdp": True}}, Reason.PLAN),
        ({"parallelism": {"pp": 64, "fsdp": True}}, Reason.PLAN),
        ({"precision": "fp4"}, Reason.PRECISION),
    ],
)
def test_what_cannot_be_asked_has_a_reason(changes, reason):
    with pytest.raises(RefusedError) as caught:
        job(**changes)
    assert caught.value.reason is reason


def test_public_models_are_known_by_name():
    asked = job(model={"name": "DeepSeek-V3 671B", "seq": 4096, "vocab": 129280})
    assert asked.problem.model.layer_kinds == load_model("deepseek-v3").layer_kinds
    other = job(model=LLAMA | {"name": "Llama 3 8B", "layers": 12})
    assert other.problem.model.num_layers == 12


def test_a_public_configuration_fills_what_agrees_with_it():
    stated = {"name": "GPT 1B", "layers": 24, "hidden": 1920, "heads": 15}
    plan = {"tp": 1, "fsdp": True}
    asked = job(model=stated, parallelism=plan)
    assert (asked.problem.model.vocab_size, asked.problem.workload.sequence_length) == (51200, 1024)
    with pytest.raises(RefusedError) as caught:
        job(model=stated | {"layers": 25}, parallelism=plan)
    assert caught.value.reason is Reason.DIMS


def test_adapters_leave_no_gradients_of_weights():
    asked = job(task="finetune-lora", parallelism={"tp": 2, "fsdp": False})
    assert asked.problem.rates.freezes_weights
    assert asked.plan_options.zero_stage == 0
    assert not job().problem.rates.freezes_weights


def test_deepspeed_sums_whole_gradients_in_bf16_alone():
    stacks = [
        job(group="megatron-deepspeed", precision=text).problem.workload.software
        for text in ("bf16", "fp16")
    ]
    assert [stack.sums_whole_gradients for stack in stacks] == [True, False]
    assert all(stack.scatters_sends for stack in stacks)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("A100 SXM 40GB", "A100-40GB"), ("H100 SXM 96GB HBM2e (Meta, 500 W)", "H100-96GB"),
        ("GH200 (96 GB HBM3)", "GH200"), ("GB200 (per GPU)", "GB200"), ("B200 SXM", "B200"),
        ("TPU v6e (Trillium)", "TPU-v6e"), ("V100 SXM2 16GB", "V100"), ("h200", "H200"),
        ("Cerebras WSE-2 (CS-2)", "WSE-2"), ("MI250", "MI250"), ("Gaudi2", "Gaudi2"),
        ("MI250X GCD", "MI250X-GCD"), ("NVIDIA A800", "A800"), ("A100 PCIe 80GB", "A100-PCIe"),
        ("H20", "H20"), ("A10G", "A10G"), ("RTX 4090", "RTX-4090"),
        ("GeForce RTX4090", "RTX-4090"), ("NVIDIA RTX A6000", "RTX-A6000"), ("NVIDIA L4", "L4"),
        ("RTX3090 24GB", "RTX-3090"), ("NVIDIA L40S-48C", "L40S"),
    ],
)  # fmt: skip
def test_chips_by_name(name, chip):
    assert chip_name_of(name) == chip


def test_a_chip_of_half_the_rate_is_not_taken_for_another():
    stated = hardware_of(StatedHardware(chip_id="NVIDIA A10", chips=8))
    with pytest.raises(RefusedError) as caught:
        system_of(stated)  # 125 TFLOP/s; an A10G has 70
    assert caught.value.reason is Reason.CHIP


def test_eight_packages_of_two_dies_in_a_host_are_dies():
    frontier = hardware_of(StatedHardware(chip_id="MI250X", chips=64, chips_per_node=8))
    assert frontier.chip == "MI250X-GCD"
    assert [level.size for level in system_of(frontier).levels] == [2, 4, 8]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("DeepSeek-V3 671B", 61), ("meta-llama/Llama-3.1-70B-Instruct", 80), ("LLaMA-65B", 80),
        ("Llama 2 70B", 80), ("PaLM 540B", 118), ("Chinchilla 70B", 80), ("GPT3-5B", 24),
        ("MT-NLG 530B", 105), ("GPT3-175B", 96),
    ],
)  # fmt: skip
def test_public_models_and_configurations_by_name(name, layers):
    assert job(model={"name": name, "seq": 2048}).problem.model.num_layers == layers


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("Omni-Path, 4 links per node", 50.0), ("400 Gb/s RDMA per GPU", 400.0),
        ("1600 Gbps node-node RoCE", 200.0), ("8x HDR InfiniBand 200 Gb/s per node", 200.0),
        ("NDR InfiniBand", 400.0), ("50 GB/s per GPU", 400.0), ("InfiniBand", None), ("", None),
    ],
)  # fmt: skip
def test_rates_between_hosts(text, rate):
    found = between_nodes(text)
    of_node = found.get("inter_node_gbit_per_node")
    assert (of_node / 8 if of_node else found.get("inter_node_gbit_per_chip")) == rate
    assert found.get("rail_optimized") is (False if "Omni" in text else None)


def test_hosts_have_the_stated_size():
    four = system_of(HardwareFields(chip="A100", chips=8, chips_per_node=4))
    assert [level.size for level in four.levels] == [4, 2]
    rack = system_of(HardwareFields(chip="GB200", chips=64, chips_per_node=4))
    assert [level.size for level in rack.levels] == [64]


def test_slices_are_joined_by_the_data_centre_network():
    system = system_of(HardwareFields(chip="TPU-v5e", chips=512, slices=2))
    assert system.num_devices == 512
    assert system.levels[-1].data_parallel_only


def test_words_for_recomputation_and_precision():
    assert recompute_of(None) is None
    assert recompute_of("selective op") is Recompute.SELECTIVE
    assert recompute_of("qkv_proj offloaded") is Recompute.FULL
    assert job(recompute="none").plan_options.recompute is Recompute.NONE
    assert job().plan_options.recompute is Recompute.SELECTIVE
    assert precision_of("FP8-MX") == PrecisionFields(matmul="fp8", scaling="mx")
    assert precision_of("fp16").activation == "fp16"
    assert job(precision="bfloat16").problem.workload.precision.activation == "bf16"
    assert job(precision="fp8 rowwise").problem.workload.precision.row_scales


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("hardware FLOPs: 4*2*N*tokens", FlopsRule.EIGHT_N),
        ("model FLOPs: 6*N + 12*L*h*s", FlopsRule.SIX_N),
        ("model FLOPs: attention causal (half s^2)", FlopsRule.MODEL_CAUSAL),
        ("model FLOPs: full s^2", FlopsRule.MODEL),
        ("hardware FLOPs: 96*B*s*l*h^2 (1 + s/6h + V/16lh)", FlopsRule.HARDWARE),
        ("rule not stated", None), (None, None),
    ],
)  # fmt: skip
def test_rules_by_which_flops_are_counted(text, rule):
    assert flops_rule_of(text) is rule


def test_words_that_say_more_than_their_field_are_kept():
    (row,) = source_rows([ROW | {"recompute": "selective op", "precision": "bf16"}])
    assert row.reasons == {
        "hardware.chip": "H100 SXM 80GB", "recompute": "selective op",
        "software.logit_tiles": "whole until 2026-04: pytorch/torchtitan, pull request 2937",
        "software.separate_projections":
        "three products until 2026-06: pytorch/torchtitan, pull request 3714",
    }  # fmt: skip


def test_links_inside_a_host_are_as_stated():
    stated = StatedHardware(chip="A100", chips=16, intra_node="NVLink, 4 inter-GPU connects")
    assert system_of(hardware_of(stated)).levels[0].links_per_device == 4
    plain = HardwareFields(chip="A100", chips=16)
    assert system_of(plain).levels[0].links_per_device == 12
