"""Mixtral: Mistral with each feed-forward replaced by routed experts.

Source: ``MixtralConfig`` and ``MixtralForCausalLM`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    STATED_KV_KEYS,
    Family,
    Fields,
    build_model,
    count,
    count_or_none,
    families,
    read_head_size,
    read_kv_heads,
    require_top_k,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec


def read_mixtral(fields: Fields) -> ModelSpec:
    """Return the model; each layer has experts and none is shared."""
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    require_top_k(fields, "num_experts_per_tok", "num_local_experts")
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        window=fields.count_or_none("sliding_window"),
    )
    experts = ExpertSpec(
        num_experts=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=fields.count("intermediate_size"),
    )
    return build_model(
        fields,
        [LayerSpec(attention=attention, experts=experts)] * fields.count("num_hidden_layers"),
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("mixtral")(
    Family(
        model_types=("mixtral",),
        architectures=("MixtralForCausalLM",),
        keys=STATED_KV_KEYS
        | {
            "num_local_experts": count(),
            "num_experts_per_tok": count(),
            "sliding_window": count_or_none(),
        },
        read=read_mixtral,
    )
)
