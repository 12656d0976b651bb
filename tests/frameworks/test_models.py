"""Models that frameworks ship, and models that are stated in full: their parsers read our dims."""

import pytest
from real_parsers import meant, read, told

from meshwright.catalog import maxtext_models, torchtitan_models
from meshwright.spec.workload import Precision, SoftwareStack

SHIPPED = {
    "maxtext": [name for name in maxtext_models.MODELS.values() if not name.startswith("gemma")],
    "torchtitan": [model for model, kind in torchtitan_models.SHIPPED.values() if kind == "bf16"],
}
"""Gemma's table has more rows in MaxText, and its Gemma 2 counts pairs of layers."""
STATED = {
    "maxtext": ("llama3.2-1b", "qwen2.5-32b", "gpt3-175b", "gpt2-xl", "mixtral-8x22b"),
    "torchtitan": ("llama3.2-1b", "qwen3-4b", "qwen3-235b-a22b", "deepseek-v2", "kimi-k2"),
}


def plans(make_plan, models, **rest):
    """Return a plain plan of each model."""
    return [
        make_plan({"dp_shard": 8}, {"zero_stage": 3}, model=model, system="8xH100", length=1024,
                  optimizer="fsdp-mixed", **rest)
        for model in models
    ]  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_dims_are_those_of_the_catalog(make_plan, tmp_path, name):
    found = plans(make_plan, (*SHIPPED[name], *STATED[name]))
    cases = [told(name, plan, tmp_path / f"{number}") for number, plan in enumerate(found)]
    assert read(name, cases) == [meant(name, plan) for plan in found]


def test_products_of_stated_models_are_narrowed(make_plan, tmp_path):
    found = plans(
        make_plan, ("llama3-8b", "qwen3-30b-a3b"), precision=Precision(matmul="fp8"),
        software=SoftwareStack(compiled=True),
    )  # fmt: skip
    cases = [told("torchtitan", plan, tmp_path / f"{n}") for n, plan in enumerate(found)]
    assert read("torchtitan", cases) == [meant("torchtitan", plan) for plan in found]
    for n, _ in enumerate(found):
        assert "Float8LinearConverter" in (tmp_path / f"{n}" / "torchtitan_model.py").read_text()
