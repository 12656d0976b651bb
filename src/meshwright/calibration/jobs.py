"""From a row to a job that can be priced: its model, system, problem, strategy and plan options.

A value that a row does not state has one default, of its framework or of its chip; a row that
cannot be priced is refused for one of a closed list of reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import gcd, prod
from typing import Any

from pydantic import ValidationError

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.calibration.rows import (
    ADAPTERS,
    HardwareFields,
    ModelFields,
    PrecisionFields,
    Row,
    SoftwareFields,
)
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import chip_names, load_chip, load_system
from meshwright.catalog.workloads import default_optimizer, load_optimizer
from meshwright.cost.operator import stated_rate
from meshwright.cost.problem import Problem
from meshwright.sharding import launching
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.framework import UNNAMED, Framework, Habits
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec
from meshwright.spec.system import ChipSpec, NetworkLevel, SystemSpec
from meshwright.spec.workload import OptimizerPreset, Precision, SoftwareStack, Training
from meshwright.train.question import check_problem, make_problem, stated_strategy, training


class Reason(StrEnum):
    """Reasons for which a row is left out."""

    TASK = "task-not-priced"
    """No training step: inference, single layers."""
    MEASURED = "nothing-to-compare"
    """No time, throughput, memory or label to hold a prediction against."""
    DIMS = "model-dims-not-stated"
    """Dims are not stated, or make no model."""
    SEQUENCE = "sequence-length-not-stated"
    LENGTHS = "input-or-output-length-not-stated"
    BATCH = "batch-not-stated"
    CHIP = "chip-unknown"
    COUNT = "chip-count-not-stated"
    SYSTEM = "system-not-built"
    """The chips form no system: no such slice, or no room."""
    DEGREES = "degrees-do-not-multiply"
    PRECISION = "precision-unknown"
    """Precision is unknown, or the chip has no rate for it."""
    PLAN = "plan-not-priced"
    """The plan breaks a rule of the axes."""


class RefusedError(Exception):
    """One row is refused, for a reason, with the value found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


MOST_LAYERS = 10_000
"""Most layers of a model: a larger number is a typing error."""
TASKS = ("pretrain", "pretraining", "train", "training", "finetune-sft", ADAPTERS, "memory", "oom")
"""Tasks that are training steps."""
_LAUNCHING = tuple(rule.name for rule in launching.rules())
"""Rules on what a framework can start; they are not applied, because measured plans did start."""
_OF_THE_SEARCH = (
    "dp-even",
    "pp-micro-batches",
    "sp-sequence",
)
"""Rules that keep unlikely plans out of the search; measured plans are priced anyway."""


@dataclass(frozen=True)
class Job:
    """A row as it is priced."""

    row: Row
    habits: Habits
    problem: Problem
    strategy: Strategy
    plan_options: PlanOptions


