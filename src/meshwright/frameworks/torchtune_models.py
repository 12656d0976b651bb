"""Models of torchtune, by the names of their configurations.

Source: pytorch/torchtune 0.6.1 (2025-04, the last release), ``recipes/configs`` and
``torchtune/models/*/_model_builders.py``.
"""

from __future__ import annotations

FAMILIES = {
    "llama2": ("7b", "13b", "70b"), "llama3": ("8b", "70b"), "llama3.1": ("8b", "70b"),
    "llama3.2": ("1b", "3b"), "llama3.3": ("70b",), "mistral": ("7b",),
    "qwen2": ("0.5b", "1.5b", "7b"),
    "qwen2.5": ("0.5b", "1.5b", "3b", "7b", "32b", "72b"), "gemma": ("2b", "7b"),
    "gemma2": ("2b", "9b", "27b"),
}  # fmt: skip
"""Sizes that ``lora_finetune_distributed`` has a configuration of, by family of the catalog."""
CONFIGS = {
    f"{family}-{size}": f"{family.replace('.', '_')}/{size.upper()}_lora"
    for family, sizes in FAMILIES.items() for size in sizes
}  # fmt: skip
"""Configuration of each model of the catalog."""
READ = CONFIGS | {
    "phi3-mini": "phi3/mini_lora", "phi4-14b": "phi4/14B_lora",
    "qwen2.5-14b": "qwen2_5/14B_lora", "codellama-7b": "code_llama2/7B_lora",
    "llama3.1-405b": "llama3_1/405B_lora",
}  # fmt: skip
"""Configurations that are read: those, and models that only other recipes have."""


def model_of(config: str) -> str | None:
    """Return the model of the catalog that a configuration trains; None: it is not known."""
    stem = (
        config.removesuffix("_single_device").replace("_qlora", "_lora").replace("_full", "_lora")
    )
    return next((model for model, name in READ.items() if name == stem), None)


def model_of_builder(component: str) -> str | None:
    """Return the model of the catalog that ``torchtune.models.FAMILY.lora_NAME`` builds."""
    name = component.rpartition(".")[2].removeprefix("qlora_").removeprefix("lora_")
    name = name.removesuffix("_base").removesuffix("_instruct")
    builders = {model.replace(".", "_").replace("-", "_"): model for model in READ}
    return builders.get(name.replace("code_llama2", "codellama"))
