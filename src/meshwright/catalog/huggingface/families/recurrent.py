"""Families with recurrent layers.

Mamba 2, Bamba, Granite 4, Falcon-H1, Nemotron-H, LFM2, Qwen3-Next and 3.5, OLMo Hybrid.

Source: the configuration and model classes of Hugging Face transformers (``Mamba2Config`` and
``Mamba2Mixer``, ``NemotronHConfig``, ``Qwen3NextGatedDeltaNet``, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshwright.catalog.huggingface.families.llama import (
    GRANITE_MOE_KEYS,
    GRANITE_SCALES,
    QWEN_MOE_KEYS,
    VISION,
    with_qwen_experts,
)
from meshwright.catalog.huggingface.family import (
    DELTA_CHUNK,
    GROUPED_KEYS,
    MOST_LAYERS,
    STATED_KV_KEYS,
    Config,
    ConfigKey,
    Rule,
    attention_of,
    count,
    count_or_none,
    count_or_zero,
    counts_or_none,
    dense_layer,
    experts_of,
    family,
    flag,
    layer_types,
    model_of,
    num_experts,
    text,
)
from meshwright.spec.model import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
)

_AMONG_EXPERTS: Rule = ("at_most", "num_experts")
_TIME_STEPS: Final = "time_step_limit time_step_rank time_step_min time_step_max time_step_floor"
"""Fields of the limits and initial values of time steps."""
_RECURRENT: Final = ("linear_attention", "mamba")
_FULL: Final = ("full_attention", "attention")
"""Names of the two kinds of layers, and their former names."""

_MAMBA_KEYS: dict[str, ConfigKey] = {
    "mamba_heads": count(names=("mamba_n_heads",)),
    "mamba_head_size": ConfigKey("anything", "auto", names=("mamba_d_head",)),
    "state_size": count(256, names=("mamba_d_state",)),
    "state_groups": count(1, names=("mamba_n_groups",), rule=("divides", "mamba_heads")),
    "conv_size": count(4, names=("mamba_d_conv",)),
    "chunk_size": count(256, names=("mamba_chunk_size",)),
    "mamba_expand": count(2),
    "mamba_proj_bias": flag(False),
    "mamba_conv_bias": flag(True),
}
"""Fields of Mamba layers beside others, with the defaults of Bamba and Granite 4."""


def _mamba_of(
    fields: Config, *, bias: str, conv_bias: str, inner: int | None = None
) -> RecurrenceSpec:
    """Return a Mamba 2 layer; raises all faults recorded before.

    Parameters
    ----------
    bias, conv_bias
        Names of the fields that state the biases.
    inner
        Width of all heads, where it is not a multiple of the hidden size.
    """
    fields.finish()
    heads, size = fields.count("mamba_heads"), fields.value("mamba_head_size")
    if "mamba_expand" in fields.keys:
        inner = inner or fields.count("mamba_expand") * fields.count("hidden_size")
        size = inner // heads if size == "auto" else size
        whole = f"{fields.stated('mamba_expand')} x hidden_size {inner}"
        message = f"{size} x {fields.stated('mamba_heads')} {heads} is not {whole}"
        is_whole = type(size) is int and size * heads == inner
        fields.require(is_whole, "mamba_head_size", message)
        fields.finish()
    return RecurrenceSpec(
        kind="mamba2",
        num_heads=heads,
        head_size=size,
        num_groups=fields.count("state_groups"),
        state_size=fields.count("state_size"),
        conv_size=fields.count("conv_size"),
        chunk_size=fields.count("chunk_size"),
        bias=fields.flag(bias),
        conv_bias=fields.flag(conv_bias),
    )


@family(
    "mamba2",
    "Mamba2ForCausalLM",
    keys={
        "hidden_size": count(),
        "num_hidden_layers": count(most=MOST_LAYERS),
        "vocab_size": count(),
        "mamba_heads": count(names=("num_heads",)),
        "mamba_head_size": count(names=("head_dim",)),
        "state_size": count(128),
        "state_groups": count(8, names=("n_groups",), rule=("divides", "mamba_heads")),
        "conv_size": count(4, names=("conv_kernel",)),
        "chunk_size": count(256),
        "mamba_expand": count(2, names=("expand",)),
        "use_bias": flag(False),
        "use_conv_bias": flag(True),
        "tie_word_embeddings": flag(False),
    },
    harmless=f"""
        {_TIME_STEPS} intermediate_size residual_in_fp32 rescale_prenorm_residual rms_norm
        norm_before_gate
        """,
)
def read_mamba2(fields: Config) -> ModelSpec:
    """Return Mamba 2: state spaces alone, one norm in each layer."""
    mixer = _mamba_of(fields, bias="use_bias", conv_bias="use_conv_bias")
    return model_of(fields, LayerSpec(recurrence=mixer, num_norms=1))


@family(
    "bamba",
    "BambaForCausalLM",
    keys=STATED_KV_KEYS
    | _MAMBA_KEYS
    | {
        "attn_layer_indices": counts_or_none(),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
    },
    harmless=f"{_TIME_STEPS} num_logits_to_keep z_loss_coefficient attn_rotary_emb",
)
def read_bamba(fields: Config) -> ModelSpec:
    """Return Bamba: attention in the layers that are listed, Mamba in all others."""
    mixer = _mamba_of(fields, bias="mamba_proj_bias", conv_bias="mamba_conv_bias")
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    bias, listed = fields.flag("mlp_bias"), set(fields.listed("attn_layer_indices") or ())
    full = dense_layer(fields, attention, bias=bias)
    state_space = dense_layer(fields, None, recurrence=mixer, bias=bias)
    num_layers = fields.count("num_hidden_layers")
    message = f"names layer {max(listed, default=0)}, but there are {num_layers} from 0"
    fields.require(all(n < num_layers for n in listed), "attn_layer_indices", message)
    layers = [full if place in listed else state_space for place in range(num_layers)]
    return model_of(fields, layers)


@family(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    keys=GRANITE_MOE_KEYS
    | _MAMBA_KEYS
    | {
        "mamba_heads": count(128, names=("mamba_n_heads",)),
        "num_experts": count_or_zero(names=("num_local_experts",)),
        "num_experts_per_tok": count_or_zero(rule=_AMONG_EXPERTS),
        "shared_intermediate_size": count(),
        "layer_types": layer_types(*_RECURRENT, *_FULL),
        "position_embedding_type": ConfigKey("text", None, nullable=True, allowed=("rope", "nope")),
    },
    harmless=f"{GRANITE_SCALES} {_TIME_STEPS} normalization_function init_method logits_to_keep",
)
def read_granite4(fields: Config) -> ModelSpec:
    """Return Granite 4: attention or Mamba in each layer, then experts and a shared network.

    The shared network is the only one without experts. ``layer_types`` absent: Mamba in all. Sizes
    of Mamba matter only where there is any; heads of Mamba need not fit otherwise.
    """
    num_layers = fields.count("num_hidden_layers")
    kinds = fields.listed("layer_types") or [_RECURRENT[0]] * num_layers
    if fields.count("num_experts"):
        fields.require(
            fields.count("num_experts_per_tok") > 0,
            "num_experts_per_tok",
            f"none of num_local_experts {fields.count('num_experts')}",
        )
    has_rotary = fields.value("position_embedding_type") == "rope"
    attention = attention_of(fields, bias=fields.flag("attention_bias"), rotary=has_rotary)
    width = fields.count("shared_intermediate_size")
    full = state_space = dense_layer(fields, attention, ffn_size=width)
    if fields.count("num_experts"):
        experts = experts_of(fields, shared_ffn_size=width)
        full = state_space = LayerSpec(attention=attention, experts=experts)
    if any(kind in _RECURRENT for kind in kinds):
        mixer = _mamba_of(fields, bias="mamba_proj_bias", conv_bias="mamba_conv_bias")
        state_space = full.model_copy(update={"attention": None, "recurrence": mixer})
    return model_of(fields, [state_space if kind in _RECURRENT else full for kind in kinds])


@family(
    "falcon_h1",
    "FalconH1ForCausalLM",
    keys=GROUPED_KEYS
    | _MAMBA_KEYS
    | {
        "mamba_heads": count(128, names=("mamba_n_heads",)),
        "mamba_inner": count_or_none(default=1024, names=("mamba_d_ssm",)),
        "mamba_rms_norm": flag(False),
        "projectors_bias": flag(False),
        "attention_bias": flag(False),
        "mlp_bias": flag(False),
    },
    harmless=f"{_TIME_STEPS} mamba_norm_before_gate mamba_use_mlp num_logits_to_keep "
    "key_multiplier attention_in_multiplier attention_out_multiplier embedding_multiplier "
    "lm_head_multiplier "
    "mlp_multipliers ssm_in_multiplier ssm_multipliers ssm_out_multiplier mlp_expansion_factor",
)
def read_falcon_h1(fields: Config) -> ModelSpec:
    """Return Falcon-H1: attention and Mamba 2 side by side in each layer, on the same input."""
    wrong = fields.flag("projectors_bias") != fields.flag("mamba_proj_bias")
    fields.require(not wrong, "projectors_bias", "differs from mamba_proj_bias, not modelled")
    inner = fields.count_or_none("mamba_inner")
    mixer = _mamba_of(fields, bias="mamba_proj_bias", conv_bias="mamba_conv_bias", inner=inner)
    mixer = mixer.model_copy(update={"output_norm": fields.flag("mamba_rms_norm")})
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    layer = dense_layer(fields, attention, recurrence=mixer, bias=fields.flag("mlp_bias"))
    return model_of(fields, layer)


_LFM_KEYS = STATED_KV_KEYS | {
    "conv_L_cache": count(3),
    "conv_bias": flag(False),
    "tie_word_embeddings": flag(True, names=("tie_word_embeddings", "tie_embedding")),
    "layer_types": layer_types("full_attention", "conv"),
    "full_attn_idxs": counts_or_none(),
}


@family(
    "lfm2",
    "Lfm2ForCausalLM",
    keys=_LFM_KEYS
    | {
        "intermediate_size": count(names=("block_ff_dim", "intermediate_size")),
        "block_multiple_of": count(256),
        "block_ffn_dim_multiplier": ConfigKey("anything", 1.0),
        "block_auto_adjust_ff_dim": flag(True),
    },
    harmless="block_dim conv_dim conv_dim_out conv_use_xavier_init block_mlp_init_scale "
    "block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init use_pos_enc "
    "num_heads theta",
)
def read_lfm2(fields: Config) -> ModelSpec:
    """Return LFM2: short convolutions in most layers; inner widths are rounded up.

    Two thirds of the stated width, times a factor, to the next multiple. Source: ``Lfm2MLP``.
    """
    fields.finish()
    width, step = fields.count("intermediate_size"), fields.count("block_multiple_of")
    if fields.flag("block_auto_adjust_ff_dim"):
        width = 2 * width // 3
        if (factor := fields.value("block_ffn_dim_multiplier")) is not None:
            message = f"found {factor!r}; expected a positive number"
            is_number = type(factor) in (int, float) and factor > 0
            fields.require(is_number, "block_ffn_dim_multiplier", message)
            fields.finish()
            width = -(-int(factor * width) // step) * step
    layers = [
        dense_layer(fields, attention, recurrence=conv, ffn_size=width)
        for attention, conv in _lfm_mixers(fields)
    ]
    return model_of(fields, layers)


@family(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    keys=_LFM_KEYS
    | {
        "num_experts": num_experts(),
        "num_experts_per_tok": count(rule=_AMONG_EXPERTS),
        "moe_intermediate_size": count(),
        "num_dense_layers": count_or_zero(2, rule=("at_most", "num_hidden_layers")),
        "use_expert_bias": flag(True),
    },
    harmless="norm_topk_prob routed_scaling_factor",
)
def read_lfm2_moe(fields: Config) -> ModelSpec:
    """Return LFM2 with experts: dense networks in the first layers alone."""
    mixers, first = _lfm_mixers(fields), fields.count("num_dense_layers")
    experts = experts_of(fields, router_bias=fields.flag("use_expert_bias"))
    layers = [
        dense_layer(fields, attention, recurrence=conv)
        if place < first
        else LayerSpec(attention=attention, recurrence=conv, experts=experts)
        for place, (attention, conv) in enumerate(mixers)
    ]
    return model_of(fields, layers)


def _lfm_mixers(fields: Config) -> list[tuple[AttentionSpec | None, RecurrenceSpec | None]]:
    """Return the attention or the short convolution of each layer."""
    attention, hidden = attention_of(fields, qk_norm="head"), fields.count("hidden_size")
    bias, num_layers = fields.flag("conv_bias"), fields.count("num_hidden_layers")
    conv = RecurrenceSpec(
        kind="short_conv", num_heads=hidden, head_size=1, num_groups=hidden, state_size=1,
        conv_size=fields.count("conv_L_cache"), chunk_size=1, bias=bias, conv_bias=bias,
    )  # fmt: skip
    listed = fields.listed("full_attn_idxs")
    full = range(num_layers) if listed is None else listed
    kinds = fields.listed("layer_types") or [
        "full_attention" if place in full else "conv" for place in range(num_layers)
    ]
    return [(None, conv) if kind == "conv" else (attention, None) for kind in kinds]


_BRANCHES: Final[Mapping[str, str]] = {
    "M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe",
}  # fmt: skip
"""Letters of ``hybrid_override_pattern``."""


@family(
    "nemotron_h",
    "NemotronHForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "num_hidden_layers": count_or_none(most=MOST_LAYERS),
        "head_dim": count(128, names=("head_dim", "attention_head_dim")),
        "hybrid_override_pattern": ConfigKey("text", None, nullable=True),
        "layers_block_type": ConfigKey(
            "texts", None, nullable=True, allowed=(*_BRANCHES.values(), "mamba", "attention"),
            names=("layers_block_type", "layer_types"),
        ),
        "mamba_heads": count(128, names=("mamba_num_heads",)),
        "mamba_head_size": count(64, names=("mamba_head_dim",)),
        "state_size": count(128, names=("ssm_state_size",)),
        "state_groups": count(
            8, names=("n_groups", "mamba_n_groups"), rule=("divides", "mamba_heads")
        ),
        "conv_size": count(4, names=("conv_kernel", "mamba_d_conv")),
        "chunk_size": count(128, names=("chunk_size", "mamba_chunk_size")),
        "use_bias": flag(False),
        "use_conv_bias": flag(True, names=("use_conv_bias", "mamba_conv_bias")),
        "num_experts": num_experts("n_routed_experts", default=8),
        "num_experts_per_tok": count(2, rule=_AMONG_EXPERTS),
        "moe_intermediate_size": count(7688),
        "moe_shared_expert_intermediate_size": count(7688),
        "n_group": count(1),
        "topk_group": count(1),
        "num_nextn_predict_layers": count_or_zero(0),
        "mlp_hidden_act": text("relu2", default="relu2"),
        "moe_latent_size": count_or_none(),
    },
    harmless=f"""
        {_TIME_STEPS} expand mamba_proj_bias mamba_hidden_act mamba_ssm_cache_dtype rms_norm_eps
        norm_topk_prob routed_scaling_factor n_shared_experts moe_shared_expert_overlap
        num_logits_to_keep residual_in_fp32 rescale_prenorm_residual mtp_layers_block_type
        mtp_hybrid_override_pattern mamba_expand mamba_dt_min mamba_dt_max mamba_dt_limit
        mamba_dt_init_floor
        """,
)  # fmt: skip
def read_nemotron_h(fields: Config) -> ModelSpec:
    """Return Nemotron-H: each layer is one branch (Mamba, attention, network or experts).

    ``layers_block_type`` lists them, or ``hybrid_override_pattern`` has a letter for each: M, *, -
    and E. Attention has no positions; networks square positive values, without a gate.
    """
    pattern, listed = fields.value("hybrid_override_pattern"), fields.listed("layers_block_type")
    fields.require(
        bool(pattern or listed), "hybrid_override_pattern", "missing, and layers_block_type too"
    )
    for role in ("num_nextn_predict_layers", "moe_latent_size"):
        fields.require(not fields.value(role), role, f"{fields.value(role)} is not modelled")
    wrong = sorted(set(pattern or "") - set(_BRANCHES))
    known = f"one of {' '.join(_BRANCHES)} for each layer"
    fields.require(not wrong, "hybrid_override_pattern", f"has {wrong[:1]}", known)
    fields.finish()
    kinds = listed or [_BRANCHES[letter] for letter in pattern]
    stated = fields.count_or_none("num_hidden_layers")
    message = f"{stated}, but {len(kinds)} layers are listed"
    fields.require(stated in (None, len(kinds)), "num_hidden_layers", message)
    mixer = _mamba_of(fields, bias="use_bias", conv_bias="use_conv_bias")
    attention = attention_of(fields, rotary=False)
    shared = fields.count("moe_shared_expert_intermediate_size")
    experts = experts_of(
        fields, gated=False, router_bias=True, shared_ffn_size=shared,
        num_groups=fields.count("n_group"), top_groups=fields.count("topk_group"),
    )  # fmt: skip
    network = FeedForwardSpec(ffn_size=fields.count("intermediate_size"), gated=False)
    layers = {
        "linear_attention": LayerSpec(recurrence=mixer, num_norms=1),
        "full_attention": LayerSpec(attention=attention, num_norms=1),
        "mlp": LayerSpec(feed_forward=network, num_norms=1),
        "moe": LayerSpec(experts=experts, num_norms=1),
    }
    layers |= {"mamba": layers["linear_attention"], "attention": layers["full_attention"]}
    notes = ["the correction bias of the router (one number for each expert) is counted"]
    if "moe" not in kinds:
        notes = []
        fields.forget_defaults(_OF_EXPERTS)
    return model_of(fields, [layers[kind] for kind in kinds], notes=notes)


_OF_EXPERTS: Final = (
    "num_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size",
    "moe_shared_expert_intermediate_size", "n_group", "topk_group",
)  # fmt: skip
"""Fields that matter only where there are layers of experts."""


_DELTA_KEYS: dict[str, ConfigKey] = {
    "layer_types": layer_types("linear_attention", "full_attention"),
    "attention_bias": flag(False),
    "linear_conv_kernel_dim": count(4),
    "linear_key_head_dim": count(128),
    "linear_value_head_dim": count(128),
    "linear_num_key_heads": count(16, rule=("divides", "linear_num_value_heads")),
    "linear_num_value_heads": count(32),
}
_QWEN3_5_KEYS = (
    STATED_KV_KEYS | _DELTA_KEYS | {"head_dim": count(256), "full_attention_interval": count(4)}
)
_QWEN3_5_HARMLESS = """
    attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings
    """


@family(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    keys={role: key for role, key in QWEN_MOE_KEYS.items() if "window" not in role}
    | _DELTA_KEYS
    | {
        "head_dim": count(256),
        "num_experts": num_experts(default=512),
        "num_experts_per_tok": count(10, rule=_AMONG_EXPERTS),
        "shared_expert_intermediate_size": count(512),
        "full_attention_interval": count(4),
    },
    harmless="norm_topk_prob use_sliding_window max_window_layers",
)
@family(
    "qwen3_5",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    model_types=("qwen3_5_text",),
    nested_types=("qwen3_5",),
    keys=_QWEN3_5_KEYS,
    harmless=_QWEN3_5_HARMLESS,
    outer_harmless=VISION,
)
@family(
    "qwen3_5_moe",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    model_types=("qwen3_5_moe_text",),
    nested_types=("qwen3_5_moe",),
    keys={role: key for role, key in _QWEN3_5_KEYS.items() if role != "intermediate_size"}
    | {
        "num_experts": num_experts(default=256),
        "num_experts_per_tok": count(8, rule=_AMONG_EXPERTS),
        "moe_intermediate_size": count(512),
        "shared_expert_intermediate_size": count(512),
    },
    harmless=f"{_QWEN3_5_HARMLESS} norm_topk_prob",
    outer_harmless=VISION,
)
def read_qwen3_next(fields: Config) -> ModelSpec:
    """Return Qwen3-Next or 3.5: the gated delta rule, and gated attention in each fourth layer.

    Source of values that the configuration leaves out: the chunk is that of the kernels.
    """
    bias, num_layers = fields.flag("attention_bias"), fields.count("num_hidden_layers")
    attention = attention_of(fields, bias=bias, qk_norm="head", output_gate=True)
    recurrence = _delta_rule_of(fields)
    interval = fields.count("full_attention_interval")
    kinds = fields.listed("layer_types") or [
        "linear_attention" if (place + 1) % interval else "full_attention"
        for place in range(num_layers)
    ]
    full = linear = dense_layer(fields, attention)
    if "num_experts" in fields.keys and "decoder_sparse_step" not in fields.keys:
        shared = fields.count("shared_expert_intermediate_size")
        experts = experts_of(fields, shared_ffn_size=shared, shared_gate=True)
        full = LayerSpec(attention=attention, experts=experts)
    linear = full.model_copy(update={"attention": None, "recurrence": recurrence})
    layers = [linear if kind == "linear_attention" else full for kind in kinds]
    if "decoder_sparse_step" in fields.keys:
        layers = with_qwen_experts(fields, layers)
    notes = ["layers for multi-token prediction of the checkpoint are not counted"]
    return model_of(fields, layers, notes=notes)


def _delta_rule_of(fields: Config) -> RecurrenceSpec:
    """Return a layer of the gated delta rule."""
    return RecurrenceSpec(
        kind="gated_delta",
        num_heads=fields.count("linear_num_value_heads"),
        head_size=fields.count("linear_value_head_dim"),
        num_groups=fields.count("linear_num_key_heads"),
        state_size=fields.count("linear_key_head_dim"),
        conv_size=fields.count("linear_conv_kernel_dim"),
        chunk_size=DELTA_CHUNK,
    )


@family(
    "olmo_hybrid",
    "OlmoHybridForCausalLM",
    keys=GROUPED_KEYS
    | _DELTA_KEYS
    | {"layer_types": layer_types("linear_attention", "full_attention", required=True)},
    harmless="""
        linear_a_log_min linear_a_log_max linear_dt_min linear_dt_max linear_dt_init_floor
        linear_allow_neg_eigval
        """,
)
def read_olmo_hybrid(fields: Config) -> ModelSpec:
    """Return OLMo Hybrid: the gated delta rule, with norms before; attention as in OLMo 2."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="full")
    full = dense_layer(fields, attention, norms_before=False)
    linear = dense_layer(fields, None, recurrence=_delta_rule_of(fields))
    kinds = fields.listed("layer_types") or ()
    return model_of(fields, [linear if kind == "linear_attention" else full for kind in kinds])
