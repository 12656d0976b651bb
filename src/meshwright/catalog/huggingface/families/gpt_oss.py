"""GPT-OSS: experts with biases, attention with sinks, each second layer with a short window.

Source: ``GptOssConfig`` and ``GptOssForCausalLM`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    STATED_KV_KEYS,
    WINDOW_KEYS,
    Family,
    Fields,
    build_model,
    count,
    families,
    flag,
    read_kv_heads,
    read_layer_types,
    require_top_k,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_gpt_oss(fields: Fields) -> ModelSpec:
    """Return the model; without ``layer_types`` the first layer has the window."""
    num_layers, kv_heads = fields.count("num_hidden_layers"), read_kv_heads(fields)
    by_rule = [_FULL if place % 2 else _SLIDING for place in range(num_layers)]
    kinds = read_layer_types(fields, by_rule)
    require_top_k(fields, "num_experts_per_tok", "num_local_experts")
    fields.finish()
    bias = fields.flag("attention_bias")
    full = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=fields.count("head_dim"),
        value_head_size=fields.count("head_dim"),
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
    )
    sliding = full.model_copy(update={"window": fields.count("sliding_window")})
    experts = ExpertSpec(
        num_experts=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=fields.count("intermediate_size"),
        bias=True,
        router_bias=True,
    )
    layer = {
        kind: LayerSpec(attention=attention, experts=experts)
        for kind, attention in ((_FULL, full), (_SLIDING, sliding))
    }
    return build_model(
        fields,
        [layer[kind] for kind in kinds],
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("gpt_oss")(
    Family(
        model_types=("gpt_oss",),
        architectures=("GptOssForCausalLM",),
        keys=STATED_KV_KEYS
        | WINDOW_KEYS
        | {
            "head_dim": count(64),
            "num_local_experts": count(),
            "num_experts_per_tok": count(also=("experts_per_token",)),
            "sliding_window": count(),
            "attention_bias": flag(True),
        },
        read=read_gpt_oss,
        harmless=frozenset({"swiglu_limit", "initial_context_length"}),
    )
)
