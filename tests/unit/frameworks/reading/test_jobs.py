"""Files as people start jobs with: read completely, or refused by the name of the option."""

from pathlib import Path

import pytest

from meshwright.base.errors import SpecError
from meshwright.frameworks.reading.files import read_job
from meshwright.frameworks.reading.stages import stage_choices

FOLDER = Path(__file__).parents[3] / "data" / "jobs"
READ = {
    "megatron_gpt3_345m.sh": (8, "megatron", {
        "model": "gpt2-355m", "tp": 1, "zero_stage": "0", "precision": "fp16", "dropout": True,
        "micro_batch_size": 8, "global_batch": 64, "tokens": 500_000 * 64 * 1024}),
    "megatron_llama3_8b.slurm": (32, "megatron", {
        "model": "llama3-8b", "tp": 2, "zero_stage": "1", "overlap_data_parallel": "on",
        "optimizer": "megatron-adam-bf16-gradients", "software": {"loss": "compiled"},
        "sequence_parallel": "on", "seq": 8192, "tokens": 1_953_125_000 * 8192}),
    "megatron_llama3_70b.sh": (64, "megatron", {
        "model": "llama3-70b", "tp": 8, "pp": 4, "num_virtual_stages": 5, "global_batch": 128,
        "recompute": "full", "recompute_layers": 2, "dropout": False}),
    "megatron_mixtral_8x7b.sh": (64, "megatron", {
        "model": "mixtral-8x7b", "tp": 1, "pp": 4, "num_virtual_stages": 8, "ep": 8, "etp": 1,
        "micro_batch_size": 1, "global_batch": 256}),
    "megatron_llama3_405b.sh": (1024, "megatron", {
        "model": "llama3.1-405b", "tp": 8, "pp": 16, "num_virtual_stages": 8,
        "embedding_layers": None}),
    "megatron_deepseek_v3.sh": (2048, "megatron", {
        "model": "deepseek-v3", "pp": 16, "ep": 64, "etp": 1, "overlap_expert_parallel": "on",
        "recompute": "selective",
        "recompute_modules": "core_attn+layernorm+mla_up_proj+moe_act"}),
    "megatron_gpt3_175b.slurm": (512, "megatron", {
        "model": "gpt3-175b", "tp": 8, "pp": 8, "num_virtual_stages": 4, "recompute": "selective",
        "dropout": True, "sequence_parallel": "on", "tokens": 146_484_375 * 2048}),
    "megatron_llama_fp8.sh": (32, "megatron", {
        "model": "llama3-70b", "tp": 8, "pp": 4, "precision": "fp8", "async_tp": True,
        "axis_order": None}),
    "megatron_functional.yaml": (None, "megatron", {
        "tp": 2, "pp": 2, "sequence_parallel": "on", "micro_batch_size": 4, "dropout": True}),
    "megatron_config.yaml": (None, "megatron", {
        "model": "llama2-13b", "tp": 2, "recompute": "selective", "zero_stage": "1",
        "overlap_data_parallel": "off"}),
    "megatron_bridge.yaml": (None, "megatron-bridge", {
        "model": "qwen3-32b", "tp": 4, "pp": 2, "num_virtual_stages": 4, "async_tp": True}),
    "megatron_bridge_overrides.sh": (16, "megatron-bridge", {
        "model": "qwen3-32b", "tp": 8, "pp": 2, "global_batch": 256}),
    "megatron_bridge_pretrain.py": (None, "megatron-bridge", {
        "model": "llama3-8b", "tp": 2, "pp": 2, "cp": 1, "global_batch": 64, "seq": 8192,
        "micro_batch_size": 1, "sequence_parallel": "on", "zero_stage": "1", "dropout": False}),
    "megatron_bridge_recipe.sh": (32, "megatron-bridge", {
        "model": "qwen3-30b-a3b", "tp": 1, "ep": 8, "etp": 1, "micro_batch_size": 2,
        "global_batch": 1024, "async_tp": True, "cuda_graphs": True,
        "optimizer": "megatron-adam-bf16-gradients",
        "software": {"loss": "compiled", "deduplicated_dispatch": True}}),
    "megatron_pytorchjob.yaml": (32, "megatron", {
        "model": "llama2-7b", "tp": 4, "global_batch": 128, "zero_stage": "1"}),
    "megatron_ssh_hosts.sh": (32, "megatron", {
        "model": "llama2-7b", "tp": 4, "micro_batch_size": 2, "global_batch": 256, "seq": 4096}),
    "megatron_deepspeed.slurm": (96, "megatron", {
        "tp": 4, "pp": 6, "zero_stage": "1", "recompute": "full", "batch_ramp": "192,16,9765625",
        "global_batch": 2048, "micro_batch_size": 2, "seq": 2048, "precision": "bf16",
        "tokens": 220_000_000 * 2048}),
    "megatron_hybrid.sh": (8, "megatron", {"model": None, "tp": 4, "global_batch": 8}),
    "megatron_mpijob.yaml": (32, "megatron", {"model": "llama2-7b", "tp": 2, "global_batch": 64}),
    "torchtitan_llama3_70b.toml": (None, "torchtitan", {
        "model": "llama3-70b", "tp": 8, "dp": 8, "zero_stage": "3", "recompute": "full",
        "micro_batch_size": 8, "global_batch": 64}),
    "torchtitan_llama3_8b.toml": (None, "torchtitan", {
        "model": "llama3-8b", "dp": 64, "recompute": "selective", "precision": "fp8",
        "software": {"compiled": True, "loss": "compiled", "logit_tiles": 1}}),
    "torchtitan_llama3_405b.toml": (None, "torchtitan", {
        "model": "llama3.1-405b", "tp": 8, "schedule": "interleaved", "async_tp": True,
        "num_virtual_stages": 2}),
    "torchtitan_deepseek.toml": (None, "torchtitan", {
        "model": "deepseek-v2-lite", "dp": 64, "dp_shard": 32, "ep": 8, "zero_stage": "3",
        "reshard_after_forward": "off"}),
    "torchtitan_qwen3_flags.sh": (8, "torchtitan", {
        "model": "qwen3-14b", "tp": 2, "cp": 2, "seq": 16384, "recompute": "full",
        "cuda_graphs": False, "global_batch": 2}),
    "torchtitan_slurm.slurm": (32, "torchtitan", {
        "model": "llama3-8b", "dp": 32, "seq": 4096, "global_batch": 32}),
    ("torchtitan_registry.sh", "torchtitan_registry.py"): (128, "torchtitan", {
        "model": "llama3-70b", "tp": 8, "pp": 2, "cp": 2, "dp": 4, "zero_stage": "2",
        "precision": "fp8", "recompute": "full", "micro_batch_size": 1, "global_batch": 64,
        "seq": 4096, "cuda_graphs": True,
        "software": {"compiled": True, "loss": "compiled", "logit_tiles": 8}}),
    "torchtitan_run_train.sh": (8, "torchtitan", {"model": "llama3-70b", "tp": 8, "dp": 1}),
    "ds_run_clm.sh": (16, "deepspeed", {
        "model": "llama2-7b", "zero_stage": "3", "offload": "gradients", "precision": "bf16",
        "micro_batch_size": 4, "global_batch": 128, "seq": 4096, "recompute": "full"}),
    "ds_ulysses.sh": (64, "deepspeed", {
        "model": "llama3.1-8b", "cp": 8, "context_kind": "ulysses", "global_batch": 8,
        "seq": 131072}),
    "ds_zero1.json": (None, "deepspeed", {
        "zero_stage": "1", "global_batch": 512, "micro_batch_size": 4, "precision": "bf16"}),
    "ds_zero2_fp16.json": (None, "deepspeed", {
        "zero_stage": "2", "precision": "fp16", "offload": "gradients", "global_batch": 512}),
    "ds_zero3_offload.json": (None, "deepspeed", {"zero_stage": "3", "offload": "gradients"}),
    "axolotl_full.yaml": (None, "accelerate", {
        "model": "llama3-8b", "micro_batch_size": 1, "seq": 8192, "precision": "bf16",
        "recompute": "full", "software": {"flash_attention": True}}),
    ("llamafactory.sh", "llamafactory_sft.yaml", "ds_zero3_auto.json"): (None, "deepspeed", {
        "model": "qwen2.5-14b", "zero_stage": "3", "recompute": "full", "precision": "bf16",
        "global_batch": 256, "seq": 4096}),
    "accelerate_hybrid.yaml": (32, "accelerate", {
        "zero_stage": "3", "dp": 32, "dp_shard": 8, "precision": "bf16"}),
    "openrlhf_sft.sh": (None, "deepspeed", {
        "model": "llama3-8b", "zero_stage": "2", "micro_batch_size": 2, "global_batch": 256,
        "seq": 4096, "recompute": "full", "precision": "bf16"}),
    "accelerate_fsdp2.yaml": (16, "accelerate", {
        "zero_stage": "3", "recompute": "full", "precision": "bf16"}),
    "accelerate_two_hosts.yaml": (16, "accelerate", {"zero_stage": "3", "recompute": "full"}),
    "accelerate_command.slurm": (32, "accelerate", {
        "model": "mistral-7b", "global_batch": 128, "seq": 8192, "recompute": "full"}),
    "accelerate_sft.sh": (16, "accelerate", {
        "model": "qwen3-8b", "global_batch": 256,
        "software": {"loss": "linear", "sums_in_last_pass": True}}),
    "accelerate_deepspeed.yaml": (8, "deepspeed", {
        "zero_stage": "3", "offload": "state", "precision": "bf16"}),
    "accelerate_launch.slurm": (16, "accelerate", {
        "model": "mistral-7b", "reshard_after_forward": "off", "global_batch": 64,
        "recompute": "full"}),
    "maxtext_llama2_70b.sh": (None, "maxtext", {
        "model": "llama2-70b", "tp": 4, "dp": 16, "dp_shard": 8, "micro_batch_size": 8,
        "global_batch": 128}),
    "maxtext_mixtral.sh": (None, "maxtext", {
        "model": "mixtral-8x7b", "ep": 4, "dp_shard": 64, "micro_batch_size": 4}),
    "maxtext_v5p.yml": (1024, "maxtext", {
        "model": "llama3.1-405b", "tp": 8, "dp": 128, "dp_shard": 64, "precision": "int8"}),
    "vllm_llama.sh": (8, "vllm", {
        "model": "llama3.1-70b", "tp": 4, "pp": 2, "kv_cache": "fp8", "batch": 128,
        "context": 8192}),
    "vllm_k8s.yaml": (4, "vllm", {"model": "mixtral-8x7b", "tp": 4, "batch": 64}),
    "vllm_compose.yaml": (4, "vllm", {
        "model": "qwen2.5-32b", "tp": 4, "kv_cache": "fp8", "batch": 64}),
    "vllm_deployment.yaml": (6, "vllm", {"model": "qwen3-32b", "tp": 2, "dp": 3, "batch": 96}),
    "vllm_image.sh": (2, "vllm", {"model": "llama3.1-8b", "tp": 2, "precision": "bf16"}),
    "vllm_groups.yaml": (32, "vllm", {
        "model": "llama3.1-405b", "tp": 8, "pp": 2, "dp": 2, "batch": 128}),
    "vllm.dockerfile": (2, "vllm", {
        "model": "qwen2.5-32b", "tp": 2, "batch": 64, "context": 8192}),
    "vllm_two_ports.sh": (8, "vllm", {"model": "qwen2.5-32b", "tp": 4, "dp": 2, "batch": 128}),
    "vllm_drafts.sh": (8, "vllm", {"model": "llama3.1-70b", "tp": 8, "speculative_tokens": 4}),
    "vllm_mtp.sh": (8, "vllm", {
        "model": "deepseek-v3", "speculative_model": "mtp", "speculative_tokens": 1}),
    "vllm_docker.sh": (4, "vllm", {
        "model": "qwen3-30b-a3b", "dp": 4, "ep": 4, "context": 32000, "cuda_graphs": False}),
    "sglang_deepseek.sh": (8, "sglang", {"model": "deepseek-v3", "tp": 8, "batch": 64}),
    "sglang_two_nodes.sh": (16, "sglang", {"tp": 16, "precision": "fp8", "kv_cache": "fp8"}),
    "sglang_dp_attention.sh": (8, "sglang", {
        "model": "deepseek-v3", "tp": 1, "dp": 8, "ep": 8, "batch": 512}),
    "kserve_huggingface.yaml": (4, "vllm", {
        "model": "qwen3-32b", "tp": 2, "dp": 2, "batch": 64, "context": 8192}),
    "kserve_two_nodes.yaml": (16, "vllm", {
        "model": "llama3.1-405b", "tp": 8, "pp": 2, "dp": 1, "batch": 64}),
    "trtllm_llama.sh": (2, "tensorrt-llm", {"model": "llama3.1-8b", "tp": 2, "batch": 256}),
    "trtllm_moe.sh": (8, "tensorrt-llm", {
        "model": "qwen3-235b-a22b", "tp": 8, "ep": 4, "kv_cache": "fp8"}),
}  # fmt: skip
"""Devices that each job asks for, its framework, and some of what it states."""
REFUSED = {
    "megatron_encoder.sh": ("pretrain_t5.py",),
    "torchtitan_refused.toml": ("ZBVZeroBubble", "selective_ac_option", "early_step_in_backward"),
    "ds_zero3_hpz.json": ("zero_hpz_partition_size", "zero_quantized_weights"),
    "trl_preferences.yaml": ("beta", "max_prompt_length"),
    "maxtext_refused.sh": ("remat_policy",),
    "nemo1_gpt.yaml": ("NeMo 1",),
    "vllm_speculative.sh": ("--speculative-config",),
    "sglang_dp_attention_tp.sh": ("--enable-dp-attention",),
}
"""Words that the refusal has."""
BESIDE = {"trtllm_options.yaml"}
"""Named by an option of another file."""


