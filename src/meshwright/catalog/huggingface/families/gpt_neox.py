"""GPT-NeoX and Pythia: multi-head, rotary, parallel residual, LayerNorm, separate head.

Source: ``GPTNeoXConfig`` and ``GPTNeoXForCausalLM`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    Family,
    Fields,
    build_model,
    count,
    families,
    flag,
    read_head_size,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_gpt_neox(fields: Fields) -> ModelSpec:
    """Return the model; ``attention_bias`` covers the projections in and out."""
    heads = fields.count("num_attention_heads")
    head_size = read_head_size(fields, stated="")
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_bias"),
    )
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(
            ffn_size=fields.count("intermediate_size"), gated=False, bias=True
        ),
        parallel_residual=fields.flag("use_parallel_residual"),
    )
    return build_model(
        fields,
        [layer] * fields.count("num_hidden_layers"),
        norm="layer",
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("gpt_neox")(
    Family(
        model_types=("gpt_neox",),
        architectures=("GPTNeoXForCausalLM",),
        keys=CORE_KEYS
        | {
            "intermediate_size": count(),
            "attention_bias": flag(True),
            "use_parallel_residual": flag(True),
            "tie_word_embeddings": flag(False),
        },
        read=read_gpt_neox,
        harmless=frozenset({"attention_probs_dropout_prob"}),
    )
)
