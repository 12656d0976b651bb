"""GPT-2 and its relatives with LayerNorm, or with networks that have no gate.

GPT-NeoX, OPT, BLOOM, MPT, Falcon, Megatron's GPT; GPT-J, CodeGen, GPT BigCode, Phi, Phi-3.5 with
experts, StableLM, StarCoder 2, Jais 2, Nemotron, Command, Arcee and Apertus.

Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``GPT2Config`` and ``GPT2LMHeadModel``, ...).
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    CORE_KEYS,
    FULL,
    GROUPED_KEYS,
    MOST_LAYERS,
    REQUIRED,
    SLIDING,
    STATED_KV_KEYS,
    Config,
    ConfigKey,
    attention_of,
    by_period,
    count,
    count_or_none,
    dense_layer,
    expert_keys,
    experts_of,
    family,
    flag,
    layer_types,
    model_of,
    text,
    window_or_none,
    windowed,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec

_GPT_KEYS = {
    "hidden_size": count(names=("n_embd", "hidden_size")),
    "num_hidden_layers": count(names=("n_layer", "num_hidden_layers"), most=MOST_LAYERS),
    "num_attention_heads": count(names=("n_head", "num_attention_heads")),
    "max_position_embeddings": count(names=("n_positions", "max_position_embeddings")),
    "intermediate_size": count_or_none(names=("n_inner",)),
    "vocab_size": count(),
    "tie_word_embeddings": flag(True),
}
_SUMMARY = """
    n_ctx summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj gradient_checkpointing scale_attn_weights
    """


@family(
    "gpt_bigcode",
    "GPTBigCodeForCausalLM",
    keys=_GPT_KEYS | {"multi_query": flag(True)},
    harmless=f"{_SUMMARY} attention_softmax_in_fp32 scale_attention_softmax_in_fp32 "
    "num_key_value_heads inference_runner validate_runner_input max_batch_size max_sequence_length "
    "pre_allocate_kv_cache pad_key_length attn_implementation",
)
@family(
    "gpt2",
    "GPT2LMHeadModel",
    keys=_GPT_KEYS,
    harmless=f"{_SUMMARY} scale_attn_by_inverse_layer_idx reorder_and_upcast_attn",
)
def read_gpt2(fields: Config) -> ModelSpec:
    """Return GPT-2: multi-head attention, learned positions, biases everywhere, tied head.

    SantaCoder and StarCoder have one key and value head.
    """
    has_one = "multi_query" in fields.keys and fields.flag("multi_query")
    attention = attention_of(fields, kv_heads=1 if has_one else None, bias=True)
    return model_of(
        fields,
        dense_layer(fields, attention, gated=False, bias=True),
        norm="layer",
        learned_positions=fields.count("max_position_embeddings"),
    )


@family(
    "gpt_neox",
    "GPTNeoXForCausalLM",
    keys=CORE_KEYS
    | {
        "intermediate_size": count(),
        "attention_bias": flag(True),
        "use_parallel_residual": flag(True),
        "tie_word_embeddings": flag(False),
    },
    harmless="attention_probs_dropout_prob",
)
def read_gpt_neox(fields: Config) -> ModelSpec:
    """Return GPT-NeoX or Pythia: rotary, both branches in parallel, separate head.

    ``attention_bias`` covers the projections in and out.
    """
    bias, is_parallel = fields.flag("attention_bias"), fields.flag("use_parallel_residual")
    attention = attention_of(fields, bias=bias)
    layer = dense_layer(fields, attention, gated=False, bias=True, parallel_residual=is_parallel)
    return model_of(fields, layer, norm="layer")


@family(
    "bloom",
    "BloomForCausalLM",
    "BloomModel",
    keys={
        "hidden_size": count(names=("hidden_size", "n_embed")),
        "num_hidden_layers": count(names=("n_layer", "num_hidden_layers"), most=MOST_LAYERS),
        "num_attention_heads": count(names=("n_head", "num_attention_heads")),
        "vocab_size": count(),
        "max_position_embeddings": count_or_none(names=("seq_length",)),
        "tie_word_embeddings": flag(True),
    },
    harmless="""
        apply_residual_connection_post_layernorm slow_but_exact attention_softmax_in_fp32
        masked_softmax_fusion bias_dropout_fusion skip_bias_add skip_bias_add_qkv offset_alibi
        """,
)
def read_bloom(fields: Config) -> ModelSpec:
    """Return BLOOM: multi-head attention with ALiBi, a norm after the embedding, tied head.

    The feed-forward is always four times as wide as the hidden size.
    """
    attention = attention_of(fields, bias=True)
    layer = dense_layer(fields, attention, gated=False, bias=True)
    return model_of(fields, layer, norm="layer", embedding_norm=True)


@family(
    "codegen",
    "CodeGenForCausalLM",
    keys=_GPT_KEYS | {"tie_word_embeddings": flag(False)},
    harmless=_SUMMARY,
)
@family(
    "gptj",
    "GPTJForCausalLM",
    keys=_GPT_KEYS | {"tie_word_embeddings": flag(False)},
    harmless=_SUMMARY,
)
def read_gptj(fields: Config) -> ModelSpec:
    """Return GPT-J or CodeGen: parallel branches with one norm, biases in the network and head."""
    layer = _one_norm(fields, attention_of(fields))
    return model_of(fields, layer, norm="layer", head_bias=True)


def _one_norm(fields: Config, attention: AttentionSpec) -> LayerSpec:
    """Return a layer whose branches share a norm; the network has biases."""
    return dense_layer(
        fields, attention, gated=False, bias=True, num_norms=1, parallel_residual=True
    )


@family("phi", "PhiForCausalLM", keys=GROUPED_KEYS)
def read_phi(fields: Config) -> ModelSpec:
    """Return Phi-1 to 2: parallel branches with one norm, biases everywhere, in the head too."""
    layer = _one_norm(fields, attention_of(fields, bias=True))
    return model_of(fields, layer, norm="layer", head_bias=True)


@family(
    "phimoe",
    "PhimoeForCausalLM",
    "PhiMoEForCausalLM",
    keys=STATED_KV_KEYS
    | {
        **expert_keys("num_local_experts"),
        "attention_bias": flag(False),
        "lm_head_bias": flag(False),
        "sliding_window": window_or_none(),
    },
    harmless="input_jitter_noise",
)
def read_phimoe(fields: Config) -> ModelSpec:
    """Return Phi-3.5 with experts in each layer: LayerNorm and gated experts."""
    bias, window = fields.flag("attention_bias"), fields.window("sliding_window")
    attention = attention_of(fields, bias=bias, window=window)
    layer = LayerSpec(attention=attention, experts=experts_of(fields))
    return model_of(fields, layer, norm="layer", head_bias=fields.flag("lm_head_bias"))


@family(
    "stablelm",
    "StableLmForCausalLM",
    keys=STATED_KV_KEYS | {"use_qkv_bias": flag(False), "use_parallel_residual": flag(False)},
    harmless="rotary_scaling_factor",
)
def read_stablelm(fields: Config) -> ModelSpec:
    """Return StableLM: gated networks; parallel branches share one norm."""
    is_parallel = fields.flag("use_parallel_residual")
    attention = attention_of(fields, qkv_bias=fields.flag("use_qkv_bias"))
    layer = dense_layer(
        fields, attention, num_norms=1 if is_parallel else 2, parallel_residual=is_parallel
    )
    return model_of(fields, layer, norm="layer")


@family(
    "starcoder2",
    "Starcoder2ForCausalLM",
    keys=STATED_KV_KEYS
    | {
        "use_bias": flag(True),
        "sliding_window": window_or_none(),
        "tie_word_embeddings": flag(True),
    },
    harmless="norm_epsilon residual_dropout mlp_type norm_type",
)
def read_starcoder2(fields: Config) -> ModelSpec:
    """Return StarCoder 2; ``use_bias`` covers every matrix of a layer."""
    bias, window = fields.flag("use_bias"), fields.window("sliding_window")
    attention = attention_of(fields, bias=bias, window=window)
    return model_of(fields, dense_layer(fields, attention, gated=False, bias=bias), norm="layer")


_UNGATED_KEYS = GROUPED_KEYS | {"attention_bias": flag(False), "mlp_bias": flag(False)}
_JAIS_KEYS = GROUPED_KEYS | {"attention_bias": flag(True), "mlp_bias": flag(True)}


@family("arcee", "ArceeForCausalLM", keys=_UNGATED_KEYS)
@family("jais2", "Jais2ForCausalLM", keys=_JAIS_KEYS)
@family("nemotron", "NemotronForCausalLM", keys=_UNGATED_KEYS)
def read_ungated(fields: Config) -> ModelSpec:
    """Return Arcee (RMSNorm), Jais 2 or Nemotron (LayerNorm): networks square positive values."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"))
    layer = dense_layer(fields, attention, gated=False, bias=fields.flag("mlp_bias"))
    return model_of(fields, layer, norm="rms" if fields.family == "arcee" else "layer")


