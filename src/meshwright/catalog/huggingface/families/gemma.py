"""Gemma 2 and 3: four norms in each layer, windows on most layers, tied head.

Source: ``Gemma2Config``, ``Gemma3TextConfig`` of Hugging Face transformers. Gemma 2 alternates,
a windowed layer first; in Gemma 3 each sixth layer sees everything.
"""

from __future__ import annotations

from typing import Literal

from meshwright.catalog.huggingface.family import (
    STATED_KV_KEYS,
    WINDOW_KEYS,
    Family,
    Fields,
    Key,
    build_model,
    count,
    families,
    flag,
    names,
    read_kv_heads,
    read_layer_types,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_gemma2(fields: Fields) -> ModelSpec:
    """Return the model whose layers alternate, the first one with a window."""
    return _read(fields, period=2, qk_norm="none")


def read_gemma3(fields: Fields) -> ModelSpec:
    """Return the model in which the last layer of each period sees everything."""
    return _read(fields, period=fields.count("sliding_window_pattern"), qk_norm="head")


def _read(fields: Fields, *, period: int, qk_norm: Literal["none", "head"]) -> ModelSpec:
    num_layers, kv_heads = fields.count("num_hidden_layers"), read_kv_heads(fields)
    by_rule = [_SLIDING if (place + 1) % period else _FULL for place in range(num_layers)]
    kinds = read_layer_types(fields, by_rule)
    fields.finish()
    bias = fields.flag("attention_bias")
    full = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=fields.count("head_dim"),
        value_head_size=fields.count("head_dim"),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
    )
    sliding = full.model_copy(update={"window": fields.count("sliding_window")})
    feed_forward = FeedForwardSpec(ffn_size=fields.count("intermediate_size"), gated=True)
    layer = {
        kind: LayerSpec(attention=attention, feed_forward=feed_forward, num_norms=4)
        for kind, attention in ((_FULL, full), (_SLIDING, sliding))
    }
    return build_model(
        fields,
        [layer[kind] for kind in kinds],
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


_KEYS = (
    STATED_KV_KEYS
    | WINDOW_KEYS
    | {
        "head_dim": count(256),
        "sliding_window": count(also=("sliding_window_size",)),
        "attention_bias": flag(False),
        "tie_word_embeddings": flag(True),
    }
)
_HARMLESS = names(
    """
    query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping cache_implementation
    use_bidirectional_attention
    """
)

families.register("gemma2")(
    Family(("gemma2",), ("Gemma2ForCausalLM",), keys=_KEYS, read=read_gemma2, harmless=_HARMLESS)
)
families.register("gemma3")(
    Family(
        model_types=("gemma3_text",),
        nested_types=("gemma3",),
        architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        keys=_KEYS
        | {
            "vocab_size": count(262_208),
            "num_attention_heads": count(8),
            "num_key_value_heads": count(4),
            "sliding_window_pattern": Key("count", 6, also=("_sliding_window_pattern",)),
        },
        read=read_gemma3,
        harmless=_HARMLESS,
        outer_harmless=names(
            """
            vision_config boi_token_index eoi_token_index image_token_index mm_tokens_per_image
            image_token_id boi_token_id eoi_token_id tie_word_embeddings
            """
        ),
    )
)
