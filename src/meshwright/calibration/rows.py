"""Measured rows: a question in the words of the verbs, its measured answer, and the source.

The published tables (``data/*.json``) and files of users have the same fields.
``benchmarks/normalise_measurements.py`` reads the words of a source into them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    create_model,
)

from meshwright.base.errors import Fault, MeshwrightError, SpecError, nearest
from meshwright.base.registry import load_entry_points
from meshwright.catalog.files import read_json, shown
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_chip, load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.operator import stated_rate
from meshwright.sharding.strategy import DEGREES, PlanOptions
from meshwright.spec.declaration import message_of
from meshwright.spec.model import ModelSpec, WeightFormat
from meshwright.spec.system import ChipSpec, DType, NetworkLevel, SystemSpec
from meshwright.spec.workload import BYTES_OF, OptimizerPreset, Precision, SoftwareStack

ADAPTERS, DID_NOT_FIT, ANALYTIC = "finetune-lora", "oom", "memory"
"""Tasks: adapters trained on frozen weights; a step that ran out of memory; the result of a formula
of the source, which need not have run."""
DATA = Path(__file__).parent / "data"
TABLES = ("training", "serving", "sram", "traffic")
"""Published tables."""

_MOST_COUNT, _LEAST_AMOUNT, _MOST_AMOUNT = 10**12, 1e-12, 1e24
"""Largest count, least and largest amount (time, rate or size) of a job."""


def _whole(value: Any) -> Any:
    """Return a whole float as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_text(value: Any) -> Any:
    """Return a number in the place of a text as that text."""
    return str(value) if isinstance(value, int | float) else value


Count = Annotated[int, BeforeValidator(_whole), Strict(), Field(ge=1, le=_MOST_COUNT)]
CountOrZero = Annotated[int, BeforeValidator(_whole), Strict(), Field(ge=0, le=_MOST_COUNT)]
Amount = Annotated[float, Strict(), Field(gt=_LEAST_AMOUNT, le=_MOST_AMOUNT, allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_as_text)]

FROZEN = ("mlperf-training", "tpu-recipes")
"""Sources that no constant, interval or rule has seen: two of the ten that were added last, by
``numpy.random.default_rng(17).choice(sorted(names), size=2, replace=False)`` before anybody looked
at their figures."""
FROZEN_SERVING = (
    "lmdeploy",
    "aic-silicon: DeepSeek-V3 671B on B200 under tensorrt-llm-pytorch",
    "aic-silicon: MiniMax M2.5 on H100 under vllm",
    "aic-silicon: Llama 3.1 70B on B200 under vllm",
    "aic-silicon: GPT-OSS 120B on B200 under tensorrt-llm-pytorch",
)
"""Frozen rows of requests, drawn before anybody looked at their errors: with
``random = numpy.random.default_rng(17)`` one of the four smaller sources that were added last,
``random.choice(sorted(names), size=1, replace=False)``, then of the source with most rows a
quarter of its families of model, chip and server, ``random.choice(sorted(families), size=4,
replace=False)``."""
FROZEN_SRAM = ("waferllm",)
"""Sources of machines that serve from SRAM, added after the constants of these were fitted."""


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


class Fields(BaseModel):
    """Some fields of a row; None is not stated, unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @property
    def stated(self) -> dict[str, Any]:
        """The fields that are not None, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


class Source(Fields):
    """Source of a figure."""

    title: Text | None = None
    repo: Text | None = None
    path: Text | None = None
    commit: Text | None = None
    url: Text | None = None


class ModelFields(Fields):
    """A model: one that ``--model`` takes (``like``), changed where stated, or declared whole."""

    name: Text | None = None
    like: Text | None = None
    vocab_size: Count | None = None
    learned_positions: Count | None = None
    declared: ModelSpec | None = None

    def spec(self) -> ModelSpec:
        """Return the model.

        Raises
        ------
        RefusedError
            It is neither named nor declared, or not known.
        """
        if self.declared is not None:
            return self.declared
        if self.like is None:
            raise RefusedError(Reason.DIMS, self.name or "no model")
        changes = {name: getattr(self, name) for name in ("vocab_size", "learned_positions")}
        changes = {name: value for name, value in changes.items() if value is not None}
        try:
            return load_model(self.like).model_copy(update=changes)
        except MeshwrightError as error:
            raise RefusedError(Reason.DIMS, str(error).splitlines()[0]) from error


