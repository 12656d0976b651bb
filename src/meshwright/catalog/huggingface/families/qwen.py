"""Qwen2 and Qwen3, dense and with experts: biases on queries, keys, values, or norms on heads.

Source: ``Qwen2Config``, ``Qwen2MoeConfig``, ``Qwen3Config``, ``Qwen3MoeConfig`` of Hugging Face
transformers. A window holds from layer ``max_window_layers`` on, and only where it is used.
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
    count_or_none,
    count_or_zero,
    counts_or_none,
    families,
    flag,
    read_head_size,
    read_kv_heads,
    read_layer_types,
    require_top_k,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec


def read_qwen2(fields: Fields) -> ModelSpec:
    """Return the dense model with biases on queries, keys and values."""
    attentions = _read_attentions(fields, qkv_bias=True, output_bias=False, qk_norm="none")
    return _build(fields, [_dense(fields, attention) for attention in attentions])


def read_qwen3(fields: Fields) -> ModelSpec:
    """Return the dense model with norms on the heads of queries and keys."""
    bias = fields.flag("attention_bias")
    attentions = _read_attentions(fields, qkv_bias=bias, output_bias=bias, qk_norm="head")
    return _build(fields, [_dense(fields, attention) for attention in attentions])


def read_qwen2_moe(fields: Fields) -> ModelSpec:
    """Return the model with routed experts and a gated shared one."""
    attentions = _read_attentions(
        fields, qkv_bias=fields.flag("qkv_bias"), output_bias=False, qk_norm="none"
    )
    shared = fields.count("shared_expert_intermediate_size")
    return _build(fields, _read_moe_layers(fields, attentions, shared_ffn_size=shared))


def read_qwen3_moe(fields: Fields) -> ModelSpec:
    """Return the model with routed experts only."""
    bias = fields.flag("attention_bias")
    attentions = _read_attentions(fields, qkv_bias=bias, output_bias=bias, qk_norm="head")
    return _build(fields, _read_moe_layers(fields, attentions, shared_ffn_size=0))


def _read_attentions(
    fields: Fields, *, qkv_bias: bool, output_bias: bool, qk_norm: Literal["none", "head"]
) -> list[AttentionSpec]:
    """Return the attention of each layer."""
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    num_layers = fields.count("num_hidden_layers")
    first = fields.count("max_window_layers") if fields.flag("use_sliding_window") else num_layers
    by_rule = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    kinds = read_layer_types(fields, by_rule)
    window = fields.count_or_none("sliding_window")
    fields.require(
        window is not None or "sliding_attention" not in kinds,
        "sliding_window",
        "null, but layers with sliding attention need it",
    )
    fields.finish()
    full = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )
    sliding = full.model_copy(update={"window": window})
    return [sliding if kind == "sliding_attention" else full for kind in kinds]


def _dense(fields: Fields, attention: AttentionSpec) -> LayerSpec:
    feed_forward = FeedForwardSpec(ffn_size=fields.count("intermediate_size"), gated=True)
    return LayerSpec(attention=attention, feed_forward=feed_forward)


def _read_moe_layers(
    fields: Fields, attentions: list[AttentionSpec], *, shared_ffn_size: int
) -> list[LayerSpec]:
    """Return the layers: experts at each ``decoder_sparse_step``, except ``mlp_only_layers``."""
    require_top_k(fields, "num_experts_per_tok", "num_experts")
    fields.finish()
    experts = ExpertSpec(
        num_experts=fields.count("num_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=fields.count("moe_intermediate_size"),
        shared_ffn_size=shared_ffn_size,
        shared_gate=shared_ffn_size > 0,
    )
    dense = set(fields.counts_or_none("mlp_only_layers") or ())
    step = fields.count("decoder_sparse_step")
    return [
        _dense(fields, attention)
        if place in dense or (place + 1) % step
        else LayerSpec(attention=attention, experts=experts)
        for place, attention in enumerate(attentions)
    ]


def _build(fields: Fields, layers: list[LayerSpec]) -> ModelSpec:
    longest = fields.count_or_none("max_position_embeddings")
    return build_model(fields, layers, max_sequence_length=longest)


_DENSE_KEYS = (
    STATED_KV_KEYS
    | WINDOW_KEYS
    | {
        "use_sliding_window": flag(False),
        "sliding_window": Key("count", 4096, nullable=True),
        "max_window_layers": count_or_zero(28),
    }
)
_MOE_KEYS = _DENSE_KEYS | {
    "num_experts": count(),
    "num_experts_per_tok": count(),
    "moe_intermediate_size": count(),
    "decoder_sparse_step": count(1),
    "mlp_only_layers": counts_or_none(),
}
_QWEN3_KEYS = {"attention_bias": flag(False)}
_MOE_HARMLESS = frozenset({"norm_topk_prob"})

families.register("qwen2")(
    Family(("qwen2",), ("Qwen2ForCausalLM",), keys=_DENSE_KEYS, read=read_qwen2)
)
families.register("qwen2_moe")(
    Family(
        ("qwen2_moe",),
        ("Qwen2MoeForCausalLM",),
        keys=_MOE_KEYS | {"shared_expert_intermediate_size": count(), "qkv_bias": flag(True)},
        read=read_qwen2_moe,
        harmless=_MOE_HARMLESS,
    )
)
families.register("qwen3")(
    Family(
        ("qwen3",),
        ("Qwen3ForCausalLM",),
        keys=_DENSE_KEYS | _QWEN3_KEYS | {"head_dim": count(128)},
        read=read_qwen3,
    )
)
families.register("qwen3_moe")(
    Family(
        ("qwen3_moe",),
        ("Qwen3MoeForCausalLM",),
        keys=_MOE_KEYS | _QWEN3_KEYS | {"head_dim": count_or_none()},
        read=read_qwen3_moe,
        harmless=_MOE_HARMLESS,
    )
)
