"""Plans that cannot be run dry, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from meshwright.base.errors import Fault, UnsupportedError
from meshwright.run.dry.program import DTYPES, OF_BYTES
from meshwright.run.pipelines import SCHEDULES
from meshwright.sharding.strategy import Offload
from meshwright.train.answer import Plan

ON_PYTORCH = ("fsdp", "torchtitan")
"""Frameworks whose plans are programs of PyTorch's own FSDP2, tensor parallelism and pipelines."""
FRAMEWORKS = (*ON_PYTORCH, "accelerate", "megatron")


def check_dry(plan: Plan) -> None:
    """Refuse a plan that no program of PyTorch here expresses.

    Raises
    ------
    UnsupportedError
        Names everything that stands in the way.
    """
    faults = list(dry_faults(plan))
    if faults:
        lines = "\n".join(f"  - {fault}" for fault in faults)
        raise UnsupportedError(f"this plan cannot be run dry\n{lines}", faults)


def dry_faults(plan: Plan) -> Iterator[Fault]:
    """Yield everything that stands in the way of a dry run."""
    strategy, options, work = plan.best.strategy, plan.best.plan_options, plan.workload
    framework = work.software.framework.partition("==")[0]
    if framework and framework not in FRAMEWORKS:
        yield Fault("framework", f"{framework} is not run dry",
                    " or ".join(FRAMEWORKS))  # fmt: skip
    is_own = framework == "torchtitan" and find_spec(framework) is not None
    if not is_own:
        yield from _model_faults(plan)
    if framework == "accelerate" and strategy.tp > 1:
        # accelerate 1.15 (2026-11), accelerator.py, _prepare_tp: "we skip the TP preparation"
        yield Fault("tp", "run_clm.py loads whole tensors, which accelerate leaves whole", "tp 1")
    unsplit = ("cp",) * (framework in ("accelerate", "megatron"))
    for name in ("tatp", "etp", *unsplit):
        if getattr(strategy, name) > 1:
            yield Fault(name, f"{name} {getattr(strategy, name):.0f} is not built", f"{name} 1")
    yield from _number_faults(plan)
    if framework != "megatron":
        yield from _pytorch_faults(plan, is_own=is_own)
    elif options.zero_stage > 1:
        yield Fault("zero_stage", f"{options.zero_stage} is Megatron-FSDP, which is not built",
                    "1 or 0")  # fmt: skip


def _number_faults(plan: Plan) -> Iterator[Fault]:
    """Yield the types, optimizers and batches that no program here has."""
    strategy, work = plan.best.strategy, plan.workload
    optimizer, framework = work.optimizer, work.software.framework.partition("==")[0]
    if work.precision.matmul not in DTYPES:
        yield Fault("precision", f"{work.precision.matmul} is not built", ", ".join(DTYPES))
    # Megatron keeps FP32 weights among its states.
    is_adam = optimizer.state_bytes_per_param == 2.0 * optimizer.weight_bytes_per_param
    words = {optimizer.weight_bytes_per_param, optimizer.reduced_gradient_bytes_per_param}
    known = "megatron-adam" if framework == "megatron" else "fsdp-mixed, adam-fp32"
    if work.adapters is not None or optimizer.freezes_weights:
        yield Fault("adapters", f"no program that {framework or 'PyTorch'} starts here has them",
                    f"optimizer {known.partition(',')[0]}")  # fmt: skip
    elif not (is_adam or framework == "megatron") or not words <= OF_BYTES.keys():
        yield Fault("optimizer", f"{optimizer.name} is no AdamW of PyTorch", known)
    batch = strategy.dp * strategy.micro_batch_size
    if work.global_batch_size % batch:
        yield Fault("global_batch", f"{work.global_batch_size} is no multiple of {batch:.0f}")


def _pytorch_faults(plan: Plan, *, is_own: bool) -> Iterator[Fault]:
    """Yield what PyTorch's own parallelism does not express."""
    strategy, options = plan.best.strategy, plan.best.plan_options
    heads = [kind.attention.num_kv_heads for kind in plan.model.layer_kinds if kind.attention]
    if not is_own and any(number % strategy.tp for number in heads):
        message = f"tp {strategy.tp:.0f} splits {min(heads)} key heads, and PyTorch shares none"
        yield Fault("tp", message, f"a divisor of {min(heads)}")
    # PyTorch 2.13: ddp.py, _localize_dtensor, names a shared weight once, and leaves the other one.
    shared = plan.model.tied_embeddings and strategy.pp == 1
    if shared and options.zero_stage < 2 and strategy.tp > 1 and strategy.dp * strategy.cp > 1:
        yield Fault("zero_stage", f"{options.zero_stage} replicates a table that embedding and "
                    "head share, which with tp is not built", "3")  # fmt: skip
    if options.schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        yield Fault("schedule", f"{options.schedule} is no schedule of PyTorch here", known)
    if options.offload not in (Offload.NONE, Offload.STATE, Offload.ACTIVATIONS, Offload.ALL):
        yield Fault("offload", f"{options.offload} is not what FSDP2 offloads", "state")


def _model_faults(plan: Plan) -> Iterator[Fault]:
    """Yield the parts of a model that are not built."""
    model = plan.model
    if any(kind.experts is not None for kind in model.layer_kinds):
        yield Fault("model", "routed experts have no program of PyTorch alone",
                    "framework=torchtitan, where it is installed")  # fmt: skip
    if any(kind.attention is None or kind.attention.kind != "gqa" for kind in model.layer_kinds):
        yield Fault("model", "attention other than grouped-query is not built", "another model")
    for kind in model.layer_kinds:
        attention = kind.attention
        if kind.num_norms != 2 or kind.parallel_residual or not kind.norms_before:
            yield Fault("model", "layers with other norms than two before the branches",
                        "another model")  # fmt: skip
        if attention is not None and (
            attention.sinks or attention.output_gate or attention.qk_norm not in ("none", "head")
        ):
            yield Fault("model", "attention with sinks, gates or such norms is not built",
                        "another model")  # fmt: skip
    if model.learned_positions or model.embedding_norm or model.prediction_depths:
        yield Fault("model", "learned positions, a norm behind the embedding, or several predicted "
                    "tokens are not built", "another model")  # fmt: skip
