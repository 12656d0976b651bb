"""The model as Megatron-LM arguments, and the models that Megatron-LM's GPT cannot be.

Source: NVIDIA/Megatron-LM, ``megatron/training/arguments.py`` and ``TransformerConfig``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from meshwright.base.errors import Fault
from meshwright.frameworks.launch import Words
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec
from meshwright.train.answer import Plan

ROTARY_GATED = (
    "LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "Phi3ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
)  # fmt: skip
"""Architectures with rotary positions and SwiGLU."""
LEARNED_GELU = ("megatron_gpt", "GPT2LMHeadModel")
"""Architectures with learned positions and GELU."""


def model_refusals(model: ModelSpec) -> Iterator[Fault]:
    """Yield what of a model Megatron-LM's GPT lacks."""
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
    """Yield what of one layer kind cannot be said."""
    attention = kind.attention
    if kind.parallel_residual:
        yield "attention and feed-forward in parallel; Megatron-LM runs them in turn"
    if kind.num_norms != 2:
        yield f"{kind.num_norms} norms; Megatron-LM has two in a layer"
    if attention.qk_norm not in ("none", "head"):
        yield f"norm of queries and keys over {attention.qk_norm}; Megatron-LM has it by head"
    if attention.sinks:
        yield "attention sinks; written for models without them only"
    if attention.window is not None and attention.window_kind != "sliding":
        yield f"{attention.window_kind} attention windows; Megatron-LM has sliding ones"
    if _biases(kind) not in ("none", "qkv", "all"):
        yield f"biases on {_biases(kind)} only; Megatron-LM has none, qkv or all"
    if kind.experts is not None and kind.experts.bias:
        yield "biases in experts; written for experts without them only"


def _biases(kind: LayerSpec) -> str:
    """Return which linear layers carry a bias."""
    dense = kind.feed_forward is not None and kind.feed_forward.bias
    has_dense = kind.feed_forward is not None
    found = {
        "qkv": kind.attention.qkv_bias,
        "output": kind.attention.output_bias,
        **({"feed-forward": dense} if has_dense else {}),
    }
    present = [name for name, there in found.items() if there]
    if not present:
        return "none"
    return "all" if len(present) == len(found) and has_dense else " and ".join(present)


def model_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of the model."""
    model, length = plan.model, plan.workload.sequence_length
    kind = model.layer_kinds[0]
    yield "--num-layers", f"{model.num_layers}"
    yield "--hidden-size", f"{model.hidden_size}"
    yield "--ffn-hidden-size", f"{_dense_width(model)}"
    yield from _attention_options(kind.attention, length)
    yield "--max-position-embeddings", f"{model.learned_positions or length}"
    rotary = not model.learned_positions
    yield "--position-embedding-type", "rope" if rotary else "learned_absolute"
    yield "--normalization", "RMSNorm" if model.norm == "rms" else "LayerNorm"
    if _is_gated(kind):
        yield ("--swiglu",)
    if _biases(kind) != "all":
        yield ("--disable-bias-linear",)
    if _biases(kind) == "qkv":
        yield ("--add-qkv-bias",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--vocab-size", f"{model.vocab_size}"
    yield from _expert_options(model)


def _is_gated(kind: LayerSpec) -> bool:
    network = kind.feed_forward or kind.experts
    return network is not None and network.gated


def _dense_width(model: ModelSpec) -> int:
    """Return the width of dense layers; that of an expert where there are none."""
    dense = [kind.feed_forward.ffn_size for kind in model.layer_kinds if kind.feed_forward]
    experts = [kind.experts.ffn_size for kind in model.layer_kinds if kind.experts]
    return (dense or experts)[0]


def _attention_options(attention: AttentionSpec, sequence_length: int) -> Iterator[Words]:
    yield "--num-attention-heads", f"{attention.num_heads}"
    if attention.kind == "mla":
        yield ("--multi-latent-attention",)
        if attention.query_rank is not None:
            yield "--q-lora-rank", f"{attention.query_rank}"
        yield "--kv-lora-rank", f"{attention.kv_rank}"
        yield "--qk-head-dim", f"{attention.head_size}"
        yield "--qk-pos-emb-head-dim", f"{attention.rope_head_size}"
        yield "--v-head-dim", f"{attention.value_head_size}"
    else:
        yield "--kv-channels", f"{attention.head_size}"
        if attention.num_kv_heads != attention.num_heads:
            yield ("--group-query-attention",)
            yield "--num-query-groups", f"{attention.num_kv_heads}"
    if attention.qk_norm == "head" or attention.kind == "mla":
        yield ("--qk-layernorm",)
    if attention.window is not None and attention.window < sequence_length:
        yield "--window-size", f"{attention.window - 1},0"


def _expert_options(model: ModelSpec) -> Iterator[Words]:
    """Yield the arguments of a mixture of experts, where there is one."""
    experts = next((kind.experts for kind in model.layer_kinds if kind.experts), None)
    if experts is None:
        return
    yield "--num-experts", f"{experts.num_experts}"
    yield "--moe-router-topk", f"{experts.top_k}"
    yield "--moe-ffn-hidden-size", f"{experts.ffn_size}"
    yield "--moe-layer-freq", layer_frequency(model)
    yield ("--moe-grouped-gemm",)
    yield "--moe-token-dispatcher-type", "alltoall"
    yield from _router_options(experts)


def _router_options(experts: ExpertSpec) -> Iterator[Words]:
    if experts.shared_ffn_size:
        yield "--moe-shared-expert-intermediate-size", f"{experts.shared_ffn_size}"
    if experts.shared_gate:
        yield ("--moe-shared-expert-gate",)
    if experts.router_bias:
        yield ("--moe-router-enable-expert-bias",)
        yield "--moe-router-score-function", "sigmoid"


def layer_frequency(model: ModelSpec) -> str:
    """Return which layers hold experts, as a list of ones and zeros: ``([0]*3+[1]*58)``."""
    holds = [int(model.layer_kinds[kind].experts is not None) for kind in model.layer_pattern]
    runs = [(value, len(list(run))) for value, run in groupby(holds)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"
