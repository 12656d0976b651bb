"""Families of experts beside grouped attention with RMSNorm, one after the other.

MiniMax-M2, ERNIE 4.5, EXAONE, Hunyuan, Mellum, AFM and Solar Open.

Source: the configuration and model classes of Hugging Face transformers (``MiniMaxM2Config`` and
``MiniMaxM2SparseMoeBlock``, ...).
"""

from __future__ import annotations

from meshwright.catalog.huggingface.families.mixed import PATTERN, exaone_windows
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
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec

_NETWORKS = layer_types("dense", "sparse")
_ROUTING = "norm_topk_prob routed_scaling_factor scoring_func"


@family(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    keys=STATED_KV_KEYS
    | {
        **expert_keys("num_local_experts"),
        "use_qk_norm": flag(True),
        "use_routing_bias": flag(True),
        "shared_intermediate_size": count_or_zero(0),
    },
    harmless="""
        attn_type_list layernorm_full_attention_beta layernorm_linear_attention_beta
        layernorm_mlp_beta mlp_intermediate_size mtp_transformer_layers num_mtp_modules use_mtp
        qk_norm_type scoring_func shared_moe_mode rotary_dim
        """,
)
def read_minimax_m2(fields: Config) -> ModelSpec:
    """Return MiniMax-M2: norms over all heads, experts in each layer."""
    norm = "full" if fields.flag("use_qk_norm") else "none"
    bias, shared = fields.flag("use_routing_bias"), fields.count("shared_intermediate_size")
    experts = experts_of(fields, router_bias=bias, shared_ffn_size=shared)
    layer = LayerSpec(attention=attention_of(fields, qk_norm=norm), experts=experts)
    notes = ["layers for multi-token prediction of the checkpoint are not counted"]
    return model_of(fields, layer, notes=notes)


@family(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    "Ernie4_5_MoEForCausalLM",
    keys=STATED_KV_KEYS
    | {
        **expert_keys("moe_num_experts", chosen=("moe_k", "num_experts_per_tok")),
        "moe_intermediate_size": count(),
        "moe_num_shared_experts": count_or_zero(0),
        "moe_layer_start_index": count_or_zero(0),
        "moe_layer_end_index": ConfigKey("index", -1),
        "moe_layer_interval": count(1),
        "use_bias": flag(False),
        "tie_word_embeddings": flag(True),
    },
    harmless="moe_norm_min moe_capacity moe_gate moe_use_aux_free num_nextn_predict_layers",
)
def read_ernie_moe(fields: Config) -> ModelSpec:
    """Return ERNIE 4.5 with experts from one layer to another, at each interval."""
    bias, num_layers = fields.flag("use_bias"), fields.count("num_hidden_layers")
    last = fields.value("moe_layer_end_index")
    message = f"{last}, but there are {num_layers} layers from 0"
    fields.require(last < num_layers, "moe_layer_end_index", message)
    attention = attention_of(fields, bias=bias)
    shared = fields.count("moe_num_shared_experts") * fields.count("moe_intermediate_size")
    experts = experts_of(fields, router_bias=True, shared_ffn_size=shared, bias=bias)
    first, step = fields.count("moe_layer_start_index"), fields.count("moe_layer_interval")
    end = num_layers - 1 if last == -1 else last
    return _model(
        fields, [attention] * num_layers, experts,
        [first <= n <= end and (n + 1) % step == 0 for n in range(num_layers)],
        bias=bias,
    )  # fmt: skip


@family(
    "exaone_moe",
    "ExaoneMoeForCausalLM",
    keys=GROUPED_KEYS
    | {
        **expert_keys(),
        "moe_intermediate_size": count(),
        "num_shared_experts": count_or_zero(1),
        "first_k_dense_replace": count_or_zero(1, rule=("at_most", "num_hidden_layers")),
        "mlp_layer_types": _NETWORKS,
        "n_group": count_or_none(),
        "topk_group": count_or_none(),
        "layer_types": layer_types(FULL, SLIDING),
        "sliding_window": window_or_none(default=4096),
        "sliding_window_pattern": PATTERN,
    },
    harmless=f"{_ROUTING} num_nextn_predict_layers",
)
def read_exaone_moe(fields: Config) -> ModelSpec:
    """Return EXAONE with experts: windows as in EXAONE 4, norms before the branches."""
    attentions = exaone_windows(fields, attention_of(fields, qk_norm="head"))
    shared = fields.count("num_shared_experts") * fields.count("moe_intermediate_size")
    experts = experts_of(fields, router_bias=True, shared_ffn_size=shared, **router_groups(fields))
    first = fields.count("first_k_dense_replace")
    return _model(fields, attentions, experts, [n >= first for n in range(len(attentions))])


