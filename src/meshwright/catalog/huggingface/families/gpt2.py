"""GPT-2: multi-head attention, learned positions, biases everywhere, LayerNorm, tied head.

Source: ``GPT2Config`` and ``GPT2LMHeadModel`` of Hugging Face transformers.
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


def read_gpt2(fields: Fields) -> ModelSpec:
    """Return the model; ``n_inner`` absent means four times the hidden size."""
    hidden, heads = fields.count("n_embd"), fields.count("n_head")
    head_size = read_head_size(fields, hidden="n_embd", heads="n_head", stated="")
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=True,
        output_bias=True,
    )
    ffn_size = fields.count_or_none("n_inner") or 4 * hidden
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=ffn_size, gated=False, bias=True),
    )
    return build_model(
        fields,
        [layer] * fields.count("n_layer"),
        hidden="n_embd",
        norm="layer",
        learned_positions=fields.count("n_positions"),
        max_sequence_length=fields.count("n_positions"),
    )


families.register("gpt2")(
    Family(
        model_types=("gpt2",),
        architectures=("GPT2LMHeadModel",),
        keys={
            "n_embd": count(also=("hidden_size",)),
            "n_layer": count(also=("num_hidden_layers",), most=MOST_LAYERS),
            "n_head": count(also=("num_attention_heads",)),
            "n_positions": count(also=("max_position_embeddings",)),
            "n_inner": count_or_none(),
            "vocab_size": count(),
            "tie_word_embeddings": flag(True),
        },
        read=read_gpt2,
        harmless=names(
            """
            n_ctx scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
            summary_activation summary_first_dropout summary_proj_to_labels summary_type
            summary_use_proj
            """
        ),
    )
)
