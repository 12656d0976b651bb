"""Models of MaxText: configurations that it ships, and keys that state another, to and fro.

Source: MaxText 0.2.5, ``maxtext/configs/models``, ``configs/base.yml``, ``configs/types.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshwright.base.errors import Fault
from meshwright.catalog.config_json import config_of, name_of
from meshwright.spec.model import ModelSpec

MODELS = {
    "llama2-7b": "llama2-7b", "llama2-13b": "llama2-13b", "llama2-70b": "llama2-70b",
    "llama3-8b": "llama3-8b", "llama3-70b": "llama3-70b", "llama3.1-8b": "llama3.1-8b",
    "llama3.1-70b": "llama3.1-70b", "llama3.1-405b": "llama3.1-405b",
    "llama3.3-70b": "llama3.3-70b", "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b",
    "gemma-2b": "gemma-2b", "gemma-7b": "gemma-7b",
    "gemma2-2b": "gemma2-2b", "gemma2-9b": "gemma2-9b", "gemma2-27b": "gemma2-27b",
    "gemma3-4b": "gemma3-4b", "gemma3-12b": "gemma3-12b", "gemma3-27b": "gemma3-27b",
    "qwen2.5-1.5b": "qwen2.5-1.5b", "qwen2.5-7b": "qwen2.5-7b", "qwen2.5-14b": "qwen2.5-14b",
    "qwen3-0.6b": "qwen3-0.6b", "qwen3-1.7b": "qwen3-1.7b", "qwen3-4b": "qwen3-4b",
    "qwen3-8b": "qwen3-8b", "qwen3-14b": "qwen3-14b", "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-235b-a22b": "qwen3-235b-a22b",
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "deepseek3-671b": "deepseek-v3", "gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b",
    "llama4-17b-16e": "llama4-scout", "llama4-17b-128e": "llama4-maverick",
    "kimi-k2-1t": "kimi-k2",
}  # fmt: skip
"""Its names of models, and those of the catalog."""


@dataclass(frozen=True)
class Block:
    """A decoder block, and the fields of ``config.json`` for models of it."""

    name: str
    names: Mapping[str, str]
    """Fields of ``config.json``, by the keys that hold them."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that select this block, beside its name."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of ``config.json`` that no key holds."""


_DENSE = {
    "base_emb_dim": "hidden_size",
    "base_num_query_heads": "num_attention_heads",
    "base_num_kv_heads": "num_key_value_heads",
    "base_num_decoder_layers": "num_hidden_layers",
    "base_mlp_dim": "intermediate_size",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "logits_via_embedding": "tie_word_embeddings",
}
_CHOSEN = {"num_experts_per_tok": "num_experts_per_tok"}
_SEPARATE = {"base_moe_mlp_dim": "moe_intermediate_size"}
_MIXTRAL = _DENSE | _CHOSEN | {"num_experts": "num_local_experts"}
_QWEN_MOE = _DENSE | _CHOSEN | _SEPARATE | {"num_experts": "num_experts"}
_DEEPSEEK = _DENSE | _CHOSEN | _SEPARATE | {
    "num_experts": "n_routed_experts",
    "shared_experts": "n_shared_experts",
    "first_num_dense_layers": "first_k_dense_replace",
    "n_routing_groups": "n_group",
    "topk_routing_group": "topk_group",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}  # fmt: skip
_GPT = {
    "base_emb_dim": "n_embd",
    "base_num_query_heads": "n_head",
    "base_num_decoder_layers": "n_layer",
    "base_mlp_dim": "n_inner",
    "vocab_size": "vocab_size",
    "logits_via_embedding": "tie_word_embeddings",
    "trainable_position_size": "n_positions",
}
_LATENT = {"attention_type": "mla"}
_GPT_KEYS = {
    "mlp_activations": "['gelu']", "normalize_embedding_logits": "false", "fused_qkv": "true",
}  # fmt: skip
BLOCKS: Mapping[str, Block] = {
    "LlamaForCausalLM": Block("llama2", _DENSE),
    "MistralForCausalLM": Block("mistral", _DENSE, fields={"sliding_window": None}),
    "MixtralForCausalLM": Block("mixtral", _MIXTRAL),
    "Qwen2ForCausalLM": Block("qwen2", _DENSE, {"attention_bias": "true"}),
    "Qwen3ForCausalLM": Block("qwen3", _DENSE, {"use_qk_norm": "true"}),
    "Qwen3MoeForCausalLM": Block(
        "qwen3_moe", _QWEN_MOE, {"use_qk_norm": "true", "norm_topk_prob": "true"}
    ),
    "DeepseekV2ForCausalLM": Block(
        "deepseek", _DEEPSEEK, _LATENT | {"routed_score_func": "softmax"},
        {"q_lora_rank": None, "topk_method": "group_limited_greedy"},
    ),
    "DeepseekV3ForCausalLM": Block(
        "deepseek", _DEEPSEEK, _LATENT | {"routed_score_func": "sigmoid", "routed_bias": "true"},
        {"q_lora_rank": None},
    ),
    "GPT2LMHeadModel": Block("gpt3", _GPT, _GPT_KEYS),
}  # fmt: skip
"""The decoder block of each architecture."""


def shipped_name(model: ModelSpec) -> str | None:
    """Return the name of a shipped configuration; None where there is none."""
    return name_of(model, MODELS)


def model_keys(model: ModelSpec) -> dict[str, object]:
    """Return the name of a shipped configuration, or every dim of the model."""
    if name := shipped_name(model):
        return {"model_name": name}
    config = config_of(model) or {}
    block = BLOCKS[config["architectures"][0]]
    found = {key: config.get(name) for key, name in block.names.items()}
    if block.name == "mixtral":
        found["base_moe_mlp_dim"] = config["intermediate_size"]
    if block.name == "gpt3":
        found |= {"base_num_kv_heads": config["n_head"],
                  "head_dim": config["n_embd"] // config["n_head"]}  # fmt: skip
    stated = {key: _written(value) for key, value in found.items() if value is not None}
    return {"model_name": "default", "decoder_block": block.name, **block.keys, **stated}


def _written(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def config_of_keys(keys: Mapping[str, object]) -> dict[str, object] | None:
    """Return the ``config.json`` that keys state; None for a block that is not known."""
    wanted = {"decoder_block": "llama2"} | dict(keys)
    scores = str(wanted.get("routed_score_func", ""))
    for architecture, block in BLOCKS.items():
        has_scores = block.keys.get("routed_score_func", scores) == scores
        if block.name == wanted["decoder_block"] and has_scores:
            stated = {name: keys[key] for key, name in block.names.items() if key in keys}
            return {"architectures": [architecture], **block.fields, **stated}
    return None


def model_refusals(model: ModelSpec) -> Iterator[Fault]:
    """Yield a model that no keys can state, with the reason."""
    if shipped_name(model) is not None:
        return
    config = config_of(model)
    block = BLOCKS.get(config["architectures"][0]) if config else None
    if config is None or block is None:
        message = f"MaxText 0.2.5 ships no configuration of {model.name}, and no keys state it"
        yield Fault("model", message, "--framework megatron")
        return
    has_bias = config.get("attention_bias") or config.get("mlp_bias")
    for is_broken, what in (
        (has_bias, "biases"),
        (config.get("sliding_window"), "a window"),
        (config.get("mlp_only_layers"), "dense layers between those with experts"),
    ):
        if is_broken:
            message = f"decoder block {block.name} has no {what}"
            yield Fault("model", message, "--framework megatron")
