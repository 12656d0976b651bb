"""Models of torchtitan: the configurations that it ships, and the gaps of its modules.

Source: torchtitan 0.3.0, ``torchtitan/models/*/__init__.py`` and ``*/config_registry.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.catalog.config_json import config_of, name_of
from meshwright.spec.model import ModelSpec

SHIPPED = {
    "llama3_8b": ("llama3-8b", "bf16"), "llama3_70b": ("llama3-70b", "bf16"),
    "llama3_405b": ("llama3.1-405b", "fp8"),
    "qwen3_0_6b": ("qwen3-0.6b", "bf16"), "qwen3_1_7b": ("qwen3-1.7b", "bf16"),
    "qwen3_14b": ("qwen3-14b", "bf16"), "qwen3_32b": ("qwen3-32b", "bf16"),
    "qwen3_30b_a3b": ("qwen3-30b-a3b", "bf16"),
    "deepseek_v3_16b": ("deepseek-v2-lite", "bf16"), "deepseek_v3_671b": ("deepseek-v3", "bf16"),
    "deepseek_v3_671b_float8": ("deepseek-v3", "fp8"),
    "gpt_oss_20b": ("gpt-oss-20b", "bf16"), "gpt_oss_120b": ("gpt-oss-120b", "bf16"),
}  # fmt: skip
"""Model of the catalog and type of each shipped configuration."""
MODULES = {
    "LlamaForCausalLM": "llama3",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3",
    "DeepseekV2ForCausalLM": "deepseek_v3",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
}
"""The module that can hold each architecture."""


PRECISION_KIND = {"fp32": "bf16", "tf32": "bf16", "bf16": "bf16", "fp8": "fp8"}
"""Configurations of ``bf16`` take their type from the command line, those of ``fp8`` convert."""


def shipped_config(model: ModelSpec, precision: str) -> str | None:
    """Return the name of the shipped configuration of a model, None where there is none."""
    kind = PRECISION_KIND.get(precision)
    names = {name: model for name, (model, made_for) in SHIPPED.items() if made_for == kind}
    return name_of(model, names)


def model_refusals(model: ModelSpec, precision: str) -> Iterator[Fault]:
    """Yield a model that no module of torchtitan can hold, with the reason."""
    if precision not in PRECISION_KIND:
        message = f"{precision}: torchtitan trains in {', '.join(PRECISION_KIND)}"
        yield Fault("workload.precision.matmul", message, "bf16")
    elif model.architecture not in MODULES:
        message = f"torchtitan 0.3.0 has no module for {model.architecture}"
        modules = ", ".join(sorted(set(MODULES.values())))
        yield Fault("model.architecture", message, f"its modules are {modules}")
    elif shipped_config(model, precision) is None:
        yield from _own_refusals(model)


def _own_refusals(model: ModelSpec) -> Iterator[Fault]:
    """Yield the faults of a model that the layers of its module cannot hold."""
    module, attention = MODULES[model.architecture], model.attentions[-1]
    config = config_of(model)
    if config is None or module == "gpt_oss":
        message = f"module {module} ships no configuration of {model.name}, and takes no other"
        yield Fault("model", message, "a model of its shape")
        return
    has_bias = any(spec.output_bias for spec in model.attentions) or config.get("mlp_bias")
    odd_heads = module == "llama3" and attention.head_size * attention.num_heads != (
        model.hidden_size
    )
    for is_broken, what in (
        (has_bias, "biases"),
        (odd_heads, f"heads of {attention.head_size} beside a hidden size of {model.hidden_size}"),
        (config.get("mlp_only_layers"), "dense layers between those with experts"),
        (config.get("tie_word_embeddings") and module == "deepseek_v3", "a tied embedding"),
    ):
        if is_broken:
            yield Fault("model", f"module {module} has no {what}", "--framework megatron")
