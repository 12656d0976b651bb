"""Families with latent attention.

DeepSeek V2 to V4, GLM-4.7 Flash and GLM-5, Kimi Linear, MiniCPM 3 and Youtu.

Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``DeepseekV3Config`` and ``DeepseekV3Attention``, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    DELTA_CHUNK,
    REQUIRED,
    Config,
    ConfigKey,
    count,
    count_or_none,
    count_or_zero,
    counts_or_none,
    dense_layer,
    expert_keys,
    experts_of,
    family,
    flag,
    layer_types,
    model_of,
    router_groups,
    text,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec, RecurrenceSpec, SideSpec

_DEEPSEEK_KEYS = CORE_KEYS | {
    "intermediate_size": count(),
    "num_key_value_heads": count(
        same_as="num_attention_heads", rule=("equals", "num_attention_heads")
    ),
    "q_lora_rank": count_or_none(default=REQUIRED),
    "kv_lora_rank": count(),
    "qk_nope_head_dim": count(),
    "qk_rope_head_dim": count(),
    "v_head_dim": count(),
    "moe_intermediate_size": count(),
    **expert_keys("n_routed_experts"),
    "n_shared_experts": count_or_none(default=REQUIRED),
    "n_group": count_or_none(),
    "topk_group": count_or_none(),
    "first_k_dense_replace": count_or_zero(rule=("at_most", "num_hidden_layers")),
    "moe_layer_freq": count(1),
    "attention_bias": flag(False),
    "tie_word_embeddings": flag(False),
}
_DEEPSEEK_HARMLESS = """
    norm_topk_prob routed_scaling_factor scoring_func qk_head_dim head_dim
    """


@family(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    keys=_DEEPSEEK_KEYS | {"topk_method": text("greedy", "group_limited_greedy", default="greedy")},
    harmless=_DEEPSEEK_HARMLESS,
)
def read_deepseek_v2(fields: Config) -> ModelSpec:
    """Return DeepSeek-V2 without prediction layers."""
    return model_of(fields, _deepseek_layers(fields, router_bias=False))


@family(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    keys=_DEEPSEEK_KEYS
    | {
        "topk_method": text("noaux_tc", default="noaux_tc"),
        "first_k_dense_replace": count_or_zero(1, rule=("at_most", "num_hidden_layers")),
        "mlp_layer_types": layer_types("dense", "sparse"),
        "num_nextn_predict_layers": count_or_zero(0),
    },
    harmless=_DEEPSEEK_HARMLESS,
)
@family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    model_types=("deepseek_v3", "kimi_k2"),
    keys=_DEEPSEEK_KEYS
    | {
        "topk_method": text("noaux_tc", default="noaux_tc"),
        "num_nextn_predict_layers": count_or_zero(0),
    },
    harmless=_DEEPSEEK_HARMLESS,
)
def read_deepseek_v3(fields: Config) -> ModelSpec:
    """Return DeepSeek-V3 or GLM-4.7 Flash; routers carry a correction bias under ``noaux_tc``.

    Source: the DeepSeek-V3 technical report, sections 2.1 and 2.2.
    """
    return with_prediction(fields, _deepseek_layers(fields, router_bias=True))


_INDEX_KEYS = {
    "index_topk": count(2048),
    "index_head_dim": count(128),
    "index_n_heads": count(64),
    "layer_types": layer_types("indexed_attention"),
    "mlp_layer_types": layer_types("dense", "sparse"),
    "topk_method": text("noaux_tc", default="noaux_tc"),
    "first_k_dense_replace": count_or_zero(3, rule=("at_most", "num_hidden_layers")),
    "num_nextn_predict_layers": count_or_zero(0),
}


@family(
    "deepseek_v32",
    "DeepseekV32ForCausalLM",
    keys=_DEEPSEEK_KEYS | _INDEX_KEYS,
    harmless=_DEEPSEEK_HARMLESS,
)
@family(
    "glm_moe_dsa",
    "GlmMoeDsaForCausalLM",
    keys=_DEEPSEEK_KEYS
    | _INDEX_KEYS
    | {
        "index_n_heads": count(32),
        "indexer_types": layer_types("full", "shared"),
        "index_topk_pattern": ConfigKey("anything", None),
        "index_topk_freq": count(1),
        "index_skip_topk_offset": count_or_zero(2),
    },
    harmless=f"{_DEEPSEEK_HARMLESS} indexer_rope_interleave",
)
def read_indexed(fields: Config) -> ModelSpec:
    """Return DeepSeek-V3.2 or GLM-5: each query attends to the tokens that an index chooses.

    Of GLM-5 some layers take the tokens that the layer before chose, and have no index.
    Source: ``DeepseekV32Indexer``; ``GlmMoeDsaConfig.__post_init__``.
    """
    fields.finish()
    size, heads = fields.count("index_head_dim"), fields.count("index_n_heads")
    plain = _latent_attention(fields).model_copy(update={"chosen_keys": fields.count("index_topk")})
    indexed = plain.model_copy(update={"index_heads": heads, "index_head_size": size})
    attentions = [indexed if has_index else plain for has_index in _with_index(fields)]
    layers = _deepseek_layers(fields, router_bias=True, attentions=attentions)
    return with_prediction(fields, layers)


def _with_index(fields: Config) -> list[bool]:
    """Return the layers that have an index of their own: listed, by a pattern, or one of several.

    The pattern has the letter F for each of them, S for the others.
    """
    places = range(fields.count("num_hidden_layers"))
    if "indexer_types" not in fields.keys:
        return [True for _ in places]
    pattern = fields.value("index_topk_pattern")
    stated = fields.listed("indexer_types") or list(pattern or ())
    if not stated:
        step, offset = fields.count("index_topk_freq"), fields.count("index_skip_topk_offset")
        return [max(place - offset + 1, 0) % step == 0 for place in places]
    message = f"lists {len(stated)} layers, but num_hidden_layers is {len(places)}"
    fields.require(len(stated) == len(places), "index_topk_pattern", message)
    fields.finish()
    return [kind in ("F", "full") for kind in stated]


_NEAR, _CHOSEN, _ALL = (
    "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
)  # fmt: skip
_KIND_OF_RATIO = {0: _NEAR, 4: _CHOSEN, 128: _ALL}


@family(
    "deepseek_v4",
    "DeepseekV4ForCausalLM",
    keys=CORE_KEYS
    | {
        "head_dim": count(512),
        "num_key_value_heads": count(1, most=1),
        "q_lora_rank": count(1024),
        "o_lora_rank": count(1024),
        "o_groups": count(8, rule=("divides", "num_attention_heads")),
        "qk_rope_head_dim": count(64),
        **expert_keys("n_routed_experts"),
        "moe_intermediate_size": count(2048),
        "n_shared_experts": count_or_zero(1),
        "layer_types": layer_types(_NEAR, _CHOSEN, _ALL),
        "mlp_layer_types": layer_types("hash_moe", "moe"),
        "compress_ratios": counts_or_none(),
        "compress_rates": ConfigKey("section", None, section={_CHOSEN: count(4), _ALL: count(128)}),
        "num_hash_layers": count_or_zero(3),
        "sliding_window": count(128),
        "hc_mult": count(4),
        "index_n_heads": count(64),
        "index_head_dim": count(128),
        "index_topk": count(512),
        "num_nextn_predict_layers": count_or_zero(1),
        "tie_word_embeddings": flag(False),
    },
    harmless="compress_rope_theta hc_sinkhorn_iters hc_eps swiglu_limit norm_topk_prob "
    "routed_scaling_factor scoring_func topk_method expert_dtype",
)
def read_deepseek_v4(fields: Config) -> ModelSpec:
    """Return DeepSeek-V4: one head of keys that are values, near ones and joined ones.

    Layers join few tokens and choose among the joined ones by an index, or join many and see all.
    Several streams are mixed before and after each branch. First routers look the experts up.
    Source: ``DeepseekV4Attention``, ``DeepseekV4CSACompressor``, ``DeepseekV4HyperConnection``.
    """
    fields.finish()
    num_layers, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
    streams = fields.count("hc_mult")
    near = AttentionSpec(
        num_heads=fields.count("num_attention_heads"), num_kv_heads=1,
        head_size=fields.count("head_dim"), value_head_size=fields.count("head_dim"),
        window=fields.count("sliding_window"), qk_norm="unweighted", sinks=True,
        query_rank=fields.count("q_lora_rank"), output_rank=fields.count("o_lora_rank"),
        output_groups=fields.count("o_groups"), value_is_key=True, caches_once=True,
    )  # fmt: skip
    shared = fields.count("n_shared_experts") * fields.count("moe_intermediate_size")
    experts = experts_of(fields, router_bias=True, shared_ffn_size=shared)
    first, types = fields.count("num_hash_layers"), fields.listed("mlp_layer_types")
    looked_up = [kind == "hash_moe" for kind in types or ()] or [
        place < first for place in range(num_layers)
    ]
    layers = []
    for kind, is_looked_up in zip(_kinds_of_joining(fields), looked_up, strict=True):
        attention, products, vectors = _joining(fields, near, kind)
        mixing = (streams * hidden, (2 + streams) * streams)
        side = SideSpec(
            products=(*products, mixing, mixing),
            num_vector_params=vectors + 2 * (mixing[1] + 3),
        )
        router = experts.model_copy(update={"router_bias": not is_looked_up})
        layers.append(LayerSpec(attention=attention, experts=router, side=side))
    notes = [
        f"{streams} streams: their mixing is counted, the memory of one stream is priced",
        "layers for multi-token prediction of the checkpoint are not counted",
    ]
    head = SideSpec(products=((streams * hidden, streams),), num_vector_params=streams + 1)
    return model_of(fields, layers, notes=notes, side=head)


def _kinds_of_joining(fields: Config) -> list[str]:
    """Return the kind of attention of each layer: as listed, by its ratio, or by turns."""
    num_layers, ratios = fields.count("num_hidden_layers"), fields.listed("compress_ratios")
    if listed := fields.listed("layer_types"):
        return listed
    if ratios is None:
        turns = [_CHOSEN if place % 2 else _ALL for place in range(max(num_layers - 2, 0))]
        return [*[_ALL] * min(num_layers, 2), *turns]
    message = f"{ratios}; expected one of {', '.join(map(str, _KIND_OF_RATIO))} for each layer"
    is_right = len(ratios) >= num_layers and set(ratios) <= set(_KIND_OF_RATIO)
    fields.require(is_right, "compress_ratios", message)
    fields.finish()
    return [_KIND_OF_RATIO[ratio] for ratio in ratios[:num_layers]]


def _joining(
    fields: Config, near: AttentionSpec, kind: str
) -> tuple[AttentionSpec, tuple[tuple[int, int], ...], int]:
    """Return the attention of a layer, the products that join tokens, and their learned numbers.

    Tokens are joined by learned weights, of which there are twice as many columns where spans
    overlap. The index joins tokens as well: its key has four times the columns of a plain one.
    """
    size, hidden = near.head_size, fields.count("hidden_size")
    if kind == _NEAR:
        return near, (), size
    stride = fields.count(f"compress_rates.{kind}")
    if kind == _ALL:
        wide, vectors = size, stride * size + 2 * size
        return near.model_copy(update={"stride": stride}), ((hidden, wide),) * 2, vectors
    index, wide = fields.count("index_head_dim"), 2 * size
    attention = near.model_copy(
        update={
            "stride": stride, "chosen_keys": fields.count("index_topk"),
            "index_heads": fields.count("index_n_heads"), "index_head_size": index,
        }
    )  # fmt: skip
    # A plain index has one key, and a norm with a bias.
    products = ((hidden, wide), (hidden, wide), (hidden, 3 * index))
    return attention, products, stride * (wide + 2 * index) + 2 * size - index


_LINEAR_KEYS = {
    "full_attn_layers": counts_or_none(),
    "kda_layers": counts_or_none(),
    "head_dim": count_or_none(),
    "num_heads": count_or_none(),
    "short_conv_kernel_size": count_or_none(),
}


@family(
    "kimi_linear",
    "KimiLinearForCausalLM",
    keys={role: key for role, key in _DEEPSEEK_KEYS.items() if role != "moe_layer_freq"}
    | {
        **expert_keys(chosen=("num_experts_per_token", "num_experts_per_tok")),
        "q_lora_rank": count_or_none(),
        "n_shared_experts": count_or_none(default=1, names=("num_shared_experts",)),
        "n_group": count_or_none(names=("num_expert_group",)),
        "first_k_dense_replace": count_or_zero(1, rule=("at_most", "num_hidden_layers")),
        "moe_layer_freq": count(1, most=1),
        "topk_method": text("noaux_tc", default="noaux_tc"),
        "num_nextn_predict_layers": count_or_zero(0),
        "layer_types": layer_types("linear_attention", "full_attention"),
        "mlp_layer_types": layer_types("dense", "sparse"),
        "linear_head_dim": count(128),
        "linear_num_heads": count(32),
        "linear_conv_kernel_dim": count(4),
        "linear_attn_config": ConfigKey("section", None, section=_LINEAR_KEYS),
    },
    harmless=f"{_DEEPSEEK_HARMLESS} mla_use_nope moe_renormalize moe_router_activation_func "
    "use_grouped_topk model_max_length num_local_experts",
)
def read_kimi_linear(fields: Config) -> ModelSpec:
    """Return Kimi Linear: delta attention with gates of low rank, and latent attention by turns.

    A nested section lists the layers from one, and leads. Source: ``KimiLinearConfig``,
    ``KimiLinearDeltaAttention``.
    """
    fields.finish()
    num_layers, stated = fields.count("num_hidden_layers"), fields.value
    size = stated("linear_attn_config.head_dim") or fields.count("linear_head_dim")
    heads = stated("linear_attn_config.num_heads") or fields.count("linear_num_heads")
    taps = stated("linear_attn_config.short_conv_kernel_size")
    mixer = RecurrenceSpec(
        kind="kda", num_heads=heads, head_size=size, num_groups=heads, state_size=size,
        conv_size=taps or fields.count("linear_conv_kernel_dim"), chunk_size=DELTA_CHUNK,
        gate_rank=size,
    )  # fmt: skip
    listed = stated("linear_attn_config.full_attn_layers")
    full = [place - 1 for place in listed or ()] or list(range(4, num_layers, 4))
    kinds = fields.listed("layer_types") or [
        "full_attention" if place in full else "linear_attention" for place in range(num_layers)
    ]
    plain = _latent_attention(fields).model_copy(update={"rotary": False})
    layers = _deepseek_layers(fields, router_bias=True, attentions=[plain] * num_layers)
    linear = {"attention": None, "recurrence": mixer}
    layers = [
        layer if kind == "full_attention" else layer.model_copy(update=linear)
        for layer, kind in zip(layers, kinds, strict=True)
    ]
    return with_prediction(fields, layers)


def with_prediction(fields: Config, layers: list[LayerSpec]) -> ModelSpec:
    """Return a model with a correction bias in its routers, and its prediction layers."""
    extra = fields.count("num_nextn_predict_layers")
    notes = ["the correction bias of the router (one number for each expert) is counted"]
    if extra:
        notes.append(f"prediction layers ({extra}) are counted apart, not in num_params")
    return model_of(fields, layers, notes=notes, num_prediction_layers=extra)


def _deepseek_layers(
    fields: Config, *, router_bias: bool, attentions: Sequence[AttentionSpec] = ()
) -> list[LayerSpec]:
    """Return the layers: ``first_k_dense_replace`` dense ones, then experts at each step.

    Attention is latent; ``q_lora_rank`` null projects the queries at once.
    """
    fields.finish()
    num_layers = fields.count("num_hidden_layers")
    attentions = attentions or [_latent_attention(fields)] * num_layers
    shared = fields.count("moe_intermediate_size") * (fields.count_or_none("n_shared_experts") or 0)
    groups = router_groups(fields) if fields.text("topk_method") != "greedy" else {}
    experts = experts_of(fields, router_bias=router_bias, shared_ffn_size=shared, **groups)
    first, step = fields.count("first_k_dense_replace"), fields.count("moe_layer_freq")
    kinds = fields.listed("mlp_layer_types") if "mlp_layer_types" in fields.keys else None
    kinds = kinds or [
        "dense" if place < first or place % step else "sparse" for place in range(num_layers)
    ]
    return [
        LayerSpec(attention=attention, experts=experts)
        if kind == "sparse"
        else dense_layer(fields, attention)
        for attention, kind in zip(attentions, kinds, strict=True)
    ]


def _latent_attention(fields: Config) -> AttentionSpec:
    """Return latent attention; ``attention_bias`` covers its projections."""
    heads, bias = fields.count("num_attention_heads"), fields.flag("attention_bias")
    return AttentionSpec(
        kind="mla",
        num_heads=heads,
        num_kv_heads=heads,
        head_size=fields.count("qk_nope_head_dim"),
        value_head_size=fields.count("v_head_dim"),
        query_rank=fields.count_or_none("q_lora_rank"),
        kv_rank=fields.count("kv_lora_rank"),
        rope_head_size=fields.count("qk_rope_head_dim"),
        qkv_bias=bias,
        output_bias=bias,
    )


_LATENT_KEYS = {
    role: key
    for role, key in _DEEPSEEK_KEYS.items()
    if role in {*CORE_KEYS, "intermediate_size", "num_key_value_heads", "q_lora_rank",
                "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
                "attention_bias"}
} | {"tie_word_embeddings": flag(True)}  # fmt: skip


@family(
    "minicpm3",
    "MiniCPM3ForCausalLM",
    keys=_LATENT_KEYS,
    harmless="scale_emb scale_depth dim_model_base qk_head_dim head_dim",
)
@family(
    "youtu",
    "YoutuForCausalLM",
    keys=_LATENT_KEYS,
    harmless="embedding_initializer_range qk_head_dim head_dim",
)
def read_dense_latent(fields: Config) -> ModelSpec:
    """Return MiniCPM 3 or Youtu: latent attention and a dense network in each layer."""
    fields.finish()
    return model_of(fields, dense_layer(fields, _latent_attention(fields)))
