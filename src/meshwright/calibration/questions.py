"""Why a measurement is not predicted: a closed list."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from math import gcd, prod
from pathlib import Path
from typing import Any

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.calibration.frameworks import (
    DEEPSPEED,
    LLM_FOUNDRY,
    MAXTEXT,
    TORCHTITAN,
    Framework,
    framework_of,
)
from meshwright.calibration.rows import HardwareFields, ModelFields, Row
from meshwright.catalog.chips import chip_names, load_chip
from meshwright.catalog.models import known_names, load_model
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.device import stated_rate
from meshwright.cost.problem import Problem
from meshwright.sharding.strategy import Recompute, ScheduleKind, Strategy, Structure, make_strategy
from meshwright.spec.chip import ChipSpec, DType
from meshwright.spec.model import AttentionSpec, ExpertSpec, FeedForwardSpec, LayerSpec, ModelSpec
from meshwright.spec.system import NetworkLevel, SystemSpec
from meshwright.spec.workload import OptimizerPreset, Precision, SoftwareStack, Training
from meshwright.train.legality import check_problem
from meshwright.train.question import make_problem


class Reason(StrEnum):
    """Reasons for which a row is left out."""

    TASK = "task-not-priced"
    """No training step: inference, single layers."""
    MEASURED = "nothing-to-compare"
    """Neither a time, a throughput, a memory nor a label that a prediction can be held against."""
    DIMS = "model-dims-not-stated"
    SEQUENCE = "sequence-length-not-stated"
    LENGTHS = "input-or-output-length-not-stated"
    BATCH = "batch-not-stated"
    CHIP = "chip-unknown"
    COUNT = "chip-count-not-stated"
    SYSTEM = "system-not-built"
    """The chips form no system: no such slice, or no room."""
    DEGREES = "degrees-do-not-multiply"
    PRECISION = "precision-unknown"
    """Or one that the chip has no rate for."""
    PLAN = "plan-not-priced"
    """The plan breaks a rule of the axes."""


class RefusedError(Exception):
    """One row is refused, for a reason, with what was found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


_PATTERNS = (
    (r"a100.*40", "A100-40GB"), (r"a100.*pcie", "A100-PCIe"), (r"a100", "A100"),
    (r"a800", "A800"), (r"a10g\b", "A10G"), (r"l40s", "L40S"), (r"(rtx[ -]?)?4090", "RTX-4090"),
    (r"h100.*(96|95|500 ?w)", "H100-96GB"), (r"h100.*pcie|h100 nvl", "H100-PCIe"),
    (r"h100", "H100"), (r"h800", "H800"), (r"h20\b", "H20"), (r"h200", "H200"), (r"gh200", "GH200"),
    (r"gb300", "GB300"), (r"gb200", "GB200"), (r"b300", "B300"), (r"b200", "B200"),
    (r"v100", "V100"), (r"mi250x?.*(gcd|die)", "MI250X-GCD"), (r"mi250x", "MI250X"),
    (r"mi250", "MI250"), (r"mi300x", "MI300X"), (r"mi325x", "MI325X"), (r"mi355x", "MI355X"),
    (r"tpu ?-?v3", "TPU-v3"), (r"tpu ?-?v4", "TPU-v4"),
    (r"tpu ?-?v5 ?e|v5 ?lite", "TPU-v5e"), (r"tpu ?-?v5p", "TPU-v5p"),
    (r"tpu ?-?v6e|trillium", "TPU-v6e"), (r"tpu ?-?(v7|7)|ironwood", "TPU-v7x"),
    (r"trainium ?2|trn2", "Trainium2"), (r"trainium|trn1", "Trainium1"),
    (r"gaudi ?2", "Gaudi2"), (r"gaudi ?3", "Gaudi3"), (r"sn10", "SN10"), (r"sn40l", "SN40L"),
    (r"wse-?2|cs-?2", "WSE-2"), (r"wse-?3|cs-?3", "WSE-3"), (r"temp", "TEMP-die"),
    (r"groq", "Groq-LPU"), (r"dojo.*tile", "Dojo-tile"), (r"dojo", "Dojo-D1"),
)  # fmt: skip
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gb/s|gbps|gb?it/s|gbit)", re.IGNORECASE)
_COUNT = re.compile(r"(\d+)\s*(?:x|links?|nics?|rails?)\b", re.IGNORECASE)
_GENERATIONS = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "omni-path": 100.0}
"""Gb/s of one port, one direction."""
_LINKS = re.compile(r"(\d+)\s*(?:inter-?gpu connects?|nvlinks?)\b", re.IGNORECASE)
_DOMAIN = re.compile(r"nvl\s*(\d+)", re.IGNORECASE)
_HOSTS_PER_DOMAIN_CHIPS = ("GB200", "GB300")
"""Chips whose fast domain spans several hosts."""
_IN_HOSTS_OF = {"H100-96GB": "H100", "RTX-4090": "L40S"}
"""Chips without a standard system."""
_DIES_PER_HOST = 8
"""MI250X devices of a host where software counts each die."""