@dataclass(frozen=True)
class Degrees:
    """Degrees and batch of a row, missing ones derived from the others."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int | None
    """Tensor degree inside an expert; None: the default of the framework."""
    chunks: int
    micro_batch: int
    global_batch: int


def job_of(row: Row, calibration: str, *, is_named: bool = True) -> Job:
    """Return the job of a row: its stated configuration, and the defaults of every question.

    Parameters
    ----------
    is_named
        Whether the framework is part of the question, with the software that the row states.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be priced.
    """
    if row.task not in TASKS:
        raise RefusedError(Reason.TASK, row.task)
    habits = load_framework(row.framework) if row.framework and is_named else UNNAMED
    system = system_of(row.hardware)
    model = model_of(row.model, row.framework or "")
    if row.model.seq is None:
        raise RefusedError(Reason.SEQUENCE, row.model.name or "")
    if not is_named:
        row = row.model_copy(update={"software": SoftwareFields()})
    degrees = degrees_of(row, system.num_devices, model)
    workload = _workload(row, habits, degrees, system)
    one = _stated(row, habits, degrees)
    try:
        strategy, plan_options = stated_strategy(one, model, system.num_devices, workload.software)
        problem = make_problem(model, system, workload, calibration)
        _check(problem, strategy, plan_options)
    except SpecError as error:
        raise RefusedError(Reason.PLAN, str(error.faults[0])) from error
    return Job(row, habits, problem, strategy, plan_options)


def degrees_of(row: Row, num_devices: int, model: ModelSpec) -> Degrees:
    """Return the degrees of a row; dp and the micro-batch follow where they are not stated."""
    plan = row.parallelism
    tp, pp, cp = plan.tp or 1, plan.pp or 1, plan.cp or 1
    dp = plan.dp or num_devices // (tp * pp * cp)
    if dp * tp * pp * cp != num_devices:
        found = f"tp {tp} x pp {pp} x cp {cp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    chunks = plan.vpp or 1 if pp > 1 else 1
    if pp * chunks > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} x {chunks} chunks of {model.num_layers} layers")
    micro, total = _batches(row, dp, tp, pp * chunks)
    ep, etp = (plan.ep or 1, plan.etp) if model.has_experts else (1, None)
    return Degrees(tp, pp, cp, dp, ep, etp, chunks, micro, total)


def _batches(row: Row, dp: int, tp: int, stages: int) -> tuple[int, int]:
    """Return sequences of a micro-batch, and of a step.

    MaxText states batches of a chip: a rank of dp has those of its tp group. A micro-batch that is
    not stated is 1 in a pipeline (in torchtitan such that their number is that of the stages), else
    all that a rank has in a step.
    """
    micro, total, times = row.micro_batch, row.global_batch, row.grad_accum
    if row.framework == "maxtext":
        micro = None if total else (micro or 0) * tp or None
    if total is None:
        if micro is None:
            raise RefusedError(Reason.BATCH, row.model.name or "")
        total = micro * dp * (times or 1)
    of_rank = max(total // dp, 1)
    if micro is None:
        rounds = times or (of_rank if stages > 1 else 1)
        if row.framework == "torchtitan":
            rounds = (times or 1) * stages
        micro = max(of_rank // rounds, 1)
    return min(micro, of_rank), total


def _stated(row: Row, habits: Habits, degrees: Degrees) -> dict[str, Any]:
    """Return the degrees and choices that a row states, by the names of a strategy.

    Slices of a network for dp alone are replicas, unless the number of ranks that shard the state
    is stated.
    """
    plan, dp = row.parallelism, degrees.dp
    shard = dp // gcd(row.hardware.slices or 1, dp)
    if plan.dp_shard:
        shard = dp // max(dp // plan.dp_shard, 1)
    stage = plan.zero_stage
    if stage is None and plan.fsdp is not None:
        stage = 3 if plan.fsdp else min(habits.zero_stage, 1)
    usual = habits.zero_stage if stage is None else stage
    if shard * degrees.cp == 1 or (row.task == ADAPTERS and usual < 3):
        stage = 0
    one = {
        "tp": degrees.tp, "pp": degrees.pp, "cp": degrees.cp, "ep": degrees.ep,
        "etp": degrees.etp, "dp": dp, "dp_shard": shard, "num_virtual_stages": degrees.chunks,
        "micro_batch_size": degrees.micro_batch, "zero_stage": stage,
        "sequence_parallel": plan.sp and degrees.tp > 1,
        "recompute": row.recompute, "recompute_modules": row.recompute_modules or None,
        "kept_tensors": row.kept_tensors or None,
        "offloaded_tensors": row.offloaded_tensors or None,
        "embedding_layers": plan.embedding_layers, "head_layers": plan.head_layers,
        "offload": row.offload,
    }  # fmt: skip
    return {name: value for name, value in one.items() if value is not None}


def precision_of(
    stated: PrecisionFields | None, chip: ChipSpec, habits: Habits = UNNAMED
) -> Precision:
    """Return the number formats of a training row: those of the framework where none is stated.

    Raises
    ------
    RefusedError
        When the chip has no rate for them.
    """
    known = stated or PrecisionFields()
    activation = known.activation or habits.word or chip.word
    matmul = known.matmul or activation
    try:
        stated_rate(chip, matmul)
        stated_rate(chip, activation)
    except SpecError as error:
        raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
    return Precision(matmul=matmul, activation=activation, row_scales=known.scaling == "row")


_ANY_LAYOUT = ("blackwell",)
"""Families with products of 8 bits that take operands along rows or columns; others keep a
transposed copy of 8-bit weights, which takes the place of the wide ones.

