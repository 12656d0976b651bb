"""Megatron-LM: the arguments of ``pretrain_gpt.py``, as a script for torchrun.

Models that its GPT cannot express and plans that its arguments cannot express are refused.

Source: megatron-core 0.19.2, ``megatron/training/arguments.py`` and ``TransformerConfig``; rank
order of ``parallel_state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from meshwright.base.errors import Fault
from meshwright.catalog.megatron_models import biases
from meshwright.frameworks.launch import (
    Words,
    degrees,
    header,
    layers_of_chunks,
    num_experts,
    ordered_as,
    plan_launch,
    shell_script,
    torchrun_words,
)
from meshwright.frameworks.reading.stages import pipeline_layout
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.registry import exporters
from meshwright.sharding.strategy import ContextKind, Offload, Recompute
from meshwright.spec.model import AttentionSpec, ExpertSpec, LayerSpec, ModelSpec
from meshwright.train.answer import Plan
from meshwright.train.writing import MESH_AXES, RACK_DOMAIN, has_short_gradients

FILE_NAME = "pretrain_gpt.sh"
PIPELINE_INSIDE = ("tp", "cp", "pp", "dp_shard", "dp_replicate")
"""Order of the axes under ``--use-tp-pp-dp-mapping``."""
PRECISIONS: dict[str, tuple[Words, ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
    "fp4": (("--bf16",),),
}
FSDP_STRATEGY = {2: "optim_grads", 3: "optim_grads_params"}


@exporters.register("megatron")
class MegatronArguments:
    """A shell script that starts ``pretrain_gpt.py``."""

    title = "Megatron-LM (megatron-core 0.19.2)"
    is_text = True

    @staticmethod
    def refusals(plan: Plan) -> Sequence[Fault]:
        """Return the faults of a plan that the arguments cannot express."""
        return framework_refusals(plan, "megatron")

    @staticmethod
    def render(plan: Plan) -> dict[str, str]:
        """Return the script."""
        notes = (
            "add what a plan does not hold (data, learning rate, rotary base, epsilon), as in",
            f"  {FILE_NAME} --mock-data --tokenizer-type NullTokenizer --lr 1e-4 --train-iters 50",
        )
        comments = header(plan, MegatronArguments.title, notes)
        program = [*torchrun_words(plan_launch(plan)), "pretrain_gpt.py"]
        script = shell_script(comments, variables(plan), program, arguments(plan))
        return {FILE_NAME: script}


def arguments(plan: Plan) -> list[Words]:
    """Return the arguments of a plan, its model included."""
    return [
        *_parallel_options(plan),
        *_pipeline_options(plan),
        *_state_options(plan),
        *_memory_options(plan),
        *_workload_options(plan),
        *model_options(plan),
    ]


def _uses_fsdp(plan: Plan) -> bool:
    return plan.best.plan_options.zero_stage >= 2


def _has_data_axes(plan: Plan) -> bool:
    sizes = degrees(plan)
    return sizes["dp"] * sizes["cp"] > 1


def variables(plan: Plan) -> Iterator[str]:
    """Yield the environment: several hardware queues for Megatron-FSDP, otherwise one.

    Transformer Engine computes products of FP32 in TF32 unless libraries are told not to.

    Source: NVIDIA/TransformerEngine, ``common/gemm/cublaslt_gemm.cu``; CUDA, ``cuBLAS``.
    """
    fsdp = _uses_fsdp(plan)
    if plan.workload.precision.matmul == "fp32":
        yield "export NVIDIA_TF32_OVERRIDE=0"
    yield "unset CUDA_DEVICE_MAX_CONNECTIONS" if fsdp else "export CUDA_DEVICE_MAX_CONNECTIONS=1"


def _parallel_options(plan: Plan) -> Iterator[Words]:
    sizes, plan_options = degrees(plan), plan.best.plan_options
    yield "--tensor-model-parallel-size", f"{sizes['tp']}"
    yield "--pipeline-model-parallel-size", f"{sizes['pp']}"
    yield "--context-parallel-size", f"{sizes['cp']}"
    if sizes["cp"] > 1:
        ulysses = plan_options.context_kind is ContextKind.ULYSSES
        yield "--cp-comm-type", "a2a" if ulysses else "p2p"
    if num_experts(plan):
        yield "--expert-model-parallel-size", f"{sizes['ep']}"
        yield "--expert-tensor-parallel-size", f"{sizes['etp']}"
    if plan_options.overlap_expert_parallel:
        yield ("--overlap-moe-expert-parallel-comm",)
    if plan_options.sequence_parallel:
        yield ("--sequence-parallel",)
    if plan_options.overlap_tensor_parallel and sizes["tp"] > 1:
        yield ("--tp-comm-overlap",)
    if not ordered_as(plan, MESH_AXES):
        yield ("--use-tp-pp-dp-mapping",)


def _pipeline_options(plan: Plan) -> Iterator[Words]:
    """Yield virtual stages, and the layers of each chunk where they differ.

    Interleaved chunks hold one layer less at the ends, or follow a layout, which also gives their
    number.
    """
    chunks, lengths = degrees(plan)["num_virtual_stages"], layers_of_chunks(plan)
    first, last, middle, usual = lengths[0], lengths[-1], set(lengths[1:-1]), max(lengths)
    counts_edges = middle == {usual} and min(first, last) >= usual - 1
    if len(middle) > 1 or (chunks > 1 and not counts_edges):
        yield "--pipeline-model-parallel-layout", pipeline_layout(lengths)
        return
    if chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", f"{chunks}"
        if first < usual:
            yield ("--account-for-embedding-in-pipeline-split",)
        if last < usual:
            yield ("--account-for-loss-in-pipeline-split",)
        return
    if middle and first not in middle:
        yield "--decoder-first-pipeline-num-layers", f"{first}"
    if len(set(lengths)) > 1:
        yield "--decoder-last-pipeline-num-layers", f"{last}"


def _state_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of sharding and sums of weights, gradients and optimizer state."""
    plan_options, replicas = plan.best.plan_options, degrees(plan)["dp_replicate"]
    if plan_options.zero_stage:
        yield ("--use-distributed-optimizer",)
        if replicas > 1:
            yield "--num-distributed-optimizer-instances", f"{replicas}"
    if _uses_fsdp(plan):
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", FSDP_STRATEGY[plan_options.zero_stage]
        yield "--ckpt-format", "fsdp_dtensor"
    if plan_options.overlap_data_parallel and _has_data_axes(plan):
        yield ("--overlap-grad-reduce",)
        if plan_options.zero_stage:
            yield ("--overlap-param-gather",)
    if has_short_gradients(plan.workload):
        yield ("--grad-reduce-in-bf16",)


