"""LLaMA-Factory: one YAML file around the Trainer of Hugging Face, FSDP or DeepSpeed.

Source: hiyouga/LLaMA-Factory 0.9.5 (2026-05), ``src/llamafactory/hparams/*_args.py`` and
``parser.py``; ``src/train.py`` and ``llamafactory-cli train`` read the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.base.files import TREES
from meshwright.frameworks.reading.given import Given, names
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.programs.transformers import (
    PREFERENCES,
    Transformers,
    gather,
    read_gathered,
)

_OPTIMIZER = ("its state is not read", "optim: adamw_torch")
REFUSED: Mapping[str, tuple[str, str]] = {
    "pref_beta": PREFERENCES,
    "pref_loss": PREFERENCES,
    "ref_model": PREFERENCES,
    "reward_model": PREFERENCES,
    "use_asft_loss": ("a second model beside the one that trains is not read", "false"),
    "use_galore": _OPTIMIZER,
    "use_apollo": _OPTIMIZER,
    "use_badam": _OPTIMIZER,
    "use_adam_mini": _OPTIMIZER,
    "use_muon": _OPTIMIZER,
    "use_llama_pro": ("training of some layers is not read", "finetuning_type: lora"),
    "mixture_of_depths": ("layers that skip tokens are not read", "leave it out"),
    "shift_attn": ("shifted sparse attention is not read", "false"),
    "additional_target": ("modules trained whole beside adapters are not read", "leave it out"),
    "use_unsloth": ("kernels of Unsloth are not read", "false"),
    "use_unsloth_gc": ("checkpoints on the host are not read", "false"),
    "use_mca": ("Megatron-Core is read from its own arguments", "the arguments of Megatron-LM"),
    "tensor_model_parallel_size": ("Megatron-Core under LLaMA-Factory is not read",
                                   "the arguments of Megatron-LM"),
    "use_hyper_parallel": ("is not read", "false"),
    "use_kt": ("experts on the CPU (KTransformers) are not read", "false"),
    "freeze_language_model": ("training of some weights is not read", "false"),
    "fp8_enable_fsdp_float8_all_gather": ("gathers in fp8 are not read", "false"),
    "infer_backend": ("asks for answers, not for training", "a file with do_train: true"),
    "do_predict": ("asks for answers, not for training", "do_train: true"),
    "export_dir": ("merges adapters, and trains nothing", "a file with do_train: true"),
    "model_class": ("is of the trainer of version 1 (src/llamafactory/v1), which is not read",
                    "the options of hparams: model_name_or_path, finetuning_type"),
}  # fmt: skip
"""Options that change a price and are not read: the reason and the fix."""
STAGES = {"pt": True, "sft": False}
"""Stages that are read, and whether each packs its sequences by default (``parser.py``)."""


@readers.register("llamafactory")
class LlamaFactory(Transformers):
    """A job of LLaMA-Factory."""

    title = "LLaMA-Factory"
    ignored = (
        *Transformers.ignored,
        *names(
            """
            adapter_name_or_path adapter_folder resize_vocab split_special_tokens add_tokens
            new_special_tokens_config init_special_tokens low_cpu_mem_usage moe_aux_loss_coef
            use_reentrant_gc upcast_layernorm upcast_lmhead_output train_from_scratch infer_dtype
            offload_folder use_kv_cache use_v1_kernels *_hub_token print_param_status device_map
            image_* crop_to_patches video_* use_audio_in_video audio_sampling_rate export_*
            vllm_* sglang_* kt_* eval_dataset media_dir train_on_prompt buffer_size mix_strategy
            interleave_probs ignore_pad_token* val_size tool_format default_system
            enable_thinking preserve_thinking data_shared_file_system loraplus_* pissa_*
            create_new_adapter oft_* module_dropout pref_ftx pref_bco* dpo_* kto_* simpo_*
            ppo_* ref_model_* reward_model_* ld_alpha galore_* apollo_* badam_* use_dft_loss
            use_eaft_loss eaft_alpha asft_alpha freeze_vision_tower freeze_multi_modal_projector
            freeze_trainable_* freeze_extra_* compute_accuracy disable_shuffling
            include_effective_tokens* ray_* master_addr master_port enable_torch_profiler
            profiler_* profile_modules fp8_backend quantization_device_map do_sample temperature
            top_p top_k num_beams max_new_tokens repetition_penalty length_penalty
            skip_special_tokens skip_eos_token predict_with_generate generation_* mask_history
            pipeline_model_parallel_size expert_model_parallel_size sequence_parallel
            bias_activation_fusion apply_rope_fusion use_distributed_optimizer overlap_param_gather
            overlap_grad_reduce moe_* recompute_granularity train_dataset sample_backend
            dist_config.* kernel_config.* quant_config.* peft_config.*
            batching_strategy init_config.* batching_workers block_diag_attn
            """
        ),
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        is_script = launch.program.endswith("src/train.py")
        return launch.program == "llamafactory-cli" or (
            is_script and any(word.endswith(TREES) for word in launch.words)
        )

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree is a file of this program."""
        named = {"finetuning_type", "infer_backend", "cutoff_len", "export_dir"} & set(tree)
        return bool(named) and bool({"model_name_or_path", "model_class"} & set(tree))

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        gather(given, setting)
        given.refuse_each(REFUSED)
        stage = given.text("stage") or "sft"
        if stage not in STAGES:
            given.refuse("stage", f"{stage}: {PREFERENCES[0]}", "pt or sft")
        given.state("packing", STAGES.get(stage, False))
        given.state("finetuning_type", "lora")
        given.state("per_device_train_batch_size", 8)
        given.restate("gradient_checkpointing", not given.flag("disable_gradient_checkpointing"))
        given.state("lora_rank", 8)
        given.state("lora_target", "all")
        tuned = given.peek("finetuning_type")
        if tuned not in ("lora", "full"):
            given.refuse("finetuning_type", f"{tuned} is not read", "lora or full")
            given.restate("finetuning_type", "full")
        _quantized(given)
        if given.flag("fp8"):
            given.restate("mixed_precision", "fp8")
        if given.peek("flash_attn") == "disabled":
            given.restate("flash_attn", "eager")
        pure = given.flag("pure_bf16")
        if pure:
            given.restate("bf16", True)
        workers = given.whole("ray_num_workers")
        setting.num_devices = setting.num_devices or workers
        framework, options = read_gathered(given, setting)
        if pure and options["optimizer"] is None and framework == "accelerate":
            options["optimizer"] = "adam-bf16"
        return framework, options


def _quantized(given: Given) -> None:
    """State the weights that bitsandbytes narrows, as the Trainer knows them."""
    bits = given.whole("quantization_bit")
    method = given.text("quantization_method") or "bnb"
    if bits is None:
        return
    if method not in ("bnb", "bitsandbytes") or bits not in (4, 8):
        given.refuse("quantization_bit", f"{method} with {bits} bits is not read", "bnb, 4 or 8")
        return
    given.state("load_in_4bit" if bits == 4 else "load_in_8bit", True)
    given.state("bnb_4bit_quant_type", given.text("quantization_type") or "nf4")
    given.state("bnb_4bit_use_double_quant", given.flag("double_quantization", default=True))