@family(
    "apertus",
    "ApertusForCausalLM",
    keys=GROUPED_KEYS | {"attention_bias": flag(False)},
    harmless="qk_norm post_norm",
)
def read_apertus(fields: Config) -> ModelSpec:
    """Return Apertus: RMSNorm, also on heads; networks without a gate."""
    attention = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="head")
    notes = ["the two learned numbers of each activation are not counted"]
    return model_of(fields, dense_layer(fields, attention, gated=False), notes=notes)


_COHERE_KEYS = GROUPED_KEYS | {"attention_bias": flag(False), "tie_word_embeddings": flag(True)}


@family(
    "cohere",
    "CohereForCausalLM",
    keys=_COHERE_KEYS | {"use_qk_norm": flag(False)},
    harmless="logit_scale",
)
@family(
    "cohere2",
    "Cohere2ForCausalLM",
    keys=_COHERE_KEYS
    | {
        "layer_types": layer_types(FULL, SLIDING),
        "sliding_window": count(4096),
        "sliding_window_pattern": count(
            4, names=("sliding_window_pattern", "_sliding_window_pattern")
        ),
    },
    harmless="logit_scale order_of_interleaved_layers position_embedding_type rotary_pct "
    "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding",
)
def read_cohere(fields: Config) -> ModelSpec:
    """Return Command R, or Command R7B and A: parallel branches with one norm, without biases.

    In the newer ones the last layer of each period sees everything, without positions.
    """
    norm = "full" if "use_qk_norm" in fields.keys and fields.flag("use_qk_norm") else "none"
    full = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm=norm)
    attentions = [full] * fields.count("num_hidden_layers")
    if "sliding_window" in fields.keys:
        by_rule = by_period(fields, fields.count("sliding_window_pattern"))
        attentions = [
            one if one.window else one.model_copy(update={"rotary": False})
            for one in windowed(fields, full, by_rule)
        ]
    layers = [dense_layer(fields, one, num_norms=1, parallel_residual=True) for one in attentions]
    return model_of(fields, layers, norm="layer_no_bias")


