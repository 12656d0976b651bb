"""Phi-3 and Phi-4: Llama with fused projections; a window where the configuration states one.

Source: ``Phi3Config`` and ``Phi3ForCausalLM`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    GROUPED_KEYS,
    Family,
    Fields,
    build_model,
    count_or_none,
    families,
    read_head_size,
    read_kv_heads,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_phi3(fields: Fields) -> ModelSpec:
    """Return the model, which has no biases."""
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        window=fields.count_or_none("sliding_window"),
    )
    feed_forward = FeedForwardSpec(ffn_size=fields.count("intermediate_size"), gated=True)
    return build_model(
        fields,
        [LayerSpec(attention=attention, feed_forward=feed_forward)]
        * fields.count("num_hidden_layers"),
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("phi3")(
    Family(
        model_types=("phi3",),
        architectures=("Phi3ForCausalLM",),
        keys=GROUPED_KEYS
        | {
            "sliding_window": count_or_none(),
        },
        read=read_phi3,
        harmless=frozenset({"interpolate_factor"}),
    )
)
