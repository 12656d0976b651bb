"""Llama and its relatives with RMSNorm and gated networks.

Mistral, Phi-3, Mixtral, Granite, GLM-4, Grok-1 and Qwen; Helium, InternLM 3, IQuest Coder, ERNIE
4.5, Seed-OSS, SmolLM 3 and the dense models of Hunyuan.

Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``LlamaConfig`` and ``LlamaForCausalLM``, ...).
"""

from __future__ import annotations

from typing import Any

from meshwright.catalog.huggingface.family import (
    FULL,
    GROUPED_KEYS,
    SLIDING,
    STATED_KV_KEYS,
    Config,
    attention_of,
    count,
    count_or_none,
    count_or_zero,
    counts_or_none,
    dense_layer,
    expert_keys,
    experts_of,
    family,
    flag,
    layer_types,
    model_of,
    window_or_none,
    windowed,
)
from meshwright.spec.model import LayerSpec, ModelSpec

VISION = """
    vision_config tie_word_embeddings image_token_id image_token_index video_token_id
    vision_token_id vision_start_token_id vision_end_token_id
    """
GRANITE_SCALES = "embedding_multiplier logits_scaling residual_multiplier attention_multiplier"
"""Constant factors: each is one with a product or a sum that is there anyway."""


_LLAMA_KEYS = GROUPED_KEYS | {"attention_bias": flag(False), "mlp_bias": flag(False)}