_SPARE_POSITIONS = 2


@family(
    "opt",
    "OPTForCausalLM",
    keys=CORE_KEYS
    | {
        "intermediate_size": count(names=("ffn_dim",)),
        "max_position_embeddings": count(),
        "word_embed_proj_dim": count(same_as="hidden_size", rule=("equals", "hidden_size")),
        "do_layer_norm_before": flag(True),
        "enable_bias": flag(True),
        "layer_norm_elementwise_affine": flag(True),
        "_remove_final_layer_norm": flag(False),
        "tie_word_embeddings": flag(True),
    },
)
def read_opt(fields: Config) -> ModelSpec:
    """Return OPT: learned positions with two spare rows, tied head.

    A factored embedding (OPT-350M) is refused.
    """
    bias, positions = fields.flag("enable_bias"), fields.count("max_position_embeddings")
    attention = attention_of(fields, bias=bias)
    removed = fields.flag("_remove_final_layer_norm")
    return model_of(
        fields,
        dense_layer(fields, attention, gated=False, bias=bias),
        norm="layer" if fields.flag("layer_norm_elementwise_affine") else "layer_unweighted",
        final_norm=fields.flag("do_layer_norm_before") and not removed,
        learned_positions=positions + _SPARE_POSITIONS,
    )


@family(
    "falcon",
    "FalconForCausalLM",
    keys=CORE_KEYS
    | {
        "num_hidden_layers": count(names=("num_hidden_layers", "n_layer"), most=MOST_LAYERS),
        "num_attention_heads": count(names=("num_attention_heads", "n_head")),
        "num_kv_heads": count_or_none(names=("num_kv_heads", "n_head_kv")),
        "multi_query": flag(True),
        "new_decoder_architecture": flag(False),
        "parallel_attn": flag(True),
        "num_ln_in_parallel_attn": count_or_none(most=2),
        "intermediate_size": count_or_none(names=("ffn_hidden_size",)),
        "bias": flag(False),
        "tie_word_embeddings": flag(True),
    },
    harmless="alibi apply_residual_connection_post_layernorm",
)
def read_falcon(fields: Config) -> ModelSpec:
    """Return Falcon: multi-query or grouped heads; ``bias`` covers every matrix of a layer.

    The new architecture has key and value heads as stated, the old one a single one or all. A
    layer has one norm where both branches run in parallel and share it, else two.
    """
    is_new, is_parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    bias, kv_heads, num_norms = fields.flag("bias"), fields.count("num_attention_heads"), 2
    if is_new:
        if fields.count_or_none("num_kv_heads") is not None:
            fields.divides("num_kv_heads", "num_attention_heads")
        kv_heads = fields.count_or_none("num_kv_heads") or kv_heads
        num_norms = fields.count_or_none("num_ln_in_parallel_attn") or 2
    else:
        kv_heads = 1 if fields.flag("multi_query") else kv_heads
        num_norms = 1 if is_parallel else 2
    attention = attention_of(fields, kv_heads=kv_heads, bias=bias)
    layer = dense_layer(
        fields, attention, gated=False, bias=bias, num_norms=num_norms,
        parallel_residual=is_new or is_parallel,
    )  # fmt: skip
    return model_of(fields, layer, norm="layer")