class SystemFields(Fields):
    """A system that ``--on`` takes (``like``), with other levels or another chip where stated."""

    like: Text | None = None
    with_chip: Text | None = None
    """Chip in the place of the system's own."""
    levels: tuple[NetworkLevel, ...] | None = None
    at_least: bool = False
    """Machines that serve from SRAM: as many more chips as the layers need."""

    def spec(self) -> SystemSpec:
        """Return the system.

        Raises
        ------
        RefusedError
            It is not named, or not known.
        """
        try:
            return _system(self)
        except MeshwrightError as error:
            raise RefusedError(Reason.SYSTEM, str(error).splitlines()[0]) from error

    @property
    def chip(self) -> str:
        """Name of the chip; of an unknown system its own name."""
        try:
            return self.spec().chip.name
        except RefusedError:
            return self.like or "not stated"

    @property
    def num_chips(self) -> int | None:
        """Number of chips; None: not known."""
        try:
            return self.spec().num_devices
        except RefusedError:
            return None


@cache
def _system(stated: SystemFields) -> SystemSpec:
    """Return a system by its fields."""
    if stated.like is None:
        raise SpecError(Fault("system", "is not stated", "a system that --on takes"))
    system = load_system(stated.like)
    changes: dict[str, Any] = {}
    if stated.levels is not None:
        changes["levels"] = stated.levels
    if stated.with_chip is not None:
        name = f"{system.num_devices}x{stated.with_chip}"
        changes |= {"chip": load_chip(stated.with_chip), "name": name}
    return system.model_copy(update=changes)


class PrecisionFields(Fields):
    """Number formats; one that is not stated is that of the framework, else of the chip."""

    activation: DType | None = None
    matmul: DType | None = None
    weight: DType | None = None
    """Serving: type of the stored weights."""
    kv_cache: DType | None = None
    row_scales: bool = False
    weight_format: WeightFormat | None = None

    def __hash__(self) -> int:
        return hash((self.activation, self.matmul, self.weight, self.kv_cache, self.row_scales))

    def precision(self, chip: ChipSpec, word: DType | None = None) -> Precision:
        """Return the formats on a chip, with those of a framework where they are not stated.

        Raises
        ------
        RefusedError
            The chip has no rate for them.
        """
        activation = self.activation or word or chip.word
        matmul = self.matmul or activation
        try:
            for dtype in (matmul, activation):
                stated_rate(chip, dtype)
        except SpecError as error:
            raise RefusedError(Reason.PRECISION, str(error.faults[0])) from error
        return Precision(
            matmul=matmul, activation=activation, weight=self.weight or activation,
            kv_cache=self.kv_cache or activation, row_scales=self.row_scales,
            weight_format=self.weight_format,
        )  # fmt: skip


class OptimizerFields(Fields):
    """A preset that ``--optimizer`` takes (``like``), with other bytes where stated."""

    like: Text
    weight_bytes_per_param: Amount | None = None
    gathered_weight_bytes_per_param: Amount | None = None

    def preset(self) -> OptimizerPreset:
        """Return the preset with its changes."""
        changes = {name: value for name, value in self.stated.items() if name != "like"}
        return load_optimizer(self.like).model_copy(update=changes)


def _named(field: str) -> BeforeValidator:
    """Return a validator that reads something stated by its name alone."""
    return BeforeValidator(lambda value: {field: value} if isinstance(value, str) else value)


def _typed(value: Any) -> Any:
    """Return the fields of a precision that is stated by one type."""
    if not isinstance(value, str):
        return value
    return {"activation" if BYTES_OF.get(value, 1.0) >= 2.0 else "matmul": value}


_BOUNDED: dict[Any, Any] = {int: CountOrZero, tuple[int, ...]: tuple[CountOrZero, ...]}
StrategyFields: type[Fields] = create_model(
    "StrategyFields",
    __base__=Fields,
    **dict.fromkeys((*DEGREES, "dp"), (Count | None, None)),
    **{
        name: (_BOUNDED.get(kind, kind) | None, None)
        for name, kind in get_type_hints(PlanOptions).items()
    },
)  # type: ignore[call-overload]
"""Degrees and choices of a plan, by the names of ``StrategyOf`` and ``PlanOptions``, and ``dp``."""


class Counting(StrEnum):
    """Bytes that a source counts as memory."""

    DEVICE = "device"
    """All memory that the driver reports: allocator, runtime and communication library."""
    ALLOCATOR = "allocator"
    """Peak of the memory reserved by the allocator of the framework."""
    ALLOCATED = "allocated"
    """Peak of the memory that the allocator gave to tensors at once."""
    RESIDENT = "resident"
    """Bytes of tensors between steps: parameters, gradients, optimizer state."""
    TENSORS = "tensors"
    """Parameters, gradients, optimizer state and kept activations alone."""


