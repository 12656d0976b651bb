"""torchtune: recipes with adapters or without, a configuration and its overrides.

Source: pytorch/torchtune 0.6.1 (2025-04, the last release), ``recipes/*_finetune_*.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from meshwright.base.files import TREES
from meshwright.catalog.workloads import load_optimizer
from meshwright.frameworks.reading.adapters import adapter_options
from meshwright.frameworks.reading.given import Given, names, of_tree
from meshwright.frameworks.reading.job import Setting, readers
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.reading.models import known_model
from meshwright.frameworks.torchtune_models import model_of, model_of_builder

_TRAINS_NOTHING = ("is of a recipe that trains nothing", "a *_finetune_* recipe")
REFUSED = {
    "tasks": _TRAINS_NOTHING,
    "quantizer.*": _TRAINS_NOTHING,
    "max_new_tokens": _TRAINS_NOTHING,
    "teacher_*": ("a teacher beside the model is not read", "a *_finetune_* recipe"),
    "ref_checkpointer.*": ("training on preferences is not read", "a *_finetune_* recipe"),
    "model.fusion_trainable": ("towers of other inputs are not read", "a model of text alone"),
    "enable_activation_offloading": ("activations on the host are not read", "False"),
    "tensor_parallel_dim": ("tensor parallelism of torchtune is not read", "1"),
    "model.apply_lora_to_output": ("adapters of the logits are not read", "False"),
    "model.use_dora": ("directions and magnitudes apart are not read", "False"),
}


@readers.register("torchtune")
class Torchtune:
    """A recipe of torchtune."""

    title = "torchtune"
    kind: Literal["training", "serving"] = "training"
    ignored = names(
        """
        output_dir tokenizer.* checkpointer.* resume_from_checkpoint save_* dataset.* seed shuffle
        optimizer.lr optimizer.weight_decay optimizer.fused optimizer.foreach optimizer.betas
        optimizer.eps optimizer_in_bwd optimizer._component_ lr_scheduler.* low_cpu_ram
        epochs clip_grad_norm metric_logger.* log_* device profiler.*
        loss.* model.lora_alpha model.lora_dropout model._component_ max_steps_per_epoch
        collate_fn enable_kv_cache max_seq_length model.*_trainable model.image_size temperature
        top_k prompt.* kd_* tensor_parallel_plan.* fsdp.cpu_offload
        custom_sharded_layers config run_val_every_n_steps dataset_val.* keep_last*
        """
    )

    @staticmethod
    def starts(launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        return "_finetune_" in launch.program and "config" in given

    @staticmethod
    def holds(tree: Mapping[str, Any]) -> bool:
        """Return whether a tree is a configuration of a recipe."""
        model = tree.get("model")
        component = model.get("_component_") if isinstance(model, Mapping) else None
        return str(component).startswith("torchtune.")

    @staticmethod
    def read(given: Given, setting: Setting) -> tuple[str, dict[str, Any]]:
        """Return the framework, and options of this program."""
        config = given.text("config") or ""
        if config.endswith(TREES):
            given.add(of_tree(setting.config_files(config), config))
        elif config:
            for name in ("batch_size", "gradient_accumulation_steps"):
                if name not in given:
                    given.refuse("config", f"what {config} states of {name} is not known",
                                 f"tune cp {config} FILE.yaml, and give the file")  # fmt: skip
        given.refuse_each(REFUSED)
        component = given.text("model._component_") or ""
        model = model_of(config) or model_of_builder(component)
        each, again = given.whole("batch_size"), given.whole("gradient_accumulation_steps") or 1
        world = setting.world(given, "the batch of a step is that of a device times devices")
        alone = "single_device" in (setting.launch.program if setting.launch else config)
        options: dict[str, Any] = {
            "model": None if "model" in setting.stated else model,
            "micro_batch_size": each,
            "global_batch": each * again * (1 if alone else world) if each and world else None,
            "seq": given.whole("tokenizer.max_seq_len"),
            "precision": given.word("dtype", among=("bf16", "fp32")),
            "recompute": "full" if given.flag("enable_activation_checkpointing") else "none",
            "zero_stage": "0" if alone else "3",
            "offload": "state" if given.flag("fsdp_cpu_offload") else None,
            "software": {"compiled": True} if given.flag("compile") else {},
        }
        if not given.flag("fsdp_reshard_after_forward", default=True):
            options["reshard_after_forward"] = "off"
        if "Chunked" in (given.text("loss._component_") or ""):
            given.notes.append("a loss in parts is priced as a whole one")
        if given.flag("dataset.packed"):
            given.notes.append(
                "a packed sequence attends as one; --with document_length=N says otherwise"
            )
        is_adapted = "lora" in component or "lora" in config or "model.lora_rank" in given
        if not is_adapted:
            options["optimizer"] = _optimizer(given, options["precision"], model)
            return "accelerate", options
        options["optimizer"] = "adapters"
        if given.flag("model.quantize_base", default="qlora" in f"{component} {config}"):
            options["weights"] = "nf4-double"
            given.notes.append("NF4 of torchao has the bytes of that of bitsandbytes, and its rate")
        found = adapter_options(
            given, ("model.lora_rank",), ("model.lora_attn_modules",), usual_rank=8,
            usual_targets="q_proj v_proj output_proj",
        )  # fmt: skip
        if given.flag("model.apply_lora_to_mlp"):
            found["lora_targets"] = "+".join(filter(None, (found["lora_targets"], "mlp")))
        return "accelerate", options | found


def _optimizer(given: Given, precision: str | None, model: str | None) -> Any:
    """Return the bytes that the optimizer keeps for each parameter, all in the type of training.

    An update inside of the backward pass leaves the gradients of one layer alive.

    Source: torchtune 0.6.1, ``training/memory.py``, ``create_optim_in_bwd_wrapper``; bitsandbytes
    0.50, ``optim/adamw.py`` (a scale of FP32 for each block of 256 numbers).
    """
    preset = load_optimizer("adam-bf16" if precision == "bf16" else "adam-fp32")
    name = (given.text("optimizer._component_") or "torch.optim.AdamW").rpartition(".")[2]
    word, changes = preset.weight_bytes_per_param, dict[str, Any]()
    if name in ("AdamW8bit", "Adam8bit", "PagedAdamW8bit", "PagedAdam8bit"):
        state = 2.0 * (1.0 + 4.0 / 256.0)
        changes["state_bytes_per_param"] = state
        changes["step_traffic_bytes_per_param"] = 3.0 * word + 2.0 * state
    elif name == "SGD":
        state = word if given.real("optimizer.momentum") else 0.0
        changes["state_bytes_per_param"] = state
        changes["step_traffic_bytes_per_param"] = 3.0 * word + 2.0 * state
    elif name not in ("AdamW", "Adam", "PagedAdamW", "PagedAdam"):
        given.refuse("optimizer._component_", f"{name} is not read", "torch.optim.AdamW")
    layers = getattr(known_model(model or ""), "num_layers", None)
    if given.flag("optimizer_in_bwd") and layers:
        changes["gradient_bytes_per_param"] = word / layers
    if not changes:
        return preset.name
    return preset.model_copy(update={"name": f"{name} of torchtune", **changes})
