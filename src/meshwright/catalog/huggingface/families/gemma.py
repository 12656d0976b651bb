"""Families of Gemma.

Gemma 1 to 3, VaultGemma, and Gemma 3n and 4, whose last layers may share keys and values of earlier
ones, and whose layers may have input embeddings of their own.

Source, where a family names no other: the configuration and model classes of Hugging Face
transformers (``Gemma2Config`` and ``Gemma2DecoderLayer``, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from meshwright.catalog.huggingface.families.mixed import VISION
from meshwright.catalog.huggingface.family import (
    FULL,
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
    experts_of,
    family,
    flag,
    layer_types,
    model_of,
    windowed,
)
from meshwright.spec.model import AttentionSpec, LayerSpec, ModelSpec, SideSpec

_GEMMA_1_KEYS = STATED_KV_KEYS | {
    "head_dim": count(256),
    "attention_bias": flag(False),
    "tie_word_embeddings": flag(True),
}
_GEMMA_KEYS = _GEMMA_1_KEYS | {
    "layer_types": layer_types(FULL, SLIDING),
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
    outer_harmless=f"{VISION} mm_tokens_per_image image_token_id boi_token_id eoi_token_id",
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
    full = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm=qk_norm)
    attentions = windowed(fields, full, by_period(fields, period))
    return model_of(fields, [dense_layer(fields, each, num_norms=num_norms) for each in attentions])


_MEDIA: Final = """
    audio_config audio_token_id audio_soft_tokens_per_image vision_soft_tokens_per_image
    boa_token_id boa_token_index eoa_token_id eoa_token_index boi_token_id eoi_token_id
    image_token_id video_token_id
    """
_SHARING_KEYS = _GEMMA_KEYS | {
    "num_kv_shared_layers": count_or_zero(0, rule=("at_most", "num_hidden_layers")),
    "vocab_size_per_layer_input": count(262_144),
    "hidden_size_per_layer_input": count_or_zero(256),
}


@family(
    "gemma3n",
    "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration",
    model_types=("gemma3n_text",),
    nested_types=("gemma3n",),
    keys=_SHARING_KEYS
    | {
        "vocab_size": count(262_400),
        "intermediate_size": ConfigKey("anything"),
        "num_kv_shared_layers": count_or_zero(15, rule=("at_most", "num_hidden_layers")),
        "altup_num_inputs": count(4),
        "laurel_rank": count(64),
    },
    harmless=f"{_GEMMA_HARMLESS} activation_sparsity_pattern altup_active_idx "
    "altup_coef_clip altup_correct_scale altup_lr_multiplier",
    outer_harmless=f"{VISION} {_MEDIA}",
)
def read_gemma3n(fields: Config) -> ModelSpec:
    """Return Gemma 3n: several streams, factors of low rank and input embeddings in each layer.

    Layers read one of the streams: small products predict and correct the others.
    Source: ``Gemma3nTextAltUp``, ``Gemma3nTextLaurelBlock``, ``Gemma3nTextModel``.
    """
    full = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="head")
    num_layers, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
    widths = fields.value("intermediate_size")
    widths = widths if isinstance(widths, list) else [widths] * num_layers
    are_widths = all(type(width) is int and width > 0 for width in widths)
    message = f"{widths}; expected a width, or one for each of {num_layers} layers"
    fields.require(are_widths and len(widths) == num_layers, "intermediate_size", message)
    fields.finish()
    streams, rank = fields.count("altup_num_inputs"), fields.count("laurel_rank")
    inputs = fields.count("hidden_size_per_layer_input")
    mixing = ((hidden, streams), (streams, streams * streams), (streams, streams))
    low_rank = ((hidden, rank), (rank, hidden))
    side = SideSpec(
        products=(*mixing, *low_rank, (hidden, inputs), (inputs, hidden)),
        num_vector_params=4 * hidden,
    )
    layers = [
        dense_layer(fields, attention, ffn_size=width, num_norms=4, side=side)
        for attention, width in zip(_shared(fields, full, full, 5), widths, strict=True)
    ]
    notes = [f"{streams} streams: their mixing is counted, the memory of one stream is priced"]
    between = ((hidden, hidden),) * (2 * (streams - 1))
    return model_of(fields, layers, notes=notes, **_input_embeddings(fields, between))


_GEMMA4_KEYS = _SHARING_KEYS | {
    "attention_k_eq_v": flag(False),
    "use_double_wide_mlp": flag(False),
    "global_head_dim": count(512),
    "num_global_key_value_heads": count_or_none(),
    "per_layer_config": ConfigKey("anything", None),
    "use_bidirectional_attention": ConfigKey("text", None, nullable=True, allowed=("vision",)),
}


@family(
    "gemma4",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    model_types=("gemma4_text",),
    nested_types=("gemma4",),
    keys=_GEMMA4_KEYS
    | {
        "enable_moe_block": flag(False),
        "num_experts": count_or_none(),
        "num_experts_per_tok": count_or_none(names=("top_k_experts",)),
        "moe_intermediate_size": count_or_none(),
    },
    harmless=_GEMMA_HARMLESS,
    outer_harmless=f"{VISION} {_MEDIA}",
)
@family(
    "gemma4_unified",
    "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
    model_types=("gemma4_unified_text",),
    nested_types=("gemma4_unified",),
    keys={role: key for role, key in _GEMMA4_KEYS.items() if "per_layer_input" not in role},
    harmless=_GEMMA_HARMLESS,
    outer_harmless=f"{VISION} {_MEDIA}",
)
def read_gemma4(fields: Config) -> ModelSpec:
    """Return Gemma 4: wider heads where a layer sees everything, and experts beside the network.

    Last layers may take keys and values of earlier ones, with networks twice as wide; layers that
    see everything may use keys as values, with fewer heads.
    Source: ``Gemma4TextConfig``, ``Gemma4TextDecoderLayer``, ``Gemma4TextRouter``.
    """
    plain = attention_of(fields, bias=fields.flag("attention_bias"), qk_norm="head")
    num_layers, is_same = fields.count("num_hidden_layers"), fields.flag("attention_k_eq_v")
    heads = fields.count_or_none("num_global_key_value_heads") if is_same else None
    size, heads = _global_heads(fields, fields.count("global_head_dim"), heads)
    wide = plain.model_copy(
        update={
            "head_size": size, "value_head_size": size, "value_is_key": is_same,
            "num_kv_heads": heads or plain.num_kv_heads,
        }
    )  # fmt: skip
    shared, hidden = fields.count("num_kv_shared_layers"), fields.count("hidden_size")
    attentions = _shared(fields, wide, plain, 6, last_is_full=True)
    width, inputs = fields.count("intermediate_size"), 0
    vectors = 0
    if "hidden_size_per_layer_input" in fields.keys:
        inputs = fields.count("hidden_size_per_layer_input")
        vectors += hidden if inputs else 0
    experts = None
    if "enable_moe_block" in fields.keys and fields.flag("enable_moe_block"):
        for role in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            fields.require(fields.value(role) is not None, role, "null; its experts need it")
        fields.finish()
        experts = experts_of(fields, shared_ffn_size=width)
        vectors += 4 * hidden + experts.num_experts
    products = ((hidden, inputs), (inputs, hidden)) if inputs else ()
    side = SideSpec(products=products, num_vector_params=vectors) if vectors else None
    layers = []
    for place, attention in enumerate(attentions):
        is_double = place >= num_layers - shared and fields.flag("use_double_wide_mlp")
        own = width * (2 if is_double else 1)
        layers.append(
            dense_layer(fields, attention, ffn_size=own, num_norms=4, side=side)
            if experts is None
            else LayerSpec(
                attention=attention,
                num_norms=4,
                side=side,
                experts=experts.model_copy(update={"shared_ffn_size": own}),
            )
        )
    return model_of(fields, layers, **(_input_embeddings(fields) if inputs else {}))


def _global_heads(fields: Config, size: int, heads: int | None) -> tuple[int, int | None]:
    """Return the size and number of key heads of layers that see everything.

    Files of transformers list them by layer, as equal changes of the others.
    """
    stated = fields.value("per_layer_config")
    if stated is None:
        return size, heads
    changes = list(stated.values()) if isinstance(stated, Mapping) else []
    is_known = all(
        isinstance(one, Mapping) and set(one) <= {"head_dim", "num_key_value_heads"}
        for one in changes
    ) and all(one == changes[0] for one in changes)
    message = "expected equal head_dim and num_key_value_heads of each layer that sees everything"
    fields.require(bool(changes) and is_known, "per_layer_config", message)
    fields.finish()
    return changes[0].get("head_dim", size), changes[0].get("num_key_value_heads", heads)


def _shared(
    fields: Config, full: AttentionSpec, near: AttentionSpec, period: int,
    *, last_is_full: bool = False,
) -> list[AttentionSpec]:  # fmt: skip
    """Return the attention of each layer; the last ones share the cache of an earlier layer."""
    num_layers, shared = fields.count("num_hidden_layers"), fields.count("num_kv_shared_layers")
    sliding = near.model_copy(update={"window": fields.count("sliding_window")})
    kinds = fields.listed("layer_types") or by_period(fields, period)
    kinds = [*kinds[:-1], FULL] if last_is_full else kinds
    owners, users = kinds[: num_layers - shared], kinds[num_layers - shared :]
    message = f"leaves no layer with the cache of {sorted(set(users) - set(owners))}"
    fields.require(set(users) <= set(owners), "num_kv_shared_layers", message)
    fields.finish()
    attentions = [sliding if kind == SLIDING else full for kind in kinds]
    return [
        one.model_copy(update={"shares_cache": place >= num_layers - shared})
        for place, one in enumerate(attentions)
    ]


def _input_embeddings(fields: Config, more: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    """Return the table of input embeddings of all layers, and the products beside it."""
    hidden, inputs = fields.count("hidden_size"), fields.count("hidden_size_per_layer_input")
    columns = fields.count("num_hidden_layers") * inputs
    side = SideSpec(products=((hidden, columns), *more), num_vector_params=inputs)
    return {"side_table": (fields.count("vocab_size_per_layer_input"), columns), "side": side}
