"""The ``config.json`` of a model, for files of frameworks that describe one.

The inverse of reading it: the file reads as the same model, or nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.base.errors import SpecError
from meshwright.catalog.models import family_of, load_model, read_config
from meshwright.spec.model import ModelSpec

Config = dict[str, Any]

_ASIDE = ("name", "architecture", "max_sequence_length", "conventions", "source", "weight_format",
          "num_prediction_layers")  # fmt: skip
"""Fields that do not change the cost of a step."""


def dims_of(model: ModelSpec) -> dict[str, Any]:
    """Return the fields of a model that its price rests on."""
    return model.model_dump(exclude=set(_ASIDE))


def name_of(model: ModelSpec, names: Mapping[str, str]) -> str | None:
    """Return the name under which a framework ships a model; None: it does not ship it.

    Parameters
    ----------
    names
        Those of the catalog, by those of the framework.
    """
    wanted = dims_of(model)
    return next(
        (theirs for theirs, ours in names.items() if dims_of(load_model(ours)) == wanted), None
    )


def config_of(model: ModelSpec) -> Config | None:
    """Return the configuration that reads as this model; None where none is known.

    Text models only: an architecture with a vision tower would be built with one.
    """
    architecture = _WRITTEN_AS.get(model.architecture, model.architecture)
    family = family_of(architecture)
    if family is None or not model.attentions or "ConditionalGeneration" in architecture:
        return None
    config: Config = {"architectures": [architecture], "model_type": family.model_types[0]}
    values = _values(model)
    for role, key in family.keys.items():
        value = values.get(role)
        if value is not None or (role in values and key.nullable):
            config[key.names[0] if key.names else role] = value
    try:
        again = read_config(config)
    except SpecError:
        return None
    return config if dims_of(again) == dims_of(model) else None


_WRITTEN_AS = {"megatron_gpt": "GPT2LMHeadModel"}
"""Architectures that are the same model under the names of another one."""


def _values(model: ModelSpec) -> dict[str, object]:
    """Return the values of a model by the roles that families give to them."""
    kinds = [model.layer_kinds[kind] for kind in model.layer_pattern]
    attention = model.attentions[-1]
    windows = [kind.attention.window for kind in kinds if kind.attention]
    experts = next((kind.experts for kind in kinds if kind.experts), None)
    dense = next((kind.feed_forward for kind in kinds if kind.feed_forward), None)
    values: dict[str, object] = {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_size,
        "intermediate_size": dense.ffn_size if dense else experts.ffn_size if experts else 0,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": model.learned_positions or model.max_sequence_length,
        "attention_bias": attention.output_bias,
        "mlp_bias": bool(dense and dense.bias),
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
        "q_lora_rank": attention.query_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.head_size,
        "qk_rope_head_dim": attention.rope_head_size,
        "v_head_dim": attention.value_head_size,
    }
    if experts is None:
        return values
    is_grouped = experts.router_bias or experts.num_groups > 1
    chosen_by_groups = "noaux_tc" if experts.router_bias else "group_limited_greedy"
    groups = {"n_group": experts.num_groups, "topk_group": experts.top_groups}
    with_experts = [place for place, kind in enumerate(kinds) if kind.experts]
    return values | (groups if is_grouped else {}) | {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn_size,
        "n_shared_experts": experts.shared_ffn_size // experts.ffn_size,
        "mlp_only_layers": [place for place, kind in enumerate(kinds) if not kind.experts],
        "first_k_dense_replace": min(with_experts),
        "topk_method": chosen_by_groups if is_grouped else "greedy",
    }  # fmt: skip
