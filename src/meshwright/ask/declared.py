"""From a question to its declarations: model, system, workload, fixed values, or one strategy.

Values of a question are read already; names become declarations here, and all faults are reported
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from meshwright.ask.kinds import TARGETS
from meshwright.ask.questions import (
    OF_WORKLOAD,
    Estimate,
    Fixed,
    Fuse,
    Partition,
    Plan,
    Program,
    Requests,
    Serve,
    Training,
)
from meshwright.ask.reading import Reading
from meshwright.ask.record import Question
from meshwright.base.errors import Fault, SpecError
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.huggingface.quantization import USUAL, stored_as
from meshwright.catalog.models import load_model
from meshwright.catalog.networks import devices_of_a_host, with_network
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer, load_workload
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.declaration import declared as checked
from meshwright.spec.framework import Framework
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import (
    Adapters,
    Decode,
    OptimizerPreset,
    Precision,
    Prefill,
    SoftwareStack,
    Speculation,
)
from meshwright.spec.workload import Training as TrainingWorkload
from meshwright.train.question import stated_strategy, training, with_powers, with_rent

Value = TypeVar("Value")


def needed(
    option: str, given: object, read: Callable[[str], Value], kind: type[Value] | None = None
) -> Value:
    """Return the value that ``read`` makes of a needed name; a declaration stays as it is.

    Parameters
    ----------
    kind
        Type of the declaration that Python may pass instead of a name.
    """
    if given is None:
        raise SpecError(Fault(option, "is needed"))
    if isinstance(given, str):
        return read(given)
    if kind is not None and isinstance(given, kind):
        return given
    expected = "a name or a file" + (f" or a {kind.__name__}" if kind else "")
    raise SpecError(Fault(option, f"found a {type(given).__name__}, expected {expected}"))


# ------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Declared:
    """A model, a system, a training workload, and the values that a user fixed."""

    model: ModelSpec
    system: SystemSpec
    workload: TrainingWorkload
    allowed: dict[str, list[Any]]
    """Fixed values, by their names in the search."""


def declared(asked: Training, *, reading: Reading | None = None) -> Declared:
    """Return the model, system and workload of a question of training.

    Raises
    ------
    SpecError, UnknownNameError
        Everything that is missing or wrong, at once.
    """
    reading = asked.reading() if reading is None else reading
    model, system = model_and_system(reading, asked)
    loaded, fields = None, {}
    if asked.workload is not None:
        loaded = reading.value(_workload_of_file, asked)
    else:
        fields = _workload_fields(reading, asked)
    reading.done()
    workload = training(system, **fields) if loaded is None else loaded
    _check_weights(asked, workload)
    return Declared(model, system, workload, allowed_of(asked))


def _check_weights(asked: Training, workload: TrainingWorkload) -> None:
    """Refuse ``weights`` where training does not keep weights as they are stored."""
    if asked.weights is None:
        return
    if asked.weights not in USUAL:
        message = "of training: a format in which frozen weights rest"
        raise SpecError(Fault(asked.flag("weights"), message, ", ".join(USUAL)))
    if not workload.optimizer.freezes_weights:
        message = f"{workload.optimizer.name} trains the weights themselves"
        raise SpecError(Fault(asked.flag("weights"), message, "--optimizer adapters"))


def model_and_system(reading: Reading, asked: Training | Serve) -> tuple[ModelSpec, SystemSpec]:
    """Return the model and the system; both are valid only after ``reading.done``."""
    model = reading.value(model_of, asked)
    system = reading.value(system_of, asked)
    stated = {
        f"{name}_w": value
        for name in ("max_power", "max_device_power", "idle_power")
        if (value := getattr(asked, name)) is not None
    }
    if system is not None and not asked.errors:
        system = with_powers(system, **stated) if stated else system
        system = with_rent(system, asked.rent) if asked.rent else system
    return model, system


def system_of(asked: Any) -> SystemSpec:
    """Return the system of a question, with its network between hosts."""
    system = needed("--on", asked.on, load_system, SystemSpec)
    return system if asked.network is None else with_network(system, asked.network)


def model_of(asked: Training | Serve | Partition) -> ModelSpec:
    """Return the model; ``weights`` replaces the weight format of its checkpoint."""
    model = needed("MODEL", asked.model, load_model, ModelSpec)
    if asked.weights is not None and asked.weights in USUAL:
        return stored_as(model, asked.weights)
    return model if asked.weights is None else model.model_copy(update={"weight_format": None})


def on_devices(asked: Plan, num_devices: int, chip: str) -> Plan:
    """Return the question for a number of devices of a chip; one host has no outer network."""
    on = f"{num_devices}x{chip}"
    network = None if devices_of_a_host(load_system(on)) is None else asked.network
    return asked.but(on=on, network=network)


def strategy_of(
    asked: Training, *, reading: Reading | None = None
) -> tuple[Declared, Strategy, PlanOptions]:
    """Return the declarations of a question, and the one strategy that it states."""
    found = declared(asked, reading=reading)
    flags = {option.target: option.flag for option in Fixed.options.values()}
    faults = [
        Fault(flags[name], f"one value is needed, found {len(values)}")
        for name, values in found.allowed.items()
        if len(values) != 1
    ]
    if faults:
        raise SpecError(faults)
    one = {name: values[0] for name, values in found.allowed.items()}
    try:
        stated = stated_strategy(one, found.model, found.system.num_alive, found.workload.software)
    except SpecError as error:
        faults = [Fault(flags.get(f.path, f.path), f.message, f.fix) for f in error.faults]
        raise SpecError(faults) from error
    return found, *stated


def allowed_of(asked: Question) -> dict[str, list[Any]]:
    """Return the degrees and choices that a user fixed, by their names in the search."""
    return {
        option.target: list(getattr(asked, name))
        for name, option in asked.options.items()
        if name in Fixed.options and name in asked.stated
    }


def _workload_fields(reading: Reading, asked: Training) -> dict[str, Any]:
    """Return the fields of the training workload that a question states."""
    for name in ("seq", "global_batch"):
        if name not in asked.stated:
            reading.fault(asked.flag(name), "is needed", "or a file with --workload")
    stated: dict[str, dict[str, Any]] = {"": {}, "software": {}, "adapters": {}}
    for name, option in asked.options.items():
        if option.field and name in asked.stated:
            part, _, field = option.field.rpartition(".")
            stated[part][field] = getattr(asked, name)
    fields = stated[""]
    fields["optimizer"] = reading.value(optimizer_of, asked.optimizer)
    fields["framework"] = reading.value(_framework, asked.framework)
    fields["adapters"] = reading.value(_adapters, asked, fields["optimizer"])
    ramp, batch = asked.batch_ramp, asked.global_batch
    if ramp is not None and batch is not None and (why := ramp.misses(batch)):
        reading.fault(asked.flag("batch_ramp"), why)
    document, sequence = asked.document_length, asked.seq
    if document is not None and sequence is not None and document > sequence:
        reading.fault(asked.flag("document_length"), f"{document} is longer than a sequence",
                      f"{sequence}")  # fmt: skip
    software = fields.pop("switches", None) or {}
    software = software | stated["software"] | (asked.software or {})
    fields["software"] = SoftwareStack.model_validate(software)
    return fields


def _adapters(asked: Training, optimizer: OptimizerPreset | None) -> Adapters | None:
    """Return the adapters of a question; None: there are none."""
    rank, targets = asked.flag("lora_rank"), asked.flag("lora_targets")
    stated = rank if "lora_rank" in asked.stated else targets
    if not asked.stated.keys() & {"lora_rank", "lora_targets"}:
        return None
    if asked.optimizer is None or (optimizer is not None and not optimizer.freezes_weights):
        name = optimizer.name if optimizer is not None else "the usual optimizer"
        raise SpecError(Fault(stated, f"{name} trains all weights", "--optimizer adapters"))
    if "lora_rank" not in asked.stated:
        raise SpecError(Fault(rank, f"is needed with {targets}", "16"))
    if asked.lora_rank is None:  # its fault is known
        return None
    return Adapters(rank=asked.lora_rank, targets=asked.lora_targets or TARGETS)


def _framework(given: Any) -> Any:
    return None if given is None else needed("--framework", given, load_framework, Framework)


def optimizer_of(given: Any) -> OptimizerPreset | None:
    """Return the preset of an optimizer; None: none is stated."""
    return None if given is None else needed("--optimizer", given, load_optimizer, OptimizerPreset)


def _workload_of_file(asked: Training) -> TrainingWorkload:
    """Return the workload of a file; options that it replaces are refused."""
    reading = Reading()
    asked.refuse_idle(reading, OF_WORKLOAD, "the file of --workload states this")
    loaded = reading.value(needed, "--workload", asked.workload, load_workload, TrainingWorkload)
    if loaded is not None and not isinstance(loaded, TrainingWorkload):
        reading.fault(f"{asked.workload}: kind", f"{loaded.kind} is not a training workload")
    reading.done()
    assert isinstance(loaded, TrainingWorkload)
    return loaded


# -------------------------------------------------------------------------------------- serving

_DRAFTED = ("speculative_model", "speculative_tokens", "acceptance")
_TAKEN = {
    "decode": ("context", "max_latency", *_DRAFTED),
    "prefill": ("prompt", "max_latency"),
    "requests": ("prompt", "answer", "max_ttft", "max_tpot", "disaggregated", *_DRAFTED),
}
"""Options of each kind of question of serving."""
_ASKED_BY = {"decode": "--context asks for decode", "prefill": "--prompt asks for prefill",
             "requests": "--prompt and --answer ask for requests"}  # fmt: skip


_SIZES = ("context", "prompt", "answer")


def is_traffic(asked: Requests) -> bool:
    """Return whether requests arrive at a rate."""
    return bool({"rate", "trace"} & asked.stated.keys())


def is_serving(asked: Estimate) -> bool:
    """Return whether requests are asked about."""
    trains = {"seq", "global_batch", "workload"} & asked.stated.keys()
    return bool({"batch", "context", "prompt", "answer"} & asked.stated.keys()) and not trains


def kind_of_serving(asked: Requests) -> str:
    """Return ``decode``, ``prefill``, or ``requests`` with both, by the lengths that are stated."""
    asks = {"answer", "max_ttft", "max_tpot", "disaggregated", "rate", "trace"}
    if asks & asked.stated.keys():
        return "requests"
    return "prefill" if "prompt" in asked.stated else "decode"


def serving_workload(
    reading: Reading, asked: Serve, system: SystemSpec | None
) -> Decode | Prefill | None:
    """Return the workload of requests; None after a complaint.

    Its types are any where no system was read.
    """
    kind = kind_of_serving(asked)
    for name in dict.fromkeys(name for names in _TAKEN.values() for name in names):
        if name not in _TAKEN[kind]:
            kinds = [other for other, names in _TAKEN.items() if name in names]
            why = f"applies only to {' or '.join(kinds)}; {_ASKED_BY[kind]}"
            asked.refuse_idle(reading, (name,), why)
    needed_ones = ["batch", *(name for name in _TAKEN[kind] if name in _SIZES)]
    for name in [] if is_traffic(asked) else needed_ones:
        if name not in asked.stated:
            other = "or --prompt, with --answer for whole requests" if name == "context" else ""
            reading.fault(asked.flag(name), "is needed", other)
    speculation = reading.value(_speculation, asked)
    if reading.errors:
        return None
    shared: dict[str, Any] = {
        "batch_size": asked.batch or 1,
        "precision": precision_of(asked, system),
        "expert_load_imbalance": asked.imbalance or 1.0,
        "software": SoftwareStack(cuda_graphs=asked.cuda_graphs),
        "two_batch_overlap": asked.two_batch_overlap,
    }
    if kind == "prefill":
        return Prefill(prompt_length=asked.prompt, max_time_to_first_token_s=asked.max_latency,
                       **shared)  # fmt: skip
    shared["speculation"] = speculation
    if kind == "decode":
        return checked(Decode, context_length=asked.context,
                       max_time_per_output_token_s=asked.max_latency, **shared)  # fmt: skip
    return checked(
        Decode,
        prompt_length=asked.prompt,
        context_length=(asked.prompt or 0) + (asked.answer or 0),
        max_time_to_first_token_s=asked.max_ttft,
        max_time_per_output_token_s=asked.max_tpot,
        **shared,
    )


def _speculation(asked: Requests) -> Speculation | None:
    """Return the stated speculation; None: there is none.

    Raises
    ------
    SpecError
        One of its options is missing, or wrong: no acceptance is taken for granted.
    """
    stated = [name for name in _DRAFTED if name in asked.stated]
    if not stated:
        return None
    reading = Reading()
    for name in _DRAFTED:
        if name not in stated:
            reading.fault(asked.flag(name), "is needed", f"with {asked.flag(stated[0])}")
    reading.done()
    model, draft = asked.speculative_model, None
    if model != "mtp":
        draft = needed(asked.flag("speculative_model"), model, load_model, ModelSpec)
    if asked.speculative_tokens is None or asked.acceptance is None:  # their faults are known
        return None
    return Speculation(draft=draft, drafted_tokens=asked.speculative_tokens,
                       acceptance=asked.acceptance)  # fmt: skip


def precision_of(asked: Serve | Partition, system: SystemSpec | None) -> Precision:
    """Return the types of matrix products, weights and cache; any where no system was read."""
    stated = {"matmul": asked.precision, "weight": asked.weights, "kv_cache": asked.kv_cache}
    found: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    if found.get("weight") in USUAL:  # the model says how it is stored, see model_of
        del found["weight"]
    if system is None:
        return Precision()
    if "matmul" in found:
        found.setdefault("weight", found["matmul"])
    return Precision.on(system.chip, **found)


def program_of(asked: Program | Fuse) -> dict[str, Any]:
    """Return the options of a program: sizes of dims, shapes of inputs, types of numbers."""
    found: dict[str, Any] = {"sizes": asked.dim or {}, "inputs": asked.input or ()}
    if asked.precision is not None:
        found["precision"] = asked.precision
    return found | {"training": asked.training}
