"""Limits of the exports: plans that a framework starts but its files cannot express.

The rules of ``sharding/launching.py`` are those of the framework itself; :data:`WRITTEN` has the
limits of the files that are written for it. A plan launches with a framework if neither refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from meshwright.base.errors import Fault
from meshwright.catalog import maxtext_models, megatron_models, torchtitan_models
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, Strategy
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training

RACK_DOMAIN = 17
"""Number of devices from which a scale-up domain spans hosts."""
RACK_HOST_SIZE = 4
"""Devices of one host in such a domain. Source: NVIDIA GB200 NVL72, four GPUs in a tray."""
MESH_AXES = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
"""Axes of a device mesh on a cluster, innermost first in the default order of Megatron."""
STORED = ("bitsandbytes nf4", "bitsandbytes nf4 with narrow scales", "bitsandbytes int8")
"""Frozen weights that the Trainer of Hugging Face narrows."""


@dataclass(frozen=True)
class AskedStrategy:
    """A strategy of a question for the files of a framework."""

    model: ModelSpec
    system: SystemSpec
    workload: Training
    strategy: Strategy
    plan_options: PlanOptions


Limits = Callable[[AskedStrategy], Iterator[Fault]]


def written_faults(framework: str, asked: AskedStrategy) -> Iterator[Fault]:
    """Yield the faults of a plan for the export to a framework; nothing without an export."""
    if framework in WRITTEN:
        yield from launched_faults(asked)
        for limits in WRITTEN[framework]:
            yield from limits(asked)


def host_size(system: SystemSpec) -> int:
    """Return the devices of one host: as stated, or the innermost domain, or a part of a rack."""
    domain = system.levels[0].size if system.levels else 1
    usual = RACK_HOST_SIZE if domain >= RACK_DOMAIN else domain
    return min(system.devices_per_host or usual, system.num_devices)


def launched_faults(asked: AskedStrategy) -> Iterator[Fault]:
    """Yield the faults for every launcher: half-full hosts, ranks of unequal work."""
    used, size = int(asked.strategy.num_devices), host_size(asked.system)
    if used > size and used % size:
        message = f"{used} devices do not fill hosts of {size}; torchrun starts as many on each"
        yield Fault("strategy", message, f"{used // size * size} devices")
    if asked.system.dead_devices:
        message = f"{len(asked.system.dead_devices)} devices are dead; ranks are given out in a row"
        yield Fault("system.dead_devices", message, "leave their hosts out of the system")
    order = asked.plan_options.axis_order
    wrong = [axis for axis in MESH_AXES if order.count(axis) != 1]
    if wrong:
        message = f"names {wrong[0]} {order.count(wrong[0])} times; each axis stands once"
        yield Fault("plan_options.axis_order", message, ",".join(MESH_AXES))
    yield from batch_faults(asked)


def batch_faults(asked: AskedStrategy) -> Iterator[Fault]:
    """Yield a batch that ranks do not share equally."""
    batch, dp = asked.workload.global_batch_size, int(asked.strategy.dp)
    micro = int(asked.strategy.micro_batch_size)
    if batch % (dp * micro):
        message = (
            f"{batch} is not divisible by dp {dp} x micro-batch {micro}; ranks would run different "
            "numbers of micro-batches"
        )
        yield Fault("workload.global_batch_size", message, _nearest_batch(batch, dp, micro))


def _nearest_batch(batch: int, dp: int, micro_batch_size: int) -> str:
    """Return the nearest micro-batch that divides the batch of a rank; else the nearest batch."""
    if batch % dp == 0:
        sizes = range(micro_batch_size, 0, -1)
        return f"micro_batch_size={next(size for size in sizes if batch // dp % size == 0)}"
    unit = dp * micro_batch_size
    return f"global_batch_size={max(1, round(batch / unit)) * unit}"


def optimizer_faults(asked: AskedStrategy, *, preset: str, needed_bytes: float) -> Iterator[Fault]:
    """Yield an optimizer that keeps fewer bytes per parameter than the one that is written."""
    ours = asked.workload.optimizer
    if ours.freezes_weights:
        return
    kept = ours.weight_bytes_per_param + ours.gradient_bytes_per_param + ours.state_bytes_per_param
    if kept < needed_bytes:
        message = f"{ours.name} keeps {kept:g} bytes per parameter, Adam here {needed_bytes:g}"
        yield Fault("workload.optimizer", message, f"plan with optimizer {preset}")


def mask_faults(asked: AskedStrategy, *, reason: str) -> Iterator[Fault]:
    """Yield attention without a causal mask, where the files always have one."""
    if not asked.workload.causal:
        yield Fault("workload.causal", f"False: {reason}", "true")


def _megatron_faults(asked: AskedStrategy) -> Iterator[Fault]:
    strategy, plan_options = asked.strategy, asked.plan_options
    used = [axis for axis in plan_options.axis_order if getattr(strategy, axis) > 1]
    default = [axis for axis in MESH_AXES if getattr(strategy, axis) > 1]
    matches = strategy.ep * strategy.etp == strategy.tp * strategy.cp
    if asked.model.has_experts and not matches and used != default:
        reason = "with pp inside of dp, stages match only where ep x etp equals tp x cp"
        found = f"{','.join(plan_options.axis_order)}: {reason}"
        yield Fault("plan_options.axis_order", found, ",".join(MESH_AXES))
    # transformer_config.py: CUDA graphs of layers go with neither (ValueError, AssertionError).
    if asked.workload.software.cuda_graphs:
        if plan_options.recompute is Recompute.FULL:
            reason = "full: layers that are recomputed as a whole are not recorded in CUDA graphs"
            yield Fault("plan_options.recompute", reason, "recompute=selective or none")
        if plan_options.offload is Offload.ACTIVATIONS:
            reason = "activations: CUDA graphs do not move activations to the host"
            yield Fault("plan_options.offload", reason, "offload=none")
    is_wide = asked.workload.precision.matmul in ("fp32", "tf32")
    is_short = is_wide or has_short_gradients(asked.workload)
    preset = "megatron-adam-bf16-gradients" if is_short else "megatron-adam"
    yield from optimizer_faults(asked, preset=preset, needed_bytes=16.0 if is_short else 18.0)


def _gpt_faults(asked: AskedStrategy) -> Iterator[Fault]:
    yield from megatron_models.model_refusals(asked.model)


def has_short_gradients(work: Training) -> bool:
    """Return whether gradients are kept and summed in two bytes."""
    return work.optimizer.gradient_bytes_per_param <= 2 and not work.optimizer.freezes_weights


def _bridge_faults(asked: AskedStrategy) -> Iterator[Fault]:
    work, model = asked.workload, asked.model
    recipe = megatron_models.bridge_recipe(model)
    if recipe == megatron_models.VANILLA:
        yield from _gpt_faults(asked)
    if not recipe:
        message = "latent attention is in recipes of DeepSeek only, not of this size"
        yield Fault("model.attention", message, "plan with --framework megatron")
    is_latent = any(attention.kind == "mla" for attention in model.attentions)
    if is_latent and work.optimizer.freezes_weights:
        message = "adapters of latent attention are not written"
        yield Fault("workload.adapters", message, "plan with --framework accelerate")
    if work.precision.weight_format is not None:
        message = "frozen weights rest in 16 bits"
        yield Fault("workload.precision.weight_format", message, "plan without --with weights")
    if not work.software.flash_attention:
        reason = "overrides leave the attention kernel to Transformer Engine"
        yield Fault("workload.software.flash_attention", f"False: {reason}", "true")
    if asked.plan_options.offload is Offload.ACTIVATIONS and asked.strategy.pp > 1:
        reason = "activations: activations move to the host without pipelines only"
        yield Fault("plan_options.offload", reason, "pp=1")


def _torchtitan_faults(asked: AskedStrategy) -> Iterator[Fault]:
    software, strategy = asked.workload.software, asked.strategy
    is_selective = asked.plan_options.recompute is Recompute.SELECTIVE
    if is_selective and software.selective_recompute != "half_of_products":
        reason = "selective: torchtitan's keeps attention and recomputes every second product"
        fix = "plan with --framework torchtitan, or recompute=full or none"
        yield Fault("plan_options.recompute", reason, fix)
    if software.cuda_graphs and (strategy.pp > 1 or strategy.ep > 1):
        reason = "True: CUDA graphs exclude pipeline and expert parallelism"
        yield Fault("workload.software.cuda_graphs", reason, "false")
    yield from torchtitan_models.model_refusals(asked.model, asked.workload.precision.matmul)


def trainer_faults(asked: AskedStrategy) -> Iterator[Fault]:
    """Yield the faults for the Trainer of Hugging Face and its language models."""
    stored = asked.workload.precision.weight_format
    if stored is not None and stored.name not in STORED:
        reason = f"{stored.name}: frozen weights are narrowed by bitsandbytes"
        yield Fault("workload.precision.weight_format", reason, "nf4, nf4-double or bnb-int8")
    yield from mask_faults(asked, reason="run_clm.py masks causally")


def _maxtext_faults(asked: AskedStrategy) -> Iterator[Fault]:
    if asked.workload.optimizer.name != "adam-bf16":  # which weight_dtype makes
        yield from optimizer_faults(asked, preset="fsdp-mixed", needed_bytes=16.0)
    yield from maxtext_models.model_refusals(asked.model)


_MIXED: Limits = partial(optimizer_faults, preset="fsdp-mixed", needed_bytes=16.0)
"""Optimizer with FP32 parameters, gradients and two moments of AdamW."""
_GPT: Limits = partial(mask_faults, reason="GPT models mask causally")
_CAUSAL: Limits = partial(mask_faults, reason="its models mask causally")
WRITTEN: dict[str, tuple[Limits, ...]] = {
    "megatron": (_megatron_faults, _gpt_faults, _GPT),
    "megatron-bridge": (_megatron_faults, _GPT, _bridge_faults),
    "torchtitan": (_MIXED, _torchtitan_faults, _CAUSAL),
    "fsdp": (_MIXED,),
    "accelerate": (_MIXED, trainer_faults),
    # Two bytes of weights, two of gradients, FP32 weights and two moments of Adam.
    "deepspeed": (
        partial(optimizer_faults, preset="deepspeed-adam", needed_bytes=16.0), trainer_faults,
    ),
    "maxtext": (_maxtext_faults, _CAUSAL),
}  # fmt: skip
"""Limits of the export to each framework."""
TARGETS = {
    "megatron": "megatron",
    "torchtitan": "torchtitan",
    "fsdp": "torch",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "megatron-bridge": "megatron-bridge",
    "maxtext": "maxtext",
}
"""The export target of each framework of the catalog that has one."""


def target_for(framework: str, launches_with: Sequence[str]) -> str | None:
    """Return the export target for a plan; None: no target.

    The target of the stated framework, else of the first framework that starts the plan.
    """
    ranked = (framework.partition("==")[0], *TARGETS)
    return next((TARGETS[n] for n in ranked if n in TARGETS and n in launches_with), None)
