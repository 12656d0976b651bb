"""``quantization_config``: the format of the weights of linear layers in a checkpoint.

Read by ``quant_method``; a method that is not known is refused by its name, since its weights would
otherwise be priced at a width that they do not have.

Source: transformers, src/transformers/utils/quantization_config.py and src/transformers/quantizers
(``is_trainable``), and compressed-tensors, src/compressed_tensors/quantization/quant_args.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from meshwright.base.budget import Budget, tries
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import shown
from meshwright.spec.model import ModelSpec, Region, WeightFormat
from meshwright.spec.system import DType

FIELDS: Final = ("quantization_config", "compression_config")
"""Fields that hold the quantisation; the second is the older name of compressed-tensors."""
MOST_IN_A_GROUP: Final = 2**20
"""Most weights that share a scale along one side; no published model has that many in a column."""
_SKIPPED: Final = (
    "ignore", "ignored_layers", "modules_to_not_convert", "llm_int8_skip_modules",
    "exclude_modules",
)  # fmt: skip
"""Lists of modules that keep wide weights."""
_MODULES: Final[Mapping[Region, tuple[str, ...]]] = {
    "attention": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "self_attn.qkv_proj", "self_attn.q_a_proj", "self_attn.q_b_proj",
        "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj",
        "mixer.q_proj", "mixer.k_proj", "mixer.v_proj", "mixer.o_proj",
    ),
    "recurrence": tuple(
        f"{block}.{name}"
        for block in ("mamba", "mixer", "linear_attn")
        for name in ("in_proj", "in_proj_qkvz", "out_proj")
    ),
    "feed_forward": (
        "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate_up_proj",
        "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj",
        "mixer.up_proj", "mixer.down_proj",
    ),
    "experts": (
        "mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj",
        "block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.0.w2",
        "block_sparse_moe.experts.0.w3", "feed_forward.experts.gate_up_proj",
        "feed_forward.experts.down_proj",
    ),
    "shared_experts": tuple(
        f"{block}.{shared}.{name}_proj"
        for block, shared in (
            ("mlp", "shared_experts"), ("mlp", "shared_expert"), ("feed_forward", "shared_expert"),
        )
        for name in ("gate", "up", "down", "gate_up")
    ),
}  # fmt: skip
"""Names of linear layers inside of a layer, as transformers gives them."""
_NOT_PRICED_NARROW: Final = re.compile(
    r"lm_head|embed|\bwte\b|norm|router|\bgate\b|shared_expert_gate|vision|visual|projector|mtp"
    r"|eh_proj|shared_head|rotary|lora|conv1d|in_proj_ba",
    re.IGNORECASE,
)
"""Modules that are priced wide in any case, that are small, or that are no part of the text."""


def weight_format_of(
    config: Mapping[str, object], model: ModelSpec, origin: str
) -> WeightFormat | None:
    """Return the format of the weights of a configuration; None: wide, because none is stated.

    Raises
    ------
    SpecError
        The method is not known, or says something that cannot be priced.
    """
    inner = config.get("text_config")
    for section in (config, inner if isinstance(inner, Mapping) else {}):
        for field in FIELDS:
            stated = section.get(field)
            if stated is not None:
                return _Reader(field, stated, model, origin).format()
    return None


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
USUAL: Final[Mapping[str, Mapping[str, object]]] = {
    "int4": {"quant_method": "compressed-tensors",
             "config_groups": {"0": {"targets": ["Linear"], "weights": _INT4}}},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-double": {"quant_method": "bitsandbytes", "load_in_4bit": True,
                   "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "bnb-int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}  # fmt: skip
"""Formats by the names that ``--weights`` takes, each with the settings of most checkpoints."""


def stored_as(
    model: ModelSpec, settings: Mapping[str, object] | str, origin: str = ""
) -> ModelSpec:
    """Return a model with weights in one of the usual formats, or as settings state.

    A checkpoint that says itself that it has this format keeps the settings that it states.
    """
    stated = USUAL[settings] if isinstance(settings, str) else settings
    found = weight_format_of({FIELDS[0]: stated}, model, origin or f"--weights {settings}")
    own = model.weight_format
    if own is not None and found is not None and own.name == found.name:
        return model
    return model.model_copy(update={"weight_format": found})


def without_attention_of_experts(
    settings: Mapping[str, object], model: ModelSpec
) -> Mapping[str, object]:
    """Return settings under which a model with experts keeps its attention wide."""
    has_experts = any(kind.experts for kind in model.layer_kinds)
    return {**settings, "ignore": ["self_attn"]} if has_experts else settings


def cache_type_of(config: Mapping[str, object]) -> DType | None:
    """Return the type of the cache for which a checkpoint has scales; None: it says nothing.

    Source: compressed-tensors, ``kv_cache_scheme``; NVIDIA TensorRT Model Optimizer,
    ``kv_cache_quant_algo``. vLLM 0.33 and SGLang 0.5.23 take it where nothing else is stated.
    """
    for field in FIELDS:
        stated = config.get(field)
        if not isinstance(stated, Mapping):
            continue
        scheme = stated.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
            return "fp8" if scheme.get("type") == "float" else "int8"
        if str(stated.get("kv_cache_quant_algo")).upper() == "FP8":
            return "fp8"
    return None


class _Reader:
    """One ``quantization_config``; everything wrong in it is named by its field."""

    def __init__(self, field: str, stated: object, model: ModelSpec, origin: str) -> None:
        self.field, self.model, self.origin = field, model, origin
        self.stated = self.section(stated)

    def refused(self, key: str, message: str, fix: str = "") -> SpecError:
        path = f"{self.field}.{key}" if key else self.field
        return SpecError(Fault(path, message, fix), origin=self.origin)

    def section(self, stated: object, key: str = "") -> Mapping[str, object]:
        """Return a value that must be a section of fields."""
        if not isinstance(stated, Mapping):
            raise self.refused(key, f"found {shown(stated)}; expected a section")
        return stated

    def format(self) -> WeightFormat | None:
        """Return the format by its method, with the regions that it leaves wide."""
        method = self.stated.get("quant_method")
        if method is None and self.field == "compression_config":
            method = "compressed-tensors"
        if method is None and ("load_in_4bit" in self.stated or "load_in_8bit" in self.stated):
            method = "bitsandbytes"
        known = tuple(_METHODS)
        if method is None:
            raise self.refused("quant_method", "missing", f"one of {', '.join(known)}")
        if not isinstance(method, str) or method not in _METHODS:
            message = f"weights in {shown(method)} are not priced"
            fix = nearest(str(method), known)
            raise self.refused("quant_method", message, f"{fix}; or without {self.field}")
        found = _METHODS[method](self)
        if found is None:
            return None
        wide = {**self.wide_shares(), **found.wide_shares}
        layers = _layers_of(self.model)
        if all(wide.get(region, 0.0) == 1.0 for region in layers if layers[region]):
            return None
        # Products are narrow where all of them are.
        return found.model_copy(
            update={"wide_shares": wide, "matmul": None if any(wide.values()) else found.matmul}
        )

    def number(self, key: str, allowed: Sequence[int]) -> int:
        """Return a whole number that is one of those that a method allows."""
        value = self.stated.get(key)
        if type(value) is not int or value not in allowed:
            some = ", ".join(map(str, allowed))
            found = "missing" if value is None else f"found {shown(value)}"
            raise self.refused(key, found, f"one of {some}")
        return value

    def group(self, stated: Any, key: str = "group_size") -> float:
        """Return the weights that share a scale; infinity: a column or more of them."""
        if stated is None or stated == -1:
            return float("inf")
        if not _is_count(stated):
            raise self.refused(key, f"found {shown(stated)}", "weights of a group, or -1")
        return float(stated)

    def block(self, stated: Any, key: str) -> float:
        """Return the bytes of the FP32 scale of a block of rows x columns for one weight."""
        is_pair = isinstance(stated, list | tuple) and len(stated) == 2
        if not is_pair or not all(_is_count(side) for side in stated):
            raise self.refused(key, f"found {shown(stated)}", "such as [128, 128]")
        return 4.0 / float(stated[0] * stated[1])

    def wide_shares(self) -> dict[Region, float]:
        """Return the share of the layers that keep each region wide, as the lists say."""
        kept: dict[Region, set[int]] = {}
        budget = Budget(steps=_MOST_TRIES)
        for key in _SKIPPED:
            entries = self.stated.get(key) or ()
            if not isinstance(entries, list | tuple):
                raise self.refused(key, f"found {shown(entries)}; expected a list of modules")
            for number, entry in enumerate(entries):
                if not isinstance(entry, str):
                    raise self.refused(f"{key}[{number}]", f"found {shown(entry)}")
                try:
                    places = list(_places(entry, self.model, budget))
                except SpecError as error:
                    raise self.refused(f"{key}[{number}]", error.faults[0].message) from error
                if not places and not _is_priced_wide(entry, self.model):
                    message = f"{entry!r} names no module of {self.model.name} that is known"
                    raise self.refused(f"{key}[{number}]", message)
                for region, layer in places:
                    kept.setdefault(region, set()).add(layer)
        layers = _layers_of(self.model)
        return {region: len(found) / len(layers[region]) for region, found in kept.items()}


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_IN_A_GROUP


def _layers_of(model: ModelSpec) -> dict[Region, list[int]]:
    """Return the numbers of the layers that have each region."""
    found: dict[Region, list[int]] = {region: [] for region in _MODULES}
    for number, index in enumerate(model.layer_pattern):
        kind = model.layer_kinds[index]
        if kind.attention is not None:
            found["attention"].append(number)
        if kind.recurrence is not None:
            found["recurrence"].append(number)
        if kind.feed_forward is not None:
            found["feed_forward"].append(number)
        if kind.experts is not None:
            found["experts"].append(number)
            if kind.experts.shared_ffn_size:
                found["shared_experts"].append(number)
    return found


_MOST_TRIES: Final = 2 * 10**8
"""Most tries of letters by all patterns of a configuration: some ten patterns of three repeats
each."""


def _places(entry: str, model: ModelSpec, budget: Budget) -> Iterator[tuple[Region, int]]:
    """Yield the regions and layers that an entry of a list names.

    Entries are whole names, parts of names between dots, patterns with ``*``, or regular
    expressions after ``re:``. One projection of a region stands for all of it, and one expert for
    all of its layer.
    """
    whole, only = re.sub(r"experts\.\d+", "experts.0", entry), None
    pattern, part = whole.removeprefix("re:"), ""
    if pattern == whole:
        # From the number of the layer on, whatever the module around the layers is called.
        part = re.sub(r"^.*\b(?:layers|h|blocks)\.", "layers.", whole)
        only = re.match(r"layers\.(\d+)\b", part)
        pattern = rf"(?:^|.*\.){'[^.]+'.join(map(re.escape, part.split('*')))}(?:\.|$)"
    is_plain = bool(part) and "*" not in part
    try:
        matches: Callable[[str], object] = (
            (lambda name: f".{part}." in f".{name}.") if is_plain else re.compile(pattern).match
        )
    except (re.error, OverflowError, RecursionError):
        return
    for region, layers in _layers_of(model).items():
        for layer in layers if only is None else {int(only[1])}.intersection(layers):
            names = [f"model.layers.{layer}.{module}" for module in _MODULES[region]]
            most = sum(50.0 if is_plain else tries(pattern, name) for name in names)
            budget.spend(steps=math.ceil(min(most, 2.0 * _MOST_TRIES)))
            if any(map(matches, names)):
                yield region, layer


def _is_priced_wide(entry: str, model: ModelSpec) -> bool:
    """Return whether an entry names always wide parts: edges, norms, layers beyond the last."""
    layer = re.search(r"\blayers\.(\d+)\b", entry)
    is_beyond = layer is not None and int(layer[1]) >= model.num_layers
    return is_beyond or _NOT_PRICED_NARROW.search(entry) is not None


def _bitsandbytes(reader: _Reader) -> WeightFormat | None:
    """4 bits: an FP32 scale for 64 weights, or its 8 bits and a scale of 256 such; else 8 bits."""
    if reader.stated.get("load_in_4bit", reader.stated.get("_load_in_4bit")):
        kind = reader.stated.get("bnb_4bit_quant_type", "fp4")
        is_double = bool(reader.stated.get("bnb_4bit_use_double_quant"))
        scale = 1.0 / 64.0 + 4.0 / (64.0 * 256.0) if is_double else 4.0 / 64.0
        name = f"bitsandbytes {kind}{' with narrow scales' if is_double else ''}"
        return WeightFormat(name=name, bytes_per_weight=0.5 + scale, unpacks=True)
    if reader.stated.get("load_in_8bit", reader.stated.get("_load_in_8bit")):
        return WeightFormat(name="bitsandbytes int8", bytes_per_weight=1.0)
    return None


def _integer_groups(reader: _Reader) -> WeightFormat:
    """GPTQ and AWQ: a 16-bit scale and a zero point in the type of the weights for each group."""
    method = str(reader.stated["quant_method"]).upper()
    bits = reader.number("bits", (4,) if method == "AWQ" else (2, 3, 4, 8))
    per_group = 2.0 + bits / 8.0
    group = reader.group(reader.stated.get("group_size", 128))
    size = bits / 8.0 + per_group / group
    return WeightFormat(name=f"{method}, {bits} bits", bytes_per_weight=size)


def _fp8(reader: _Reader) -> WeightFormat:
    """One FP32 scale for each block, row or tensor; activations are narrow as well."""
    block = reader.stated.get("weight_block_size")
    size = 1.0 if block is None else 1.0 + reader.block(block, "weight_block_size")
    return WeightFormat(name="fp8", bytes_per_weight=size, matmul="fp8", trains_adapters=False)


def _mxfp4(reader: _Reader) -> WeightFormat:
    """Experts alone, with a scale of 8 bits for 32 weights (OCP Microscaling formats, 5.1)."""
    wide: dict[Region, float] = dict.fromkeys(_MODULES, 1.0)
    del wide["experts"]
    size = 0.5 + 1.0 / 32.0
    return WeightFormat(
        name="mxfp4", bytes_per_weight=size, wide_shares=wide, trains_adapters=False
    )


def _compressed_tensors(reader: _Reader) -> WeightFormat | None:
    """Weights of one width for all linear layers; scales by tensor, channel, group or block."""
    groups = reader.section(reader.stated.get("config_groups"), "config_groups")
    if sparsity := reader.stated.get("sparsity_config"):
        form = reader.section(sparsity, "sparsity_config").get("format")
        if form != "dense":
            message = f"sparse weights in {shown(form)} are not priced"
            raise reader.refused("sparsity_config", message)
    if len(groups) != 1:
        raise reader.refused("config_groups", f"{len(groups)} groups of layers", "one group")
    ((name, stated),) = groups.items()
    path = f"config_groups.{name}"
    group = reader.section(stated, path)
    if (targets := group.get("targets")) != ["Linear"]:
        raise reader.refused(f"{path}.targets", f"found {shown(targets)}", "['Linear']")
    if group.get("weights") is None:
        return None
    weights = reader.section(group["weights"], f"{path}.weights")
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    if bits not in (4, 8) or kind not in ("int", "float"):
        message = f"weights of {shown(bits)} bits, {shown(kind)}, are not priced"
        raise reader.refused(f"{path}.weights", message, "4 or 8 bits, int or float")
    size = bits / 8.0 + _scale_bytes(reader, weights, f"{path}.weights")
    inputs = reader.section(group.get("input_activations") or {}, f"{path}.input_activations")
    types: dict[tuple[int, str], DType] = {(8, "float"): "fp8", (8, "int"): "int8",
                                           (4, "float"): "fp4"}  # fmt: skip
    is_narrow = (inputs.get("num_bits"), inputs.get("type")) == (bits, kind)
    matmul = types.get((bits, kind)) if is_narrow else None
    label = f"compressed-tensors {kind}{bits}"
    return WeightFormat(name=label, bytes_per_weight=size, matmul=matmul)


def _scale_bytes(reader: _Reader, weights: Mapping[str, Any], path: str) -> float:
    """Return the bytes of scales and zero points of one weight."""
    strategy = weights.get("strategy", "tensor")
    zero = 0.0 if weights.get("symmetric", True) else weights["num_bits"] / 8.0
    if strategy in ("tensor", "channel"):
        return 0.0
    if strategy == "group":
        return (2.0 + zero) / reader.group(weights.get("group_size"), f"{path}.group_size")
    if strategy == "tensor_group":  # an FP8 scale for each group under one of the tensor
        return 1.0 / reader.group(weights.get("group_size"), f"{path}.group_size")
    if strategy == "block":
        return reader.block(weights.get("block_structure"), f"{path}.block_structure")
    known = "tensor, channel, group, tensor_group or block"
    raise reader.refused(f"{path}.strategy", f"found {shown(strategy)}", f"one of {known}")


_MODELOPT: Final[Mapping[str, tuple[str, float, float, DType | None]]] = {
    "FP8": ("fp8", 8.0, 0.0, "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", 8.0, 0.0, "fp8"),
    "FP8_PB_WO": ("fp8", 8.0, 32.0 / 128.0, None),
    "MXFP8": ("mxfp8", 8.0, 8.0, "fp8"),
    "NVFP4": ("nvfp4", 4.0, 8.0, "fp4"),
    "W4A16_NVFP4": ("nvfp4", 4.0, 8.0, None),
    "W4A16_AWQ": ("AWQ, 4 bits", 4.0, 16.0, None),
}
"""Names of ``quant_algo``: the format, bits of a weight, bits of the scale of a group, and the type
of the products.

