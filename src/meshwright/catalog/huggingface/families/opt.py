"""OPT: multi-head attention, learned positions with two spare rows, LayerNorm, tied head.

Source: ``OPTConfig`` and ``OPTForCausalLM`` of Hugging Face transformers.
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

_SPARE_POSITIONS = 2


def read_opt(fields: Fields) -> ModelSpec:
    """Return the model; a factored embedding (OPT-350M) is refused."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    projected = fields.count("word_embed_proj_dim")
    fields.require(
        projected == hidden,
        "word_embed_proj_dim",
        f"{projected} differs from hidden_size {hidden}; a factored embedding is not modelled",
    )
    head_size = read_head_size(fields, stated="")
    bias = fields.flag("enable_bias")
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=bias,
        output_bias=bias,
    )
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=fields.count("ffn_dim"), gated=False, bias=bias),
    )
    removed = fields.flag("_remove_final_layer_norm")
    positions = fields.count("max_position_embeddings")
    return build_model(
        fields,
        [layer] * fields.count("num_hidden_layers"),
        norm="layer" if fields.flag("layer_norm_elementwise_affine") else "layer_unweighted",
        final_norm=fields.flag("do_layer_norm_before") and not removed,
        learned_positions=positions + _SPARE_POSITIONS,
        max_sequence_length=positions,
    )


families.register("opt")(
    Family(
        model_types=("opt",),
        architectures=("OPTForCausalLM",),
        keys=CORE_KEYS
        | {
            "ffn_dim": count(),
            "max_position_embeddings": count(),
            "word_embed_proj_dim": count(same_as="hidden_size"),
            "do_layer_norm_before": flag(True),
            "enable_bias": flag(True),
            "layer_norm_elementwise_affine": flag(True),
            "_remove_final_layer_norm": flag(False),
            "tie_word_embeddings": flag(True),
        },
        read=read_opt,
    )
)