def _memory_options(plan: Plan) -> Iterator[Words]:
    plan_options = plan.best.plan_options
    if plan_options.recompute is Recompute.FULL:
        yield "--recompute-granularity", "full"
        yield "--recompute-method", "block" if plan_options.recomputes_some else "uniform"
        number = plan_options.recompute_layers or plan_options.recompute_run
        yield "--recompute-num-layers", f"{number}"
    elif plan_options.recompute is Recompute.SELECTIVE:
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *(plan_options.recompute_modules or ("core_attn",))
    if plan_options.offload is Offload.OPTIMIZER:
        yield ("--optimizer-cpu-offload",)
        yield ("--use-precision-aware-optimizer",)


def _workload_options(plan: Plan) -> Iterable[Words]:
    work, software = plan.workload, plan.workload.software
    yield "--micro-batch-size", f"{degrees(plan)['micro_batch_size']}"
    yield "--global-batch-size", f"{work.global_batch_size}"
    yield "--seq-length", f"{work.sequence_length}"
    ramp = work.batch_ramp
    if ramp is not None:
        yield "--rampup-batch-size", f"{ramp.start}", f"{ramp.increment}", f"{ramp.sequences}"
    if work.total_tokens is not None and ramp is not None:
        yield "--train-samples", f"{-(-work.total_tokens // work.sequence_length):.0f}"
    elif work.total_tokens is not None:
        yield "--train-iters", f"{-(-work.total_tokens // work.tokens_per_step):.0f}"
    yield from PRECISIONS[work.precision.matmul]
    yield "--attention-backend", "flash" if software.flash_attention else "unfused"
    if not software.dropout:
        yield "--attention-dropout", "0.0"
        yield "--hidden-dropout", "0.0"
    if software.cuda_graphs:
        yield "--cuda-graph-impl", "local"
    if software.loss == "compiled":
        yield ("--cross-entropy-loss-fusion",)