def chip_name_of(hardware: HardwareFields) -> str:
    """Return the chip of the catalog that a row means.

    Raises
    ------
    RefusedError
        When it is none of them.
    """
    for text in (hardware.chip_id, hardware.chip):
        if not text:
            continue
        exact = next((name for name in chip_names() if name.lower() == text.lower()), None)
        if exact:
            return _die_of(exact, hardware)
        for pattern, name in _PATTERNS:
            if re.search(rf"(?<![a-z]){pattern}", text.lower()):
                return _die_of(name, hardware)
    raise RefusedError(Reason.CHIP, hardware.chip_id or hardware.chip or "not stated")


def _die_of(name: str, hardware: HardwareFields) -> str:
    """Return a die in place of a package where hosts are said to have eight of them."""
    is_die = name == "MI250X" and hardware.chips_per_node == _DIES_PER_HOST
    return "MI250X-GCD" if is_die else name


@cache
def system_of(hardware: HardwareFields) -> SystemSpec:
    """Return the system of a row.

    The fabric is the standard one of the chip, but for what is stated: chips of one host, and the
    rate between hosts. TPU slices are joined by the data-centre network.

    Raises
    ------
    RefusedError
        When the chip is unknown, or so many of them form no system.
    """
    chip = chip_name_of(hardware)
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
    """Return so many chips of the standard system, or in the hosts of the chip nearest to them."""
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
    levels[0] = _with_links(levels[0], hardware.intra_node or "")
    levels += [_with_rate(level, hardware, in_host) for level in outer]
    return system.model_copy(update={"levels": tuple(levels)})


def _domain_size(hardware: HardwareFields, chip: str, standard: int) -> int:
    """Return the chips of one fast domain.

    A job of several racks takes equally many chips of each: 64 of 72 where it has 256.
    """
    named = _DOMAIN.search(hardware.intra_node or "")
    standard = int(named[1]) if named else standard
    chips = hardware.chips or standard
    if chip in _HOSTS_PER_DOMAIN_CHIPS and chips > standard and chips % standard:
        return next(size for size in range(standard, 0, -1) if chips % size == 0)
    if named:
        return standard
    if hardware.chips_per_node is None or chip in _HOSTS_PER_DOMAIN_CHIPS:
        return standard
    return hardware.chips_per_node


def _with_links(level: NetworkLevel, text: str) -> NetworkLevel:
    """Return the level inside a host with as many links for each chip as are stated."""
    stated = _LINKS.search(text)
    if stated is None or not 0 < int(stated[1]) < level.links_per_device:
        return level
    return level.model_copy(update={"links_per_device": float(stated[1])})


def _with_rate(level: NetworkLevel, hardware: HardwareFields, chips_per_host: int) -> NetworkLevel:
    """Return the level between hosts with the stated rate, in one direction, for each chip."""
    rate_gbit = stated_rate_gbit(hardware.inter_node or "", chips_per_host)
    if rate_gbit is None:
        return level
    is_rail = level.rail_optimized and "omni" not in (hardware.inter_node or "").lower()
    changes = {
        "bandwidth_bytes_per_s": rate_gbit * 1e9 / 8.0,
        "links_per_device": 1.0,
        "rail_optimized": is_rail,
    }
    return level.model_copy(update=changes)


def stated_rate_gbit(text: str, chips_per_host: int) -> float | None:
    """Return the rate for each chip that a text states, in one direction [Gb/s]; None: no rate.

    ``400 Gb/s RDMA per GPU`` is 400; ``1600 Gbps node-node`` and ``8x HDR InfiniBand 200 Gb/s per
    node`` are shared by the chips of a host; a rate without either is of one chip. Names of
    InfiniBand generations and Omni-Path stand for their port.
    """
    lowered = text.lower()
    stated = _RATE.search(lowered)
    named = next((rate for name, rate in _GENERATIONS.items() if name in lowered), None)
    if stated is None and named is None:
        return None
    rate = named if stated is None else float(stated[1]) * (1.0 if _is_bits(text, stated) else 8.0)
    assert rate is not None
    count = _COUNT.search(lowered)
    of_host = bool(re.search(r"per node|node-node|per host|per server|per vm", lowered))
    if count and of_host:
        return rate * int(count[1]) / chips_per_host
    is_total = of_host and not re.search(r"per (gpu|chip|device)", lowered)
    return rate / chips_per_host if is_total else rate


def _is_bits(text: str, stated: re.Match[str]) -> bool:
    """Return whether a rate is written in bits: ``Gb/s`` and ``Gbps``, not ``GB/s``."""
    return text[stated.start(2) : stated.end(2)][:2] != "GB"


