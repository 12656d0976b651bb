"""Models of torchtitan: a module that states a model without a shipped configuration.

Source: torchtitan 0.3.0, ``torchtitan/models/*/__init__.py`` and ``*/config_registry.py``,
``torchtitan/config/manager.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.catalog.config_json import config_of
from meshwright.train.answer import Plan

OWN_MODULE = "torchtitan_model"
OWN_CONFIG = "train"
"""The module beside the script, and its function."""

_LLAMA = """\
from torchtitan.models import llama3 as family
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm


def build(attn_backend, **_):
    dim, vocab_size = MODEL["hidden_size"], MODEL["vocab_size"]
    is_tied = MODEL["tie_word_embeddings"]
    return family.Llama3Model.Config(
        dim=dim,
        vocab_size=vocab_size,
        enable_weight_tying=is_tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size,
            embedding_dim=dim,
            param_init=family._EMBEDDING_SKIP_INIT if is_tied else family._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=family._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim, out_features=vocab_size, param_init=family._output_linear_init(dim)
        ),
        layers=family._build_llama3_layers(
            n_layers=MODEL["num_hidden_layers"],
            dim=dim,
            n_heads=MODEL["num_attention_heads"],
            n_kv_heads=MODEL["num_key_value_heads"],
            hidden_dim=MODEL["intermediate_size"],
            attn_backend=attn_backend,
            rope=ComplexRoPE.Config(
                dim=MODEL["head_dim"], max_seq_len=LENGTH, theta=500000, scaling="llama"
            ),
        ),
    )


FLAVORS = family.llama3_configs
"""
_QWEN = """\
from torchtitan.models import qwen3 as family
from torchtitan.models.common import CosSinRoPE, Embedding, Linear


def build(attn_backend, **experts):
    dim, vocab_size = MODEL["hidden_size"], MODEL["vocab_size"]
    is_tied = MODEL["tie_word_embeddings"]
    return family.Qwen3Model.Config(
        dim=dim,
        vocab_size=vocab_size,
        enable_weight_tying=is_tied,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size,
            embedding_dim=dim,
            param_init=family._EMBEDDING_SKIP_INIT if is_tied else family._EMBEDDING_INIT,
        ),
        norm=family._qwen3_norm(dim),
        lm_head=Linear.Config(
            in_features=dim, out_features=vocab_size, param_init=family._LINEAR_INIT
        ),
        layers=family.{builder}(
            n_layers=MODEL["num_hidden_layers"],
            dim=dim,
            n_heads=MODEL["num_attention_heads"],
            n_kv_heads=MODEL["num_key_value_heads"],
            head_dim=MODEL["head_dim"],
            {width}
            attn_backend=attn_backend,
            rope=CosSinRoPE.Config(dim=MODEL["head_dim"], max_seq_len=LENGTH, theta=1000000.0),
        ),
    )


FLAVORS = family.qwen3_configs
"""
_DENSE_WIDTH = 'hidden_dim=MODEL["intermediate_size"],'
_EXPERT_WIDTH = """\
moe_hidden_dim=MODEL["moe_intermediate_size"],
            num_experts=MODEL["num_experts"],
            top_k=MODEL["num_experts_per_tok"],
            moe_comm_backend=experts.get("moe_comm_backend", "standard"),"""
_DEEPSEEK = """\
from torchtitan.models import deepseek_v3 as family
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm


