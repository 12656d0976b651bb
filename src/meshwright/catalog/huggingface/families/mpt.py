"""MPT: multi-head or multi-query attention with ALiBi or learned positions, tied head.

Source: ``MptConfig`` of Hugging Face transformers; llm-foundry ``models/mpt`` for positions
(learned only without ALiBi) and for norms on queries and keys.
"""

from __future__ import annotations

from meshwright.catalog.huggingface.family import (
    MOST_LAYERS,
    REQUIRED,
    Family,
    Fields,
    Key,
    build_model,
    count,
    count_or_none,
    families,
    flag,
    names,
    read_head_size,
    text,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec

_GROUPED = "grouped_query_attention"


def _read_kv_heads(fields: Fields) -> int:
    """Return the key and value heads, which follow from the type of attention."""
    heads, kind = fields.count("n_heads"), fields.text("attn_config.attn_type")
    stated = fields.count_or_none("attn_config.kv_n_heads")
    if kind != _GROUPED:
        implied = 1 if kind == "multiquery_attention" else heads
        fields.require(
            stated in (None, implied),
            "attn_config.kv_n_heads",
            f"{stated} contradicts attn_type {kind}, which has {implied}",
        )
        return implied
    fields.require(stated is not None, "attn_config.kv_n_heads", f"missing; {_GROUPED} needs it")
    kv_heads = stated or heads
    fields.require(
        heads % kv_heads == 0,
        "n_heads",
        f"{heads} is not divisible by attn_config.kv_n_heads {kv_heads}",
    )
    return kv_heads


def read_mpt(fields: Fields) -> ModelSpec:
    """Return the model; ``no_bias`` removes the biases of matrices and of norms."""
    kv_heads = _read_kv_heads(fields)
    head_size = read_head_size(fields, hidden="d_model", heads="n_heads", stated="")
    bias, qk_norm = not fields.flag("no_bias"), fields.flag("attn_config.qk_ln")
    fields.require(
        not (bias and qk_norm), "attn_config.qk_ln", "true with biases, which is not modelled"
    )
    fields.finish()
    attention = AttentionSpec(
        num_heads=fields.count("n_heads"),
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="full" if qk_norm else "none",
    )
    ffn_size = fields.count("expansion_ratio") * fields.count("d_model")
    layer = LayerSpec(
        attention=attention,
        feed_forward=FeedForwardSpec(ffn_size=ffn_size, gated=False, bias=bias),
    )
    has_table = fields.flag("learned_pos_emb") and not fields.flag("attn_config.alibi")
    return build_model(
        fields,
        [layer] * fields.count("n_layers"),
        hidden="d_model",
        norm="layer" if bias else "layer_no_bias",
        learned_positions=fields.count("max_seq_len") if has_table else 0,
        max_sequence_length=fields.count("max_seq_len"),
    )


_ATTENTION_KEYS = {
    "alibi": flag(True),
    "attn_type": text(
        "multihead_attention", "multiquery_attention", _GROUPED, default="multihead_attention"
    ),
    "kv_n_heads": count_or_none(),
    "qk_ln": flag(False),
    **{
        name: Key("anything", None)
        for name in (
            "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "clip_qkv",
            "prefix_lm", "softmax_scale", "tie_word_embeddings",
        )
    },
}  # fmt: skip

families.register("mpt")(
    Family(
        model_types=("mpt",),
        architectures=("MPTForCausalLM", "MptForCausalLM"),
        keys={
            "d_model": count(also=("hidden_size",)),
            "n_heads": count(also=("num_attention_heads",)),
            "n_layers": count(also=("num_hidden_layers",), most=MOST_LAYERS),
            "vocab_size": count(),
            "max_seq_len": count(),
            "expansion_ratio": count(4),
            "no_bias": flag(True),
            "learned_pos_emb": flag(True),
            "norm_type": text("low_precision_layernorm", "layernorm", default="layernorm"),
            "attn_config": Key("section", REQUIRED, section=_ATTENTION_KEYS),
            "tie_word_embeddings": flag(True),
        },
        read=read_mpt,
        harmless=names(
            """
            embedding_fraction init_config init_device logit_scale verbose tokenizer_name
            param_init_fn
            """
        ),
    )
)
