"""From the typed fields of a source to the question of a row; what is not stated follows here.

A value that a row does not state has one default, of its framework, of its server or of its chip; a
row that makes no question is refused for one of a closed list of reasons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import gcd, prod
from typing import Any

from pydantic import ValidationError

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.calibration import rows
from meshwright.calibration.jobs import Job, job_of
from meshwright.calibration.rows import ADAPTERS, Counting, Reason, RefusedError
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import chip_names, load_chip, load_system
from meshwright.catalog.workloads import default_optimizer, load_server
from meshwright.cost.operator import stated_rate
from meshwright.graph.flops import ScoreCount, step_flops
from meshwright.graph.parameters import count_parameters
from meshwright.sharding.strategy import Strategy, make_strategy
from meshwright.spec.framework import UNNAMED, Habits
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    WeightFormat,
)
from meshwright.spec.system import ChipSpec, DType, NetworkLevel, SystemSpec
from meshwright.spec.workload import Precision, Server
from meshwright_papers.measurements import fields as source
from meshwright_papers.measurements.fields import (
    FlopsRule,
    HardwareFields,
    ModelFields,
    ParallelismFields,
    Row,
)

MOST_LAYERS = 10_000
"""Most layers of a model: a larger number is a typing error."""
LEAST_EXPERT_COLUMNS = 256
"""Fewest columns of the shard of an expert: kernels with block scales take no narrower tiles."""


def asked(row: Row) -> rows.Row:
    """Return the row as a question with its measured answer."""
    conditions = {
        "packed_sequences": row.software.packed_sequences,
        "scaling": row.precision and row.precision.scaling,
        "unused_network_gbit": unused_rate_of(row.hardware),
    }
    about: dict[str, Any] = {
        "id": row.id, "group": row.group, "task": row.task,
        "source": row.source.model_dump(), "date": row.date, "notes": row.notes,
        "framework": row.framework, "framework_version": row.framework_version,
        "reasons": row.reasons,
        "conditions": {name: value for name, value in conditions.items() if value is not None},
    }  # fmt: skip
    try:
        kind = sram if row.is_one_user else served if row.is_serving else trained
        return kind(row, about)
    except RefusedError as error:
        hardware, why = row.hardware, error
        if row.task != rows.DID_NOT_FIT and not any(vars(row.measured).values()):
            why = RefusedError(Reason.MEASURED, row.task)
        return rows.Row(
            **about, model={"name": row.model.name}, refused=why.reason, detail=why.detail,
            system={"like": f"{hardware.chips}x{hardware.chip}"},
        )  # fmt: skip


# training


def trained(row: Row, about: dict[str, Any]) -> rows.Row:
    """Return a row of training."""
    habits = load_framework(row.framework) if row.framework else UNNAMED
    on, system = on_and_system(row.hardware)
    model = model_of(row.model, row.framework or "")
    if row.model.seq is None:
        raise RefusedError(Reason.SEQUENCE, row.model.name or "")
    degrees = degrees_of(row, system.num_devices, model)
    known = row.precision or source.PrecisionFields()
    found = rows.Row(
        **about,
        model=model_fields(row.model, model),
        system=on,
        strategy=strategy_of(row, habits, degrees),
        precision={"activation": known.activation, "matmul": known.matmul,
                   "row_scales": known.scaling == "row"},
        sequence_length=row.model.seq,
        global_batch_size=degrees.global_batch,
        optimizer=optimizer_of(row, habits, system),
        software=software_of(row, is_named=habits is not UNNAMED),
        measured=measured_of(row),
    )  # fmt: skip
    rate = row.measured.tflops_per_chip or row.measured.mfu
    if rate is None or set(found.measured.stated) & set(THROUGHPUTS):
        return found
    tokens_per_s = tokens_of_flops(row, job_of(found, "uncalibrated"))
    if tokens_per_s is None and found.measured.memory_bytes is None:
        raise RefusedError(Reason.MEASURED, "the rule by which FLOPs were counted is not known")
    return found.model_copy(
        update={"measured": found.measured.model_copy(update={"tokens_per_s": tokens_per_s})}
    )


THROUGHPUTS = ("tokens_per_s", "tokens_per_s_per_chip", "iteration_time_s", "samples_per_s")
"""Figures that say the throughput without a count of FLOPs, the first one stated counts."""


def measured_of(row: Row) -> dict[str, Any]:
    """Return the measured values of a row of training, but for rates in FLOP/s."""
    stated, metric = row.measured, row.measured.memory_metric or ""
    found: dict[str, Any] = {"memory_bytes": stated.memory_bytes_per_chip}
    first = next((name for name in THROUGHPUTS if getattr(stated, name) is not None), None)
    if first is not None:
        found[first] = getattr(stated, first)
    if "allocated" in metric:
        found["memory_counting"] = Counting.ALLOCATED if "max" in metric else Counting.RESIDENT
    state, kept = stated.param_opt_bytes, stated.activation_bytes
    if stated.memory_bytes_per_chip is None and state is not None and kept is not None:
        found |= {"memory_bytes": state + kept, "memory_counting": Counting.TENSORS}
    return found | {"memory_of_last_stage": bool(stated.memory_of_last_stage)}


def tokens_of_flops(row: Row, job: Job) -> float | None:
    """Return the throughput of a job from its rate in FLOP/s [tokens/s]."""
    flops, rate = counted_flops_per_token(row, job), row.measured.tflops_per_chip
    problem = job.problem
    if rate is None and row.measured.mfu is not None:
        peak = stated_rate(problem.system.chip, problem.workload.precision.activation)
        rate = row.measured.mfu * peak / 1e12
    if rate is None or flops is None:
        return None
    return rate * 1e12 * problem.system.num_devices / flops


def counted_flops_per_token(row: Row, job: Job) -> float | None:
    """Return the FLOPs that the source of a row counts for one token; None: rule not stated.

    Hardware FLOPs of Megatron: 96 B s l h^2 (1 + s/6h + V/16lh), a forward pass repeated; its
    model FLOPs are three quarters of the layers. Rules by parameters: 6 N or 8 N, with full scores
    where they are named. Otherwise the model FLOPs of all products, with full or causal scores.
    """
    rule, model = row.flops_counting, job.problem.model
    length = float(job.problem.workload.sequence_length)
    if rule is None:
        return None
    if rule is FlopsRule.EIGHT_N:
        params = (row.model.params_b or 0.0) * 1e9
        return 8.0 * params if params else None
    if rule is FlopsRule.SIX_N:
        whole = count_parameters(model).num_params
        return 6.0 * whole + 12.0 * model.num_layers * model.hidden_size * length
    is_hardware = rule in (FlopsRule.HARDWARE, FlopsRule.HARDWARE_CAUSAL)
    is_causal = rule in (FlopsRule.MODEL_CAUSAL, FlopsRule.HARDWARE_CAUSAL)
    flops = step_flops(
        job.problem.graph, num_tokens=1.0, sequence_length=length,
        count=ScoreCount.CAUSAL if is_causal else ScoreCount.FULL,
        recompute="full" if is_hardware else "none",
        freezes_weights=job.problem.workload.optimizer.freezes_weights,
    )  # fmt: skip
    return float(flops.hardware if is_hardware else flops.model)


# the plan and the batch


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


def degrees_of(row: Row, num_devices: int, model: ModelSpec) -> Degrees:
    """Return the degrees of a row; dp and the micro-batch follow where they are not stated."""
    plan = row.parallelism
    tp, pp, cp = plan.tp or 1, plan.pp or 1, plan.cp or 1
    dp = plan.dp or num_devices // (tp * pp * cp)
    if dp * tp * pp * cp != num_devices:
        found = f"tp {tp} x pp {pp} x cp {cp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    chunks = plan.vpp or 1 if pp > 1 else 1
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


def strategy_of(row: Row, habits: Habits, degrees: Degrees) -> dict[str, Any]:
    """Return the degrees and choices that a row states.

    Slices of a network for dp alone are replicas, unless the number of ranks that shard the state
    is stated.
    """
    plan, dp = row.parallelism, degrees.dp
    shard = dp // gcd(row.hardware.slices or 1, dp)
    if plan.dp_shard:
        shard = dp // max(dp // plan.dp_shard, 1)
    stage = plan.zero_stage
    if stage is None and plan.fsdp is not None:
        stage = 3 if plan.fsdp else 1 if habits.zero_stage > 1 else None
    usual = habits.zero_stage if stage is None else stage
    if shard * degrees.cp == 1 or (row.task == ADAPTERS and usual < 3):
        stage = 0
    return {
        "tp": degrees.tp, "pp": degrees.pp, "cp": degrees.cp, "ep": degrees.ep,
        "etp": degrees.etp, "dp": dp, "dp_shard": shard, "num_virtual_stages": degrees.chunks,
        "micro_batch_size": degrees.micro_batch, "zero_stage": stage,
        "sequence_parallel": plan.sp if plan.sp is None else plan.sp and degrees.tp > 1,
        "recompute": row.recompute, "recompute_modules": row.recompute_modules or None,
        "kept_tensors": row.kept_tensors or None,
        "offloaded_tensors": row.offloaded_tensors or None,
        "embedding_layers": plan.embedding_layers, "head_layers": plan.head_layers,
        "offload": row.offload,
    }  # fmt: skip


_ANY_LAYOUT = ("blackwell",)
"""Families with products of 8 bits that take operands along rows or columns; others keep a
transposed copy of 8-bit weights, which takes the place of the wide ones.

