"""axolotl: one YAML file around the Trainer of Hugging Face, FSDP2 of accelerate or DeepSpeed.

Source: axolotl-ai-cloud/axolotl 0.19.0 (2026-10), ``src/axolotl/utils/schemas``,
``utils/config/__init__.py`` (``resolve_dtype``, ``normalize_config``), ``loaders/model.py``
(``_set_quantization_config``) and ``integrations/*/args.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.frameworks.reading.given import Given, names
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.programs.transformers import (
    AT,
    PREFERENCES,
    Transformers,
    gather,
    read_gathered,
)

REFUSED: Mapping[str, tuple[str, str]] = {
    "rl": PREFERENCES,
    "reward_model": PREFERENCES,
    "process_reward_model": PREFERENCES,
    "ebft.*": PREFERENCES,
    "kd_*": ("a teacher beside the model is not read", "leave it out"),
    "diffusion.*": ("training by diffusion is not read", "leave it out"),
    "qat.*": ("training with weights rounded in each pass is not read", "leave it out"),
    "gptq*": ("GPTQ weights under adapters are not read", "load_in_4bit with adapter: qlora"),
    "max_packed_sequence_len": ("was removed from axolotl", "sample_packing: true"),
    "unfrozen_parameters": ("training of some weights is not read", "adapter: lora"),
    "lora_modules_to_save": ("modules trained whole beside adapters are not read", "leave it out"),
    "relora*": ("adapters that are merged as they train are not read", "adapter: lora"),
    "lisa_*": ("training of some layers at a time is not read", "leave it out"),
    "spectrum_top_fraction": ("training of some weights is not read", "leave it out"),
    "expert_parallel_*": ("expert parallelism of axolotl is not read", "--ep beside the file"),
    "layer_offloading": ("layers on the host are not read", "false"),
    "ple_cpu_offload": ("embeddings on the host are not read", "false"),
    "selective_checkpointing.*": ("a choice of checkpoints is not read", "gradient_checkpointing"),
    "tiled_mlp": ("MLPs in parts of the sequence are not read", "false"),
    "chunked_cross_entropy": ("a loss in parts is not read", "cut_cross_entropy: true"),
    "auto_find_batch_size": ("the batch is not known", "false"),
    "use_onebitllms": ("ternary weights are not read", "false"),
    "reinit_weights": ("weights from scratch under axolotl are read as a full fine-tune", "false"),
    "use_pose": ("skipped positions are not read", "false"),
    "nonexpert_quantization": ("quantization by kernels of experts is not read", "load_in_4bit"),
    "fp8_enable_fsdp_float8_all_gather": ("gathers in fp8 are not read", "false"),
}
"""Options that change a price and are not read: the reason and the fix."""
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel",
           "use_kernels", "use_scattermoe", "use_sonicmoe", "fused_attn_kernel",
           "flash_attn_fuse_mlp", "flash_attn_rms_norm")  # fmt: skip
"""Kernels of single operators, which have no separate prices."""


@readers.register("axolotl")
class Axolotl(Transformers):
    """A job of axolotl."""

    title = "axolotl"
    ignored = (
        *Transformers.ignored,
        *names(
            """
            auto_resume* resize_token_embeddings_to_32x mean_resizing* shrink_embeddings
            embeddings_skip_upcast trainer_cls datasets test_datasets shuffle_* skip_prepare*
            num_dataset_shards* pretraining_dataset pretrain_multipack* excess_length*
            eval_sequence* min_sample_len max_prompt_len sample_packing_* eval_sample_packing
            curriculum_sampling multipack_real_batches pretraining_sample* streaming_multipack*
            world_size device
            device_map.* device_map bench_* loss_watchdog_* gc_steps gc_collect_steps
            flex_attn_compile_kwargs.* flash_attn_cross_entropy flash_optimum sdpa_varlen
            gemma4_hybrid_attn_impl large_head_attention experts_implementation expert_backend
            moe_grouped_backend quantize_moe_experts scaling_softmax* use_eaft eaft_*
            llama4_linearized_experts fp32_norms fp32_norm_classes fsdp_final_state_dict_type
            heads_k_stride ring_attn_func tokens tokens.* added_tokens_overrides* special_tokens.*
            torch_compile_options.* early_stopping* use_tensorboard profiler_* include_tkps
            max_memory.* gpu_memory_limit low_cpu_mem_usage chat_template* eot_tokens
            default_system_message fix_untrained_tokens is_*_derived_model total_num_tokens
            total_supervised_tokens axolotl_config_path generate_samples num_generation_samples
            generation_* base_model_config base_model_ignore_patterns cls_model_config
            tokenizer_* processor_* experimental_skip_move* revision_of_model type_of_model
            model_quantization_config* tokenizer_config image_* role_boundaries* hub_*
            loftq* lora_fan_in_fan_out lora_model_dir lora_alpha_pattern.* peft_use_* peft_init*
            peft_autocast* peft_ensure* qlora_sharded* lora_on_cpu loraplus_* merge_lora
            merge_method torchdistx_path lr_div_factor embedding_lr* lr_groups eta_min optim_args.*
            adam_beta3 adam_epsilon2 jagged_* gradio_* use_wandb use_mlflow mlflow_* hf_mlflow_*
            use_comet comet_* use_otel* otel_* ray_* use_ray resources_per_worker
            quantization.* use_glm_dsa_kernels peft.loftq* neftune* noisy_embedding_alpha
            eval_table_size eval_max_new_tokens eval_causal_lm_metrics liger_rms_norm_gated
            liger_swiglu liger_use_token_scaling liger_kernel_impl
            overrides_of_model_config.output_router_logits model_config.output_router_logits
            dynamic_checkpoint.* lm_eval* grokfast_* hatchery.* llmcompressor.* save_compressed
            trl.* vllm.* dpo_* rl_beta orpo_alpha simpo_gamma cpo_alpha kto_* num_labels
            center_rewards* nvfp4_merge* dsv4_* use_dsv4_kernels freeze_mm_modules
            sample_packing_eff_est batch_flattening eval_batch_size use_lm_eval dataset_shard*
            """
        ),
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return launch.program == "axolotl" or launch.program.startswith("axolotl.cli")

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree is a file of this program."""
        return "base_model" in tree and bool(
            {"micro_batch_size", "gradient_accumulation_steps", "datasets", "sequence_len"}
            & set(tree)
        )

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        gather(given, setting)
        given.renamed({"sequence_parallel_degree": f"{AT}cp_size"})
        for name in KERNELS:
            given.note_if(name, "priced without these kernels")
        given.refuse_each(REFUSED)
        if str(given.peek("gradient_checkpointing")).startswith("offload"):
            given.refuse("gradient_checkpointing", "checkpoints on the host are not read", "true")
            given.restate("gradient_checkpointing", True)
        if given.flag("fp8"):
            given.restate("mixed_precision", "fp8")
        plugins = " ".join(map(str, given.value("plugins") or ()))
        is_cut = given.flag("cut_cross_entropy", default="CutCrossEntropy" in plugins)
        _accumulate(given)
        if given.peek("adapter") == "qlora" and given.peek("load_in_4bit") in (True, "true"):
            double = given.value("bnb_config_kwargs.bnb_4bit_use_double_quant") is not False
            given.state("bnb_4bit_use_double_quant", double)
        if given.flag("eager_attention"):
            given.state("attn_implementation", "eager")
        for wide, name in (("bf16", "bfloat16"), ("fp16", "float16")):
            if given.flag(name) or (wide == "bf16" and str(given.peek(wide)).lower() == "auto"):
                given.restate(wide, True)  # auto: on where the device has it
        if str(given.peek("tf32")).lower() == "auto":
            given.restate("tf32", True)
        framework, options = read_gathered(given, setting)
        if is_cut:
            options["software"]["loss"] = "cut"
        is_whole = framework == "accelerate" and options["zero_stage"] == "0"
        if is_whole and options["optimizer"] is None and options["precision"] in ("bf16", "fp16"):
            # weights, and so gradients and moments, rest in the type of training (resolve_dtype)
            options["optimizer"] = "adam-bf16"
        return framework, options


def _accumulate(given: Given) -> None:
    """State the accumulation that follows from the batch of a device (``normalize_config``)."""
    whole, each = given.whole("batch_size"), given.peek("micro_batch_size")
    if given.peek("gradient_accumulation_steps") is None and whole and isinstance(each, int):
        given.without("gradient_accumulation_steps")
        given.state("gradient_accumulation_steps", max(1, whole // max(1, each)))
