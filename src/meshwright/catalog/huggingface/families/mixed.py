"""Families with norms or layers that differ by rule.

Gemma, OLMo 2 and 3, EXAONE 4, GPT-OSS, Llama 4, DeepSeek V2 and V3, GLM-4 with experts.

Some layers attend within a window or a chunk only, some have experts and others a dense network.
Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``Gemma2Config``, ``Llama4TextConfig`` and ``Llama4TextDecoderLayer``, ...).
"""

from __future__ import annotations

from typing import Literal

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    GROUPED_KEYS,
    REQUIRED,
    STATED_KV_KEYS,
    Config,
    ConfigKey,
    attention_of,
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
    text,
    window_or_none,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec

_FULL, _SLIDING, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_VISION = "vision_config boi_token_index eoi_token_index image_token_index tie_word_embeddings"


def windowed(fields: Config, full: AttentionSpec, by_rule: list[str]) -> list[AttentionSpec]:
    """Return the attention of each layer: as ``layer_types`` states it, or by a rule."""
    sliding = full.model_copy(update={"window": fields.count("sliding_window")})
    kinds = fields.listed("layer_types") or by_rule
    return [sliding if kind == _SLIDING else full for kind in kinds]


_GEMMA_1_KEYS = STATED_KV_KEYS | {
    "head_dim": count(256),
    "attention_bias": flag(False),
    "tie_word_embeddings": flag(True),
}
_GEMMA_KEYS = _GEMMA_1_KEYS | {
    "layer_types": layer_types(_FULL, _SLIDING),
    "sliding_window": count(names=("sliding_window", "sliding_window_size")),
}
_GEMMA_HARMLESS = """
    query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping cache_implementation
    """


@family("gemma", "GemmaForCausalLM", keys=_GEMMA_1_KEYS)
def read_gemma1(fields: Config) -> ModelSpec:
    """Return Gemma 1: heads wider than the hidden size over their number, tied head."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    return model_of(fields, dense_layer(fields, attention))


@family("gemma2", "Gemma2ForCausalLM", keys=_GEMMA_KEYS, harmless=_GEMMA_HARMLESS)
def read_gemma2(fields: Config) -> ModelSpec:
    """Return Gemma 2: layers alternate, the first one with a window."""
    return _gemma(fields, period=2, qk_norm="none")


@family(
    "gemma3",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    model_types=("gemma3_text",),
    nested_types=("gemma3",),
    keys=_GEMMA_KEYS
    | {
        "vocab_size": count(262_208),
        "num_attention_heads": count(8),
        "num_key_value_heads": count(4, rule=("divides", "num_attention_heads")),
        "sliding_window_pattern": count(
            6, names=("sliding_window_pattern", "_sliding_window_pattern")
        ),
    },
    harmless=_GEMMA_HARMLESS,
    outer_harmless=f"{_VISION} mm_tokens_per_image image_token_id boi_token_id eoi_token_id",
)
def read_gemma3(fields: Config) -> ModelSpec:
    """Return Gemma 3, in which the last layer of each period (six) sees everything."""
    return _gemma(fields, period=fields.count("sliding_window_pattern"), qk_norm="head")


@family("vaultgemma", "VaultGemmaForCausalLM", keys=_GEMMA_KEYS, harmless=_GEMMA_HARMLESS)
def read_vaultgemma(fields: Config) -> ModelSpec:
    """Return VaultGemma: Gemma 2 without norms on the branches."""
    return _gemma(fields, period=2, qk_norm="none", num_norms=2)


def _gemma(
    fields: Config, *, period: int, qk_norm: Literal["none", "head"], num_norms: int = 4
) -> ModelSpec:
    """Return a model whose last layer of each period sees everything."""
    num_layers, bias = fields.count("num_hidden_layers"), fields.flag("attention_bias")
    full = attention_of(fields, bias=bias, qk_norm=qk_norm)
    by_rule = [_SLIDING if (place + 1) % period else _FULL for place in range(num_layers)]
    attentions = windowed(fields, full, by_rule)
    return model_of(fields, [dense_layer(fields, each, num_norms=num_norms) for each in attentions])


_WINDOWED_KEYS = STATED_KV_KEYS | {
    "layer_types": layer_types(_FULL, _SLIDING, required=True),
    "sliding_window": count(),
}


@family("cwm", "CwmForCausalLM", keys=_WINDOWED_KEYS)
@family("ministral", "MinistralForCausalLM", keys=_WINDOWED_KEYS)
def read_ministral(fields: Config) -> ModelSpec:
    """Return Ministral or CWM: layers that see everything and layers with a window."""
    attentions = windowed(fields, attention_of(fields), [])
    return model_of(fields, [dense_layer(fields, attention) for attention in attentions])


PATTERN = ConfigKey("pattern", 4, nullable=True)
"""The period of layers that see everything, or a letter for each layer of a period."""


@family(
    "exaone4",
    "Exaone4ForCausalLM",
    keys=GROUPED_KEYS
    | {
        "layer_types": layer_types(_FULL, _SLIDING),
        "sliding_window": window_or_none(default=4096),
        "sliding_window_pattern": PATTERN,
    },
)
def read_exaone4(fields: Config) -> ModelSpec:
    """Return EXAONE 4: norms on the branches and on heads; windows by period, or none."""
    full = attention_of(fields, qk_norm="head")
    layers = [
        dense_layer(fields, attention, norms_before=False)
        for attention in exaone_windows(fields, full)
    ]
    return model_of(fields, layers)


def exaone_windows(fields: Config, full: AttentionSpec) -> list[AttentionSpec]:
    """Return the attention of each layer; a pattern is a period, or a text such as ``LLLG``."""
    num_layers, pattern = fields.count("num_hidden_layers"), fields.value("sliding_window_pattern")
    if fields.window("sliding_window") is None:
        return [full] * num_layers
    letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G" if pattern else "L"
    kinds = [_SLIDING if letters[n % len(letters)] == "L" else _FULL for n in range(num_layers)]
    return windowed(fields, full, kinds)


_OLMO_KEYS = GROUPED_KEYS | {"attention_bias": flag(False)}


@family("olmo", "OlmoForCausalLM", keys=_OLMO_KEYS, harmless="clip_qkv")
def read_olmo(fields: Config) -> ModelSpec:
    """Return OLMo: norms without weights."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    return model_of(fields, dense_layer(fields, attention), norm="layer_unweighted")


