"""From the words of a source to typed fields.

A raw file states chips, networks, precision, recomputation, software and models as its source words
them. They are read here, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field

from meshwright.catalog.files import find_name
from meshwright.catalog.models import known_names, load_model
from meshwright.catalog.systems import chip_names, load_chip
from meshwright.graph.recompute import MODULES, TENSORS
from meshwright.sharding.strategy import Recompute
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import DType
from meshwright_papers.measurements.fields import (
    ADAPTERS,
    CommonFields,
    Count,
    Fields,
    FlopsRule,
    HardwareFields,
    MeasuredFields,
    ModelFields,
    ParallelismFields,
    PrecisionFields,
    Row,
    SoftwareFields,
    Text,
)

Meaning = TypeVar("Meaning")
MODELS = Path(__file__).parent / "models.json"
"""Dims of public models that sources name."""


class StatedHardware(Fields):
    """Chips and networks, in the words of the source."""

    chip: Text = None
    chip_id: Text = None
    chips: Count = None
    chips_per_node: Count = None
    intra_node: Text = None
    inter_node: Text = None
    slices: Count = None


class StatedParallelism(ParallelismFields):
    """The plan, with options of the framework by their names."""

    raw: Any = None


class StatedRow(CommonFields):
    """One measurement as a file of measurements states it."""

    parallelism: StatedParallelism = StatedParallelism()
    hardware: StatedHardware = StatedHardware()
    precision: Text = None
    recompute: Text = None
    flops_counting: Text = None
    features: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the framework, by their names."""


