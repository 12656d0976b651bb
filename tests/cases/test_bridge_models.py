"""Models that Megatron Bridge brings in recipes of its own: legal, exported and read back.

Source: NVIDIA-NeMo/Megatron-Bridge 0.6.2, ``recipes/gpt_oss/h100/gpt_oss.py`` and
``recipes/glm/h100/glm45.py`` (2026-11).
"""

import pytest

import meshwright as mw
from meshwright.base.errors import SpecError
from meshwright.frameworks.registry import export

RECIPES = {
    # degrees that each recipe recommends
    "gpt-oss-20b": ("gpt_oss_20b_pretrain_config", {"on": "16xH100", "tp": 2, "pp": 4, "ep": 4}),
    "glm4.5-air": (
        "glm45_air_106b_pretrain_config",
        {"on": "64xH100", "tp": 1, "pp": 2, "ep": 8, "recompute": "full"},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_model_of_a_recipe_is_written_as_that_recipe(name, tmp_path):
    recipe, asked = RECIPES[name]
    plan = mw.estimate(
        name, seq=4096, global_batch=512, framework="megatron-bridge", etp=1, **asked
    )
    (script,) = export(plan, "megatron-bridge", tmp_path)
    text = script.read_text("utf-8")
    assert f"--recipe {recipe}" in text
    again = mw.estimate(from_=str(script), on=asked["on"])
    assert again.best.strategy == plan.best.strategy
    assert again.best.estimate.step_time_s == pytest.approx(plan.best.estimate.step_time_s)


def test_sinks_go_round_a_ring_in_no_recipe():
    """The recipe: a2a is required for attention with a learnable softmax when cp > 1."""
    with pytest.raises(SpecError, match="all-to-all only"):
        mw.estimate(
            "gpt-oss-20b", on="16xH100", seq=8192, global_batch=64, tp=2, cp=2, ep=4, etp=1,
            framework="megatron-bridge",
        )  # fmt: skip