@family(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    keys=GROUPED_KEYS
    | {
        **expert_keys(),
        "num_experts_per_tok": ConfigKey("anything", names=("moe_topk", "num_experts_per_tok")),
        "moe_intermediate_size": ConfigKey("anything", None),
        "num_shared_expert": ConfigKey("anything", 1),
        "attention_bias": flag(False),
        "use_mixed_mlp_moe": flag(True),
        "use_qk_norm": flag(True),
        "use_cla": flag(False),
    },
    harmless="eod_token_id mlp_bias norm_type use_rotary_pos_emb cla_share_factor moe_drop_tokens "
    "moe_random_routing_dropped_token moe_layer_num_skipped capacity_factor norm_topk_prob "
    "router_aux_loss_coef org_vocab_size num_media_embeds position_embedding_xdrope",
)
def read_hunyuan_moe(fields: Config) -> ModelSpec:
    """Return Hunyuan with experts in each layer: the shared one is as wide as a routed one.

    Some numbers may be listed by layer: all have to be equal. Keys shared by layers are refused.
    """
    equal: dict[str, int] = {}
    for role, usual in (
        ("num_experts_per_tok", 1), ("moe_intermediate_size", fields.value("intermediate_size")),
        ("num_shared_expert", 1),
    ):  # fmt: skip
        stated = fields.value(role)
        values = stated if isinstance(stated, list) else [usual if stated is None else stated]
        are_equal = set(map(type, values)) == {int} and len(set(values)) == 1 and values[0] > 0
        fields.require(are_equal, role, f"found {values}; expected one positive number")
        equal[role] = values[0]
    fields.require(not fields.flag("use_cla"), "use_cla", "true is not modelled")
    fields.require(fields.flag("use_mixed_mlp_moe"), "use_mixed_mlp_moe", "false is not modelled")
    attention = attention_of(
        fields, bias=fields.flag("attention_bias"),
        qk_norm="head" if fields.flag("use_qk_norm") else "none",
    )  # fmt: skip
    width = equal["moe_intermediate_size"]
    experts = ExpertSpec(
        num_experts=fields.count("num_experts"), top_k=equal["num_experts_per_tok"],
        ffn_size=width, shared_ffn_size=width * equal["num_shared_expert"],
    )  # fmt: skip
    return model_of(fields, LayerSpec(attention=attention, experts=experts))


@family(
    "afmoe",
    "AfmoeForCausalLM",
    keys=STATED_KV_KEYS
    | {
        **expert_keys(),
        "moe_intermediate_size": count(),
        "num_shared_experts": count_or_zero(2),
        "num_dense_layers": count_or_zero(1, rule=("at_most", "num_hidden_layers")),
        "global_attn_every_n_layers": count(4),
        "layer_types": layer_types(FULL, SLIDING),
        "sliding_window": count(1024),
        "attention_bias": flag(False),
        "n_group": count_or_none(),
        "topk_group": count_or_none(),
    },
    harmless=f"{_ROUTING} route_scale route_norm score_func mup_enabled load_balance_coeff "
    "num_expert_groups num_limited_groups use_grouped_mm",
)
def read_afmoe(fields: Config) -> ModelSpec:
    """Return AFM (Trinity): gated attention, four norms, first layers dense."""
    bias, num_layers = fields.flag("attention_bias"), fields.count("num_hidden_layers")
    full = attention_of(fields, bias=bias, qk_norm="head", output_gate=True)
    period, first = fields.count("global_attn_every_n_layers"), fields.count("num_dense_layers")
    shared = fields.count("num_shared_experts") * fields.count("moe_intermediate_size")
    experts = experts_of(fields, router_bias=True, shared_ffn_size=shared)
    sparse = [n >= first for n in range(num_layers)]
    attentions = windowed(fields, full, by_period(fields, period))
    return _model(fields, attentions, experts, sparse, num_norms=4)


def _model(
    fields: Config, attentions: list[AttentionSpec], experts: ExpertSpec, has_experts: list[bool],
    *, num_norms: int = 2, bias: bool = False,
) -> ModelSpec:  # fmt: skip
    """Return the model of layers with experts or a dense network; a stated list of them leads."""
    stated = fields.listed("mlp_layer_types") if "mlp_layer_types" in fields.keys else None
    if stated is not None:
        has_experts = [kind == "sparse" for kind in stated]
    layers = [
        LayerSpec(attention=attention, experts=experts, num_norms=num_norms)
        if is_sparse
        else dense_layer(fields, attention, num_norms=num_norms, bias=bias)
        for attention, is_sparse in zip(attentions, has_experts, strict=True)
    ]
    return model_of(fields, layers)
