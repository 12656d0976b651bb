"""DeepSeek V2 and V3: latent attention, shared experts, first layers dense, prediction layers.

Source: ``DeepseekV2Config``, ``DeepseekV3Config`` of Hugging Face transformers and the
configurations of deepseek-ai; DeepSeek-V3 technical report, sections 2.1 and 2.2.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    REQUIRED,
    Family,
    Fields,
    Key,
    build_model,
    count,
    count_or_zero,
    families,
    flag,
    names,
    require_top_k,
    text,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

_BIAS_NOTE = "the correction bias of the router (one number for each expert) is counted"


def read_deepseek_v2(fields: Fields) -> ModelSpec:
    """Return the model without prediction layers."""
    layers = _read_layers(fields, router_bias=False)
    return _build(fields, layers, num_prediction_layers=0, notes=())


def read_deepseek_v3(fields: Fields) -> ModelSpec:
    """Return the model; its router carries a correction bias under ``noaux_tc``."""
    layers = _read_layers(fields, router_bias=True)
    prediction = fields.count("num_nextn_predict_layers")
    notes: tuple[str, ...] = (_BIAS_NOTE,)
    if prediction:
        notes += (f"prediction layers ({prediction}) are counted apart, not in num_params",)
    return _build(fields, layers, num_prediction_layers=prediction, notes=notes)


def _read_attention(fields: Fields) -> AttentionSpec:
    """Return latent attention; ``q_lora_rank`` null projects the queries at once."""
    heads, kv_heads = fields.count("num_attention_heads"), fields.count("num_key_value_heads")
    fields.require(
        heads == kv_heads,
        "num_key_value_heads",
        f"{kv_heads} differs from num_attention_heads {heads}; latent attention has as many",
    )
    fields.finish()
    bias = fields.flag("attention_bias")
    return AttentionSpec(
        kind="mla",
        num_heads=heads,
        num_kv_heads=heads,
        head_size=fields.count("qk_nope_head_dim"),
        value_head_size=fields.count("v_head_dim"),
        query_rank=fields.count_or_none("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        rope_head_size=fields.count("qk_rope_head_dim"),
        qkv_bias=bias,
        output_bias=bias,
    )


def _read_layers(fields: Fields, *, router_bias: bool) -> list[LayerSpec]:
    """Return the layers: ``first_k_dense_replace`` dense ones, then experts at each step."""
    require_top_k(fields, "num_experts_per_tok", "n_routed_experts")
    num_layers, first = fields.count("num_hidden_layers"), fields.count("first_k_dense_replace")
    fields.require(
        first <= num_layers,
        "first_k_dense_replace",
        f"{first} is more than num_hidden_layers {num_layers}",
    )
    attention = _read_attention(fields)
    width = fields.count("moe_intermediate_size")
    experts = ExpertSpec(
        num_experts=fields.count("n_routed_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=width,
        router_bias=router_bias,
        shared_ffn_size=width * (fields.count_or_none("n_shared_experts") or 0),
    )
    dense = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=fields.count("intermediate_size"), gated=True),
    )
    sparse = LayerSpec(attention=attention, experts=experts)
    step = fields.count("moe_layer_freq")
    return [dense if i < first or i % step else sparse for i in range(num_layers)]


def _build(
    fields: Fields, layers: list[LayerSpec], *, num_prediction_layers: int, notes: tuple[str, ...]
) -> ModelSpec:
    return build_model(
        fields,
        layers,
        notes=notes,
        num_prediction_layers=num_prediction_layers,
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


_KEYS = CORE_KEYS | {
    "intermediate_size": count(),
    "num_key_value_heads": count(same_as="num_attention_heads"),
    "q_lora_rank": Key("count", REQUIRED, nullable=True),
    "kv_lora_rank": count(),
    "qk_nope_head_dim": count(),
    "qk_rope_head_dim": count(),
    "v_head_dim": count(),
    "moe_intermediate_size": count(),
    "n_routed_experts": count(),
    "n_shared_experts": Key("count", REQUIRED, nullable=True),
    "num_experts_per_tok": count(),
    "first_k_dense_replace": count_or_zero(),
    "moe_layer_freq": count(1),
    "attention_bias": flag(False),
    "tie_word_embeddings": flag(False),
}
_HARMLESS = names(
    """
    n_group topk_group norm_topk_prob routed_scaling_factor scoring_func qk_head_dim head_dim
    """
)

families.register("deepseek_v2")(
    Family(
        ("deepseek_v2",),
        ("DeepseekV2ForCausalLM",),
        keys=_KEYS
        | {
            "topk_method": text("greedy", "group_limited_greedy", default="greedy"),
        },
        read=read_deepseek_v2,
        harmless=_HARMLESS,
    )
)
families.register("deepseek_v3")(
    Family(
        ("deepseek_v3", "kimi_k2"),
        ("DeepseekV3ForCausalLM",),
        keys=_KEYS
        | {
            "topk_method": text("noaux_tc", default="noaux_tc"),
            "num_nextn_predict_layers": count_or_zero(0),
        },
        read=read_deepseek_v3,
        harmless=_HARMLESS,
    )
)
