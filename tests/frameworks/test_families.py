"""Configurations of Hugging Face transformers: our counts are those of its own classes.

Each family's default configuration is built without memory (the meta device) and read by us.
"""

import json
import warnings
from types import SimpleNamespace

import pytest

from meshwright.catalog.models import known_model_types, load_model
from meshwright.graph.parameters import count_parameters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

STATED = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
}
"""Fields without which a class does not build, or whose default is no number."""
SCALARS = {"apertus": 2}
"""Learned numbers of each layer's activation, which a note leaves out."""
FAMILIES = (
    "afmoe", "apertus", "arcee", "codegen", "cohere", "cohere2", "cwm", "deepseek_v2",
    "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "glm4",
    "glm4_moe", "glm4_moe_lite", "gpt_bigcode", "gptj", "helium", "hunyuan_v1_dense", "internlm3",
    "iquestcoder", "jais2", "llama", "mellum", "minicpm3", "minimax_m2", "ministral",
    "ministral3", "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe",
    "phi", "phimoe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "seed_oss", "smollm3",
    "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
)  # fmt: skip
OFTEN = ("cohere2", "ernie4_5_moe", "exaone4", "minimax_m2", "olmo3", "qwen3_5_moe_text", "youtu")


def built(model_type):
    """Return the configuration of a type, and the numbers that its class holds.

    Correction biases of routers count, as in checkpoints: they are buffers in some classes.
    """
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        config = transformers.CONFIG_MAPPING[model_type](**STATED.get(model_type, {}))
        model = transformers.AutoModelForCausalLM.from_config(config)
    buffers = [value for name, value in model.named_buffers() if name.endswith("correction_bias")]
    held = [*model.parameters(), *buffers]
    return SimpleNamespace(config=config.to_dict(), num_params=sum(one.numel() for one in held))


@pytest.mark.parametrize(
    "model_type",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in FAMILIES
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_class(tmp_path, model_type):
    assert model_type in known_model_types()
    expected = built(model_type)
    (tmp_path / "config.json").write_text(json.dumps(expected.config, default=str))
    model = load_model(tmp_path)
    scalars = SCALARS.get(model_type, 0) * model.num_layers
    assert count_parameters(model).num_params == expected.num_params - scalars