def model_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of the model."""
    model, length = plan.model, plan.workload.sequence_length
    kind = model.layer_kinds[0]
    yield "--num-layers", f"{model.num_layers}"
    yield "--hidden-size", f"{model.hidden_size}"
    yield "--ffn-hidden-size", f"{_dense_width(model)}"
    yield from _attention_options(model.attentions[0], length)
    yield "--max-position-embeddings", f"{model.learned_positions or length}"
    rotary = not model.learned_positions
    yield "--position-embedding-type", "rope" if rotary else "learned_absolute"
    yield "--normalization", "RMSNorm" if model.norm == "rms" else "LayerNorm"
    if _is_gated(kind):
        yield ("--swiglu",)
    if biases(kind) != "all":
        yield ("--disable-bias-linear",)
    if biases(kind) == "qkv":
        yield ("--add-qkv-bias",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--vocab-size", f"{model.vocab_size}"
    yield from _expert_options(plan)


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


def _expert_options(plan: Plan) -> Iterator[Words]:
    """Yield the arguments of a mixture of experts, where there is one."""
    model = plan.model
    experts = next((kind.experts for kind in model.layer_kinds if kind.experts), None)
    if experts is None:
        return
    yield "--num-experts", f"{experts.num_experts}"
    yield "--moe-router-topk", f"{experts.top_k}"
    yield "--moe-ffn-hidden-size", f"{experts.ffn_size}"
    yield "--moe-layer-freq", layer_frequency(model)
    yield ("--moe-grouped-gemm",)
    yield from _dispatcher_options(plan)
    yield from _router_options(experts)


def _dispatcher_options(plan: Plan) -> Iterator[Words]:
    """Yield the dispatcher of tokens: all-to-all sends each copy, the others one to a host.

    Source: Megatron Bridge, ``flex_dispatcher_backend``: HybridEP for racks of one NVLink domain.
    """
    sizes, domain = degrees(plan), plan.system.levels[0].size
    crosses_hosts = sizes["ep"] * sizes["etp"] > domain
    if not crosses_hosts or not plan.workload.software.deduplicated_dispatch:
        yield "--moe-token-dispatcher-type", "alltoall"
        return
    yield "--moe-token-dispatcher-type", "flex"
    yield "--moe-flex-dispatcher-backend", "hybridep" if domain >= RACK_DOMAIN else "deepep"


def _router_options(experts: ExpertSpec) -> Iterator[Words]:
    if experts.shared_ffn_size:
        yield "--moe-shared-expert-intermediate-size", f"{experts.shared_ffn_size}"
    if experts.shared_gate:
        yield ("--moe-shared-expert-gate",)
    if experts.num_groups > 1:
        yield "--moe-router-num-groups", f"{experts.num_groups}"
        yield "--moe-router-group-topk", f"{experts.top_groups}"
    if experts.router_bias:
        yield ("--moe-router-enable-expert-bias",)
        yield "--moe-router-score-function", "sigmoid"


def layer_frequency(model: ModelSpec) -> str:
    """Return which layers hold experts, as a list of ones and zeros: ``([0]*3+[1]*58)``."""
    holds = [int(model.layer_kinds[kind].experts is not None) for kind in model.layer_pattern]
    runs = [(value, len(list(run))) for value, run in groupby(holds)]
    return "(" + "+".join(f"[{value}]*{count}" for value, count in runs) + ")"
