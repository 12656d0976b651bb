"""Falcon: multi-query or grouped heads, attention and feed-forward in parallel, LayerNorm.

Source: ``FalconConfig`` and ``FalconDecoderLayer`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    MOST_LAYERS,
    Family,
    Fields,
    build_model,
    count,
    count_or_none,
    families,
    flag,
    read_head_size,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def _read_kv_heads(fields: Fields) -> int:
    """Return the key and value heads: one, as stated, or all, by the two switches."""
    heads = fields.count("num_attention_heads")
    if not fields.flag("new_decoder_architecture"):
        return 1 if fields.flag("multi_query") else heads
    kv_heads = fields.count_or_none("num_kv_heads") or heads
    fields.require(
        heads % kv_heads == 0,
        "num_attention_heads",
        f"{heads} is not divisible by num_kv_heads {kv_heads}",
    )
    return kv_heads


def _read_num_norms(fields: Fields) -> int:
    """Return the norms of a layer: one where both branches share it, else two."""
    stated = fields.count_or_none("num_ln_in_parallel_attn")
    fields.require(stated in (None, 1, 2), "num_ln_in_parallel_attn", f"{stated}; expected 1 or 2")
    if fields.flag("new_decoder_architecture"):
        return stated or 2
    return 1 if fields.flag("parallel_attn") else 2


def read_falcon(fields: Fields) -> ModelSpec:
    """Return the model; ``bias`` covers every matrix of a layer."""
    hidden, bias = fields.count("hidden_size"), fields.flag("bias")
    head_size, kv_heads = read_head_size(fields, stated=""), _read_kv_heads(fields)
    num_norms = _read_num_norms(fields)
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=bias,
        output_bias=bias,
    )
    ffn_size = fields.count_or_none("ffn_hidden_size") or 4 * hidden
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=ffn_size, gated=False, bias=bias),
        num_norms=num_norms,
        parallel_residual=fields.flag("new_decoder_architecture") or fields.flag("parallel_attn"),
    )
    return build_model(
        fields,
        [layer] * fields.count("num_hidden_layers"),
        norm="layer",
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("falcon")(
    Family(
        model_types=("falcon",),
        architectures=("FalconForCausalLM",),
        keys=CORE_KEYS
        | {
            "num_hidden_layers": count(also=("n_layer",), most=MOST_LAYERS),
            "num_attention_heads": count(also=("n_head",)),
            "num_kv_heads": count_or_none(also=("n_head_kv",)),
            "multi_query": flag(True),
            "new_decoder_architecture": flag(False),
            "parallel_attn": flag(True),
            "num_ln_in_parallel_attn": count_or_none(),
            "ffn_hidden_size": count_or_none(),
            "bias": flag(False),
            "tie_word_embeddings": flag(True),
        },
        read=read_falcon,
        harmless=frozenset({"alibi", "apply_residual_connection_post_layernorm"}),
    )
)