def build(attn_backend, moe_comm_backend, non_blocking_capacity_factor=None, **_):
    dim, vocab_size = MODEL["hidden_size"], MODEL["vocab_size"]
    return family.DeepSeekV3Model.Config(
        dim=dim,
        vocab_size=vocab_size,
        tok_embeddings=Embedding.Config(
            num_embeddings=vocab_size, embedding_dim=dim, param_init=family._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=family._NORM_INIT),
        lm_head=Linear.Config(
            in_features=dim, out_features=vocab_size, param_init=family._output_linear_init(dim)
        ),
        layers=family._build_dsv3_layers(
            n_layers=MODEL["num_hidden_layers"],
            n_dense_layers=MODEL["first_k_dense_replace"],
            dim=dim,
            n_heads=MODEL["num_attention_heads"],
            q_lora_rank=MODEL["q_lora_rank"] or 0,
            kv_lora_rank=MODEL["kv_lora_rank"],
            qk_nope_head_dim=MODEL["qk_nope_head_dim"],
            qk_rope_head_dim=MODEL["qk_rope_head_dim"],
            v_head_dim=MODEL["v_head_dim"],
            mscale=1.0,
            dense_hidden_dim=MODEL["intermediate_size"],
            moe_hidden_dim=MODEL["moe_intermediate_size"],
            num_experts=MODEL["n_routed_experts"],
            num_shared_experts=MODEL["n_shared_experts"],
            router_top_k=MODEL["num_experts_per_tok"],
            router_score_func="{score}",
            router_num_expert_groups=MODEL.get("n_group"),
            router_num_limited_groups=MODEL.get("topk_group"),
            router_route_norm={norm},
            attn_backend=attn_backend,
            moe_comm_backend=moe_comm_backend,
            non_blocking_capacity_factor=non_blocking_capacity_factor,
            rope=ComplexRoPE.Config(
                dim=MODEL["qk_rope_head_dim"], max_seq_len=LENGTH, theta=10000.0
            ),
        ),
        mtp_layers=[],
    )


FLAVORS = family.deepseekv3_configs
"""
_BUILDS: Mapping[str, str] = {
    "LlamaForCausalLM": _LLAMA,
    "Qwen3ForCausalLM": _QWEN.format(builder="_build_qwen3_layers", width=_DENSE_WIDTH),
    "Qwen3MoeForCausalLM": _QWEN.format(builder="_build_qwen3_moe_layers", width=_EXPERT_WIDTH),
    "DeepseekV2ForCausalLM": _DEEPSEEK.replace("{score}", "softmax").replace("{norm}", "False"),
    "DeepseekV3ForCausalLM": _DEEPSEEK.replace("{score}", "sigmoid").replace("{norm}", "True"),
}
"""Code that builds a model of each architecture from its configuration."""
_TRAIN = """\
FLAVORS["own"] = build


def train():
    spec = family.model_registry("own", converters={converters})
    loss = CrossEntropyLoss.Config(global_vocab_size=MODEL["vocab_size"])
    return Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
        hf_assets_path="./assets/hf/own",
        optimizer=default_adamw(lr=3e-4),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
    )
"""
_IMPORTS = """\
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
{imports}from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
"""


def own_module(plan: Plan) -> str:
    """Return the module that states a model without a shipped configuration."""
    config = config_of(plan.model)
    names, converters = _converters(plan)
    imports = f"from torchtitan.components.quantization import {', '.join(names)}\n" * bool(names)
    return "\n".join(
        [
            "# named by the script beside it; MODEL is the config.json of the model,",
            "# rotary base, data, tokenizer and learning rate are to be set below",
            "",
            _IMPORTS.format(imports=imports) + "from torchtitan.trainer import Trainer",
            "",
            f"LENGTH = {plan.workload.sequence_length}",
            f"MODEL = {_literal(config or {})}",
            "",
            _BUILDS[plan.model.architecture] + _TRAIN.format(converters=converters),
        ]
    )


def _literal(config: Mapping[str, object]) -> str:
    lines = [f'    "{name}": {value!r},'.replace("'", '"') for name, value in config.items()]
    return "\n".join(["{", *lines, "}"])


def _converters(plan: Plan) -> tuple[list[str], str]:
    """Return the converters to fp8: names to import, and the list of the converters."""
    if plan.workload.precision.matmul != "fp8":
        return [], "None"
    compiled = f"model_compile_enabled={plan.workload.software.compiled}"
    made = {"Float8LinearConverter": f'filter_fqns=["lm_head", "router.gate"], {compiled}'}
    if plan.model.has_experts:
        made["Float8GroupedExpertsConverter"] = compiled
    return list(made), f"[{', '.join(f'{name}.Config({of})' for name, of in made.items())}]"
