"""Models of torchtitan: a module that states a model without a shipped configuration.

Source: torchtitan 0.3.0, ``torchtitan/models/*/__init__.py`` and ``*/config_registry.py``,
``torchtitan/config/manager.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.catalog.config_json import config_of
from meshwright.frameworks.launch import text_parts
from meshwright.train.answer import Plan

OWN_MODULE = "torchtitan_model"
OWN_CONFIG = "train"
"""The module beside the script, and its function."""

PARTS = text_parts("torchtitan_model.txt")
_WIDTHS = {kind: PARTS[f"{kind}_width"].substitute().rstrip() for kind in ("dense", "expert")}
BUILDS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "LlamaForCausalLM": ("llama3", {}),
    "Qwen3ForCausalLM":
        ("qwen3", {"builder": "_build_qwen3_layers", "width": _WIDTHS["dense"]}),
    "Qwen3MoeForCausalLM":
        ("qwen3", {"builder": "_build_qwen3_moe_layers", "width": _WIDTHS["expert"]}),
    "DeepseekV2ForCausalLM": ("deepseek_v3", {"score": "softmax", "norm": "False"}),
    "DeepseekV3ForCausalLM": ("deepseek_v3", {"score": "sigmoid", "norm": "True"}),
}  # fmt: skip
"""Part that builds a model of each architecture, and the words in it."""


def own_module(plan: Plan) -> str:
    """Return the module that states a model without a shipped configuration."""
    config = config_of(plan.model)
    names, converters = _converters(plan)
    family, words = BUILDS[plan.model.architecture]
    imports = f"from torchtitan.components.quantization import {', '.join(names)}\n" * bool(names)
    return "\n".join(
        [
            "# named by the script beside it; MODEL is the config.json of the model,",
            "# rotary base, data, tokenizer and learning rate are to be set below",
            "",
            PARTS["imports"].substitute(imports=imports) + "from torchtitan.trainer import Trainer",
            "",
            f"LENGTH = {plan.workload.sequence_length}",
            f"MODEL = {_literal(config or {})}",
            "",
            PARTS[family].substitute(words) + PARTS["train"].substitute(converters=converters),
        ]
    )


def _literal(config: Mapping[str, object]) -> str:
    lines = [f'    "{name}": {value!r},'.replace("'", '"') for name, value in config.items()]
    return "\n".join(["{", *lines, "}"])


def _converters(plan: Plan) -> tuple[list[str], str]:
    """Return the converters to fp8: names to import, and the list of the converters."""
    if plan.workload.precision.matmul != "fp8":
        return [], "None"
    compiled = f"model_compile_enabled={plan.workload.software.compiled}"
    made = {"Float8LinearConverter": f'filter_fqns=["lm_head", "router.gate"], {compiled}'}
    if plan.model.has_experts:
        made["Float8GroupedExpertsConverter"] = compiled
    return list(made), f"[{', '.join(f'{name}.Config({of})' for name, of in made.items())}]"
