"""Measurements as their sources state them: rows of a JSON array, read with all faults at once.

A field that a source does not state is None; fields that no price depends on are passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.files import unreadable

Part = TypeVar("Part")


@dataclass(frozen=True)
class Source:
    """Where a figure stands."""

    title: str | None = None
    repo: str | None = None
    path: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class ModelFields:
    """Dims of the model; ``seq`` in tokens, ``params_b`` in billions."""

    name: str | None = None
    params_b: float | None = None
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    ffn_gated: bool | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    seq: int | None = None
    n_experts: int | None = None
    topk: int | None = None
    moe_ffn: int | None = None
    shared_experts: int | None = None
    first_dense_layers: int | None = None
    position: str | None = None


@dataclass(frozen=True)
class HardwareFields:
    """Chips and networks, in the words of the source."""

    chip: str | None = None
    chip_id: str | None = None
    chips: int | None = None
    chips_per_node: int | None = None
    intra_node: str | None = None
    inter_node: str | None = None
    slices: int | None = None


@dataclass(frozen=True)
class ParallelismFields:
    """Degrees and choices of the plan."""

    tp: int | None = None
    sp: bool | None = None
    pp: int | None = None
    vpp: int | None = None
    dp: int | None = None
    fsdp: bool | None = None
    zero_stage: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None


@dataclass(frozen=True)
class SoftwareFields:
    """What the remarks of a source say about its software."""

    compile: bool | None = None
    async_tp: bool | None = None
    packed_sequences: bool | None = None


@dataclass(frozen=True)
class MeasuredFields:
    """What was measured; tokens_per_s of the whole job."""

    iteration_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_chip: float | None = None
    samples_per_s: float | None = None
    tflops_per_chip: float | None = None
    mfu: float | None = None
    memory_bytes_per_chip: float | None = None
    param_opt_bytes: float | None = None
    """Parameters, gradients and optimizer state, of one chip."""
    activation_bytes: float | None = None
    latency_s: float | None = None
    """Of a batch of requests, from the first token of the prompts to the last of the answers."""
    total_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    output_tokens_per_s_per_chip: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True)
class Row:
    """One measurement with its configuration. ``micro_batch`` of TPU rows is of one chip."""

    id: str
    group: str
    task: str = "pretrain"
    source: Source = field(default_factory=Source)
    model: ModelFields = field(default_factory=ModelFields)
    hardware: HardwareFields = field(default_factory=HardwareFields)
    parallelism: ParallelismFields = field(default_factory=ParallelismFields)
    software: SoftwareFields = field(default_factory=SoftwareFields)
    measured: MeasuredFields = field(default_factory=MeasuredFields)
    framework: str | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    grad_accum: int | None = None
    precision: str | None = None
    recompute: str | None = None
    flash_attention: bool | None = None
    flops_counting: str | None = None
    batch: int | None = None
    """Inference: requests that start together; not stated: a queue that keeps the server busy."""
    input_len: int | None = None
    output_len: int | None = None
    definition: str | None = None
    """Inference: what the throughput of the source counts."""
    notes: str | None = None

    @property
    def is_inference(self) -> bool:
        """Whether requests were served; otherwise a model was trained."""
        return self.input_len is not None or self.output_len is not None


_PARTS = {
    "source": Source, "model": ModelFields, "hardware": HardwareFields,
    "parallelism": ParallelismFields, "software": SoftwareFields, "measured": MeasuredFields,
}  # fmt: skip
_MAY_BE_ZERO = (
    "n_experts", "shared_experts", "first_dense_layers", "zero_stage", "topk", "input_len",
    "output_len",
)  # fmt: skip
_UNSTATED = ("", "null", "none stated", "unknown")


def read_rows(path: Path) -> list[Row]:
    """Return the measurements of a JSON file.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(Fault("", f"no JSON: {error}"), origin=str(path)) from error
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from error
    return rows_of(content, str(path))


def rows_of(content: Any, origin: str) -> list[Row]:
    """Return the rows of a parsed array, or all of its faults."""
    if not isinstance(content, list):
        found = Fault("", f"expected an array of rows, found {_kind(content)}", "[{...}, ...]")
        raise SpecError(found, origin=origin)
    faults: list[Fault] = []
    rows = [_row(entry, f"[{index}]", faults) for index, entry in enumerate(content)]
    names = [row.id for row in rows]
    doubled = sorted({name for name in names if names.count(name) > 1})
    faults += [Fault("id", f"{name!r} stands at several rows", "one name each") for name in doubled]
    if faults:
        raise SpecError(faults, origin=origin)
    return rows