class Measured(Fields):
    """Measured values; ``tokens_per_s`` of the whole job."""

    iteration_time_s: Amount | None = None
    tokens_per_s: Amount | None = None
    tokens_per_s_per_chip: Amount | None = None
    samples_per_s: Amount | None = None
    memory_bytes: Amount | None = None
    """Memory of the fullest device."""
    memory_counting: Counting | None = None
    """None: what users of the framework count."""
    memory_of_last_stage: bool = False
    """Whether the memory is that of the last stage of a pipeline, not of the fullest device."""
    latency_s: Amount | None = None
    """Latency of a batch of requests, from the first token of the prompts to the last of the
    answers [s]."""
    total_tokens_per_s: Amount | None = None
    output_tokens_per_s: Amount | None = None
    ttft_ms: Amount | None = None
    tpot_ms: Amount | None = None
    e2e_ms: Amount | None = None
    """Mean time from the arrival of a request to its last token."""
    e2e_p99_ms: Amount | None = None
    tokens_per_s_per_user: Amount | None = None
    """Throughput of one stream of answers on a machine that serves from SRAM."""


class TrafficFields(Fields):
    """Arrivals of requests, and options of the server that takes them."""

    rate_per_s: Amount
    """Requests a second."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    """At random, or at equal intervals."""
    num_prompts: Count | None = None
    """Different prompts, each sent again and again; not stated: no prompt comes twice."""
    most_sequences: Count | None = None
    most_pass_tokens: Count | None = None
    memory_share: Amount | None = None


class Row(Fields):
    """One question, its measured answer and its source."""

    id: Text
    group: Text = "unnamed"
    """Source with which its errors are counted."""
    task: Text = "pretrain"
    measured: Measured = Measured()
    source: Source = Source()
    date: Text | None = None
    """Date of the software, YYYY-MM."""
    framework_version: Text | None = None
    notes: Text | None = None
    reasons: Mapping[str, str] = Field(default_factory=dict)
    """Words of the source by field, where they differ from the value."""
    conditions: Mapping[str, Any] = Field(default_factory=dict)
    """Conditions that no price reads; rows that differ in them are no repetitions."""
    without_effect: tuple[str, ...] = ()
    """Fields of a user's row that no price reads."""
    refused: Reason | None = None
    """Reason why what the source states makes no question."""
    detail: str = ""

    model: Annotated[ModelFields, _named("like")] = ModelFields()
    system: Annotated[SystemFields, _named("like")] = SystemFields()
    framework: Text | None = None
    """Framework of the catalog, or server."""
    strategy: StrategyFields = StrategyFields()
    precision: Annotated[PrecisionFields, BeforeValidator(_typed)] = PrecisionFields()
    sequence_length: Count | None = None
    global_batch_size: Count | None = None
    optimizer: Annotated[OptimizerFields, _named("like")] | None = None
    """None: that of the framework, else of the system."""
    software: SoftwareStack = SoftwareStack()
    """Fields that differ from the software of the framework."""
    batch: Count | None = None
    """Serving: requests that start together; not stated: a queue that keeps the server busy."""
    closed_loop: bool = False
    """Serving: ``batch`` is a number of clients, each of which sends its next request when the
    answer to the one before has ended."""
    shortest_share: Amount | None = None
    """Serving: lengths are drawn evenly between this share of the stated ones and all of them;
    not stated: all requests are equal."""
    traffic: TrafficFields | None = None
    """Serving: requests that arrive at a rate, whatever became of those before."""
    prompt_tokens: CountOrZero | None = None
    answer_tokens: CountOrZero | None = None
    drafts_tokens: bool = False
    """Serving from SRAM: a pass checks several drafted tokens."""

    def check(self) -> None:
        """Refuse a row that makes no question."""
        if self.refused is not None:
            raise RefusedError(self.refused, self.detail)

    @property
    def is_serving(self) -> bool:
        """Whether requests were served; otherwise a model was trained."""
        return (self.prompt_tokens, self.answer_tokens) != (None, None) or self.is_one_user

    @property
    def has_rate(self) -> bool:
        """Whether requests came at a rate, whatever became of those before."""
        return self.traffic is not None

    @property
    def is_one_user(self) -> bool:
        """Whether the speed of one stream was measured, on layers cut into stages."""
        return self.measured.tokens_per_s_per_user is not None


def family_of(row: Row) -> str:
    """Return the rows of requests that differ from a row in plan, load and lengths alone."""
    return f"{row.group}: {row.model.name} on {row.system.chip} under {row.framework}"


def is_frozen(row: Row) -> bool:
    """Return whether no constant, interval or rule may see a row."""
    frozen = (*FROZEN_SERVING, *FROZEN_SRAM) if row.is_serving else FROZEN
    return row.group in frozen or family_of(row) in frozen