def read(names, num_devices=64):
    paths = [FOLDER / name for name in listed(names)]
    job = read_job(paths, num_devices=lambda: None)
    if job.devices.count is None:
        job = read_job(paths, num_devices=lambda: num_devices)
    return job


def listed(names):
    """Return the files of a job."""
    return (names,) if isinstance(names, str) else names


def test_there_are_forty_files():
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {name for names in READ for name in listed(names)} | REFUSED.keys() | BESIDE
    assert len(names) >= 40


@pytest.mark.parametrize("name", READ, ids=lambda names: listed(names)[0])
def test_a_file_is_read_completely(name):
    num_devices, framework, stated = READ[name]
    job = read(name)
    assert (job.devices.count, job.framework) == (num_devices, framework)
    found = dict(job.options)
    found["model"] = getattr(found.get("model"), "name", None)
    assert {key: found.get(key) for key in stated} == stated


@pytest.mark.parametrize("name", REFUSED)
def test_what_changes_the_price_and_is_not_read_is_named(name):
    with pytest.raises(SpecError) as caught:
        read(name)
    assert len(caught.value.faults) == len(REFUSED[name])
    assert all(word in str(caught.value) for word in REFUSED[name])


def test_a_degree_of_zero_is_refused(tmp_path):
    """MaxText's -1 takes the devices that are left; no axis has none."""
    path = tmp_path / "own.yml"
    path.write_text("per_device_batch_size: 1\nici_tensor_parallelism: 0\n")
    with pytest.raises(SpecError, match=r"ici_tensor_parallelism: found 0 \(a degree, or -1"):
        read_job([path], num_devices=lambda: 8)


def test_a_pipeline_without_layers_has_no_stages():
    assert stage_choices([], 0) is None