Source: NVIDIA/TensorRT-Model-Optimizer, ``modelopt/torch/export/quant_utils.py``; vLLM 0.33,
``model_executor/layers/quantization/modelopt.py`` (2026-11).
"""
_GROUPS: Final[Mapping[str, int]] = {
    "NVFP4": 16, "W4A16_NVFP4": 16, "MXFP8": 32, "W4A16_AWQ": 128, "FP8_PB_WO": 128,
}  # fmt: skip
"""Weights of a group where none are stated."""


def _modelopt(reader: _Reader) -> WeightFormat:
    """One algorithm for all linear layers, by name; modules of the list of exceptions stay wide."""
    algorithm = str(reader.stated.get("quant_algo", "missing")).upper()
    if algorithm not in _MODELOPT:
        known = ", ".join(_MODELOPT)
        raise reader.refused("quant_algo", f"{algorithm} is not priced", f"one of {known}")
    name, bits, scale_bits, matmul = _MODELOPT[algorithm]
    group = reader.group(reader.stated.get("group_size") or _GROUPS.get(algorithm))
    size = (bits + scale_bits / group) / 8.0
    return WeightFormat(name=name, bytes_per_weight=size, matmul=matmul, trains_adapters=False)


_METHODS: Final[Mapping[str, Callable[[_Reader], WeightFormat | None]]] = {
    "bitsandbytes": _bitsandbytes,
    "gptq": _integer_groups,
    "awq": _integer_groups,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}
