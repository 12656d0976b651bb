"""Llama 4: experts with a shared one, dense layers between, chunked attention on most layers.

Source: ``Llama4TextConfig`` and ``Llama4TextDecoderLayer`` of Hugging Face transformers. Layers
with rotary positions attend within chunks and may normalise queries and keys; each fourth layer
has no positions and sees everything.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    STATED_KV_KEYS,
    Family,
    Fields,
    Key,
    build_model,
    count,
    counts_or_none,
    families,
    flag,
    names,
    read_head_size,
    read_kv_heads,
    read_layer_types,
    require_top_k,
    texts_or_none,
)
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec

_FULL, _CHUNKED = "full_attention", "chunked_attention"


def _read_rotary(fields: Fields) -> list[bool]:
    """Return which layers have rotary positions: as listed (1 or 0), else all but each n-th."""
    num_layers, period = fields.count("num_hidden_layers"), fields.count("no_rope_layer_interval")
    listed = fields.counts_or_none("no_rope_layers")
    if not listed:
        return [(place + 1) % period != 0 for place in range(num_layers)]
    fields.require(
        len(listed) == num_layers,
        "no_rope_layers",
        f"lists {len(listed)} layers, but num_hidden_layers is {num_layers}",
    )
    return [bool(part) for part in listed]


def _read_attentions(fields: Fields) -> list[AttentionSpec]:
    """Return the attention of each layer: chunked or not, with norms on rotary layers only."""
    head_size, kv_heads = read_head_size(fields), read_kv_heads(fields)
    rotary = _read_rotary(fields)
    kinds = read_layer_types(fields, [_CHUNKED if turned else _FULL for turned in rotary])
    fields.finish()
    bias = fields.flag("attention_bias")
    full = AttentionSpec(
        num_heads=fields.count("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        window_kind="chunked",
        qkv_bias=bias,
        output_bias=bias,
    )
    norm = "unweighted" if fields.flag("use_qk_norm") else "none"
    chunk = fields.count_or_none("attention_chunk_size")
    variants = {
        (kind, turned): full.model_copy(
            update={
                "window": chunk if kind == _CHUNKED else None,
                "qk_norm": norm if turned else "none",
            }
        )
        for kind in (_FULL, _CHUNKED)
        for turned in (True, False)
    }
    return [variants[pair] for pair in zip(kinds, rotary, strict=True)]


def _read_expert_layers(fields: Fields) -> set[int]:
    """Return the places of the layers with experts: as listed, else each n-th."""
    num_layers, step = fields.count("num_hidden_layers"), fields.count("interleave_moe_layer_step")
    listed = fields.counts_or_none("moe_layers")
    places = set(range(step - 1, num_layers, step)) if listed is None else set(listed)
    beyond = sorted(place for place in places if place >= num_layers)
    fields.require(
        not beyond, "moe_layers", f"names layer {beyond[:1]}, but there are {num_layers} from 0"
    )
    return places


def read_llama4(fields: Fields) -> ModelSpec:
    """Return the text model; the shared expert is as wide as a routed one."""
    require_top_k(fields, "num_experts_per_tok", "num_local_experts")
    expert_places = _read_expert_layers(fields)
    attentions = _read_attentions(fields)
    dense = FeedForwardSpec(ffn_size=fields.count("intermediate_size_mlp"), gated=True)
    experts = ExpertSpec(
        num_experts=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok"),
        ffn_size=fields.count("intermediate_size"),
        shared_ffn_size=fields.count("intermediate_size"),
    )
    layers = [
        LayerSpec(attention=attention, experts=experts)
        if place in expert_places
        else LayerSpec(attention=attention, feed_forward=dense)
        for place, attention in enumerate(attentions)
    ]
    longest = fields.count_or_none("max_position_embeddings")
    return build_model(fields, layers, max_sequence_length=longest)


families.register("llama4")(
    Family(
        model_types=("llama4_text",),
        nested_types=("llama4",),
        architectures=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        keys=STATED_KV_KEYS
        | {
            "intermediate_size_mlp": count(),
            "head_dim": count(128),
            "num_local_experts": count(),
            "num_experts_per_tok": count(),
            "interleave_moe_layer_step": count(1),
            "moe_layers": counts_or_none(),
            "use_qk_norm": flag(True),
            "attention_chunk_size": Key("count", 8192, nullable=True),
            "no_rope_layers": counts_or_none(),
            "no_rope_layer_interval": count(4),
            "layer_types": texts_or_none(_FULL, _CHUNKED),
            "attention_bias": flag(False),
        },
        read=read_llama4,
        harmless=names("attn_scale attn_temperature_tuning floor_scale for_llm_compressor"),
        outer_harmless=names(
            """
            vision_config boi_token_index eoi_token_index image_token_index tie_word_embeddings
            """
        ),
    )
)