@family("granite", "GraniteForCausalLM", keys=_LLAMA_KEYS, harmless=GRANITE_SCALES)
@family("iquestcoder", "IQuestCoderForCausalLM", keys=_LLAMA_KEYS, harmless="clip_qkv")
@family(
    "llama",
    "LlamaForCausalLM",
    "LLaMAForCausalLM",
    keys=_LLAMA_KEYS,
    harmless="max_sequence_length",
)
def read_llama(fields: Config) -> ModelSpec:
    """Return Llama 1, 2 or 3, or Granite; ``attention_bias`` covers the four projections."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    return model_of(fields, dense_layer(fields, attention, bias=fields.flag("mlp_bias")))


@family(
    "internlm3",
    "InternLM3ForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "qkv_bias": flag(False),
        "attention_bias": flag(False, names=("attention_bias", "bias")),
        "mlp_bias": flag(same_as="attention_bias"),
    },
)
@family(
    "seed_oss",
    "SeedOssForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "qkv_bias": flag(True, names=("attention_bias",)),
        "attention_bias": flag(False, names=("attention_out_bias",)),
        "mlp_bias": flag(False),
    },
    harmless="residual_dropout",
)
def read_biased_llama(fields: Config) -> ModelSpec:
    """Return InternLM 3 or Seed-OSS: biases before and after attention are stated apart."""
    outer = fields.flag("attention_bias")
    inner = fields.flag("qkv_bias") or (fields.family == "internlm3" and outer)
    attention = attention_of(fields, qkv_bias=inner, output_bias=outer)
    return model_of(fields, dense_layer(fields, attention, bias=fields.flag("mlp_bias")))


@family(
    "smollm3",
    "SmolLM3ForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
        "tie_word_embeddings": flag(True),
        "use_sliding_window": flag(False),
        "sliding_window": window_or_none(),
        "no_rope_layers": counts_or_none(rule=("one_for_each", "num_hidden_layers")),
        "no_rope_layer_interval": count(4),
        "layer_types": layer_types(FULL, SLIDING),
    },
    harmless="max_window_layers",
)
def read_smollm3(fields: Config) -> ModelSpec:
    """Return SmolLM 3: no positions in each fourth layer (``no_rope_layers`` lists it as 0)."""
    num_layers, period = fields.count("num_hidden_layers"), fields.count("no_rope_layer_interval")
    turned = fields.listed("no_rope_layers") or [(n + 1) % period for n in range(num_layers)]
    full, bias = attention_of(fields, bias=fields.flag("attention_bias")), fields.flag("mlp_bias")
    layers = [
        dense_layer(fields, one.model_copy(update={"rotary": bool(is_turned)}), bias=bias)
        for one, is_turned in zip(windowed(fields, full, [FULL] * num_layers), turned, strict=True)
    ]
    return model_of(fields, layers)


@family(
    "mistral",
    "MistralForCausalLM",
    "Mistral3ForConditionalGeneration",
    nested_types=("mistral3",),
    keys=STATED_KV_KEYS | {"sliding_window": window_or_none(default=4096)},
    outer_harmless=f"{VISION} multimodal_projector_bias projector_hidden_act spatial_merge_size "
    "vision_feature_layer",
)
@family(
    "ministral3",
    "Ministral3ForCausalLM",
    keys=STATED_KV_KEYS | {"sliding_window": window_or_none()},
)
@family(
    "phi3",
    "Phi3ForCausalLM",
    keys=GROUPED_KEYS | {"sliding_window": window_or_none()},
    harmless="interpolate_factor",
)
def read_windowed_llama(fields: Config) -> ModelSpec:
    """Return Mistral, Phi-3 or 4, or Helium: no biases; a window in all layers, or in none."""
    attention = attention_of(fields, window=fields.window("sliding_window"))
    return model_of(fields, dense_layer(fields, attention))


GRANITE_MOE_KEYS = GROUPED_KEYS | {
    **expert_keys("num_local_experts"),
    "attention_bias": flag(False),
}


@family(
    "grok-1",
    "Grok1ModelForCausalLM",
    "Grok1ForCausalLM",
    keys=GROUPED_KEYS
    | {
        **expert_keys(),
        "tie_word_embeddings": flag(True),
    },
    harmless="""
        attn_output_multiplier embedding_multiplier_scale output_multiplier_scale max_attn_value
        """,
)
def read_grok1(fields: Config) -> ModelSpec:
    """Return Grok-1: norms before and after attention, and before and after the experts.

    Source: ``model.py`` and ``run.py`` of xai-org/grok-1; field names of hpcai-tech/grok-1.
    """
    attention, experts = attention_of(fields), experts_of(fields)
    return model_of(fields, LayerSpec(attention=attention, experts=experts, num_norms=4))


_QWEN_KEYS = STATED_KV_KEYS | {
    "layer_types": layer_types(FULL, SLIDING),
    "use_sliding_window": flag(False),
    "sliding_window": window_or_none(default=4096),
    "max_window_layers": count_or_zero(28),
}
QWEN_MOE_KEYS = _QWEN_KEYS | {
    **expert_keys(),
    "moe_intermediate_size": count(),
    "decoder_sparse_step": count(1),
    "mlp_only_layers": counts_or_none(),
}
_QWEN3_BIAS = {"attention_bias": flag(False)}


@family("qwen2", "Qwen2ForCausalLM", keys=_QWEN_KEYS)
@family(
    "qwen2_vl",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    model_types=("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
    nested_types=("qwen2_vl", "qwen2_5_vl"),
    keys=_QWEN_KEYS | {"max_window_layers": count_or_zero(80)},
    outer_harmless=VISION,
)
@family(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    keys=QWEN_MOE_KEYS | {"shared_expert_intermediate_size": count(), "qkv_bias": flag(True)},
    harmless="norm_topk_prob",
)
def read_qwen2(fields: Config) -> ModelSpec:
    """Return Qwen2 or the text model of Qwen2-VL: biases on queries, keys and values.

    With experts it has a gated shared one.
    """
    has_bias = "qkv_bias" not in fields.keys or fields.flag("qkv_bias")
    return model_of(fields, qwen_layers(fields, qkv_bias=has_bias))


@family(
    "qwen3",
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
    model_types=("qwen3", "qwen3_vl_text"),
    nested_types=("qwen3_vl",),
    keys=_QWEN_KEYS | _QWEN3_BIAS | {"head_dim": count(128)},
    outer_harmless=VISION,
)
@family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
    model_types=("qwen3_moe", "qwen3_vl_moe_text"),
    nested_types=("qwen3_vl_moe",),
    keys=QWEN_MOE_KEYS | _QWEN3_BIAS | {"head_dim": count_or_none()},
    harmless="norm_topk_prob",
    outer_harmless=VISION,
)
def read_qwen3(fields: Config) -> ModelSpec:
    """Return Qwen3 or the text model of Qwen3-VL: norms on the heads of queries and keys."""
    bias = fields.flag("attention_bias")
    return model_of(fields, qwen_layers(fields, bias=bias, qk_norm="head"))


def qwen_layers(fields: Config, **rest: Any) -> list[LayerSpec]:
    """Return the layers of a dense model, or of one with experts.

    A window holds from layer ``max_window_layers`` on, and only where it is used.
    """
    num_layers = fields.count("num_hidden_layers")
    first = fields.count("max_window_layers") if fields.flag("use_sliding_window") else num_layers
    by_rule = [SLIDING if place >= first else FULL for place in range(num_layers)]
    attentions = windowed(fields, attention_of(fields, **rest), by_rule)
    layers = [dense_layer(fields, attention) for attention in attentions]
    return with_qwen_experts(fields, layers) if "num_experts" in fields.keys else layers


def with_qwen_experts(fields: Config, layers: list[LayerSpec]) -> list[LayerSpec]:
    """Return dense layers with experts in place of networks.

    At each ``decoder_sparse_step``, except in ``mlp_only_layers``.
    """
    shared = fields.count_or_none("shared_expert_intermediate_size") or 0
    experts = experts_of(fields, shared_ffn_size=shared, shared_gate=shared > 0)
    dense, step = set(fields.listed("mlp_only_layers") or ()), fields.count("decoder_sparse_step")
    return [
        layer
        if place in dense or (place + 1) % step
        else layer.model_copy(update={"feed_forward": None, "experts": experts})
        for place, layer in enumerate(layers)
    ]