Source: NVIDIA/TransformerEngine, ``is_non_tn_fp8_gemm_supported``.
"""


def optimizer_of(row: Row, habits: Habits, system: SystemSpec) -> dict[str, Any] | None:
    """Return the bytes that a row states for each parameter; None: those of the framework."""
    stated, precision = row.software.optimizer, row.precision or source.PrecisionFields()
    if row.task == ADAPTERS or habits is UNNAMED:
        return {"like": stated} if stated else None
    if row.software.bf16_reductions or (row.parallelism.fsdp and habits.zero_stage < 3):
        stated = "fsdp-mixed-bf16-reduce"
    if row.framework == "megatron-deepspeed" and precision.fp32_gradients:
        stated = "deepspeed-adam-fp32-gradients"
    changes = {}
    if row.software.narrow_parameters and system.chip.family in _ANY_LAYOUT:
        changes["weight_bytes_per_param"] = 1.0
    if precision.fp8_all_gather:
        changes["gathered_weight_bytes_per_param"] = 1.0
    if changes and stated is None:
        word = precision.activation or habits.word or system.chip.word
        stated = habits.optimizer_of(word) or default_optimizer(system).name
    return {"like": stated} | changes if stated else None


def software_of(row: Row, *, is_named: bool) -> dict[str, Any]:
    """Return the stated software of a row; without a framework only the tensors that it keeps."""
    stated = row.software
    names = (
        "keeps_cast_inputs", "narrow_activation_inputs", "dropout", "deterministic",
        "deferred_logit_gradients", "logit_tiles", "separate_projections",
    )  # fmt: skip
    found = {name: getattr(stated, name) for name in names}
    if is_named:
        found |= {
            "async_tensor_parallel": stated.async_tp,
            "flash_attention": row.flash_attention,
            "compiled": stated.compile,
            "fused_gradient_accumulation": False if stated.separate_accumulation else None,
            "loss": "compiled" if stated.compiled_loss else None,
        }
    return {name: value for name, value in found.items() if value is not None}


# systems


def on_and_system(hardware: HardwareFields) -> tuple[dict[str, Any], SystemSpec]:
    """Return the chips and networks as fields of a row, and the system that they are."""
    system = system_of(hardware)
    found = dict(_ON[hardware])
    if system.levels != load_system(found["like"]).levels:
        found["levels"] = [level.model_dump(exclude_defaults=True) for level in system.levels]
    return found, system


def unused_rate_of(hardware: HardwareFields) -> float | None:
    """Return the stated rate between nodes of a chip in a job that has one node [Gb/s]."""
    rates = ("inter_node_gbit_per_chip", "inter_node_gbit_per_node")
    without = hardware.model_copy(update=dict.fromkeys(rates))
    try:
        has_effect = system_of(hardware).levels != system_of(without).levels
    except RefusedError:
        return None
    return None if has_effect else hardware.inter_node_gbit_per_chip


_ON: dict[HardwareFields, dict[str, Any]] = {}
"""Standard systems by the hardware that is built from them."""

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
        _ON[hardware] = _sliced(chip, hardware) or _counted(chip, hardware.chips)
        system = _built_on(_ON[hardware])
    except MeshwrightError as error:
        raise RefusedError(Reason.SYSTEM, str(error).splitlines()[0]) from error
    if not chip.startswith("TPU"):
        system = _with_stated_network(system, hardware, chip)
    return system


def _built_on(found: dict[str, Any]) -> SystemSpec:
    """Return a standard system, with another chip where it is stated."""
    system = load_system(found["like"])
    if "with_chip" not in found:
        return system
    chip = load_chip(found["with_chip"])
    name = f"{system.num_devices}x{chip.name}"
    return system.model_copy(update={"chip": chip, "name": name})


def _counted(chip: str, num_devices: int) -> dict[str, Any]:
    """Return the standard system of that many chips, or one in the hosts of a similar chip."""
    if chip not in _IN_HOSTS_OF:
        return {"like": f"{num_devices}x{chip}"}
    return {"like": f"{num_devices}x{_IN_HOSTS_OF[chip]}", "with_chip": chip}


def _sliced(chip: str, hardware: HardwareFields) -> dict[str, Any] | None:
    """Return several slices side by side, where more than one is stated."""
    count, chips = hardware.slices or 1, hardware.chips or 0
    if not chip.startswith("TPU") or count == 1 or chips % count:
        return None
    alone = load_system(f"{chips // count}x{chip}")
    shape = next(note for note in alone.notes if note.startswith("shape: "))
    return {"like": f"{count}x{shape.removeprefix('shape: ')}"}


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
        above = _built_on(_counted(chip, 16 * levels[0].size)).levels[1]
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


def model_fields(stated: ModelFields, model: ModelSpec) -> dict[str, Any]:
    """Return a model as fields of a row: one of the catalog and its changes, or a declaration."""
    if stated.catalog_name is None:
        declared = model.model_dump(mode="json", exclude_defaults=True)
        return {"name": stated.name, "declared": declared}
    known = load_model(stated.catalog_name)
    changes = {name: getattr(model, name) for name in ("vocab_size", "learned_positions")
               if getattr(model, name) != getattr(known, name)}  # fmt: skip
    return {"name": stated.name, "like": stated.catalog_name} | changes


ENCODERS = re.compile(r"\b(m?T5|UL2|BART|\w*BERT\w*)\b", re.IGNORECASE)
"""Names of models with an encoder."""


def model_of(stated: ModelFields, framework: str) -> ModelSpec:
    """Return the model of a row: of the catalog, or built from its dims.

    Gated networks are built as Llama has them, others as GPT.

    Raises
    ------
    RefusedError
        When dims are not stated, or make no model.
    """
    if name := ENCODERS.search(stated.name or ""):
        raise RefusedError(Reason.DIMS, f"{name[0]} has an encoder; only decoders are priced")
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


# serving


def served(row: Row, about: dict[str, Any]) -> rows.Row:
    """Return a row of requests."""
    on, system = on_and_system(row.hardware)
    fields = row.model.model_copy(update={"seq": None, "params_b": None})
    model, server = model_of(fields, "fsdp"), load_server(row.framework or "generic")
    strategy, _ = _strategy(row.parallelism, system.num_devices, model)
    types = serving_precision(row.precision, system.chip, server, model)
    word = types.activation
    names = ("matmul", "weight", "kv_cache")
    precision = {name: getattr(types, name) for name in names if getattr(types, name) != word}
    if word != system.chip.word:
        precision["activation"] = word
    if types.weight_format is not None:
        precision["weight_format"] = types.weight_format
    degrees = {name: int(getattr(strategy, name)) for name in ("tp", "pp", "ep", "dp_replicate")}
    found = row.measured
    output = found.output_tokens_per_s
    if output is None and found.output_tokens_per_s_per_chip and row.hardware.chips:
        output = found.output_tokens_per_s_per_chip * row.hardware.chips
    return rows.Row(
        **about, model=model_fields(row.model, model), system=on, precision=precision,
        strategy={name: value for name, value in degrees.items() if value > 1 or name == "tp"},
        batch=row.batch, closed_loop=bool(row.closed_loop), shortest_share=row.shortest_share,
        prompt_tokens=row.input_len, answer_tokens=row.output_len,
        measured={"latency_s": found.latency_s, "total_tokens_per_s": found.total_tokens_per_s,
                  "output_tokens_per_s": output, "ttft_ms": found.ttft_ms,
                  "tpot_ms": found.tpot_ms},
    )  # fmt: skip


def sram(row: Row, about: dict[str, Any]) -> rows.Row:
    """Return a row of one user on a machine that serves from SRAM."""
    known, hardware = row.precision or source.PrecisionFields(), row.hardware
    model = model_of(row.model, "fsdp")
    system: dict[str, Any] = {"like": f"{hardware.chips or 1}x{hardware.chip}"}
    return rows.Row(
        **about, model=model_fields(row.model, model),
        system=system if hardware.chips else system | {"at_least": True},
        strategy={"tp": row.parallelism.tp} if row.parallelism.tp else {},
        precision={"activation": known.activation, "matmul": known.matmul, "weight": known.weight},
        prompt_tokens=row.input_len, answer_tokens=row.output_len,
        drafts_tokens=bool(row.software.drafts_tokens),
        measured={"tokens_per_s_per_user": row.measured.tokens_per_s_per_user},
    )  # fmt: skip


def _strategy(
    plan: ParallelismFields, num_devices: int, model: ModelSpec
) -> tuple[Strategy, float]:
    """Return the degrees of one replica, and the replicas.

    Where no degree is stated, all chips split each layer. Experts lie inside a replica: spread as
    ``ep`` says, the rest of the chips split each of them.
    """
    pp, dp = plan.pp or 1, plan.dp or 1
    if plan.dp_attention:
        return _joined(plan, num_devices, model)
    tp = plan.tp or max(num_devices // (pp * dp), 1)
    replicas = num_devices / (tp * pp)
    if replicas != int(replicas) or plan.dp not in (None, int(replicas)):
        found = f"tp {tp} x pp {pp} x dp {dp} on {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    if pp > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} stages of {model.num_layers} layers")
    experts = max((k.experts.num_experts for k in model.layer_kinds if k.experts), default=0)
    ep = min(plan.ep or _experts_spread(model, tp), tp) if experts else 1
    if tp % ep:
        raise RefusedError(Reason.DEGREES, f"ep {ep} does not divide tp {tp}")
    return make_strategy(tp=tp, pp=pp, ep=ep, etp=tp // ep if experts else 1), replicas


def _joined(plan: ParallelismFields, num_devices: int, model: ModelSpec) -> tuple[Strategy, float]:
    """Return one of dp replicas of attention that share the experts of tp chips, and their number.

    Source: SGLang 0.5.23, ``srt/server_args.py``, ``enable_dp_attention``.
    """
    pp, dp = plan.pp or 1, plan.dp or 1
    tp = plan.tp or max(num_devices // pp, 1)
    ep = plan.ep or tp
    if tp % dp or tp % ep or num_devices % (tp * pp):
        found = f"attention of dp {dp} and ep {ep} on tp {tp} x pp {pp} of {num_devices} chips"
        raise RefusedError(Reason.DEGREES, found)
    if pp > model.num_layers:
        raise RefusedError(Reason.PLAN, f"{pp} stages of {model.num_layers} layers")
    if not model.has_experts:
        return make_strategy(tp=tp // dp, pp=pp), float(num_devices // (tp * pp) * dp)
    strategy = make_strategy(tp=tp // dp, pp=pp, dp_replicate=dp, ep=ep, etp=tp // ep)
    return strategy, float(num_devices // (tp * pp) * dp)


def _experts_spread(model: ModelSpec, tp: int) -> int:
    """Return the number of chips of a replica over which whole experts are spread, if not stated.

    Each expert is split as far as its parts keep a tile of columns; the remaining chips hold
    different experts.
    """
    widths = (k.experts.ffn_size for k in model.layer_kinds if k.experts)
    most = max(min(widths) // LEAST_EXPERT_COLUMNS, 1)
    return next(ep for ep in range(1, tp + 1) if tp % ep == 0 and tp // ep <= most)


NVFP4_BYTES = 0.5 + 1.0 / 16.0
"""Four bits, and a scale of eight for sixteen of them. Source: NVIDIA, Introducing NVFP4."""


def stored_format(weight: DType | None, chip: ChipSpec, model: ModelSpec) -> WeightFormat | None:
    """Return the format of weights in 4 bits; None: of other types.

    Checkpoints that the model itself was published with come first. Where the chip multiplies in 4
    bits, it is NVFP4, whose checkpoints leave the attention of models with experts wide (NVIDIA
    TensorRT Model Optimizer, the recipes of DeepSeek-R1-FP4 and Qwen3-235B-A22B-FP4).
    """
    if weight != "fp4":
        return None
    known = model.weight_format
    if known is not None and known.bytes_per_weight < 1.0:
        return known
    if "fp4" not in chip.matmul_flops_per_s:
        return None
    has_experts = model.has_experts
    return WeightFormat(
        name="nvfp4",
        bytes_per_weight=NVFP4_BYTES,
        wide_shares={"attention": 1.0} if has_experts else {},
        matmul="fp4",
    )


def serving_precision(
    stated: source.PrecisionFields | None,
    chip: ChipSpec,
    server: Server,
    model: ModelSpec | None = None,
) -> Precision:
    """Return the number formats of a served model: 16 bits where nothing is stated.

    Where the chip has no rate for a narrow format, its products run in 16 bits.

    Raises
    ------
    RefusedError
        When the chip has no rate for those either.
    """
    known = stated or source.PrecisionFields()
    activation = "fp32" if known.activation == "fp32" else chip.word
    try:
        stated_rate(chip, activation)
    except SpecError as error:
        raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
    narrows = server.narrow_cache or chip.family in server.narrow_cache_on
    stored = stored_format(known.weight, chip, model) if model else None
    has_rate = known.matmul is not None and known.matmul in chip.matmul_flops_per_s
    return Precision(
        matmul=known.matmul if known.matmul and has_rate else activation,
        activation=activation,
        weight=known.weight or activation,
        kv_cache="fp8" if known.weight and narrows else activation,
        weight_format=stored,
    )
