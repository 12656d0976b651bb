"""Families that differ by the parts of a layer alone: one row each, read by one function.

A row states the constant parts; a field of the configuration is read where the row has its key. New
kinds of layers have files of their own.

Source: the configuration and model classes of Hugging Face transformers (``Dots1Config`` and
``Dots1DecoderLayer``, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    FULL,
    GROUPED_KEYS,
    MOST_LAYERS,
    SLIDING,
    STATED_KV_KEYS,
    Config,
    ConfigKey,
    Reader,
    attention_of,
    by_period,
    count,
    count_or_none,
    count_or_zero,
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
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec, SideSpec


@dataclass(frozen=True)
class Row:
    """The constant parts of a family, and the fields that its configuration states."""

    architectures: tuple[str, ...]
    keys: Mapping[str, ConfigKey]
    harmless: str = ""
    model_types: tuple[str, ...] = ()
    norm: Literal["rms", "layer", "layer_no_bias", "layer_unweighted"] = "rms"
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norm of queries and keys, unless ``use_qk_norm`` is false."""
    num_norms: int = 2
    is_parallel: bool = False
    norms_before: bool = True
    gated: bool = True
    biases: tuple[str, ...] = ()
    """Parts with biases in any case: ``qkv``, ``output``, ``network``."""
    bias_on_inputs: bool = False
    """``attention_bias`` covers queries, keys and values alone."""
    sinks: bool = False
    output_gate: bool = False
    head_gate: bool = False
    """A learned gate for each head, not for each channel of it."""
    router_bias: bool = False
    spare_positions: int | None = None
    """Further rows of a learned position table; None: no table."""
    vectors: tuple[str, ...] = ()
    """Fields with the widths of further norms of a layer; ``head_size``: that of a head."""
    period: int = 1
    """Without ``layer_types`` the last layer of each period sees everything."""
    notes: tuple[str, ...] = ()


_BIAS = {"attention_bias": flag(False)}
_BOTH_BIASES = _BIAS | {"mlp_bias": flag(False)}
_WINDOWS = {"layer_types": layer_types(FULL, SLIDING), "sliding_window": count(4096)}
_NETWORKS = {"mlp_layer_types": layer_types("dense", "sparse")}
_FIRST_DENSE = count_or_zero(1, rule=("at_most", "num_hidden_layers"))
_GROUPS = {"n_group": count_or_none(), "topk_group": count_or_none()}
_SCALES = "embedding_multiplier logits_scaling residual_multiplier attention_multiplier"
_ROUTING = "norm_topk_prob routed_scaling_factor scoring_func"
_EXPERTS = expert_keys()
_LOCAL_EXPERTS = expert_keys("num_local_experts")
_ROUTED = expert_keys("n_routed_experts") | {"moe_intermediate_size": count()}
_NO_WIDTH = {role: key for role, key in STATED_KV_KEYS.items() if role != "intermediate_size"}
_GLM_KEYS = STATED_KV_KEYS | {"head_dim": count(128), "attention_bias": flag(True)}
_GRANITE_MOE = GROUPED_KEYS | _LOCAL_EXPERTS | _BIAS
_SHARED_WIDTH = {"shared_intermediate_size": count_or_zero(0)}
_TIED = {"tie_word_embeddings": flag(True)}
_OLMOE = GROUPED_KEYS | _EXPERTS | _BIAS

