"""The ``config.json`` of a model, for files of frameworks that describe one.

The inverse of reading it: the file reads as the same model, or nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshwright.base.errors import SpecError
from meshwright.catalog.models import load_model, read_config
from meshwright.spec.model import AttentionSpec, ExpertSpec, ModelSpec

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
    """Return the configuration that reads as this model; None where none is known."""
    write = _FAMILIES.get(model.architecture)
    if write is None:
        return None
    config = write(model)
    try:
        again = read_config(config)
    except SpecError:
        return None
    return config if dims_of(again) == dims_of(model) else None


def _attention(model: ModelSpec) -> AttentionSpec:
    return model.attentions[-1]


def _experts(model: ModelSpec) -> ExpertSpec | None:
    return next((kind.experts for kind in model.layer_kinds if kind.experts), None)


def _dense_size(model: ModelSpec) -> int:
    """Return the inner size of dense layers; of an expert, where all layers have experts."""
    dense = next((kind.feed_forward for kind in model.layer_kinds if kind.feed_forward), None)
    experts = _experts(model)
    return dense.ffn_size if dense else experts.ffn_size if experts else 0


def _places(model: ModelSpec, *, with_experts: bool) -> list[int]:
    kinds = [model.layer_kinds[kind] for kind in model.layer_pattern]
    return [place for place, kind in enumerate(kinds) if bool(kind.experts) == with_experts]


def _core(model: ModelSpec, model_type: str) -> Config:
    """Return the fields that nearly every configuration has."""
    attention = _attention(model)
    length = model.max_sequence_length
    return {
        "architectures": [model.architecture],
        "model_type": model_type,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_size,
        "intermediate_size": _dense_size(model),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
    } | ({"max_position_embeddings": length} if length else {})


def _chosen(model: ModelSpec, count: str) -> Config:
    experts = _experts(model)
    if experts is None:
        return {}
    return {count: experts.num_experts, "num_experts_per_tok": experts.top_k}


def _llama(model: ModelSpec) -> Config:
    dense = model.layer_kinds[-1].feed_forward
    bias = {"attention_bias": _attention(model).output_bias, "mlp_bias": bool(dense and dense.bias)}
    return _core(model, "llama") | bias


def _mistral(model: ModelSpec) -> Config:
    return _core(model, "mistral") | {"sliding_window": _attention(model).window}


def _mixtral(model: ModelSpec) -> Config:
    window = {"sliding_window": _attention(model).window}
    return _core(model, "mixtral") | _chosen(model, "num_local_experts") | window


def _qwen2(model: ModelSpec) -> Config:
    return _core(model, "qwen2")


def _qwen3(model: ModelSpec) -> Config:
    return _core(model, "qwen3") | {"attention_bias": _attention(model).output_bias}


def _qwen3_moe(model: ModelSpec) -> Config:
    experts = _experts(model)
    return _core(model, "qwen3_moe") | _chosen(model, "num_experts") | {
        "attention_bias": _attention(model).output_bias,
        "moe_intermediate_size": experts.ffn_size if experts else 0,
        "mlp_only_layers": _places(model, with_experts=False),
    }  # fmt: skip


def _deepseek(model: ModelSpec) -> Config:
    attention, experts = _attention(model), _experts(model)
    if experts is None:
        return {}
    is_third = model.architecture == "DeepseekV3ForCausalLM"
    is_grouped = is_third or experts.num_groups > 1
    groups = {"n_group": experts.num_groups, "topk_group": experts.top_groups}
    method = "noaux_tc" if is_third else "group_limited_greedy" if is_grouped else "greedy"
    return _core(model, "deepseek_v3" if is_third else "deepseek_v2") | {
        "q_lora_rank": attention.query_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.head_size,
        "qk_rope_head_dim": attention.rope_head_size,
        "v_head_dim": attention.value_head_size,
        "n_routed_experts": experts.num_experts,
        "n_shared_experts": experts.shared_ffn_size // experts.ffn_size,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.ffn_size,
        "first_k_dense_replace": min(_places(model, with_experts=True)),
        "topk_method": method,
    } | (groups if is_grouped else {})  # fmt: skip


def _gpt_oss(model: ModelSpec) -> Config:
    windows = [
        spec.window
        for kind in model.layer_pattern
        if (spec := model.layer_kinds[kind].attention) is not None
    ]
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    return _core(model, "gpt_oss") | _chosen(model, "num_local_experts") | {
        "attention_bias": _attention(model).output_bias,
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": types,
    }  # fmt: skip


def _gpt(model: ModelSpec) -> Config:
    """Return GPT-2 in its own names; those of Megatron-LM are the same model."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": model.hidden_size,
        "n_layer": model.num_layers,
        "n_head": _attention(model).num_heads,
        "n_positions": model.learned_positions,
        "n_inner": _dense_size(model),
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
    }


_FAMILIES: Mapping[str, Callable[[ModelSpec], Config]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "GptOssForCausalLM": _gpt_oss,
    "GPT2LMHeadModel": _gpt,
    "megatron_gpt": _gpt,
}
"""Functions that write the configuration of each architecture."""
