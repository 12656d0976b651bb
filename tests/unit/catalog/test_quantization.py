"""``quantization_config``: bytes of a weight by hand, what stays wide, and what is refused."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.models import load_model, model_entry, read_config
from meshwright.graph.parameters import count_parameters
from meshwright.spec.model import REGIONS

LINEAR_8 = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
}


def format_of(model="llama3-8b", **stated):
    return read_config({**model_entry(model).config, "quantization_config": stated}).weight_format


def grouped(strategy="group", **weights):
    group = {"targets": ["Linear"], "weights": {"strategy": strategy, **weights}}
    return format_of(quant_method="compressed-tensors", config_groups={"group_0": group})


@pytest.mark.parametrize(
    ("stated", "num_bytes"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 0.5 + 4 / 64),
        (
            {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            0.5 + 1 / 64 + 4 / (64 * 256),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + (2 + 0.5) / 128),
        ({"quant_method": "gptq", "bits": 3, "group_size": -1}, 0.375),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + (2 + 0.5) / 64),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 1.0),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0 + 4 / 128**2),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": LINEAR_8}}, 1.0),
    ],
)
def test_bytes_of_a_weight_by_hand(stated, num_bytes):
    assert format_of(**stated).bytes_per_weight == num_bytes


def test_recurrent_layers_may_stay_wide():
    # Nemotron-H 8B: a Mamba layer at 0, a network at 1, attention at 7; 24, 24 and 4 of them.
    kept = ["backbone.layers.0.mixer.in_proj", "backbone.layers.1.mixer.up_proj"]
    kept += ["backbone.layers.7.mixer.q_proj", "backbone.layers.2.mixer.conv1d", "lm_head"]
    found = format_of("nemotron-h-8b", quant_method="fp8", modules_to_not_convert=kept)
    assert found.wide_shares == {"recurrence": 1 / 24, "feed_forward": 1 / 24, "attention": 1 / 4}


@pytest.mark.parametrize(
    ("weights", "num_bytes"),
    [
        ({"num_bits": 4, "type": "int", "group_size": 32}, 0.5 + 2 / 32),
        ({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}, 0.5 + 2.5 / 32),
        ({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, 0.5625),
        (
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]},
            1.0 + 4 / (128 * 64),
        ),
    ],
)
def test_scales_of_groups_by_hand(weights, num_bytes):
    assert grouped(**weights).bytes_per_weight == num_bytes


def test_a_nested_or_older_section_is_read_as_well():
    gptq = {"quant_method": "gptq", "bits": 8, "group_size": 128}
    config = model_entry("gemma3-4b").config
    inside = {**config, "text_config": {**config["text_config"], "quantization_config": gptq}}
    assert read_config(inside).weight_format == format_of(**gptq)
    older = {"config_groups": {"group_0": LINEAR_8}}
    config = {**model_entry("llama3-8b").config, "compression_config": older}
    assert read_config(config).weight_format.matmul == "fp8"


def test_published_checkpoints_weigh_what_their_model_card_says():
    """60.8 and 12.8 GiB: OpenAI, gpt-oss-120b and gpt-oss-20b model card, table 1."""
    for name, size_gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        model = load_model(name)
        words = {region: model.weight_format.bytes_of(region, 2.0) for region in REGIONS}
        parts = count_parameters(model).parts
        size = sum(words.get(part, 2.0) * number for part, number in parts.items())
        assert size / 2**30 == pytest.approx(size_gib, rel=0.01)


def test_models_of_the_catalog_state_how_they_are_published():
    assert load_model("deepseek-v3").weight_format.bytes_per_weight == 1.0 + 4 / 128**2
    assert load_model("kimi-k2").weight_format == load_model("deepseek-r1").weight_format
    assert load_model("llama3-8b").weight_format is None
    assert format_of(quant_method="bitsandbytes") is None


def test_mxfp4_is_of_experts_alone():
    found = format_of("gpt-oss-20b", quant_method="mxfp4", modules_to_not_convert=["lm_head"])
    assert found.bytes_of("experts", 2.0) == 0.5 + 1 / 32
    assert found.bytes_of("attention", 2.0) == 2.0
    assert format_of("llama3-8b", quant_method="mxfp4") is None


@pytest.mark.parametrize(
    ("model", "entries", "wide"),
    [
        ("llama3-8b", ["lm_head", "model.embed_tokens", "model.layers.3.input_layernorm"], {}),
        ("llama3-8b", ["model.layers.3.self_attn.q_proj"], {"attention": 1 / 32}),
        (
            "llama3-8b",
            ["self_attn", "model.layers.0.mlp"],
            {"attention": 1, "feed_forward": 1 / 32},
        ),
        ("llama3-8b", ["model.layers.31"], {"attention": 1 / 32, "feed_forward": 1 / 32}),
        ("llama3-8b", ["language_model.model.layers.*.self_attn"], {"attention": 1}),
        ("mixtral-8x7b", ["gate"], {}),
        ("mixtral-8x7b", ["re:.*block_sparse_moe.experts.3.w1"], {"experts": 1}),
        # Of the 61 layers three are dense; a layer of prediction comes after them.
        ("deepseek-v3", [r"re:.*mlp\.(gate|up|down)_proj"], {"feed_forward": 1}),
        ("deepseek-v3", ["model.layers.61.eh_proj", "model.layers.61.self_attn.o_proj"], {}),
        ("deepseek-v3", ["model.layers.60.mlp.shared_experts"], {"shared_experts": 1 / 58}),
    ],
)
def test_modules_that_stay_wide(model, entries, wide):
    found = format_of(model, quant_method="fp8", modules_to_not_convert=entries)
    assert found.wide_shares == wide
    assert found.matmul == (None if wide else "fp8")


@pytest.mark.parametrize(
    ("stated", "where", "said"),
    [
        ({"quant_method": "hqq"}, "quant_method", "'hqq' are not priced"),
        ({"bits": 4}, "quant_method", "missing"),
        ({"quant_method": "awq", "bits": 3}, "bits", "one of 4"),
        ({"quant_method": "gptq"}, "bits", "missing"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size", "found 0"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size", "[128, 128]"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "adapter.proj"]},
            "modules_to_not_convert[1]", "'adapter.proj' names no module",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups", "found None"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": LINEAR_8, "b": {**LINEAR_8, "targets": ["Conv"]}},
            },
            "config_groups", "2 groups",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {**LINEAR_8, "targets": ["re:.*q_proj"]}},
            },
            "config_groups.a.targets", "['Linear']",
        ),
        (
            {
                "quant_method": "compressed-tensors", "config_groups": {"a": LINEAR_8},
                "sparsity_config": {"format": "sparse-24-bitmask"},
            },
            "sparsity_config", "'sparse-24-bitmask'",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_by_its_field(stated, where, said):
    with pytest.raises(SpecError) as caught:
        format_of(**stated)
    (fault,) = caught.value.faults
    assert fault.path == f"quantization_config.{where}"
    assert said in str(caught.value)


def test_a_section_of_another_kind_is_refused():
    with pytest.raises(SpecError, match="expected a section"):
        read_config({**model_entry("llama3-8b").config, "quantization_config": 4})