_GROUPED, _MULTI_QUERY = "grouped_query_attention", "multiquery_attention"
_MPT_ATTENTION_KEYS = {
    "alibi": flag(True),
    "attn_type": text(
        "multihead_attention", _MULTI_QUERY, _GROUPED, default="multihead_attention"
    ),
    "kv_n_heads": count_or_none(),
    "qk_ln": flag(False),
    **{
        name: ConfigKey("anything", None)
        for name in (
            "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "clip_qkv",
            "prefix_lm", "softmax_scale", "tie_word_embeddings",
        )
    },
}  # fmt: skip


@family(
    "mpt",
    "MPTForCausalLM",
    "MptForCausalLM",
    keys={
        "hidden_size": count(names=("d_model", "hidden_size")),
        "num_attention_heads": count(names=("n_heads", "num_attention_heads")),
        "num_hidden_layers": count(names=("n_layers", "num_hidden_layers"), most=MOST_LAYERS),
        "vocab_size": count(),
        "max_position_embeddings": count(names=("max_seq_len",)),
        "expansion_ratio": count(4),
        "no_bias": flag(True),
        "learned_pos_emb": flag(True),
        "norm_type": text("low_precision_layernorm", "layernorm", default="layernorm"),
        "attn_config": ConfigKey("section", REQUIRED, section=_MPT_ATTENTION_KEYS),
        "tie_word_embeddings": flag(True),
    },
    harmless="""
        embedding_fraction init_config init_device logit_scale verbose tokenizer_name param_init_fn
        """,
)
def read_mpt(fields: Config) -> ModelSpec:
    """Return MPT: ALiBi or learned positions; ``no_bias`` removes biases of matrices and norms.

    Key and value heads follow from the type of attention. Source: ``MptConfig``; llm-foundry
    ``models/mpt`` for positions (learned only without ALiBi), norms on queries and keys.
    """
    heads, kind = fields.count("num_attention_heads"), fields.text("attn_config.attn_type")
    stated = fields.count_or_none("attn_config.kv_n_heads")
    kv_heads = stated or heads
    if kind == _GROUPED:
        message = f"missing; {_GROUPED} needs it"
        fields.require(stated is not None, "attn_config.kv_n_heads", message)
        message = f"{heads} is not divisible by attn_config.kv_n_heads {kv_heads}"
        fields.require(heads % kv_heads == 0, "num_attention_heads", message)
    else:
        kv_heads = 1 if kind == _MULTI_QUERY else heads
        message = f"{stated} contradicts attn_type {kind}, which has {kv_heads}"
        fields.require(stated in (None, kv_heads), "attn_config.kv_n_heads", message)
    bias, has_norm = not fields.flag("no_bias"), fields.flag("attn_config.qk_ln")
    message = "true with biases, which is not modelled"
    fields.require(not (bias and has_norm), "attn_config.qk_ln", message)
    attention = attention_of(
        fields, kv_heads=kv_heads, bias=bias,
        qk_norm="full" if has_norm else "none",
    )  # fmt: skip
    width = fields.count("expansion_ratio") * fields.count("hidden_size")
    has_table = fields.flag("learned_pos_emb") and not fields.flag("attn_config.alibi")
    return model_of(
        fields,
        dense_layer(fields, attention, ffn_size=width, gated=False, bias=bias),
        norm="layer" if bias else "layer_no_bias",
        learned_positions=fields.count("max_position_embeddings") if has_table else 0,
    )