ROWS: Final[Mapping[str, Row]] = {
    "aria_text": Row(
        ("AriaTextForCausalLM",),
        STATED_KV_KEYS
        | _BOTH_BIASES
        | expert_keys("moe_num_experts", chosen=("moe_topk", "num_experts_per_tok"))
        | {"num_shared_experts": count_or_zero(2, names=("moe_num_shared_experts",))},
    ),
    "bitnet": Row(
        ("BitNetForCausalLM",), STATED_KV_KEYS | _BIAS,
        vectors=("hidden_size", "intermediate_size"),
        notes=("weights are stored as the activation type: packed ternary ones are not modelled",),
    ),
    "biogpt": Row(
        ("BioGptForCausalLM",), CORE_KEYS | _TIED | {
            "intermediate_size": count(), "max_position_embeddings": count(),
        },
        "attention_probs_dropout_prob scale_embedding",
        norm="layer", gated=False, biases=("qkv", "output", "network"), spare_positions=2,
    ),
    "cosmos3_edge_text": Row((), STATED_KV_KEYS | _BOTH_BIASES, gated=False),
    "dots1": Row(
        ("Dots1ForCausalLM",),
        STATED_KV_KEYS | _BIAS | _ROUTED | _GROUPS | {
            "n_shared_experts": count_or_none(),
            "first_k_dense_replace": count_or_zero(0, rule=("at_most", "num_hidden_layers")),
            "layer_types": layer_types(FULL, SLIDING), "sliding_window": window_or_none(),
        },
        f"{_ROUTING} max_window_layers moe_layer_freq topk_method",
        qk_norm="head", router_bias=True,
    ),
    "emu3_text_model": Row(("Emu3ForCausalLM",), STATED_KV_KEYS | _BOTH_BIASES),
    "ernie4_5": Row(
        ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        STATED_KV_KEYS | {"use_bias": flag(False)} | _TIED,
        model_types=("ernie4_5", "paddleocr_vl_text"),
    ),
    "flex_olmo": Row(
        ("FlexOlmoForCausalLM",), _OLMOE, "norm_topk_prob", qk_norm="full", norms_before=False
    ),
    "glm": Row(("GlmForCausalLM",), _GLM_KEYS, bias_on_inputs=True),
    "glm4": Row(("Glm4ForCausalLM",), _GLM_KEYS, bias_on_inputs=True, num_norms=4),
    "glm4v_text": Row((), STATED_KV_KEYS, num_norms=4, biases=("qkv",)),
    "glm_ocr_text": Row((), STATED_KV_KEYS, num_norms=4),
    "glm4v_moe_text": Row(
        (),
        STATED_KV_KEYS | _ROUTED | _GROUPS | {
            "attention_bias": flag(True), "n_shared_experts": count_or_zero(1),
            "first_k_dense_replace": _FIRST_DENSE,
        },
        _ROUTING, bias_on_inputs=True, router_bias=True,
    ),
    "gpt_neo": Row(
        ("GPTNeoForCausalLM",),
        CORE_KEYS | _TIED | {
            "num_hidden_layers": count(names=("num_layers",), most=MOST_LAYERS),
            "num_attention_heads": count(names=("num_heads",)),
            "intermediate_size": count_or_none(),
            "max_position_embeddings": count(),
            "layer_types": ConfigKey(
                "texts", None, names=("attention_layers",), allowed=("global", "local"),
                rule=("one_for_each", "num_hidden_layers"),
            ),
            "sliding_window": count(256, names=("window_size",)),
        },
        "attention_types embed_dropout summary_activation summary_first_dropout summary_type "
        "summary_proj_to_labels summary_use_proj",
        norm="layer", gated=False, biases=("output", "network"), spare_positions=0,
    ),
    "granite_docling_text": Row((), GROUPED_KEYS | _BOTH_BIASES, _SCALES),
    "granite_swa": Row(
        ("GraniteSWAForCausalLM",),
        STATED_KV_KEYS | _BOTH_BIASES | _WINDOWS | _TIED | {"sliding_window": count(128)},
        f"{_SCALES} layer_rope_theta", sinks=True,
    ),
    "granitemoe": Row(("GraniteMoeForCausalLM",), _GRANITE_MOE, _SCALES),
    "granitemoeshared": Row(
        ("GraniteMoeSharedForCausalLM",), _GRANITE_MOE | _SHARED_WIDTH, _SCALES
    ),
    "granitemoe_swa": Row(
        ("GraniteMoeSWAForCausalLM",),
        _GRANITE_MOE | _SHARED_WIDTH | _WINDOWS | {"sliding_window": count(128)},
        f"{_SCALES} layer_rope_theta", sinks=True,
    ),
    "helium": Row(("HeliumForCausalLM",), GROUPED_KEYS),
    "hunyuan_v1_dense": Row(
        ("HunYuanDenseV1ForCausalLM",), GROUPED_KEYS | _BIAS,
        "eod_token_id use_qk_norm use_cla mlp_bias norm_type use_rotary_pos_emb", qk_norm="head",
    ),
    "hy_v3": Row(
        ("HYV3ForCausalLM",),
        STATED_KV_KEYS | _BOTH_BIASES | _EXPERTS | _NETWORKS | {
            "moe_intermediate_size": count(), "num_shared_experts": count_or_zero(1),
            "first_k_dense_replace": _FIRST_DENSE, "head_dim": count(128),
        },
        "enable_moe_fp32_combine router_scaling_factor route_norm", qk_norm="head",
        router_bias=True,
    ),
    "hyperclovax": Row(
        ("HyperCLOVAXForCausalLM",), GROUPED_KEYS | _BOTH_BIASES | {"use_post_norm": flag(True)},
        _SCALES,
    ),
    "kolibri1": Row(
        ("Kolibri1ForCausalLM",),
        _NO_WIDTH | _LOCAL_EXPERTS | _WINDOWS | {
            "moe_intermediate_size": count(), "shared_expert_intermediate_size": count(),
        },
        _ROUTING, qk_norm="head", num_norms=4, router_bias=True, period=5,
    ),
    "laguna": Row(
        ("LagunaForCausalLM",),
        STATED_KV_KEYS | _BIAS | _EXPERTS | _WINDOWS | {
            "mlp_layer_types": layer_types("dense", "sparse", required=True),
            "moe_intermediate_size": count(), "shared_expert_intermediate_size": count(),
            "equal_heads": ConfigKey("counts", None, names=("num_attention_heads_per_layer",)),
            "gating": flag(True),
        },
        "moe_apply_router_weight_on_input moe_routed_scaling_factor moe_router_logit_softcapping",
        qk_norm="head", router_bias=True, head_gate=True,
    ),
    "mellum": Row(
        ("MellumForCausalLM",),
        STATED_KV_KEYS | _EXPERTS | _NETWORKS | _WINDOWS | _BIAS | {
            "moe_intermediate_size": count(), "sliding_window": count(1024),
        },
        f"{_ROUTING} num_nextn_predict_layers mtp_layer_types mtp_mlp_layer_types",
        qk_norm="head",
    ),
    "mixtral": Row(
        ("MixtralForCausalLM",),
        STATED_KV_KEYS | _LOCAL_EXPERTS | {"sliding_window": window_or_none()},
    ),
    "muse_glimmer_text": Row(
        ("MuseGlimmerForCausalLM",), STATED_KV_KEYS | _BIAS | _WINDOWS,
        "final_logit_softcapping layer_rope_theta output_multiplier post_norm_eps qk_scale_factor",
        num_norms=4, output_gate=True, period=4,
    ),
    "olmoe": Row(("OlmoeForCausalLM",), _OLMOE, "clip_qkv norm_topk_prob", qk_norm="full"),
    "persimmon": Row(
        ("PersimmonForCausalLM",),
        CORE_KEYS | {
            "intermediate_size": count(), "tie_word_embeddings": flag(False),
            "use_qk_norm": flag(True, names=("qk_layernorm",)),
        },
        norm="layer", gated=False, qk_norm="head", biases=("qkv", "output", "network"),
        vectors=("head_size", "head_size"),
    ),
    "qwen2_5_omni_text": Row(
        (), STATED_KV_KEYS | {"layer_types": layer_types(FULL), "use_sliding_window": flag(False)},
        "max_window_layers sliding_window", biases=("qkv",),
    ),
    "solar_open": Row(
        ("SolarOpenForCausalLM",),
        _NO_WIDTH | _ROUTED | _GROUPS | _BIAS | {
            "n_shared_experts": count_or_zero(1), "use_qk_norm": flag(False),
        },
        f"{_ROUTING} intermediate_size first_k_dense_replace", qk_norm="head", router_bias=True,
    ),
    "unlimited_ocr_text": Row(
        (),
        STATED_KV_KEYS | _BOTH_BIASES | _ROUTED | _GROUPS | _NETWORKS | {
            "n_shared_experts": count_or_none(),
            "layer_types": layer_types("reference_sliding_attention"),
        },
        f"{_ROUTING} topk_method sliding_window first_k_dense_replace",
        notes=("windows round the image are priced as full attention",),
    ),
    "xglm": Row(
        ("XGLMForCausalLM",),
        {
            "hidden_size": count(names=("d_model",)),
            "intermediate_size": count(names=("ffn_dim",)),
            "num_hidden_layers": count(names=("num_layers",), most=MOST_LAYERS),
            "num_attention_heads": count(names=("attention_heads",)), "vocab_size": count(),
            "max_position_embeddings": count_or_none(), **_TIED,
        },
        "scale_embedding", norm="layer", gated=False, biases=("qkv", "output", "network"),
    ),
}  # fmt: skip