def rows_of(content: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of a parsed array; a row without a name is named by its index."""
    return [
        row_of(StatedRow.model_validate({
            "id": f"[{index}]", "group": "unnamed",
            **{name: value for name, value in entry.items() if value is not None},
        }))
        for index, entry in enumerate(content)
    ]  # fmt: skip


def row_of(stated: StatedRow) -> Row:
    """Return a row as its words are understood, with these words where they say more."""
    hardware = hardware_of(stated.hardware)
    reasons: dict[str, str | None] = {
        "hardware.chip": stated.hardware.chip_id or stated.hardware.chip,
        "hardware.intra_node": stated.hardware.intra_node,
        "hardware.inter_node": stated.hardware.inter_node,
        "precision": stated.precision,
        "recompute": stated.recompute,
        "flops_counting": stated.flops_counting,
    }
    changes: dict[str, Any] = {
        "model": model_of(stated.model),
        "hardware": hardware,
        **recomputation_of(stated.recompute),
        "parallelism": parallelism_of(stated.parallelism, stated.features, stated.model.layers),
        "flops_counting": flops_rule_of(stated.flops_counting),
        "measured": measured_of(stated.measured),
        "offload": "activations" if "activation offload" in (stated.notes or "").lower() else None,
    }
    changes["flash_attention"], reasons["flash_attention"] = attention_of(stated, hardware)
    if stated.is_serving:
        if not stated.is_one_user:
            changes["framework"] = server_name_of(stated, hardware)
        if stated.closed_loop is None and re.search(r"closed loop", stated.definition or ""):
            changes["closed_loop"] = True
        changes["precision"] = serving_precision_of(stated.precision)
    else:
        framework = framework_of(stated, hardware)
        changes["framework"] = framework
        changes["precision"] = precision_of(stated.precision)
        changes["software"], why = software_of(stated, framework)
        reasons |= why
    plain = {(hardware.chip or "").lower(), changes["recompute"], "bf16", "fp16", "fp8", "fp4"}
    changes["reasons"] = {
        name: words for name, words in reasons.items() if words and words.lower() not in plain
    }
    common: dict[str, Any] = {name: getattr(stated, name) for name in CommonFields.model_fields}
    return Row(**(common | changes))


# chips and networks

_CHIPS = (
    (r"a100.*40", "A100-40GB"), (r"a100.*pcie", "A100-PCIe"), (r"a100", "A100"),
    (r"a800", "A800"), (r"a10g\b", "A10G"), (r"l40s", "L40S"), (r"(rtx[ -]?)?4090", "RTX-4090"),
    (r"(rtx[ -]?)?3090", "RTX-3090"), (r"(rtx[ -]?)?a6000", "RTX-A6000"),
    (r"l4\b", "L4"), (r"t4\b", "T4"),
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
_RATE = re.compile(r"(?<![\d_.])(\d[\d_]*+(?:\.\d+)?)\s*(gb/s|gbps|gb?it/s|gbit)", re.IGNORECASE)
_COUNT = re.compile(r"(\d+)\s*(?:x|links?|nics?|rails?)\b", re.IGNORECASE)
_GENERATIONS = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "omni-path": 100.0}
"""Gb/s of one port, one direction."""
_LINKS = re.compile(r"(\d+)\s*(?:inter-?gpu connects?|nvlinks?)\b", re.IGNORECASE)
_DOMAIN = re.compile(r"nvl\s*(\d+)", re.IGNORECASE)
_DIES_PER_HOST = 8
"""MI250X devices of a host where software counts each die."""


def hardware_of(stated: StatedHardware) -> HardwareFields:
    """Return the chips and networks of a row; an unknown chip keeps the words of its source."""
    texts = [text for text in (stated.chip_id, stated.chip) if text]
    chip = next((name for name in map(chip_name_of, texts) if name), None)
    if chip == "MI250X" and stated.chips_per_node == _DIES_PER_HOST:
        chip = "MI250X-GCD"
    domain, links = _DOMAIN.search(stated.intra_node or ""), _LINKS.search(stated.intra_node or "")
    return HardwareFields(
        chip=chip or next(iter(texts), None),
        chips=stated.chips,
        chips_per_node=stated.chips_per_node,
        slices=stated.slices,
        nvlink_domain=int(domain[1]) if domain else None,
        nvlinks_per_chip=int(links[1]) or None if links else None,
        **between_nodes(stated.inter_node or ""),
    )


def chip_name_of(text: str) -> str | None:
    """Return the chip of the catalog that a text names, None where it names none."""
    exact = find_name(text, chip_names())
    if exact:
        return exact
    lowered = text.lower()
    return next((n for pattern, n in _CHIPS if re.search(rf"(?<![a-z]){pattern}", lowered)), None)


def between_nodes(text: str) -> dict[str, Any]:
    """Return the fields of the network between nodes from a text; none without a rate.

    ``400 Gb/s RDMA per GPU`` is 400 of each chip; ``1600 Gbps node-node`` and ``8x HDR InfiniBand
    200 Gb/s per node`` are of a node; a rate without either is of one chip. Names of InfiniBand
    generations and Omni-Path stand for their port; Omni-Path has no rails.
    """
    lowered = text.lower()
    stated = _RATE.search(lowered)
    named = next((rate for name, rate in _GENERATIONS.items() if name in lowered), None)
    if stated is None and named is None:
        return {}
    rate = named if stated is None else float(stated[1]) * (1.0 if _is_bits(text, stated) else 8.0)
    assert rate is not None
    count = _COUNT.search(lowered)
    of_node = bool(re.search(r"per node|node-node|per host|per server|per vm", lowered))
    if of_node and count:
        rate = rate * int(count[1])
    elif of_node and re.search(r"per (gpu|chip|device)", lowered):
        of_node = False
    rails = {"rail_optimized": False} if "omni" in lowered else {}
    return {f"inter_node_gbit_per_{'node' if of_node else 'chip'}": rate} | rails


def _is_bits(text: str, stated: re.Match[str]) -> bool:
    """Return whether a rate is written in bits: ``Gb/s`` and ``Gbps``, not ``GB/s``."""
    return text[stated.start(2) : stated.end(2)][:2] != "GB"


# frameworks and servers

_EARLY_MEGATRON = "megatron==2021"
_FRAMEWORKS = (
    (r"nemo|megatron[-_ ]?bridge|megatron-?hub", "megatron-bridge"),
    (r"bigscience|megatron-deepspeed|bloom", "megatron-deepspeed"),
    (r"deepspeed", "deepspeed"),
    (r"llm-?foundry|mosaic|composer", "llm-foundry"),
    (r"torchtitan", "torchtitan"),
    (r"maxtext|pax|jax|levanter", "maxtext"),
    (r"internevo", "internevo"),
    (r"megatron|korthikanti|flagscale", _EARLY_MEGATRON),
    (r"fsdp|pytorch|hugging|accelerate|lit-?gpt|axolotl", "fsdp"),
)
_SERVERS = (
    (r"vllm[- ]?v?0\.[0-7]\b|vllm-v0", "vllm-v0"),
    (r"vllm", "vllm"),
    (r"(tensorrt|trt).*pytorch|trtllm [1-9]|tensorrt-llm [1-9]", "tensorrt-llm-pytorch"),
    (r"tensorrt|trt", "tensorrt-llm"),
    (r"lmdeploy|turbomind", "lmdeploy"),
    (r"optimum-?habana|synapse", "optimum-habana"),
    (r"deepspeed|mii|fastgen", "deepspeed-mii"),
    (r"sglang", "sglang"),
    (r"llama\W?cpp|ggml|gguf", "llama.cpp"),
)
_PYTORCH_SINCE = "2025-09"
"""The runtime in PyTorch is the default of TensorRT-LLM from version 1.0 on. Source: NVIDIA/
TensorRT-LLM, docs/source/release-notes.md."""
_ENGINE_V1_SINCE = "2025-03"
"""The engine V1 is the default of vLLM from version 0.8 on. Source: vllm-project/vllm, releases."""
_LOSS_COMPILED_SINCE = "2025-04"
"""Month since which torchtitan compiles the loss. Source: pytorch/torchtitan, pull request 1033."""
_LOSS_IN_PARTS_SINCE = "2026-04"
"""Month since which torchtitan makes logits and loss in parts. Source: pytorch/torchtitan, pull
request 2937."""
_PROJECTIONS_FUSED_SINCE = "2026-06"
"""Month since which torchtitan makes queries, keys and values by one product. Source: pytorch/
torchtitan, pull request 3714."""


def framework_of(row: StatedRow, hardware: HardwareFields) -> str | None:
    """Return the framework of a row: as it is named, else as its plan suggests; None: not known.

    A folder of the source may name it, but for PyTorch, which all of them run on. Megatron-LM
    stands for the recipes of today, but for early chips without fused attention, which its papers
    had.
    """
    named = _first_of(_FRAMEWORKS, row.framework, row.group, row.source.repo)
    folder = (row.source.path or "").rpartition("/")[0]
    if named is None and (found := _first_of(_FRAMEWORKS[:-1], folder)) is not None:
        return "megatron" if found == _EARLY_MEGATRON else found
    chip, plan = (hardware.chip or "").lower(), row.parallelism
    is_early = re.search(r"v100|a100|p100", chip) and not row.flash_attention
    if named is None and "tpu" in chip:
        return "maxtext"
    if named in (None, "internevo") and (plan.fsdp or plan.zero_stage == 3):
        return "fsdp"  # which InternEvo wraps for full sharding
    if named is None and is_early and row.flash_attention is False:
        return _EARLY_MEGATRON
    if named != _EARLY_MEGATRON:
        return named
    if "transformer-impl" in row.features:
        return "megatron"
    return _EARLY_MEGATRON if is_early else "megatron-bridge"


def server_name_of(row: StatedRow, hardware: HardwareFields) -> str:
    """Return the server of a row: as it is named, else as its source suggests.

    The ragged batches of DeepSpeed-MII are kernels in CUDA: DeepSpeed on Gaudi runs the static
    batches of Optimum Habana.
    """
    named = _first_of(_SERVERS, row.framework, row.group, row.source.repo) or "generic"
    if named == "deepspeed-mii" and (hardware.chip or "").startswith("Gaudi"):
        return "optimum-habana"
    if named == "vllm" and (row.date or _ENGINE_V1_SINCE) < _ENGINE_V1_SINCE:
        return "vllm-v0"
    if named == "tensorrt-llm" and (row.date or "") >= _PYTORCH_SINCE:
        return "tensorrt-llm-pytorch"
    return named


def _first_of(patterns: Sequence[tuple[str, Meaning]], *texts: str | None) -> Meaning | None:
    """Return the meaning of the first pattern found in the first text that has any."""
    for text in filter(None, texts):
        for pattern, meaning in patterns:
            if re.search(pattern, text.lower()):
                return meaning
    return None


_SAME_BITS_SINCE = "2024-10"
"""Since then at the latest Transformer Engine has attention that gives the same bits each time and
is not materialised on chips before Hopper: flash-attn 2.4.1; cuDNN has it on Hopper alone.

Source: NVIDIA/TransformerEngine, ``get_attention_backend``, filter of determinism.
"""
_BEFORE_HOPPER = ("volta", "turing", "ampere", "ada")


def attention_of(row: StatedRow, hardware: HardwareFields) -> tuple[bool | None, str | None]:
    """Return whether attention is fused, as stated or as options of Megatron choose; and why.

    The local implementation materialises scores unless configured otherwise; in deterministic mode
    Transformer Engine takes kernels that give the same bits each time.
    """
    if row.flash_attention is not None:
        return row.flash_attention, None
    if row.features.get("transformer-impl") == "local":
        return "use-flash-attn" in row.features, "transformer-impl local"
    is_early = (row.date or _SAME_BITS_SINCE) < _SAME_BITS_SINCE and _is_before_hopper(hardware)
    if is_early and row.features.get("deterministic-mode"):
        return False, f"deterministic-mode, before {_SAME_BITS_SINCE}"
    return None, None


def _is_before_hopper(hardware: HardwareFields) -> bool:
    """Return whether the chip of a row is known to be of an earlier family than Hopper."""
    chip = hardware.chip
    return chip in chip_names() and load_chip(chip).family in _BEFORE_HOPPER


_MEMORY_OPTIONS = {
    "FP8_PARAMS": "narrow_parameters", "FP8_PARAM_GATHER": "narrow_parameters",
    "FP8_ACT": "narrow_activation_inputs", "FP8_ACTIVATION": "narrow_activation_inputs",
    "activation-func-fp8-input-store": "narrow_activation_inputs",
}  # fmt: skip
"""Options of NeMo and Megatron that change the saved tensors, under the names of launch files."""


def _is_on(value: Any) -> bool:
    """Return whether an option is set, in the words of a shell."""
    return str(value).lower() in ("true", "1", "yes", "on")


def software_of(row: StatedRow, framework: str | None) -> tuple[SoftwareFields, dict[str, str]]:
    """Return the software of a row, with the reason for each field that is not stated as such.

    Remarks name asynchronous tensor parallelism that was left out (``vanilla tp``), and the mode of
    llm-foundry in which gradients are reduced in bf16 (``mode PURE``).
    """
    notes = (row.notes or "").lower()
    found: dict[str, tuple[bool | str | int, str]] = {}
    for name, field in _MEMORY_OPTIONS.items():
        if _is_on(row.features.get(name)):
            found[field] = True, name
    precision = (row.precision or "").lower()
    if "transformerengine" in precision.replace(" ", ""):
        if framework is None:
            found["keeps_cast_inputs"] = True, "Transformer Engine"
        if row.task == ADAPTERS:
            found["optimizer"] = "adapters-fp8", "frozen weights in fp8 (NeMo, fp8_params)"
    if "transformer-impl" in row.features:
        rates = [row.features.get(f"{where}-dropout", 0.1) for where in ("attention", "hidden")]
        found["dropout"] = any(map(float, rates)), "Megatron-LM drops a tenth unless told otherwise"
    if re.search(r"\bo2\b", precision) and framework is None:
        found["optimizer"] = "adam-amp-o2", "AMP at level O2"
    if framework == "fsdp" and "internevo" in (row.source.repo or "").lower():
        found["optimizer"] = "internevo-adam", "InternEvo's optimizer around FSDP"
    if row.features.get("cross-entropy-loss-fusion"):
        found["compiled_loss"] = True, "cross-entropy-loss-fusion"
    if row.features.get("deterministic-mode"):
        found["deterministic"] = True, "deterministic-mode"
    if "vanilla tp" in notes:
        found["async_tp"] = False, "vanilla TP"
    if framework == "llm-foundry" and "mode pure" in notes:
        found["bf16_reductions"] = True, "mode PURE"
    if row.features.get("no-gradient-accumulation-fusion"):
        found["separate_accumulation"] = True, "no-gradient-accumulation-fusion"
    is_new = (row.date or _LOSS_COMPILED_SINCE) >= _LOSS_COMPILED_SINCE
    if framework == "torchtitan" and row.software.compile and is_new:
        why = f"compiled since {_LOSS_COMPILED_SINCE}: pytorch/torchtitan, pull request 1033"
        found["compiled_loss"] = True, why
    if framework == "torchtitan" and (row.date or "") < _LOSS_IN_PARTS_SINCE:
        why = f"whole until {_LOSS_IN_PARTS_SINCE}: pytorch/torchtitan, pull request 2937"
        found["logit_tiles"] = 1, why
    if framework == "torchtitan" and (row.date or "") < _PROJECTIONS_FUSED_SINCE:
        since = _PROJECTIONS_FUSED_SINCE
        why = f"three products until {since}: pytorch/torchtitan, pull request 3714"
        found["separate_projections"] = True, why
    known = {name: entry for name, entry in found.items()
             if name == "async_tp" or getattr(row.software, name) is None}  # fmt: skip
    software = row.software.model_copy(update={name: value for name, (value, _) in known.items()})
    return software, {f"software.{name}": why for name, (_, why) in known.items()}


# precision, recomputation, FLOPs

_NARROW: tuple[tuple[str, DType], ...] = (
    (r"fp4|float4|int4|w4|awq|gptq|q4", "fp4"),
    (r"fp8|float8", "fp8"),
    (r"int8|w8|q8", "int8"),
)
_SCALINGS: tuple[tuple[str, Literal["current", "mx", "row", "tensor"]], ...] = (
    (r"rowwise", "row"), (r"tensorwise", "tensor"), (r"-cs\b|current scaling", "current"),
    (r"-mx\b|mxfp8", "mx"),
)  # fmt: skip
_WEIGHTS_ALONE = re.compile(r"int4|w4a16|w8a16|awq|gptq|q4|q8")


def precision_of(text: str | None) -> PrecisionFields | None:
    """Return the number formats of training; None: not stated."""
    if not text:
        return None
    words = text.lower()
    activation: DType | None = "bf16" if "bf16" in words else None
    if "fp16" in words or "float16" in words.replace("bfloat16", ""):
        activation = "fp16"
    elif activation is None and re.match(r"(fp|tf|float)32\b", words.strip()):
        activation = "fp32"
    return PrecisionFields(
        activation=activation,
        matmul="fp4" if re.search("fp4|float4", words)
        else "fp8" if re.search("fp8|float8", words) else None,
        scaling=_first_of(_SCALINGS, words),
        fp32_gradients="fp32 grad" in words,
        fp8_all_gather=bool(re.search(r"fp8 all-?gather", words)),
    )  # fmt: skip


def serving_precision_of(text: str | None) -> PrecisionFields | None:
    """Return the number formats of a served model; None: not stated.

    Formats of weights alone leave products in 16 bits.
    """
    if not text:
        return None
    words = text.lower()
    narrow = next((dtype for pattern, dtype in _NARROW if re.search(pattern, words)), None)
    return PrecisionFields(
        activation="fp32" if re.fullmatch(r"(fp|tf|float)32", words.strip()) else None,
        matmul=None if _WEIGHTS_ALONE.search(words) else narrow,
        weight=narrow,
    )


def recompute_of(text: str | None) -> Recompute | None:
    """Return the kind of recomputation; None: not stated."""
    if text is None:
        return None
    words = text.lower()
    if re.search(r"full|all|offload|block|uniform|\btrue\b", words):
        return Recompute.FULL
    if re.search(r"selective|minimal|attention|core|partial", words):
        return Recompute.SELECTIVE
    return Recompute.NONE


def recomputation_of(text: str | None) -> dict[str, Any]:
    """Return the fields of recomputation, with the modules of Megatron or tensors of MaxText named.

    ``selective: layernorm, moe`` names modules, ``custom offload: query_proj`` tensors; the default
    of a custom policy keeps the input of a layer alone.
    """
    words = (text or "").lower()
    names = re.split(r"[,\s]+", words.partition(":")[2])
    if modules := tuple(name for name in names if name in MODULES):
        return {"recompute": Recompute.SELECTIVE, "recompute_modules": modules}
    if re.match(r"qkv_proj.offloaded", words):
        names = ["query_proj", "key_proj", "value_proj"]
    elif not words.startswith("custom"):
        return {"recompute": recompute_of(text)}
    if away := tuple(name for name in names if name in TENSORS):
        return {"recompute": Recompute.SELECTIVE, "offloaded_tensors": away}
    return {"recompute": Recompute.FULL}


def measured_of(stated: MeasuredFields) -> MeasuredFields:
    """Return the measured fields; Megatron logs memory of the last rank, in its last stage.

    Source: NVIDIA/Megatron-LM, ``megatron/training/global_vars.py`` (``_set_tensorboard_writer``).
    """
    if not (stated.memory_metric or "").startswith("mem-"):
        return stated
    return stated.model_copy(update={"memory_of_last_stage": True})


def parallelism_of(
    stated: StatedParallelism, features: Mapping[str, Any], layers: int | None = None
) -> ParallelismFields:
    """Return the plan; MaxText may shard over slices too (``dcn_fsdp_parallelism``).

    Full sharding (``fsdp``) is ZeRO 3, even if another stage is named. Megatron may have several
    instances of its distributed optimizer, each over a part of the ranks; layers that it leaves out
    of the first and of the last stage count as those of the embedding and of the head.
    """
    known = ParallelismFields.model_validate(stated.model_dump(exclude={"raw"}))
    changes: dict[str, Any] = {}
    if isinstance(stated.raw, Mapping):
        sizes = [str(stated.raw.get(f"{net}_fsdp_parallelism")) for net in ("ici", "dcn")]
        if all(map(str.isdigit, sizes)):
            changes["dp_shard"] = prod(map(int, sizes))
    instances = features.get("num-distributed-optimizer-instances")
    if instances and known.dp and known.dp % int(instances) == 0:
        changes["dp_shard"] = known.dp // int(instances)
    for name, field in (("ASYM_PP_EMBED", "embedding_layers"), ("ASYM_PP_LOSS", "head_layers")):
        if _is_on(features.get(name)):
            changes[field] = 1
    first, last = (
        int(features.get(f"decoder-{end}-pipeline-num-layers") or 0) for end in ("first", "last")
    )
    if layers and first and last and (known.pp or 1) > len((first, last)):
        middle, rest = divmod(layers - first - last, (known.pp or 1) - len((first, last)))
        if rest == 0 and middle >= max(first, last):
            changes |= {"embedding_layers": middle - first, "head_layers": middle - last}
    if known.fsdp and known.zero_stage in (1, 2):
        changes["zero_stage"] = 3
    return known.model_copy(update=changes)


def flops_rule_of(text: str | None) -> FlopsRule | None:
    """Return the rule by which a source counts FLOPs; None: not stated.

    Rules by parameters are 6 N or 8 N, with full scores where they are named; otherwise the FLOPs
    of all products, with full or causal scores.
    """
    rule = (text or "").lower().replace(" ", "")
    if re.search(r"4\*2\*n", rule):
        return FlopsRule.EIGHT_N
    if re.search(r"6\*?n\+12", rule):
        return FlopsRule.SIX_N
    if not rule or "notstated" in rule:
        return None
    is_full = re.search(r"fulls\^2|nocausal|withoutcausal|megatron", rule)
    is_causal = not is_full and re.search(r"causal|half", rule)
    if re.search(r"hardwaret?flop", rule) and "modelflops" not in rule:
        return FlopsRule.HARDWARE_CAUSAL if is_causal else FlopsRule.HARDWARE
    return FlopsRule.MODEL_CAUSAL if is_causal else FlopsRule.MODEL


# models

_SIZE_AT_END = re.compile(r"[ -]\d+b$", re.IGNORECASE)
_VARIANT = re.compile(r"-?(instruct|chat|base|hf|it|pretrain(ing)?)$", re.IGNORECASE)
_OTHER_NAMES = {f"llama{size}b": f"llama1-{size}b" for size in (7, 13, 33, 65)}
"""The first models of the name were published without a number."""


def model_of(stated: ModelFields) -> ModelFields:
    """Return the dims of a model, completed by its name where no stated dim contradicts it.

    A public training configuration gives the dims that are left out. A public model of the catalog
    is named: it has features that rows cannot state (latent attention, windows, first dense
    layers).
    """
    name = stated.name or ""
    known = public_dims(name)
    if known:
        contradicts = any(getattr(stated, dim) not in (None, v) for dim, v in known.items())
        missing = {dim: v for dim, v in known.items() if getattr(stated, dim) is None}
        return stated if contradicts else stated.model_copy(update=missing)
    names = _catalog_names()
    found = _known_as(name, names)
    model = load_model(names[found]) if found else None
    if model is None or not _agrees(model, stated):
        return stated
    return stated.model_copy(update={"catalog_name": model.name})


def public_dims(name: str) -> dict[str, Any]:
    """Return the dims of a public training configuration by its name, with their source left out.

    They are no models of the catalog: no weights of them are published.
    """
    known = _configurations()
    found = known.get(_known_as(name, known) or "", {})
    return {key: value for key, value in found.items() if key != "dims_source"}


@cache
def _configurations() -> dict[str, dict[str, Any]]:
    content = json.loads(MODELS.read_text(encoding="utf-8"))
    return {_plain(name): dims for name, dims in content.items()}


@cache
def _catalog_names() -> dict[str, str]:
    """Return names and aliases without owner and variant, each with one that the catalog knows."""
    known = {_plain(_VARIANT.sub("", name.rpartition("/")[2])): name for name in known_names()}
    return _OTHER_NAMES | known


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _known_as(name: str, known: Container[str]) -> str | None:
    """Return the known form of a name; its size may follow one without, its owner precede."""
    bare = _VARIANT.sub("", name.rpartition("/")[2])
    candidates = (_plain(bare), _plain(_SIZE_AT_END.sub("", bare)))
    return next((candidate for candidate in candidates if candidate in known), None)


def _agrees(model: ModelSpec, stated: ModelFields) -> bool:
    """Return whether no stated dim contradicts a public model; the vocabulary may be padded."""
    experts = [kind.experts for kind in model.layer_kinds if kind.experts]
    pairs = (
        (stated.layers, {model.num_layers}),
        (stated.hidden, {model.hidden_size}),
        (stated.heads, {attention.num_heads for attention in model.attentions}),
        (stated.kv_heads, {attention.num_kv_heads for attention in model.attentions}),
        (stated.n_experts, {expert.num_experts for expert in experts} | {0}),
        (stated.topk, {expert.top_k for expert in experts} | {0}),
    )
    return all(value is None or value in known for value, known in pairs)
