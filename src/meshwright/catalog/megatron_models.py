"""Models of Megatron-LM and Megatron Bridge: the gaps of its GPT, recipes of latent attention.

Source: megatron-core 0.19.2, ``TransformerConfig``; megatron-bridge 0.6.2, ``recipes``.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.errors import Fault
from meshwright.spec.model import LayerSpec, ModelSpec

ROTARY_GATED = (
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Phi3ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip
"""Architectures with rotary positions and SwiGLU."""
LEARNED_GELU = ("megatron_gpt", "GPT2LMHeadModel")
"""Architectures with learned positions and GELU."""


def model_refusals(model: ModelSpec) -> Iterator[Fault]:
    """Yield the features of a model that Megatron-LM's GPT lacks."""
    known = ", ".join((*LEARNED_GELU, *ROTARY_GATED))
    learned = bool(model.learned_positions)
    if model.architecture not in (*ROTARY_GATED, *LEARNED_GELU):
        message = f"{model.architecture} has no counterpart among Megatron-LM's GPT models"
        yield Fault("model.architecture", message, f"one of {known}")
    elif learned != (model.architecture in LEARNED_GELU):
        message = f"positions of {model.architecture} are not known from the plan"
        yield Fault("model.learned_positions", message, "")
    if model.norm not in ("rms", "layer"):
        message = f"{model.norm}: Megatron-LM has RMSNorm, and LayerNorm with weight and bias"
        yield Fault("model.norm", message, "")
    for name in ("embedding_norm", "head_bias"):
        if getattr(model, name):
            yield Fault(f"model.{name}", "not in Megatron-LM's GPT", "")
    yield from _layer_refusals(model)


def _layer_refusals(model: ModelSpec) -> Iterator[Fault]:
    if len({kind.attention for kind in model.layer_kinds}) > 1:
        message = "layers with different attention; one kind can be written"
        yield Fault("model.layer_kinds", message, "")
    if len({e for kind in model.layer_kinds if (e := kind.experts)}) > 1:
        yield Fault("model.layer_kinds", "experts of different sizes; one kind can be written", "")
    if len({f for kind in model.layer_kinds if (f := kind.feed_forward)}) > 1:
        yield Fault("model.layer_kinds", "dense layers of different widths; one can be written", "")
    for index, kind in enumerate(model.layer_kinds):
        for problem in _kind_problems(kind):
            yield Fault(f"model.layer_kinds[{index}]", problem, "")


def _kind_problems(kind: LayerSpec) -> Iterator[str]:
    """Yield the features of one kind of layer that have no option."""
    attention = kind.attention
    if attention is None or kind.num_branches == 1:
        yield "no attention or no network; Megatron-LM's GPT has both in each layer"
        return
    for part in kind.rare_parts:
        yield f"{part}; written for models without them only"
    if kind.parallel_residual:
        yield "attention and feed-forward in parallel; Megatron-LM runs them in turn"
    if kind.num_norms != 2:
        yield f"{kind.num_norms} norms; Megatron-LM has two in a layer"
    if not kind.norms_before:
        yield "norms on the branches only; Megatron-LM has them before the branches"
    if attention.qk_norm not in ("none", "head"):
        yield f"norm of queries and keys over {attention.qk_norm}; Megatron-LM has it by head"
    if attention.output_gate:
        yield "a gate on the heads; written for models without it only"
    if attention.sinks:
        yield "attention sinks; written for models without them only"
    if attention.window is not None and attention.window_kind != "sliding":
        yield f"{attention.window_kind} attention windows; Megatron-LM has sliding ones"
    if biases(kind) not in ("none", "qkv", "all"):
        yield f"biases on {biases(kind)} only; Megatron-LM has none, qkv or all"
    if kind.experts is not None and kind.experts.bias:
        yield "biases in experts; written for experts without them only"


def biases(kind: LayerSpec) -> str:
    """Return the linear layers that carry a bias."""
    dense = kind.feed_forward is not None and kind.feed_forward.bias
    has_dense = kind.feed_forward is not None
    found = {
        "qkv": kind.attention is not None and kind.attention.qkv_bias,
        "output": kind.attention is not None and kind.attention.output_bias,
        **({"feed-forward": dense} if has_dense else {}),
    }
    present = [name for name, there in found.items() if there]
    if not present:
        return "none"
    return "all" if len(present) == len(found) and has_dense else " and ".join(present)


VANILLA = "vanilla_gpt_pretrain_config"
OWN_RECIPES = {
    (2048, 27, 64): "deepseek_v2_lite_pretrain_config",
    (5120, 60, 160): "deepseek_v2_pretrain_config",
    (7168, 61, 256): "deepseek_v3_pretrain_config",
    (2880, 24, 32): "gpt_oss_20b_pretrain_config",
    (2880, 36, 128): "gpt_oss_120b_pretrain_config",
    (4096, 46, 128): "glm45_air_106b_pretrain_config",
    (5120, 92, 160): "glm45_355b_pretrain_config",
}
"""Recipes that bring their model, by hidden size, layers and experts: those of latent attention, of
attention sinks, and of biases in some products."""


def bridge_recipe(model: ModelSpec) -> str:
    """Return the recipe of Megatron Bridge that can be the model; empty where there is none."""
    counts = [kind.experts.num_experts for kind in model.layer_kinds if kind.experts]
    sizes = (model.hidden_size, model.num_layers, max(counts, default=0))
    if sizes in OWN_RECIPES:
        return OWN_RECIPES[sizes]
    return "" if any(attention.kind == "mla" for attention in model.attentions) else VANILLA