def _read(row: Row, fields: Config) -> ModelSpec:
    """Return the model of a row."""
    num_layers = fields.count("num_hidden_layers")
    attentions = _attentions(row, fields, num_layers)
    has_network = _is_on(fields, "mlp_bias", "use_bias") or "network" in row.biases
    is_sparse = _sparse(fields, num_layers)
    experts = _experts(row, fields) if any(is_sparse) else None
    norms = 4 if _is_on(fields, "use_post_norm") else row.num_norms
    rest: dict[str, Any] = {
        "num_norms": norms, "parallel_residual": row.is_parallel, "norms_before": row.norms_before,
        "side": _side(row, fields, attentions[0]),
    }  # fmt: skip
    layers = [
        LayerSpec(attention=attention, experts=experts, **rest)
        if sparse
        else dense_layer(fields, attention, gated=row.gated, bias=has_network, **rest)
        for attention, sparse in zip(attentions, is_sparse, strict=True)
    ]
    positions = 0
    if row.spare_positions is not None:
        positions = fields.count("max_position_embeddings") + row.spare_positions
    return model_of(fields, layers, notes=row.notes, norm=row.norm, learned_positions=positions)


def _is_on(fields: Config, *roles: str) -> bool:
    return any(role in fields.keys and fields.flag(role) for role in roles)