_CONFIGURATIONS = Path(__file__).parent / "data" / "models.json"
_SIZE_AT_END = re.compile(r"[ -]\d+b$", re.IGNORECASE)
_VARIANT = re.compile(r"-?(instruct|chat|base|hf|it|pretrain(ing)?)$", re.IGNORECASE)
_OTHER_NAMES = {f"llama{size}b": f"llama1-{size}b" for size in (7, 13, 33, 65)}
"""The first models of the name were published without a number."""


def model_of(row: Row, framework: Framework) -> ModelSpec:
    """Return the model of a row.

    A public model by its name is taken from the catalog where all stated dims agree with it: it
    knows what rows cannot say (latent attention, windows, first dense layers). Any other model is
    built from its dims: gated networks as Llama has them, others as GPT.

    Raises
    ------
    RefusedError
        When dims are neither stated nor known by name.
    """
    stated = row.model
    known = _catalog_model(stated.name or "")
    if known is not None and _agrees(known, stated):
        changes = {} if stated.vocab is None else {"vocab_size": stated.vocab}
        if known.learned_positions and stated.seq:
            changes["learned_positions"] = max(known.learned_positions, stated.seq)
        return known.model_copy(update=changes)
    needed = {"layers": stated.layers, "hidden": stated.hidden, "heads": stated.heads}
    missing = [name for name, value in (needed | {"vocab": stated.vocab}).items() if not value]
    if missing:
        raise RefusedError(Reason.DIMS, f"{', '.join(missing)} of {stated.name or 'the model'}")
    return _built(stated, framework)


def completed(stated: ModelFields) -> ModelFields:
    """Return stated dims with those of the public configuration of that name, where they agree."""
    known = public_dims(stated.name or "")
    if any(getattr(stated, name) not in (None, value) for name, value in known.items()):
        return stated
    missing = {name: value for name, value in known.items() if getattr(stated, name) is None}
    return replace(stated, **missing)


def public_dims(name: str) -> dict[str, Any]:
    """Return the dims of a public training configuration by its name, with their source left out.

    They are no models of the catalog: nobody published weights of them.
    """
    known = _configurations()
    found = known.get(_known_as(name, known) or "", {})
    return {key: value for key, value in found.items() if key != "dims_source"}


@cache
def _configurations() -> dict[str, dict[str, Any]]:
    content = json.loads(_CONFIGURATIONS.read_text(encoding="utf-8"))
    return {_plain(name): dims for name, dims in content.items()}


@cache
def _catalog_names() -> dict[str, str]:
    """Return names and aliases without owner and variant, each with one that the catalog knows."""
    known = {_plain(_VARIANT.sub("", name.rpartition("/")[2])): name for name in known_names()}
    return _OTHER_NAMES | known


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _catalog_model(name: str) -> ModelSpec | None:
    """Return the public model of a name, where no configuration of its own has that name."""
    names = _catalog_names()
    known = None if _plain(name) in _configurations() else _known_as(name, names)
    return load_model(names[known]) if known else None


def _known_as(name: str, known: Container[str]) -> str | None:
    """Return what a name is known as; its size may follow one that has none, its owner precede."""
    bare = _VARIANT.sub("", name.rpartition("/")[2])
    candidates = (_plain(bare), _plain(_SIZE_AT_END.sub("", bare)))
    return next((candidate for candidate in candidates if candidate in known), None)


def _agrees(model: ModelSpec, stated: ModelFields) -> bool:
    """Return whether no stated dim contradicts a public model; the vocabulary may be padded."""
    attentions = [kind.attention for kind in model.layer_kinds]
    experts = [kind.experts for kind in model.layer_kinds if kind.experts]
    pairs = (
        (stated.layers, {model.num_layers}),
        (stated.hidden, {model.hidden_size}),
        (stated.heads, {attention.num_heads for attention in attentions}),
        (stated.kv_heads, {attention.num_kv_heads for attention in attentions}),
        (stated.n_experts, {expert.num_experts for expert in experts} | {0}),
        (stated.topk, {expert.top_k for expert in experts} | {0}),
    )
    return all(value is None or value in known for value, known in pairs)


def _built(stated: ModelFields, framework: Framework) -> ModelSpec:
    """Return a model of stated dims."""
    assert stated.layers is not None
    assert stated.hidden is not None
    assert stated.vocab is not None
    is_gpt = not _is_gated(stated)
    is_mpt = is_gpt and framework is LLM_FOUNDRY
    has_table = stated.position == "learned" or (is_gpt and framework is not MAXTEXT)
    bias = is_gpt and not is_mpt and framework is not MAXTEXT
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
        architecture="built from stated dims",
        hidden_size=stated.hidden,
        vocab_size=stated.vocab,
        layer_kinds=kinds,
        layer_pattern=pattern,
        norm="layer_no_bias" if is_mpt else "layer" if bias else "rms",
        learned_positions=(stated.seq or 0) if has_table else 0,
        tied_embeddings=is_gpt and framework is not MAXTEXT,
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
