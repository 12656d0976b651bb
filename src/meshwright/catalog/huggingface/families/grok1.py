"""Grok-1: grouped heads, gated experts, four norms around each block, tied head.

Source: ``model.py`` and ``run.py`` of xai-org/grok-1; field names of hpcai-tech/grok-1.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    GROUPED_KEYS,
    Family,
    Fields,
    build_model,
    count,
    families,
    flag,
    names,
    read_head_size,
    read_kv_heads,
    require_top_k,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec


def read_grok1(fields: Fields) -> ModelSpec:
    """Return the model; norms stand before and after attention, and before and after experts."""
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    require_top_k(fields, "num_experts_per_tok", "num_experts")
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
    )
    experts = ExpertSpec(
        num_experts=fields.count("num_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=fields.count("intermediate_size"),
    )
    layer = LayerSpec(attention=attention, experts=experts, num_norms=4)
    return build_model(
        fields,
        [layer] * fields.count("num_hidden_layers"),
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("grok-1")(
    Family(
        model_types=("grok-1",),
        architectures=("Grok1ModelForCausalLM", "Grok1ForCausalLM"),
        keys=GROUPED_KEYS
        | {
            "num_experts": count(),
            "num_experts_per_tok": count(),
            "tie_word_embeddings": flag(True),
        },
        read=read_grok1,
        harmless=names(
            """
            attn_output_multiplier embedding_multiplier_scale output_multiplier_scale
            max_attn_value
            """
        ),
    )
)
