"""BLOOM: multi-head attention with ALiBi, a norm after the embedding, LayerNorm, tied head.

Source: ``BloomConfig`` and ``BloomForCausalLM`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    MOST_LAYERS,
    Family,
    Fields,
    build_model,
    count,
    count_or_none,
    families,
    flag,
    names,
    read_head_size,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_bloom(fields: Fields) -> ModelSpec:
    """Return the model; the feed-forward is always four times as wide as the hidden size."""
    hidden, heads = fields.count("hidden_size"), fields.count("n_head")
    head_size = read_head_size(fields, heads="n_head", stated="")
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=True,
        output_bias=True,
    )
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=4 * hidden, gated=False, bias=True),
    )
    return build_model(
        fields,
        [layer] * fields.count("n_layer"),
        norm="layer",
        embedding_norm=True,
        max_sequence_length=fields.count_or_none("seq_length"),
    )


families.register("bloom")(
    Family(
        model_types=("bloom",),
        architectures=("BloomForCausalLM", "BloomModel"),
        keys={
            "hidden_size": count(also=("n_embed",)),
            "n_layer": count(also=("num_hidden_layers",), most=MOST_LAYERS),
            "n_head": count(also=("num_attention_heads",)),
            "vocab_size": count(),
            "seq_length": count_or_none(),
            "tie_word_embeddings": flag(True),
        },
        read=read_bloom,
        harmless=names(
            """
            apply_residual_connection_post_layernorm slow_but_exact attention_softmax_in_fp32
            masked_softmax_fusion bias_dropout_fusion skip_bias_add skip_bias_add_qkv offset_alibi
            """
        ),
    )
)