Source: NVIDIA/TransformerEngine, ``is_non_tn_fp8_gemm_supported``.
"""


def _optimizer(
    row: Row, habits: Habits, types: Precision, system: SystemSpec
) -> OptimizerPreset | None:
    """Return the bytes that a row states for each parameter; None: those of the framework."""
    stated, precision = row.software.optimizer, row.precision or PrecisionFields()
    if row.task == ADAPTERS:
        return load_optimizer(stated or "adapters")
    if habits is UNNAMED:
        return load_optimizer(stated) if stated else None
    name = stated or habits.optimizer_of(types.activation)
    if row.software.bf16_reductions or (row.parallelism.fsdp and habits.zero_stage < 3):
        name = "fsdp-mixed-bf16-reduce"
    if row.framework == "megatron-deepspeed" and precision.fp32_gradients:
        name = "deepspeed-adam-fp32-gradients"
    preset = load_optimizer(name) if name else default_optimizer(system)
    if row.software.narrow_parameters and system.chip.family in _ANY_LAYOUT:
        preset = preset.model_copy(update={"weight_bytes_per_param": 1.0})
    if precision.fp8_all_gather:
        return preset.model_copy(update={"gathered_weight_bytes_per_param": 1.0})
    return preset


def _workload(row: Row, habits: Habits, degrees: Degrees, system: SystemSpec) -> Training:
    """Return the training workload of a row."""
    assert row.model.seq is not None
    types = precision_of(row.precision, system.chip, habits)
    return training(
        system,
        has_run=True,
        global_batch_size=degrees.global_batch,
        sequence_length=row.model.seq,
        precision=types,
        optimizer=_optimizer(row, habits, types, system),
        software=_software(row, habits),
        framework=row.framework if isinstance(habits, Framework) else None,
    )


def _software(row: Row, habits: Habits) -> SoftwareStack:
    """Return the stated software of a row; without a framework only the tensors that it keeps."""
    stated = row.software
    names = (
        "keeps_cast_inputs", "narrow_activation_inputs", "dropout", "deterministic",
        "deferred_logit_gradients", "logit_tiles",
    )  # fmt: skip
    found = {name: getattr(stated, name) for name in names}
    if habits is not UNNAMED:
        found |= {
            "async_tensor_parallel": stated.async_tp,
            "flash_attention": row.flash_attention,
            "compiled": stated.compile,
            "fused_gradient_accumulation": False if stated.separate_accumulation else None,
        }
        if stated.compiled_loss:
            found["loss"] = "compiled"
    return SoftwareStack(**{name: value for name, value in found.items() if value is not None})


def _check(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> None:
    """Refuse a plan that breaks a rule, except for rules that only limit the search."""
    faults = [
        fault
        for fault in check_problem(problem, strategy, plan_options)
        if fault.path not in (*_OF_THE_SEARCH, *_LAUNCHING)
    ]
    if faults:
        raise RefusedError(Reason.PLAN, f"{faults[0].path}: {faults[0].message}")


# systems

_HOSTS_PER_DOMAIN_CHIPS = ("GB200", "GB300")
"""Chips with a fast domain over several hosts."""
_IN_HOSTS_OF = {"H100-96GB": "H100"}
"""Chips without a standard system."""


@cache
def system_of(hardware: HardwareFields) -> SystemSpec:
    """Return the system of a row.

    The fabric is the standard one of the chip, except for stated values: chips of one host, and the
    rate between hosts. TPU slices are joined by the data-centre network.

    Raises
    ------
    RefusedError
        When the chip is unknown, or that many of them form no system.
    """
    chip = hardware.chip or "not stated"
    if chip not in chip_names():
        raise RefusedError(Reason.CHIP, chip)
    if hardware.chips is None:
        raise RefusedError(Reason.COUNT, chip)
    try:
        system = _sliced(chip, hardware) or _counted(chip, hardware.chips)
    except MeshwrightError as error:
        raise RefusedError(Reason.SYSTEM, str(error).splitlines()[0]) from error
    if not chip.startswith("TPU"):
        system = _with_stated_network(system, hardware, chip)
    return system


def _counted(chip: str, num_devices: int) -> SystemSpec:
    """Return the standard system of that many chips, or one in the hosts of a similar chip."""
    if chip not in _IN_HOSTS_OF:
        return load_system(f"{num_devices}x{chip}")
    system = load_system(f"{num_devices}x{_IN_HOSTS_OF[chip]}")
    return system.model_copy(update={"chip": load_chip(chip), "name": f"{num_devices}x{chip}"})


def _sliced(chip: str, hardware: HardwareFields) -> SystemSpec | None:
    """Return several slices side by side, where more than one is stated."""
    count, chips = hardware.slices or 1, hardware.chips or 0
    if not chip.startswith("TPU") or count == 1 or chips % count:
        return None
    alone = load_system(f"{chips // count}x{chip}")
    shape = next(note for note in alone.notes if note.startswith("shape: "))
    return load_system(f"{count}x{shape.removeprefix('shape: ')}")


def _with_stated_network(system: SystemSpec, hardware: HardwareFields, chip: str) -> SystemSpec:
    """Return the system with hosts of the stated size, and the stated rate between them."""
    if not system.levels or any(level.kind in ("torus", "mesh") for level in system.levels):
        return system
    in_host = _domain_size(hardware, chip, system.levels[0].size)
    levels = [system.levels[0]]
    outer = system.levels[1:]
    if outer and prod(level.size for level in system.levels[:-1]) == in_host:
        levels, outer = list(system.levels[:-1]), system.levels[-1:]
    elif in_host < min(levels[0].size, system.num_devices):
        above = _counted(chip, 16 * levels[0].size).levels[1]
        hosts = -(-system.num_devices // in_host)
        levels = [levels[0].model_copy(update={"size": in_host})]
        outer = (above.model_copy(update={"size": hosts}), *outer[1:])
    elif in_host > levels[0].size and outer:
        levels = [levels[0].model_copy(update={"size": min(in_host, system.num_devices)})]
        hosts = -(-system.num_devices // in_host)
        outer = tuple(o.model_copy(update={"size": hosts}) for o in outer[:1] if hosts > 1)
    links = hardware.nvlinks_per_chip
    if links is not None and links < levels[0].links_per_device:
        levels[0] = levels[0].model_copy(update={"links_per_device": float(links)})
    levels += [_with_rate(level, hardware, in_host) for level in outer]
    return system.model_copy(update={"levels": tuple(levels)})


def _domain_size(hardware: HardwareFields, chip: str, standard: int) -> int:
    """Return the chips of one fast domain.

    A job of several racks takes equally many chips of each: 64 of 72 where it has 256.
    """
    standard = hardware.nvlink_domain or standard
    chips = hardware.chips or standard
    if chip in _HOSTS_PER_DOMAIN_CHIPS and chips > standard and chips % standard:
        return next(size for size in range(standard, 0, -1) if chips % size == 0)
    if hardware.nvlink_domain or chip in _HOSTS_PER_DOMAIN_CHIPS:
        return standard
    return hardware.chips_per_node or standard


def _with_rate(level: NetworkLevel, hardware: HardwareFields, chips_per_host: int) -> NetworkLevel:
    """Return the level between hosts with the stated rate, in one direction, for each chip."""
    rate_gbit = hardware.inter_node_gbit_per_chip
    if hardware.inter_node_gbit_per_node is not None:
        rate_gbit = hardware.inter_node_gbit_per_node / chips_per_host
    if rate_gbit is None:
        return level
    changes = {
        "bandwidth_bytes_per_s": rate_gbit * 1e9 / 8.0,
        "links_per_device": 1.0,
        "rail_optimized": level.rail_optimized and hardware.rail_optimized is not False,
    }
    return level.model_copy(update=changes)


# models


def model_of(stated: ModelFields, framework: str) -> ModelSpec:
    """Return the model of a row: of the catalog, or built from its dims.

    Gated networks are built as Llama has them, others as GPT.

    Raises
    ------
    RefusedError
        When dims are not stated, or make no model.
    """
    kind = (stated.attention or "").lower()
    if kind not in ("", "mha", "gqa", "mqa", "mla"):
        raise RefusedError(Reason.DIMS, f"attention {stated.attention}: MHA, GQA, MQA or MLA")
    if stated.catalog_name is not None:
        known = load_model(stated.catalog_name)
        has_latent = any(spec.kind == "mla" for spec in known.attentions)
        if kind and has_latent != (kind == "mla"):
            other = f"attention {stated.attention}, which {known.name} does not have"
            raise RefusedError(Reason.DIMS, other)
        changes = {} if stated.vocab is None else {"vocab_size": stated.vocab}
        if known.learned_positions and stated.seq:
            changes["learned_positions"] = max(known.learned_positions, stated.seq)
        return known.model_copy(update=changes)
    if kind == "mla":
        raise RefusedError(Reason.DIMS, "attention MLA: its ranks are those of a catalog_name")
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if not getattr(stated, name)]
    if missing:
        raise RefusedError(Reason.DIMS, f"{', '.join(missing)} of {stated.name or 'the model'}")
    if stated.layers and stated.layers > MOST_LAYERS:
        raise RefusedError(Reason.DIMS, f"{stated.layers} layers, at most {MOST_LAYERS}")
    try:
        return _built(stated, framework)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        what = ".".join(str(step) for step in found["loc"])
        message = f"{what}: {found['msg']}, found {found['input']}"
        raise RefusedError(Reason.DIMS, message) from None


def _built(stated: ModelFields, framework: str) -> ModelSpec:
    """Return a model of stated dims."""
    assert stated.layers is not None
    assert stated.hidden is not None
    assert stated.vocab is not None
    is_gpt = not _is_gated(stated)
    is_mpt = is_gpt and framework == "llm-foundry"
    has_table = stated.position == "learned" or (is_gpt and framework != "maxtext")
    bias = is_gpt and not is_mpt and framework != "maxtext"
    dense = LayerSpec(attention=_attention(stated, bias=bias), feed_forward=_network(stated, bias))
    first = min(stated.first_dense_layers or 0, stated.layers)
    kinds: tuple[LayerSpec, ...] = (dense,)
    pattern = (0,) * stated.layers
    if stated.n_experts:
        sparse = LayerSpec(attention=_attention(stated, bias=bias), experts=_experts(stated))
        kinds = (dense, sparse) if first else (sparse,)
        pattern = (0,) * first + (len(kinds) - 1,) * (stated.layers - first)
    return ModelSpec(
        name=stated.name or "unnamed",
        architecture="MPTForCausalLM"
        if is_mpt
        else "GPT2LMHeadModel"
        if is_gpt
        else "MixtralForCausalLM"
        if stated.n_experts
        else "LlamaForCausalLM",
        hidden_size=stated.hidden,
        vocab_size=stated.vocab,
        layer_kinds=kinds,
        layer_pattern=pattern,
        norm="layer_no_bias" if is_mpt else "layer" if bias else "rms",
        learned_positions=(stated.seq or 0) if has_table else 0,
        tied_embeddings=is_gpt and framework != "maxtext",
    )


def _is_gated(stated: ModelFields) -> bool:
    """Return whether the network has a gate: as stated, else where its width suggests it."""
    if stated.ffn_gated is not None:
        return stated.ffn_gated
    plain_width = 4 * (stated.hidden or 0)
    return bool(stated.n_experts) or stated.ffn not in (None, plain_width)


def _attention(stated: ModelFields, *, bias: bool) -> AttentionSpec:
    heads = stated.heads
    assert heads is not None
    assert stated.hidden is not None
    head_size = stated.head_dim or stated.hidden // heads
    kv_heads = stated.kv_heads or heads
    if heads % kv_heads:
        raise RefusedError(Reason.DIMS, f"{kv_heads} key heads do not divide {heads} heads")
    return AttentionSpec(
        num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, value_head_size=head_size,
        qkv_bias=bias, output_bias=bias,
    )  # fmt: skip


def _network(stated: ModelFields, bias: bool) -> FeedForwardSpec:
    assert stated.hidden
    return FeedForwardSpec(
        ffn_size=stated.ffn or 4 * stated.hidden, gated=_is_gated(stated), bias=bias
    )


def _experts(stated: ModelFields) -> ExpertSpec:
    width = stated.moe_ffn or stated.ffn
    if not (stated.n_experts and stated.topk and width):
        raise RefusedError(Reason.DIMS, f"experts of {stated.name}")
    return ExpertSpec(
        num_experts=stated.n_experts, top_k=stated.topk, ffn_size=width, gated=_is_gated(stated),
        shared_ffn_size=(stated.shared_experts or 0) * width,
    )  # fmt: skip
