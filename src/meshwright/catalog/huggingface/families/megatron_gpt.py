"""A plain GPT as Megatron-LM's arguments state it: the shapes of GPT-3 and of the Megatron papers.

The field names are those of Megatron-LM; the vocabulary is the padded one.
Source: Megatron-LM ``megatron/training/arguments.py``; Narayanan et al. 2021, equation 2.
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
    read_head_size,
    text,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_megatron_gpt(fields: Fields) -> ModelSpec:
    """Return the model; ``ffn_hidden_size`` absent means four times the hidden size."""
    fields.divides("num_query_groups", "num_attention_heads")
    head_size = read_head_size(fields, stated="kv_channels")
    bias = fields.flag("add_bias_linear")
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=fields.count("num_query_groups"),
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=bias,
        output_bias=bias,
    )
    feed_forward = FeedForwardSpec(
        ffn_size=fields.count_or_none("ffn_hidden_size") or 4 * fields.count("hidden_size"),
        gated=fields.flag("swiglu"),
        bias=bias,
    )
    positions = fields.count("max_position_embeddings")
    learned = fields.text("position_embedding_type") == "learned_absolute"
    return build_model(
        fields,
        [LayerSpec(attention=attention, feed_forward=feed_forward)] * fields.count("num_layers"),
        norm="layer" if fields.text("normalization") == "LayerNorm" else "rms",
        learned_positions=positions if learned else 0,
        max_sequence_length=positions,
        tied_embeddings=not fields.flag("untie_embeddings_and_output_weights"),
    )


families.register("megatron_gpt")(
    Family(
        model_types=("megatron_gpt",),
        architectures=("GPTModel",),
        keys={
            "hidden_size": count(),
            "num_layers": count(most=MOST_LAYERS),
            "num_attention_heads": count(),
            "vocab_size": count(),
            "max_position_embeddings": count(),
            "ffn_hidden_size": count_or_none(),
            "kv_channels": count_or_none(),
            "num_query_groups": count(same_as="num_attention_heads"),
            "position_embedding_type": text(
                "learned_absolute", "rope", "none", default="learned_absolute"
            ),
            "untie_embeddings_and_output_weights": flag(False),
            "swiglu": flag(False),
            "add_bias_linear": flag(True),
            "normalization": text("LayerNorm", "RMSNorm", default="LayerNorm"),
        },
        read=read_megatron_gpt,
    )
)
