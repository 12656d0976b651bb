"""The models that torchtitan ships, by their shape, and what to write for another one.

Source: torchtitan 0.3.0, ``torchtitan/models/*/config_registry.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.base.errors import Fault
from meshwright.spec.model import ModelSpec

MODULES = {
    "LlamaForCausalLM": "llama3",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3",
    "DeepseekV2ForCausalLM": "deepseek_v3",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
}
"""The module that can hold each architecture."""


@dataclass(frozen=True)
class Config:
    """One shipped configuration: function, and the shape and type that it stands for."""

    architecture: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    name: str
    precision: str = "bf16"


CONFIGS = (
    Config("LlamaForCausalLM", 4096, 32, 128256, "llama3_8b"),
    Config("LlamaForCausalLM", 8192, 80, 128256, "llama3_70b"),
    Config("LlamaForCausalLM", 16384, 126, 128256, "llama3_405b", "fp8"),
    Config("Qwen3ForCausalLM", 1024, 28, 151936, "qwen3_0_6b"),
    Config("Qwen3ForCausalLM", 2048, 28, 151936, "qwen3_1_7b"),
    Config("Qwen3ForCausalLM", 5120, 40, 151936, "qwen3_14b"),
    Config("Qwen3ForCausalLM", 5120, 64, 151936, "qwen3_32b"),
    Config("Qwen3MoeForCausalLM", 2048, 48, 151936, "qwen3_30b_a3b"),
    Config("DeepseekV2ForCausalLM", 2048, 27, 102400, "deepseek_v3_16b"),
    Config("DeepseekV3ForCausalLM", 7168, 61, 129280, "deepseek_v3_671b"),
    Config("DeepseekV3ForCausalLM", 7168, 61, 129280, "deepseek_v3_671b_float8", "fp8"),
    Config("GptOssForCausalLM", 2880, 24, 201088, "gpt_oss_20b"),
    Config("GptOssForCausalLM", 2880, 36, 201088, "gpt_oss_120b"),
)
PRECISION_KIND = {"fp32": "bf16", "bf16": "bf16", "fp8": "fp8"}
"""Configurations of ``bf16`` take their type from the command line, those of ``fp8`` convert."""


def shipped_config(model: ModelSpec, precision: str) -> Config | None:
    """Return the shipped configuration of a model, None where there is none."""
    shape = (model.architecture, model.hidden_size, model.num_layers, model.vocab_size)
    kind = PRECISION_KIND.get(precision)
    for config in CONFIGS:
        found = (config.architecture, config.hidden_size, config.num_layers, config.vocab_size)
        if found == shape and config.precision == kind:
            return config
    return None


def model_refusals(model: ModelSpec, precision: str) -> Iterator[Fault]:
    """Yield a model without a configuration, and which one to write."""
    if precision not in PRECISION_KIND:
        message = f"{precision}: torchtitan trains in {', '.join(PRECISION_KIND)}"
        yield Fault("workload.precision.matmul", message, "bf16")
        return
    if shipped_config(model, precision) is not None:
        return
    module = MODULES.get(model.architecture)
    if module is None:
        message = f"torchtitan 0.3.0 has no module for {model.architecture}"
        modules = ", ".join(sorted(set(MODULES.values())))
        yield Fault("model.architecture", message, f"its modules are {modules}")
        return
    attention = model.layer_kinds[-1].attention
    message = f"module {module} ships no {precision} configuration of {model.name}"
    fix = (
        f"write a function in torchtitan/models/{module}/config_registry.py with "
        f"dim={model.hidden_size}, n_layers={model.num_layers}, n_heads={attention.num_heads}, "
        f"n_kv_heads={attention.num_kv_heads}, vocab_size={model.vocab_size}"
    )
    yield Fault("model", message, fix)