DESCRIPTION = ("id", "group", "source", "framework_version", "date", "notes", "reasons",
               "conditions")  # fmt: skip
"""Fields that identify a row, or tell rows apart; no price depends on them."""


@cache
def published(table: str) -> tuple[Row, ...]:
    """Return the rows of a published table, in which a number stands for a part that rows share."""
    content = json.loads((DATA / f"{table}.json").read_text(encoding="utf-8"))
    parts = {
        name: [_PARTS[name].validate_python(value) for value in values]
        for name, values in content["parts"].items()
    }
    return tuple(
        Row.model_validate({
            name: parts[name][value] if name in parts else value for name, value in row.items()
        })
        for row in content["rows"]
    )  # fmt: skip


SHARED = ("source", "model", "system", "strategy", "precision", "optimizer", "software",
          "reasons", "notes")  # fmt: skip
"""Parts that rows of a table name by index."""
_PARTS = {name: TypeAdapter(Row.model_fields[name].rebuild_annotation()) for name in SHARED}


def _in_words_of_a_source(entry: Mapping[str, Any], index: int) -> Row | list[Fault] | None:
    """Return a row in words of its source, read by a distribution that knows them, or its faults.

    The group of entry points is ``meshwright.row_readers``; None: the row has the fields of a
    question, or no distribution reads it.
    """
    if entry.keys() <= Row.model_fields.keys():
        return None
    for reader in load_entry_points("row_readers").values():
        read: Row | list[Fault] | None = reader(entry, index)
        if read is not None:
            return read
    return None


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a JSON file.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    rows, faults = judged(rows_file(path), str(path))
    if faults:
        raise SpecError(faults, origin=str(path))
    return rows


NO_JSON = (".csv", ".csv.gz", ".tsv")
"""Suffixes of tables of kernels."""


def rows_file(path: Path) -> Any:
    """Return the content of a file of measured rows."""
    if path.name.lower().endswith(NO_JSON):
        fix = "--kernels reads times of single kernels; rows of steps are a JSON array"
        raise SpecError(Fault("", "is a table, not rows of steps", fix), origin=str(path))
    return read_json(path)


def judged(content: Any, origin: str) -> tuple[list[Row], list[Fault]]:
    """Return the good rows of a parsed array, and the faults of the others.

    A row without a name is named by its index; null means not stated.

    Raises
    ------
    SpecError
        Where the content is no array, or an empty one.
    """
    if not isinstance(content, list) or not content:
        kind = "an empty one" if content == [] else shown(content)
        found = Fault("", f"expected an array of rows, found {kind}", "[{...}, ...]")
        raise SpecError(found, origin=origin)
    rows: dict[str, Row] = {}
    faults: list[Fault] = []
    for index, entry in enumerate(content):
        if not isinstance(entry, Mapping):
            faults.append(Fault(f"[{index}]", f"expected fields, found {shown(entry)}"))
            continue
        stated = {name: value for name, value in entry.items() if value is not None}
        read = _in_words_of_a_source(stated, index)
        if isinstance(read, list):
            faults += read
            continue
        try:
            row = read or Row.model_validate({"id": f"[{index}]", **stated})
        except ValidationError as error:
            name = f", in row {stated['id']!r}" if isinstance(stated.get("id"), str) else ""
            faults += [_fault(f"[{index}]", wrong, name) for wrong in error.errors()]
            continue
        if row.id in rows:
            faults.append(Fault(f"[{index}].id", f"two rows are named {row.id!r}", "one name each"))
        rows.setdefault(row.id, row)
    return list(rows.values()), faults


def _fault(place: str, wrong: Any, of_row: str) -> Fault:
    """Return a fault that pydantic found in an entry, with the nearest field for an unknown one."""
    path = ".".join([place, *map(str, wrong["loc"])])
    if wrong["type"] != "extra_forbidden":
        return Fault(path, f"{message_of(wrong)}, found {shown(wrong['input'])}{of_row}")
    part: Any = Row
    for name in wrong["loc"][:-1]:
        part = _PARTS_BY_FIELD.get(str(name), part)
    return Fault(
        path, f"{message_of(wrong)}{of_row}", nearest(str(wrong["loc"][-1]), part.model_fields)
    )


_PARTS_BY_FIELD: Mapping[str, type[BaseModel]] = {
    "source": Source, "model": ModelFields, "system": SystemFields, "strategy": StrategyFields,
    "precision": PrecisionFields, "optimizer": OptimizerFields, "software": SoftwareStack,
    "measured": Measured, "traffic": TrafficFields,
}  # fmt: skip