@family("olmo2", "Olmo2ForCausalLM", keys=_OLMO_KEYS)
@family(
    "olmo3",
    "Olmo3ForCausalLM",
    keys=_OLMO_KEYS | {"layer_types": layer_types(_FULL, _SLIDING), "sliding_window": count(4096)},
)
def read_olmo2(fields: Config) -> ModelSpec:
    """Return OLMo 2 or 3: norms on the branches, none before them, and over all heads.

    In OLMo 3 the last layer of each four sees everything, the others a window.
    Source: Team OLMo 2024 (arXiv 2501.00656), section 2.1.
    """
    full = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="full")
    attentions = [full] * fields.count("num_hidden_layers")
    if "sliding_window" in fields.keys:
        attentions = windowed(fields, full, _every_fourth_full(fields))
    layers = [dense_layer(fields, attention, norms_before=False) for attention in attentions]
    return model_of(fields, layers)


def _every_fourth_full(fields: Config) -> list[str]:
    """Return kinds of attention of which the last of each four is full."""
    return [_SLIDING if (n + 1) % 4 else _FULL for n in range(fields.count("num_hidden_layers"))]


_OLMOE_KEYS = _OLMO_KEYS | expert_keys()


@family("olmoe", "OlmoeForCausalLM", keys=_OLMOE_KEYS, harmless="clip_qkv norm_topk_prob")
@family("flex_olmo", "FlexOlmoForCausalLM", keys=_OLMOE_KEYS, harmless="norm_topk_prob")
def read_olmoe(fields: Config) -> ModelSpec:
    """Return OLMoE, or FlexOlmo, which has the norms of OLMo 2."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="full")
    before = fields.family == "olmoe"
    layer = LayerSpec(attention=attention, experts=experts_of(fields), norms_before=before)
    return model_of(fields, layer)


@family(
    "gpt_oss",
    "GptOssForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "layer_types": layer_types(_FULL, _SLIDING),
        "head_dim": count(64),
        **expert_keys("num_local_experts", chosen=("num_experts_per_tok", "experts_per_token")),
        "sliding_window": count(),
        "attention_bias": flag(True),
    },
    harmless="swiglu_alpha swiglu_limit initial_context_length",
)
def read_gpt_oss(fields: Config) -> ModelSpec:
    """Return GPT-OSS: experts with biases, attention with sinks, each second layer full.

    Without ``layer_types`` the first layer has the window.
    """
    num_layers, bias = fields.count("num_hidden_layers"), fields.flag("attention_bias")
    full = attention_of(fields, bias=bias, sinks=True)
    experts = experts_of(fields, bias=True, router_bias=True)
    by_rule = [_FULL if place % 2 else _SLIDING for place in range(num_layers)]
    attentions = windowed(fields, full, by_rule)
    return model_of(fields, [LayerSpec(attention=each, experts=experts) for each in attentions])


@family(
    "llama4",
    "Llama4ForCausalLM",
    "Llama4ForConditionalGeneration",
    model_types=("llama4_text",),
    nested_types=("llama4",),
    keys=STATED_KV_KEYS
    | {
        "intermediate_size": count(names=("intermediate_size_mlp",)),
        "moe_intermediate_size": count(names=("intermediate_size",)),
        "head_dim": count(128),
        **expert_keys("num_local_experts"),
        "interleave_moe_layer_step": count(1),
        "moe_layers": counts_or_none(),
        "use_qk_norm": flag(True),
        "attention_chunk_size": count_or_none(default=8192),
        "no_rope_layers": counts_or_none(),
        "no_rope_layer_interval": count(4),
        "layer_types": layer_types(_FULL, _CHUNKED),
        "attention_bias": flag(False),
    },
    harmless="attn_scale attn_temperature_tuning floor_scale for_llm_compressor",
    outer_harmless=_VISION,
)
def read_llama4(fields: Config) -> ModelSpec:
    """Return the text model of Llama 4; the shared expert is as wide as a routed one.

    Layers with rotary positions attend within chunks and may normalise queries and keys; each
    n-th layer (``no_rope_layers`` lists them as 0, else each fourth) has no positions and sees
    everything. Experts are in the layers listed, else in each n-th; the others are dense.
    """
    num_layers, bias = fields.count("num_hidden_layers"), fields.flag("attention_bias")
    step, listed = fields.count("interleave_moe_layer_step"), fields.listed("moe_layers")
    places = set(range(step - 1, num_layers, step)) if listed is None else set(listed)
    beyond = sorted(place for place in places if place >= num_layers)
    message = f"names layer {beyond[:1]}, but there are {num_layers} from 0"
    fields.require(not beyond, "moe_layers", message)
    period, listed = fields.count("no_rope_layer_interval"), fields.listed("no_rope_layers")
    rotary = list(map(bool, listed or [(n + 1) % period for n in range(num_layers)]))
    message = f"lists {len(rotary)} layers, but num_hidden_layers is {num_layers}"
    fields.require(len(rotary) == num_layers, "no_rope_layers", message)
    kinds = fields.listed("layer_types") or [_CHUNKED if turned else _FULL for turned in rotary]

    full = attention_of(fields, window_kind="chunked", bias=bias)
    norm = "unweighted" if fields.flag("use_qk_norm") else "none"
    chunk = fields.count_or_none("attention_chunk_size")
    experts = experts_of(fields, shared_ffn_size=fields.count("moe_intermediate_size"))
    layers = []
    for place, (kind, turned) in enumerate(zip(kinds, rotary, strict=True)):
        window = chunk if kind == _CHUNKED else None
        update = {"window": window, "qk_norm": norm if turned else "none"}
        attention = full.model_copy(update=update)
        is_sparse = place in places
        layers.append(
            LayerSpec(attention=attention, experts=experts)
            if is_sparse
            else dense_layer(fields, attention)
        )
    return model_of(fields, layers)


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
    return _with_prediction(fields, _deepseek_layers(fields, router_bias=True))


def _with_prediction(fields: Config, layers: list[LayerSpec]) -> ModelSpec:
    """Return a model with a correction bias in its routers, and its prediction layers."""
    extra = fields.count("num_nextn_predict_layers")
    notes = ["the correction bias of the router (one number for each expert) is counted"]
    if extra:
        notes.append(f"prediction layers ({extra}) are counted apart, not in num_params")
    return model_of(fields, layers, notes=notes, num_prediction_layers=extra)


def router_groups(fields: Config) -> dict[str, int]:
    """Return the groups of experts of a router, and the number of them that a token uses."""
    num_groups = fields.count_or_none("n_group") or 1
    top_groups = fields.count_or_none("topk_group") or num_groups
    total, chosen = fields.count("num_experts"), fields.count("num_experts_per_tok")
    experts = f"{fields.stated('num_experts')} {total}"
    fields.require(total % num_groups == 0, "n_group", f"{num_groups} does not divide {experts}")
    of = f"{top_groups} of n_group {num_groups}"
    fields.require(top_groups <= num_groups, "topk_group", of)
    hold = f"{of} hold fewer of {experts} than num_experts_per_tok {chosen}"
    fields.require(chosen * num_groups <= top_groups * total, "topk_group", hold)
    fields.finish()
    return {"num_groups": num_groups, "top_groups": top_groups}


def _deepseek_layers(fields: Config, *, router_bias: bool) -> list[LayerSpec]:
    """Return the layers: ``first_k_dense_replace`` dense ones, then experts at each step.

    Attention is latent; ``q_lora_rank`` null projects the queries at once.
    """
    fields.finish()
    attention = _latent_attention(fields)
    shared = fields.count("moe_intermediate_size") * (fields.count_or_none("n_shared_experts") or 0)
    groups = router_groups(fields) if fields.text("topk_method") != "greedy" else {}
    experts = experts_of(fields, router_bias=router_bias, shared_ffn_size=shared, **groups)
    dense = dense_layer(fields, attention)
    sparse = LayerSpec(attention=attention, experts=experts)
    kinds = fields.listed("mlp_layer_types") if "mlp_layer_types" in fields.keys else None
    if kinds is not None:
        return [sparse if kind == "sparse" else dense for kind in kinds]
    first, step = fields.count("first_k_dense_replace"), fields.count("moe_layer_freq")
    places = range(fields.count("num_hidden_layers"))
    return [dense if place < first or place % step else sparse for place in places]


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


@family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "head_dim": count(),
        "moe_intermediate_size": count(),
        **expert_keys("n_routed_experts"),
        "n_shared_experts": count_or_zero(1),
        "first_k_dense_replace": count_or_zero(1, rule=("at_most", "num_hidden_layers")),
        "attention_bias": flag(False),
        "use_qk_norm": flag(False),
        "n_group": count_or_none(),
        "topk_group": count_or_none(),
        "num_nextn_predict_layers": count_or_zero(
            0, names=("num_nextn_predict_layers", "num_mtp_layers")
        ),
    },
    harmless="norm_topk_prob routed_scaling_factor",
)
def read_glm4_moe(fields: Config) -> ModelSpec:
    """Return GLM-4 with experts: the first layers dense, the router with a correction bias."""
    norm = "head" if fields.flag("use_qk_norm") else "none"
    attention = attention_of(fields, qkv_bias=fields.flag("attention_bias"), qk_norm=norm)
    shared = fields.count("moe_intermediate_size") * fields.count("n_shared_experts")
    experts = experts_of(fields, router_bias=True, shared_ffn_size=shared, **router_groups(fields))
    first, num_layers = fields.count("first_k_dense_replace"), fields.count("num_hidden_layers")
    sparse = LayerSpec(attention=attention, experts=experts)
    layers = [dense_layer(fields, attention)] * first + [sparse] * (num_layers - first)
    return _with_prediction(fields, layers)
