"""Families with norms or layers that differ by rule.

OLMo 2 and 3, EXAONE 4, GPT-OSS, Llama 4, GLM-4 with experts.

Some layers attend within a window or a chunk only, some have experts and others a dense network.
Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``Olmo2Config``, ``Llama4TextConfig`` and ``Llama4TextDecoderLayer``, ...).
"""

from __future__ import annotations

from meshwright.catalog.huggingface.families.latent import with_prediction
from meshwright.catalog.huggingface.family import (
    FULL,
    GROUPED_KEYS,
    SLIDING,
    STATED_KV_KEYS,
    Config,
    ConfigKey,
    attention_of,
    by_period,
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
    window_or_none,
    windowed,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec

CHUNKED = "chunked_attention"
VISION = "vision_config boi_token_index eoi_token_index image_token_index tie_word_embeddings"


_WINDOWED_KEYS = STATED_KV_KEYS | {
    "layer_types": layer_types(FULL, SLIDING, required=True),
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
        "layer_types": layer_types(FULL, SLIDING),
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
    kinds = [SLIDING if letters[n % len(letters)] == "L" else FULL for n in range(num_layers)]
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
    keys=_OLMO_KEYS | {"layer_types": layer_types(FULL, SLIDING), "sliding_window": count(4096)},
)
def read_olmo2(fields: Config) -> ModelSpec:
    """Return OLMo 2 or 3: norms on the branches, none before them, and over all heads.

    In OLMo 3 the last layer of each four sees everything, the others a window.
    Source: Team OLMo 2024 (arXiv 2501.00656), section 2.1.
    """
    full = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="full")
    attentions = [full] * fields.count("num_hidden_layers")
    if "sliding_window" in fields.keys:
        attentions = windowed(fields, full, by_period(fields, 4))
    layers = [dense_layer(fields, attention, norms_before=False) for attention in attentions]
    return model_of(fields, layers)


@family(
    "gpt_oss",
    "GptOssForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "layer_types": layer_types(FULL, SLIDING),
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
    by_rule = [FULL if place % 2 else SLIDING for place in range(num_layers)]
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
        "layer_types": layer_types(FULL, CHUNKED),
        "attention_bias": flag(False),
    },
    harmless="attn_scale attn_temperature_tuning floor_scale for_llm_compressor",
    outer_harmless=VISION,
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
    kinds = fields.listed("layer_types") or [CHUNKED if turned else FULL for turned in rotary]

    full = attention_of(fields, window_kind="chunked", bias=bias)
    norm = "unweighted" if fields.flag("use_qk_norm") else "none"
    chunk = fields.count_or_none("attention_chunk_size")
    experts = experts_of(fields, shared_ffn_size=fields.count("moe_intermediate_size"))
    layers = []
    for place, (kind, turned) in enumerate(zip(kinds, rotary, strict=True)):
        window = chunk if kind == CHUNKED else None
        update = {"window": window, "qk_norm": norm if turned else "none"}
        attention = full.model_copy(update=update)
        is_sparse = place in places
        layers.append(
            LayerSpec(attention=attention, experts=experts)
            if is_sparse
            else dense_layer(fields, attention)
        )
    return model_of(fields, layers)


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
    return with_prediction(fields, layers)
