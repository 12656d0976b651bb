"""Megatron Bridge's own recipe and overrides, with what it imports of CUDA taken to be there."""

import importlib.machinery
import sys
import types
import typing

import typing_extensions
from absent import take_as_there

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override


def without_its_imports(name):
    """Make a package that has its modules but does not import them all."""
    parent, _, last = name.rpartition(".")
    found = importlib.machinery.PathFinder.find_spec(last, sys.modules[parent].__path__)
    package = types.ModuleType(name)
    package.__path__ = list(found.submodule_search_locations)
    sys.modules[name] = package


take_as_there(
    "transformer_engine", "modelopt", "nvidia_resiliency_ext", "mistral_common", "qwen_vl_utils",
    "peft", "megatron.energon",
)  # fmt: skip
import megatron  # noqa: E402, F401

for name in ("megatron.bridge", "megatron.bridge.recipes", "megatron.bridge.recipes.gpt"):
    without_its_imports(name)
from answering import answer_all  # noqa: E402
from megatron.bridge.recipes.gpt.h100.vanilla_gpt import (  # noqa: E402
    vanilla_gpt_pretrain_1gpu_h100_bf16_config as vanilla,
)
from megatron.bridge.training.mixed_precision import get_mixed_precision_config  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import (  # noqa: E402
    process_config_with_overrides,
)


def read(case):
    """Apply the overrides to the recipe, whose fields every recipe has."""
    option, recipe, *overrides = case["words"]
    assert option == "--recipe"
    assert recipe.endswith("_pretrain_config")
    config = process_config_with_overrides(vanilla(), cli_overrides=overrides)
    model, precision = config.model, config.mixed_precision
    if isinstance(precision, str):
        precision = get_mixed_precision_config(precision)
    assert model.seq_length == config.dataset.seq_length
    assert config.ddp.use_megatron_fsdp == config.dist.use_megatron_fsdp
    shards = config.ddp.data_parallel_sharding_strategy if config.ddp.use_megatron_fsdp else ""
    return {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "etp": model.expert_tensor_parallel_size or 1,
        "num_virtual_stages": model.virtual_pipeline_model_parallel_size or 1,
        "micro_batch_size": config.train.micro_batch_size,
        "global_batch_size": config.train.global_batch_size,
        "sequence_length": model.seq_length,
        "recompute": model.recompute_granularity or "none",
        "zero": config.ddp.use_distributed_optimizer or bool(shards),
        "sums_in_fp32": precision.grad_reduce_in_fp32,
        "is_bf16": precision.bf16,
    } | (
        {"num_layers": model.num_layers, "hidden_size": model.hidden_size}
        if recipe.startswith("vanilla")
        else {}
    )


if __name__ == "__main__":
    answer_all(read)