def _attentions(row: Row, fields: Config, num_layers: int) -> list[AttentionSpec]:
    """Return the attention of each layer: with a window in all, in those listed, or by a period."""
    for role, wanted in (("use_sliding_window", False), ("gating", True)):
        if role in fields.keys:
            message = f"{str(not wanted).lower()} is not modelled"
            fields.require(fields.flag(role) is wanted, role, message)
    if "equal_heads" in fields.keys and (heads := fields.listed("equal_heads")) is not None:
        usual = fields.count("num_attention_heads")
        fields.require(set(heads) <= {usual}, "equal_heads", f"differs from {usual} in a layer")
    has_bias = _is_on(fields, "attention_bias", "use_bias")
    has_norm = "use_qk_norm" not in fields.keys or fields.flag("use_qk_norm")
    full = attention_of(
        fields, qkv_bias=has_bias or "qkv" in row.biases,
        output_bias=(has_bias and not row.bias_on_inputs) or "output" in row.biases,
        qk_norm=row.qk_norm if has_norm else "none", sinks=row.sinks, output_gate=row.output_gate,
    )  # fmt: skip
    if "sliding_window" not in fields.keys:
        return [full] * num_layers
    if "layer_types" not in fields.keys:
        window = fields.window("sliding_window")
        return [full.model_copy(update={"window": window})] * num_layers
    return windowed(fields, full, by_period(fields, row.period))


def _sparse(fields: Config, num_layers: int) -> list[bool]:
    """Return the layers with experts: those listed, all but the first ones, all, or none."""
    if "num_experts" not in fields.keys:
        return [False] * num_layers
    listed = fields.listed("mlp_layer_types") if "mlp_layer_types" in fields.keys else None
    if listed is not None:
        return [kind == "sparse" for kind in listed]
    has_first = "first_k_dense_replace" in fields.keys
    first = fields.count("first_k_dense_replace") if has_first else 0
    return [place >= first for place in range(num_layers)]


def _experts(row: Row, fields: Config) -> ExpertSpec:
    """Return the experts; the shared one has a width of its own, or that of several routed ones."""
    fields.finish()
    experts = experts_of(
        fields, router_bias=row.router_bias,
        **(router_groups(fields) if "n_group" in fields.keys else {}),
    )  # fmt: skip
    shared = 0
    for role in ("shared_intermediate_size", "shared_expert_intermediate_size"):
        shared += (fields.count_or_none(role) or 0) if role in fields.keys else 0
    for role in ("num_shared_experts", "n_shared_experts"):
        number = (fields.count_or_none(role) or 0) if role in fields.keys else 0
        shared += number * experts.ffn_size
    return experts.model_copy(update={"shared_ffn_size": shared})


def _side(row: Row, fields: Config, attention: AttentionSpec) -> SideSpec | None:
    """Return the gate of the heads, and further norms of a layer."""
    vectors = sum(
        attention.head_size if role == "head_size" else fields.count(role) for role in row.vectors
    )
    gates = ((fields.count("hidden_size"), attention.num_heads),) if row.head_gate else ()
    return SideSpec(products=gates, num_vector_params=vectors) if vectors or gates else None


def _reader_of(row: Row) -> Reader:
    def read(fields: Config) -> ModelSpec:
        return _read(row, fields)

    return read


for _name, _row in ROWS.items():
    _types = {"model_types": _row.model_types} if _row.model_types else {}
    family(_name, *_row.architectures, keys=_row.keys, harmless=_row.harmless, **_types)(
        _reader_of(_row)
    )
