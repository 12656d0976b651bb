"""From a row to a question that can be priced: problem, strategy and structure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import gcd

from meshwright.base.errors import SpecError
from meshwright.calibration.frameworks import (
    DEEPSPEED,
    LLM_FOUNDRY,
    MAXTEXT,
    TORCHTITAN,
    Framework,
    framework_of,
)
from meshwright.calibration.models import completed, model_of
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import Row
from meshwright.calibration.systems import system_of
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.engine import stated_rate
from meshwright.cost.problem import Problem
from meshwright.sharding.strategy import Recompute, ScheduleKind, Strategy, Structure, make_strategy
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.model import ModelSpec
from meshwright.spec.workload import OptimizerPreset, Precision, SoftwareStack, Training
from meshwright.train.legality import check_problem
from meshwright.train.question import make_problem

ADAPTERS = "finetune-lora"
"""The task that trains adapters beside frozen weights."""
TASKS = ("pretrain", "pretraining", "train", "training", "finetune-sft", ADAPTERS, "memory", "oom")
"""Tasks that are training steps."""
_OF_THE_SEARCH = ("tp-tile", "etp-tile", "ep-rows", "pp-chunks", "pp-micro-batches", "sp-sequence")
"""Rules that spare the search plans nobody would run; what somebody ran is priced."""


@dataclass(frozen=True)
class Question:
    """A row as it is priced."""

    row: Row
    framework: Framework
    problem: Problem
    strategy: Strategy
    structure: Structure


@dataclass(frozen=True)
class Degrees:
    """Degrees and batch of a row, with what follows from the others."""

    tp: int
    pp: int
    cp: int
    dp: int
    ep: int
    etp: int
    chunks: int
    micro_batch: int
    global_batch: int


def question_of(row: Row, calibration: str) -> Question:
    """Return what is asked by a row: its stated configuration alone, and defaults.

    Raises
    ------
    RefusedError
        With the reason, when it cannot be asked.
    """
    if row.task not in TASKS:
        raise RefusedError(Reason.TASK, row.task)
    row = replace(row, model=completed(row.model))
    framework = framework_of(row)
    system = system_of(row.hardware)
    model = model_of(row, framework)
    if row.model.seq is None:
        raise RefusedError(Reason.SEQUENCE, row.model.name or "")
    degrees = degrees_of(row, framework, system.num_devices, model)
    structure = structure_of(row, framework, degrees)
    workload = _workload(row, framework, degrees, system.chip)
    strategy = _strategy(row, degrees)
    try:
        problem = make_problem(model, system, workload, calibration)
        _check(problem, strategy, structure)
    except SpecError as error:
        raise RefusedError(Reason.PLAN, str(error.faults[0])) from error
    return Question(row, framework, problem, strategy, structure)


def degrees_of(row: Row, framework: Framework, num_devices: int, model: ModelSpec) -> Degrees:
    """Return the degrees of a row; dp and the micro-batch follow where they are not stated."""
    plan = row.parallelism
    tp, pp, cp = plan.tp or 1, plan.pp or 1, plan.cp or 1
    dp = plan.dp or num_devices // (tp * pp * cp)
    if dp * tp * pp * cp != num_devices:
        found = f"tp {tp} x pp {pp} x cp {cp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    is_moe = any(kind.experts for kind in model.layer_kinds)
    chunks = plan.vpp or 1 if pp > 1 else 1
    if pp * chunks > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} x {chunks} chunks of {model.num_layers} layers")
    micro, total = _batches(row, framework, dp, tp, pp * chunks)
    ep = (plan.ep or 1) if is_moe else 1
    etp = (plan.etp or 1) if is_moe else 1
    return Degrees(tp, pp, cp, dp, ep, etp, chunks, micro, total)


def _batches(row: Row, framework: Framework, dp: int, tp: int, stages: int) -> tuple[int, int]:
    """Return sequences of a micro-batch, and of a step.

    MaxText states batches of a chip: a rank of dp has those of its tp group. A micro-batch that
    is not stated is 1 in a pipeline (in torchtitan such that there are as many as stages), else
    all that a rank has in a step.
    """
    micro, total, times = row.micro_batch, row.global_batch, row.grad_accum
    if framework is MAXTEXT:
        micro = None if total else (micro or 0) * tp or None
    if total is None:
        if micro is None:
            raise RefusedError(Reason.BATCH, row.model.name or "")
        total = micro * dp * (times or 1)
    of_rank = max(total // dp, 1)
    if micro is None:
        rounds = times or (of_rank if stages > 1 else 1)
        if framework is TORCHTITAN:
            rounds = (times or 1) * stages
        micro = max(of_rank // rounds, 1)
    return min(micro, of_rank), total


def structure_of(row: Row, framework: Framework, degrees: Degrees) -> Structure:
    """Return the choices of a row; what is not stated is the default of its framework."""
    plan, tp, pp = row.parallelism, degrees.tp, degrees.pp
    stage = plan.zero_stage
    if stage is None:
        stage = 3 if plan.fsdp else min(framework.zero_stage, 3 if plan.fsdp is None else 1)
    nothing_to_shard = degrees.dp * degrees.cp == (row.hardware.slices or 1) == 1
    if nothing_to_shard or (row.task == ADAPTERS and stage < 3):
        stage = 0
    stated_sp = framework.sequence_parallel if plan.sp is None else plan.sp
    return Structure(
        sequence_parallel=bool(stated_sp and tp > 1),
        zero_stage=stage,
        reshard_after_forward=framework.reshards and not (pp > 1 and framework.zero_stage == 3),
        recompute=recompute_of(row.recompute, framework),
        schedule=ScheduleKind.INTERLEAVED if degrees.chunks > 1 else ScheduleKind.ONE_F_ONE_B,
        overlap_data_parallel=framework.overlaps or stage == 3,
        overlap_tensor_parallel=bool(_async_tp(row, framework) and stated_sp and tp > 1),
    )


def _async_tp(row: Row, framework: Framework) -> bool:
    """Return whether collectives of tp are decomposed; remarks name the plain kind."""
    if re.search(r"vanilla tp", (row.notes or "").lower()):
        return False
    stated = row.software.async_tp
    return framework.async_tensor_parallel if stated is None else stated


def recompute_of(text: str | None, framework: Framework) -> Recompute:
    """Return what is recomputed, from the words of a source."""
    words = (text or framework.recompute).lower()
    if re.search(r"full|all|offload|block|uniform|\btrue\b", words):
        return Recompute.FULL
    if re.search(r"selective|minimal|attention|core|partial", words):
        return Recompute.SELECTIVE
    return Recompute.NONE


def precision_of(text: str | None, chip: ChipSpec) -> Precision:
    """Return the types of a row, from the words of its source.

    Raises
    ------
    RefusedError
        When the chip has no rate for them.
    """
    words = (text or "").lower()
    activation: DType = "bf16"
    names_fp16 = "fp16" in words or "float16" in words.replace("bfloat16", "")
    if names_fp16 or (not text and chip.family == "volta"):
        activation = "fp16"
    elif re.fullmatch(r"(fp|tf|float)32", words.strip()):
        activation = "fp32"
    matmul: DType = activation
    if re.search(r"fp4|float4", words):
        matmul = "fp4"
    elif re.search(r"fp8|float8", words):
        matmul = "fp8"
    try:
        stated_rate(chip, matmul)
        stated_rate(chip, activation)
    except SpecError as error:
        raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
    return Precision(matmul=matmul, activation=activation, row_scales="rowwise" in words)


def _optimizer(row: Row, framework: Framework) -> OptimizerPreset:
    """Return the bytes that a framework keeps; llm-foundry states its mode in a remark."""
    if row.task == ADAPTERS:
        return load_optimizer("adapters")
    words = (row.precision or "").lower()
    name = framework.bf16_optimizer if "bf16" in words else framework.optimizer
    if framework is LLM_FOUNDRY and re.search(r"mode pure", (row.notes or "").lower()):
        name = "fsdp-mixed-bf16-reduce"
    if row.parallelism.fsdp and framework.zero_stage < 3:
        name = "fsdp-mixed-bf16-reduce"
    if framework is DEEPSPEED and re.search(r"fp32 grad", words):
        name = "deepspeed-adam-fp32-gradients"
    preset = load_optimizer(name)
    if re.search(r"fp8 all-?gather", words):
        return preset.model_copy(update={"gathered_weight_bytes_per_param": 1.0})
    return preset


def _workload(
    row: Row, framework: Framework, degrees: Degrees, chip: ChipSpec
) -> Training:  # fmt: skip
    """Return the training workload of a row."""
    compiled = row.software.compile
    flash = row.flash_attention
    assert row.model.seq is not None
    return Training(
        global_batch_size=degrees.global_batch,
        sequence_length=row.model.seq,
        precision=precision_of(row.precision, chip),
        optimizer=_optimizer(row, framework),
        software=SoftwareStack.model_validate(
            {
                "framework": framework.stack,
                "flash_attention": framework.flash_attention if flash is None else flash,
                "dropout": framework.dropout,
                "compiled": framework.compiled if compiled is None else compiled,
                "cuda_graphs": framework.cuda_graphs,
                "fused_gradient_accumulation": framework.fused_gradient_accumulation,
                "sums_whole_gradients": framework.sums_whole_bf16_gradients
                and "bf16" in (row.precision or "").lower(),
                "overlaps_sends": framework.overlaps_sends,
                "scatters_sends": framework.scatters_sends,
                "eager": framework.eager and not compiled,
                "attention_kernels": _attention_kernels(framework, chip),
                "selective_recompute": framework.selective_recompute,
                "fp32_logit_copies": _fp32_logit_copies(row, framework, degrees.tp),
                "keeps_cast_inputs": framework.keeps_cast_inputs,
                "keeps_stage_outputs": framework.keeps_stage_outputs,
                "async_tensor_parallel": _async_tp(row, framework),
            }
        ),
    )


def _fp32_logit_copies(row: Row, framework: Framework, tp: int) -> float:
    """Return the FP32 copies of logits of a loss; torchtitan compiles it since April 2025.

    Source: pytorch/torchtitan, pull request 1033.
    """
    is_old = "2024" in (row.source.title or "")
    if framework is TORCHTITAN and row.software.compile and not is_old:
        return 1.0
    return framework.fp32_split_logit_copies if tp > 1 else framework.fp32_logit_copies


def _attention_kernels(framework: Framework, chip: ChipSpec) -> str:
    """Return whether the attention kernels of a framework were written for a chip."""
    if framework.attention_kernels != "flash-2":
        return framework.attention_kernels
    return "native" if chip.family == "ampere" else "portable"


def _strategy(row: Row, degrees: Degrees) -> Strategy:
    """Return the degrees as a strategy; slices of a network for dp alone are replicas."""
    replicas = gcd(row.hardware.slices or 1, degrees.dp)
    return make_strategy(
        tp=degrees.tp, pp=degrees.pp, cp=degrees.cp, ep=degrees.ep, etp=degrees.etp,
        dp_shard=degrees.dp // replicas, dp_replicate=replicas,
        num_virtual_stages=degrees.chunks, micro_batch_size=degrees.micro_batch,
    )  # fmt: skip


def _check(problem: Problem, strategy: Strategy, structure: Structure) -> None:
    """Refuse a plan that breaks a rule, but for rules that only spare the search."""
    faults = [
        fault
        for fault in check_problem(problem, strategy, structure)
        if fault.path not in _OF_THE_SEARCH
    ]
    if faults:
        raise RefusedError(Reason.PLAN, f"{faults[0].path}: {faults[0].message}")