@family(
    "megatron_gpt",
    "GPTModel",
    keys={
        "hidden_size": count(),
        "num_hidden_layers": count(names=("num_layers",), most=MOST_LAYERS),
        "num_attention_heads": count(),
        "vocab_size": count(),
        "max_position_embeddings": count(),
        "intermediate_size": count_or_none(names=("ffn_hidden_size",)),
        "head_dim": count_or_none(names=("kv_channels",)),
        "num_key_value_heads": count(
            names=("num_query_groups",),
            same_as="num_attention_heads",
            rule=("divides", "num_attention_heads"),
        ),
        "position_embedding_type": text(
            "learned_absolute", "rope", "none", default="learned_absolute"
        ),
        "untie_embeddings_and_output_weights": flag(False),
        "swiglu": flag(False),
        "add_bias_linear": flag(True),
        "normalization": text("LayerNorm", "RMSNorm", default="LayerNorm"),
    },
)
def read_megatron_gpt(fields: Config) -> ModelSpec:
    """Return a plain GPT as Megatron-LM's arguments state it; the vocabulary is the padded one.

    These are the shapes of GPT-3 and of the Megatron papers. Source: Megatron-LM
    ``megatron/training/arguments.py``; Narayanan et al. 2021, equation 2.
    """
    bias, positions = fields.flag("add_bias_linear"), fields.count("max_position_embeddings")
    attention = attention_of(fields, bias=bias)
    has_table = fields.text("position_embedding_type") == "learned_absolute"
    return model_of(
        fields,
        dense_layer(fields, attention, gated=fields.flag("swiglu"), bias=bias),
        norm="layer" if fields.text("normalization") == "LayerNorm" else "rms",
        learned_positions=positions if has_table else 0,
        tied_embeddings=not fields.flag("untie_embeddings_and_output_weights"),
    )
