"""Llama 1, 2, 3 and Mistral: grouped heads, gated feed-forward, RMSNorm, rotary.

Source: ``LlamaConfig`` and ``MistralConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    GROUPED_KEYS,
    STATED_KV_KEYS,
    Family,
    Fields,
    Key,
    build_model,
    families,
    flag,
    read_head_size,
    read_kv_heads,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_llama(fields: Fields) -> ModelSpec:
    """Return the model; ``attention_bias`` covers the four projections."""
    return _read(fields, fields.flag("attention_bias"), fields.flag("mlp_bias"), window=None)


def read_mistral(fields: Fields) -> ModelSpec:
    """Return the model; ``sliding_window`` null means that all layers see everything."""
    return _read(fields, False, False, window=fields.count_or_none("sliding_window"))


def _read(fields: Fields, bias: bool, ffn_bias: bool, window: int | None) -> ModelSpec:
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        window=window,
        qkv_bias=bias,
        output_bias=bias,
    )
    feed_forward = FeedForwardSpec(
        ffn_size=fields.count("intermediate_size"), gated=True, bias=ffn_bias
    )
    return build_model(
        fields,
        [LayerSpec(attention=attention, feed_forward=feed_forward)]
        * fields.count("num_hidden_layers"),
        max_sequence_length=fields.count_or_none("max_position_embeddings"),
    )


families.register("llama")(
    Family(
        model_types=("llama",),
        architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
        keys=GROUPED_KEYS | {"attention_bias": flag(False), "mlp_bias": flag(False)},
        read=read_llama,
        harmless=frozenset({"max_sequence_length"}),
    )
)

families.register("mistral")(
    Family(
        model_types=("mistral",),
        architectures=("MistralForCausalLM",),
        keys=STATED_KV_KEYS | {"sliding_window": Key("count", 4096, nullable=True)},
        read=read_mistral,
    )
)