def _row(entry: Any, at: str, faults: list[Fault]) -> Row:
    """Return one row; what is wrong with it is added to the faults."""
    if not isinstance(entry, Mapping):
        faults.append(Fault(at, f"expected a row of fields, found {_kind(entry)}"))
        return Row(at, "unnamed")
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        stated = entry.get(name)
        if stated is not None and not isinstance(stated, Mapping):
            faults.append(Fault(f"{at}.{name}", f"expected fields, found {_kind(stated)}"))
        parts[name] = _part(kind, stated if isinstance(stated, Mapping) else {}, at, name, faults)
    plain = {key: value for key, value in entry.items() if key not in _PARTS}
    plain = {"id": at, "group": "unnamed"} | {k: v for k, v in plain.items() if v is not None}
    row: Row = _part(Row, plain, at, "", faults)
    return Row(**{f.name: parts.get(f.name, getattr(row, f.name)) for f in fields(Row)})


def _part(
    kind: type[Part], stated: Mapping[str, Any], at: str, name: str, faults: list[Fault]
) -> Part:
    """Return a part of a row from what is stated; its types say what may stand there."""
    found = {}
    for entry in fields(cast(Any, kind)):
        value = stated.get(entry.name)
        if value is None or entry.name in _PARTS:
            continue
        path = ".".join(filter(None, (at, name, entry.name)))
        read = _value(value, str(entry.type), entry.name)
        if isinstance(read, Fault):
            faults.append(Fault(path, read.message, read.fix))
        elif read is not None:
            found[entry.name] = read
    defaults = {"id": at, "group": "unnamed"} if kind is Row else {}
    return kind(**(defaults | found))


def _value(value: Any, kind: str, name: str) -> Any:
    """Return a value as its type asks for it, None where it says nothing, or the fault."""
    wanted = kind.split(" ", maxsplit=1)[0]
    if wanted == "str":
        return str(value) if isinstance(value, str | int | float) else _wrong(value, "text")
    if isinstance(value, str) and value.strip().lower() in _UNSTATED:
        return None
    if wanted == "bool":
        return value if isinstance(value, bool) else _wrong(value, "true, false or null")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _wrong(value, "a number or null")
    least = 0 if name in _MAY_BE_ZERO else 1 if wanted == "int" else 0.0
    if not math.isfinite(value) or value < least or (wanted == "float" and value == 0):
        return _wrong(value, "a number above 0" if least == 0.0 else f"{least} or more")
    if wanted == "int":
        return int(value) if float(value).is_integer() else _wrong(value, "a whole number")
    return float(value)


def _wrong(value: Any, allowed: str) -> Fault:
    """Return the fault of a value."""
    shown = repr(value) if isinstance(value, str | int | float | bool) else _kind(value)
    return Fault("", f"expected {allowed}, found {shown}")


def _kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    return {dict: "an object", list: "an array", str: "text", type(None): "null"}.get(
        type(value), repr(value)
    )


_TRAINING_TABLE = Path(__file__).parent / "data" / "training.json"


@cache
def published_rows() -> tuple[Row, ...]:
    """Return all training measurements of the table.

    A row holds its id, group and task, then indices into the lists of sources, models, hardware
    and plans, then what only it has.
    """
    table = json.loads(_TRAINING_TABLE.read_text(encoding="utf-8"))
    return tuple(
        rows_of([_training_row(entry, table) for entry in table["rows"]], _TRAINING_TABLE.name)
    )


def _training_row(entry: list[Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its parts in place."""
    name, group, task, source, model, hardware, plan, own = entry
    return {
        "id": name,
        "group": group,
        "task": task,
        "source": table["sources"][source],
        "model": table["models"][model],
        "hardware": table["hardware"][hardware],
        "parallelism": table["plans"][plan],
        **own,
    }


_SERVING_TABLE = Path(__file__).parent / "data" / "inference.json"


@cache
def published_inference_rows() -> tuple[Row, ...]:
    """Return all measurements of the table.

    A row holds its id and group, then indices into the lists of sources, models, hardware and
    settings, then batch, lengths of prompt and answer, and what was measured.
    """
    table = json.loads(_SERVING_TABLE.read_text(encoding="utf-8"))
    return tuple(
        rows_of([_serving_row(entry, table) for entry in table["rows"]], _SERVING_TABLE.name)
    )


def _serving_row(entry: list[Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its parts in place."""
    name, group, source, model, hardware, setting, batch, prompt, answer, measured = entry
    return {
        "id": name,
        "group": group,
        "source": table["sources"][source],
        "model": table["models"][model],
        "hardware": table["hardware"][hardware],
        "batch": batch,
        "input_len": prompt,
        "output_len": answer,
        "measured": measured,
        **table["settings"][setting],
    }
