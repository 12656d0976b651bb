"""From options to a question: model, system, workload, fixed values, or one strategy.

Each value is read on its own, and all faults are reported at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from meshwright.base.errors import Fault, MeshwrightError, SpecError, nearest
from meshwright.options import table

if TYPE_CHECKING:
    from meshwright.sharding.strategy import PlanOptions, Strategy
    from meshwright.spec.model import ModelSpec
    from meshwright.spec.system import SystemSpec
    from meshwright.spec.workload import Decode, Prefill, Speculation, Training


Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

LARGEST = 10**12
"""Largest count of tokens, sequences or devices."""
MOST_QUANTITY = 1e24
"""Largest size, rate, time or power, in bytes, bytes/s, seconds or watts."""


class Reading:
    """Options that are read in a row; complaints are kept until :meth:`done`."""

    def __init__(self) -> None:
        self.errors: list[MeshwrightError] = []

    def value(
        self, read: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Return the value of ``read``, or None after a complaint: ``done`` then raises."""
        try:
            return read(*args, **kwargs)
        except MeshwrightError as error:
            self.errors.append(error)
            return cast(Value, None)

    def fault(self, path: str, message: str, fix: str = "") -> None:
        """Keep a complaint."""
        self.errors.append(SpecError(Fault(path, message, fix)))

    def done(self) -> None:
        """Raise the kept complaints: one as it is, several as the faults of one error."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise SpecError([fault for error in self.errors for fault in faults_of(error)])


def faults_of(error: MeshwrightError) -> tuple[Fault, ...]:
    """Return the faults of an error; its file comes before the path of its field."""
    if not isinstance(error, SpecError):
        return (Fault("", str(error)),)
    if not error.origin:
        return error.faults
    return tuple(
        Fault(": ".join(filter(None, (error.origin, f.path))), f.message, f.fix)
        for f in error.faults
    )


def needed(
    option: str, given: object, read: Callable[[str], Value], kind: type[Value] | None = None
) -> Value:
    """Return the value that ``read`` makes of a needed option; a declaration stays as it is.

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


def whole_number(
    option: str, text: str, *, kilo: int = 1000, least: int = 1, most: int = LARGEST
) -> int:
    """Return a whole number that is at least ``least``; see :func:`parse_count` for k and M."""
    from meshwright.base.units import parse_count

    number = parse_count(text, kilo=kilo)
    if number is None or not least <= number <= most:
        limits = f"above {least - 1}" if most == LARGEST else f"from {least} to {most}"
        message = f"found {text!r}, expected a whole number {limits}"
        such = "4096, 128k (131072) or 1M (1048576)" if kilo == 1024 else "8"
        raise SpecError(Fault(option, message, f"such as {such}"))
    return number


def decimal_number(option: str, text: str, *, least: float) -> float:
    """Return a number that is at least ``least``."""
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= LARGEST:
        raise SpecError(Fault(option, f"found {text!r}, expected a number of at least {least:g}"))
    return number


def quantity(option: str, text: str, dimension: str) -> float:
    """Return a quantity above 0, such as ``15T`` tokens or ``50 ms``."""
    from meshwright.base.units import parse_quantity

    try:
        value = parse_quantity(text, dimension)
    except ValueError as error:
        raise SpecError(Fault(option, str(error))) from error
    if not 0 < value < MOST_QUANTITY:
        bound = f"less than {MOST_QUANTITY:g}" if value > 0 else "more than 0"
        raise SpecError(Fault(option, f"found {text!r}, expected {bound}"))
    return value


def rent_of(text: str) -> float:
    """Return the rent of a device [USD/h]; a bare number is in USD/h."""
    bare = text.strip().removeprefix("$").replace("_", "")
    try:
        float(bare)
    except ValueError:
        return quantity("--rent", text, "usd_per_hour")
    return quantity("--rent", f"{bare} USD/h", "usd_per_hour")


def one_of(option: str, text: str, values: Iterable[str]) -> str:
    """Return a text that is one of the allowed values."""
    names = list(values)
    if text not in names:
        raise SpecError(Fault(option, f"found {text!r}", nearest(text, names)))
    return text


def output_file(
    args: argparse.Namespace, name: str, suffix: str = "", *, is_resumed: bool = False
) -> Path | None:
    """Return the file that an option names, checked before the work starts.

    Its folder is there and may be written to, its name ends as it should, and nothing is in the
    way; see :func:`meshwright.base.files.in_the_way`.
    """
    from meshwright.base.files import in_the_way

    option, text = option_of(name), getattr(args, name)
    if text is None:
        return None
    if not text or text.endswith(os.sep):
        raise SpecError(Fault(option, f"{text!r} names no file"))
    path = Path(text)
    folder = path.parent
    if not folder.is_dir():
        raise SpecError(Fault(option, f"there is no folder {str(path.parent)!r}"))
    if not os.access(folder, os.W_OK):
        raise SpecError(Fault(option, f"the folder {str(path.parent)!r} cannot be written to"))
    if fault := in_the_way(path, force=args.force, is_resumed=is_resumed):
        raise SpecError(Fault(option, f"{text!r} {fault.message}", fault.fix))
    named = {other: Path(value) for other, value in vars(args).items()
             if other != name and isinstance(value, str) and value.isprintable()}  # fmt: skip
    if same := [o for o, other in named.items() if other.resolve() == path.resolve()]:
        raise SpecError(Fault(option, f"{text!r} is {option_of(same[0])} too", "another name"))
    if suffix and path.suffix.lower() != suffix:
        raise SpecError(Fault(option, f"{text!r} does not end in {suffix}", f"{path.stem}{suffix}"))
    return path


DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "tatp")
FIXED = tuple(option.target for option in table.FIXED)
"""Names in the search of the degrees and choices that a user can fix."""
COUNTED = {"embedding_layers": 0, "head_layers": 0, "recompute_layers": 0, "recompute_run": 1}
"""Structural choices that are numbers, with the least value of each."""
CHOICES = {option.target: option.choices for option in table.FIXED if option.choices}
_FLAGS = {option.target: option.flag for option in table.FIXED}
STATED_IN_FILE = ("seq", "global_batch", "framework", "precision", "optimizer", "tokens",
                  "lora_rank", "lora_targets",
                  "batch_ramp", "document_length", "imbalance", "cuda_graphs", "async_tp",
                  "switches", "dropout")  # fmt: skip
"""Options that a workload file replaces."""
CAPS = ("max_power", "max_device_power")
SERVING_ONLY = ("batch", "context", "prompt", "answer", "max_latency", "max_ttft", "max_tpot",
                "latency", "kv_cache",
                "server", "memory_share", "disaggregated",
                "speculative_model", "speculative_tokens", "acceptance")  # fmt: skip
"""Options without a meaning in training."""
TRAINING_ONLY = (
    "seq", "global_batch", "workload", "optimizer", "tokens", "document_length", "batch_ramp",
    "async_tp", "switches", "dropout", "measured", "tatp", "dp_shard", "num_virtual_stages",
    "recompute",
    "recompute_modules", "kept_tensors", "offloaded_tensors", "recompute_layers", "recompute_run",
    "schedule", "offload", "zero_stage", "reshard_after_forward", "vocabulary_parallel",
    "embedding_layers", "head_layers", "stage_layers", "overlap_data_parallel",
    "overlap_expert_parallel", "streamed", "stream_form",
)  # fmt: skip
"""Options without a meaning in serving: no price depends on them."""
_DRAFTED = ("speculative_model", "speculative_tokens", "acceptance")
_OF_SERVING = {
    (True, False): ("context", "max_latency", *_DRAFTED),
    (False, True): ("prompt", "max_latency"),
    (True, True): ("prompt", "answer", "max_ttft", "max_tpot", "disaggregated", *_DRAFTED),
}
"""Options of decode, of prefill, and of whole requests: both flags."""
ASKED = ("model", "on", "network", "workload", *STATED_IN_FILE, *CAPS, "idle_power", "rent")


@dataclass(frozen=True)
class Question:
    """A question of training, read and checked option by option."""

    model: ModelSpec
    system: SystemSpec
    workload: Training
    allowed: dict[str, list[Any]]
    """Values that the user fixed, by their names in the search."""


def question_of(args: argparse.Namespace) -> Question:
    """Return the question that the arguments ask.

    Raises
    ------
    SpecError, UnknownNameError
        Everything that is missing or wrong, at once.
    """
    from meshwright.train.question import training

    reading = Reading()
    model, system = read_model_and_system(reading, args)
    loaded, fields = None, {}
    if args.workload is not None:
        loaded = reading.value(_workload_of_file, args)
    else:
        fields = reading.value(_workload_fields, args)
    allowed = reading.value(allowed_of, args)
    reading.done()
    workload = training(system, **fields) if loaded is None else loaded
    _check_weights(args, workload)
    return Question(model, system, workload, allowed)


def _check_weights(args: argparse.Namespace, workload: Training) -> None:
    """Refuse ``--weights`` where training does not keep weights as they are stored."""
    from meshwright.catalog.huggingface.quantization import USUAL

    if args.weights is None:
        return
    if args.weights not in USUAL:
        message = "of training: a format in which frozen weights rest"
        raise SpecError(Fault("--weights", message, ", ".join(USUAL)))
    if not workload.optimizer.freezes_weights:
        message = f"{workload.optimizer.name} trains the weights themselves"
        raise SpecError(Fault("--weights", message, "--optimizer adapters"))


def read_model_and_system(
    reading: Reading, args: argparse.Namespace
) -> tuple[ModelSpec, SystemSpec]:
    """Return the model and the system; both are valid only after ``reading.done``."""
    from meshwright.train.question import with_powers, with_rent

    model = reading.value(model_of, args)
    system = reading.value(system_of, args)
    powers = reading.value(_powers, args)
    rent = args.rent and reading.value(rent_of, args.rent)
    system = with_powers(system, **powers) if system and powers else system
    return model, with_rent(system, rent) if system and rent else system


def system_of(args: argparse.Namespace) -> SystemSpec:
    """Return the system of the options, with their network between hosts."""
    from meshwright.catalog.networks import with_network
    from meshwright.catalog.systems import load_system
    from meshwright.spec.system import SystemSpec

    system = needed("--on", args.on, load_system, SystemSpec)
    return system if args.network is None else with_network(system, args.network)


def model_of(args: argparse.Namespace) -> ModelSpec:
    """Return the model; ``--weights`` replaces the weight format of its checkpoint."""
    from meshwright.catalog.huggingface.quantization import USUAL, stored_as
    from meshwright.catalog.models import load_model
    from meshwright.spec.model import ModelSpec

    model = needed("MODEL", args.model, load_model, ModelSpec)
    stated = getattr(args, "weights", None)
    if stated is not None and stated in USUAL:
        return stored_as(model, stated)
    return model if stated is None else model.model_copy(update={"weight_format": None})


def on_devices(args: argparse.Namespace, num_devices: int, chip: str) -> argparse.Namespace:
    """Return the options for a number of devices of a chip; one host has no outer network."""
    from meshwright.catalog.networks import devices_of_a_host
    from meshwright.catalog.systems import load_system

    on = f"{num_devices}x{chip}"
    network = None if devices_of_a_host(load_system(on)) is None else args.network
    return argparse.Namespace(**{**vars(args), "on": on, "network": network})


def _powers(args: argparse.Namespace) -> dict[str, float]:
    """Return the powers that the options state [W], by their names in a system.

    Raises
    ------
    SpecError
        Every one that is wrong.
    """
    reading, found = Reading(), {}
    for name in (*CAPS, "idle_power"):
        text = getattr(args, name)
        if name == "idle_power" and text == "off":
            found["idle_power_w"] = 0.0
        elif text is not None:
            found[f"{name}_w"] = reading.value(quantity, option_of(name), text, "w")
    reading.done()
    return found


def strategy_question(args: argparse.Namespace) -> tuple[Question, Strategy, PlanOptions]:
    """Return the question, and the one strategy that the arguments state."""
    from meshwright.train.question import stated_strategy

    asked = question_of(args)
    faults = [
        Fault(option_of(name), f"one value is needed, found {len(values)}")
        for name, values in asked.allowed.items()
        if len(values) != 1
    ]
    if faults:
        raise SpecError(faults)
    one = {name: values[0] for name, values in asked.allowed.items()}
    try:
        stated = stated_strategy(one, asked.model, asked.system.num_alive, asked.workload.software)
    except SpecError as error:
        faults = [Fault(option_of(f.path), f.message, f.fix) for f in error.faults]
        raise SpecError(faults) from error
    return asked, *stated


def _workload_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a training workload that the options state.

    Raises
    ------
    SpecError
        Every option that is missing or wrong.
    """
    from meshwright.spec.workload import SoftwareStack

    reading = Reading()
    for option, value in (("--seq", args.seq), ("--global-batch", args.global_batch)):
        if value is None:
            reading.fault(option, "is needed", "or a file with --workload")
    fields = {
        field: reading.value(read, given)
        for field, read, given in (
            ("sequence_length", partial(whole_number, "--seq", kilo=1024), args.seq),
            ("global_batch_size", partial(whole_number, "--global-batch"), args.global_batch),
            ("total_tokens", partial(quantity, "--tokens", dimension="tokens"), args.tokens),
            ("batch_ramp", _batch_ramp, args.batch_ramp),
            (
                "document_length",
                partial(whole_number, "--document-length", kilo=1024),
                args.document_length,
            ),
            ("precision", _precision, args.precision),
            ("expert_load_imbalance", imbalance, args.imbalance),
            ("optimizer", _optimizer, args.optimizer),
            ("framework", _framework, args.framework),
            ("switches", _switches, args.switches),
        )
        if given is not None
    }
    fields["adapters"] = reading.value(adapters_of, args, fields.get("optimizer"))
    ramp, whole = fields.get("batch_ramp"), fields.get("global_batch_size")
    if ramp is not None and whole is not None and (why := ramp.misses(whole)):
        reading.fault("--batch-ramp", why)
    document, sequence = fields.get("document_length"), fields.get("sequence_length")
    if document is not None and sequence is not None and document > sequence:
        reading.fault("--document-length", f"{document} is longer than a sequence", f"{sequence}")
    reading.done()
    stated = {"cuda_graphs": args.cuda_graphs, "async_tensor_parallel": args.async_tp,
              "dropout": args.dropout}  # fmt: skip
    stated = {k: v for k, v in stated.items() if v} | vars(args).get("software", {})
    stated = fields.pop("switches", {}) | stated
    fields["software"] = SoftwareStack.model_validate(stated)
    return fields


SWITCHES: dict[str, tuple[str, Any, Any]] = {
    "compile": ("compiled", False, True),
    "loss": ("loss", "plain", "compiled"),
    "async_tp": ("async_tensor_parallel", False, True),
    "cuda_graphs": ("cuda_graphs", False, True),
}
"""Field of the software of each switch, with its value off and on."""


def _switches(text: str) -> dict[str, Any]:
    """Return the software that ``compile+async_tp`` states: switches without a name are off."""
    named = [] if text == "none" else text.split("+")
    for name in named:
        one_of("--switches", name, SWITCHES)
    return {field: on if name in named else off for name, (field, off, on) in SWITCHES.items()}


TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
TARGET_WORDS = {"all": TARGETS, "attention": TARGETS[:4], "mlp": TARGETS[4:]}
"""Words for several targets of adapters."""


def adapters_of(args: argparse.Namespace, optimizer: Any) -> Any:
    """Return the adapters of the options; None: there are none."""
    from meshwright.spec.workload import Adapters

    rank, targets = args.lora_rank, args.lora_targets
    stated = "--lora-rank" if rank is not None else "--lora-targets"
    if rank is None and targets is None:
        return None
    if args.optimizer is None or (optimizer is not None and not optimizer.freezes_weights):
        name = optimizer.name if optimizer is not None else "the usual optimizer"
        raise SpecError(Fault(stated, f"{name} trains all weights", "--optimizer adapters"))
    if rank is None:
        raise SpecError(Fault("--lora-rank", "is needed with --lora-targets", "16"))
    words = [*TARGETS, *TARGET_WORDS]
    named = [one_of("--lora-targets", text, words) for text in (targets or "all").split("+")]
    found = {target for name in named for target in TARGET_WORDS.get(name, (name,))}
    number = whole_number("--lora-rank", rank, most=MOST_RANK)
    return Adapters(rank=number, targets=tuple(target for target in TARGETS if target in found))


MOST_RANK = 65536
"""Largest rank of adapters: no hidden size is larger."""


def _framework(text: Any) -> Any:
    from meshwright.catalog.frameworks import load_framework
    from meshwright.spec.framework import Framework

    return needed("--framework", text, load_framework, Framework)


def _optimizer(text: Any) -> Any:
    from meshwright.catalog.workloads import load_optimizer
    from meshwright.spec.workload import OptimizerPreset

    return needed("--optimizer", text, load_optimizer, OptimizerPreset)


def _batch_ramp(text: str) -> Any:
    """Return the growth of the batch of a run: ``16,16,5859375``."""
    from meshwright.spec.workload import BatchRamp

    parts, option = str(text).split(","), "--batch-ramp"
    if len(parts) != len(BatchRamp.model_fields):
        raise SpecError(Fault(option, f"found {text!r}", "three numbers such as 16,16,5859375"))
    start, increment, sequences = (whole_number(option, part) for part in parts)
    return BatchRamp(start=start, increment=increment, sequences=sequences)


def imbalance(text: str) -> float:
    """Return the load of the busiest expert rank over the mean."""
    return decimal_number("--imbalance", text, least=1.0)


def _workload_of_file(args: argparse.Namespace) -> Training:
    """Return the workload of a file; options that it replaces are refused."""
    from meshwright.catalog.workloads import load_workload
    from meshwright.spec.workload import Training

    reading = Reading()
    refuse_idle(reading, args, STATED_IN_FILE, "the file of --workload states this")
    loaded = reading.value(needed, "--workload", args.workload, load_workload, Training)
    if loaded is not None and not isinstance(loaded, Training):
        reading.fault(f"{args.workload}: kind", f"{loaded.kind} is no training workload")
    reading.done()
    assert isinstance(loaded, Training)
    return loaded


def _precision(text: str) -> Any:
    from typing import get_args

    from meshwright.spec.system import DType
    from meshwright.spec.workload import Precision

    return text if isinstance(text, Precision) else one_of("--precision", text, get_args(DType))


def allowed_of(args: argparse.Namespace) -> dict[str, list[object]]:
    """Return the values that the user fixed, by their names in the search.

    Raises
    ------
    SpecError
        Every value that is wrong.
    """
    reading = Reading()
    allowed: dict[str, list[object]] = {}
    for name in FIXED:
        text = getattr(args, name)
        if text is not None:
            option, parts = option_of(name), text.split(",")
            if name in _LISTS:
                allowed[name] = [reading.value(_LISTS[name], part) for part in parts]
            elif name in CHOICES:
                allowed[name] = [reading.value(_choice, name, part) for part in parts]
            else:
                least = COUNTED.get(name, 1)
                allowed[name] = [
                    reading.value(whole_number, option, part, least=least) for part in parts
                ]
    reading.done()
    return allowed


def option_of(name: str) -> str:
    """Return the option of a value: ``global_batch`` is ``--global-batch``."""
    if name in ("model", "graph", "file"):
        return name.upper()
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def given_numbers(
    reading: Reading, args: argparse.Namespace, names: Iterable[str], *, kilo: int = 1000
) -> dict[str, int]:
    """Return the whole numbers of the given options among some, by name."""
    return {
        name: reading.value(whole_number, option_of(name), getattr(args, name), kilo=kilo)
        for name in names
        if getattr(args, name) is not None
    }


def refuse_idle(reading: Reading, args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Keep a complaint for each given option that would change nothing."""
    for name in names:
        given: Any = getattr(args, name)
        if given is not None and given is not False:
            reading.fault(option_of(name), why)


def _modules(text: str) -> tuple[str, ...]:
    """Return modules joined by ``+``."""
    from meshwright.graph.recompute import MODULES

    names = text.split("+")
    return tuple(one_of("--recompute-modules", name, MODULES) for name in dict.fromkeys(names))


def _tensors(text: str) -> tuple[str, ...]:
    """Return names of tensors joined by ``+``."""
    from meshwright.graph.recompute import TENSORS

    names = text.split("+")
    return tuple(one_of("--kept-tensors", name, TENSORS) for name in dict.fromkeys(names))


def _stage_layers(text: str) -> tuple[int, ...]:
    """Return the layers of each stage: ``7+8*14+7`` has sixteen of them."""
    found: list[int] = []
    for part in text.split("+"):
        length, times, count = part.partition("*")
        least = whole_number("--stage-layers", length, least=0)
        repeats = whole_number("--stage-layers", count) if times else 1
        if len(found) + repeats > MOST_STAGES:
            message = f"{text!r} has more than {MOST_STAGES} stages"
            raise SpecError(Fault("--stage-layers", message, "7+8*14+7"))
        found += [least] * repeats
    return tuple(found)


MOST_STAGES = 4096
"""Most stages with stated numbers of layers."""
_LISTS = {
    "recompute_modules": _modules,
    "kept_tensors": _tensors,
    "offloaded_tensors": _tensors,
    "stage_layers": _stage_layers,
}
"""Structural choices that are lists, joined by ``+``."""


def _choice(name: str, text: str) -> object:
    """Return one value of a structural choice."""
    from meshwright.sharding.space import order_named
    from meshwright.sharding.strategy import (
        ContextKind,
        Offload,
        Recompute,
        ScheduleKind,
        Streamed,
        StreamForm,
    )

    one_of(option_of(name), text, CHOICES[name])
    kinds: dict[str, Callable[[str], object]] = {
        "recompute": Recompute, "schedule": ScheduleKind, "context_kind": ContextKind,
        "offload": Offload, "zero_stage": int, "streamed": Streamed, "stream_form": StreamForm,
        "axis_order": order_named,
    }  # fmt: skip
    return text == "on" if name not in kinds else kinds[name](text)


def is_serving(args: argparse.Namespace) -> bool:
    """Return whether the question is about serving."""
    return bool(args.decode or args.prefill)


def serving_workload(args: argparse.Namespace, system: SystemSpec | None) -> Decode | Prefill:
    """Return the workload of the arguments; its types are any where no system was read.

    Raises
    ------
    SpecError
        Every option that is missing or wrong.
    """
    from meshwright.spec.declaration import declared
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack

    reading = Reading()
    kind = (bool(args.decode), bool(args.prefill))
    _refuse_other_kinds(reading, args, kind)
    lengths = [name for name in _OF_SERVING[kind] if name in ("context", "prompt", "answer")]
    numbers: dict[str, int] = {}
    for name, kilo in (("batch", 1000), *((name, 1024) for name in lengths)):
        text = getattr(args, name)
        if text is None:
            reading.fault(f"--{name}", "is needed")
        else:
            numbers[name] = reading.value(whole_number, f"--{name}", text, kilo=kilo)
    limits = {
        name: reading.value(quantity, option_of(name), getattr(args, name), "s")
        for name in ("max_latency", "max_ttft", "max_tpot")
        if getattr(args, name) is not None
    }
    shared: dict[str, Any] = {
        "precision": reading.value(precision_of, args, system),
        "expert_load_imbalance": reading.value(imbalance, args.imbalance or "1"),
        "software": SoftwareStack(cuda_graphs=args.cuda_graphs),
    }
    speculation = reading.value(speculation_of, args)
    reading.done()
    if args.decode:
        shared["speculation"] = speculation
    shared["batch_size"] = numbers["batch"]
    limit_s = limits.get("max_latency")
    if all(kind):
        return declared(
            Decode,
            prompt_length=numbers["prompt"],
            context_length=numbers["prompt"] + numbers["answer"],
            max_time_to_first_token_s=limits.get("max_ttft"),
            max_time_per_output_token_s=limits.get("max_tpot"),
            **shared,
        )
    if args.decode:
        shared["context_length"] = numbers["context"]
        return declared(Decode, max_time_per_output_token_s=limit_s, **shared)
    tokens = numbers["prompt"]
    return Prefill(prompt_length=tokens, max_time_to_first_token_s=limit_s, **shared)


def memory_share_of(args: argparse.Namespace) -> float | None:
    """Return the share of the memory that a server fills [1]; None: its default.

    Raises
    ------
    SpecError
        It is not above 0 and at most 1.
    """
    if args.memory_share is None:
        return None
    share = decimal_number("--memory-share", args.memory_share, least=0.0)
    if not 0.0 < share <= 1.0:
        raise SpecError(Fault("--memory-share", f"found {share:g}", "above 0 and at most 1"))
    return share


def speculation_of(args: argparse.Namespace) -> Speculation | None:
    """Return the stated speculation; None: there is none.

    Raises
    ------
    SpecError
        One of its options is missing, or wrong: no acceptance is taken for granted.
    """
    from meshwright.catalog.models import load_model
    from meshwright.spec.model import ModelSpec
    from meshwright.spec.workload import Speculation

    stated = [name for name in _DRAFTED if getattr(args, name) is not None]
    if not stated:
        return None
    reading = Reading()
    for name in _DRAFTED:
        if name not in stated:
            reading.fault(option_of(name), "is needed", f"with {option_of(stated[0])}")
    reading.done()
    model, number = args.speculative_model, args.speculative_tokens
    draft = None
    if model != "mtp":
        draft = reading.value(needed, "--speculative-model", model, load_model, ModelSpec)
    count = reading.value(whole_number, "--speculative-tokens", number)
    share = reading.value(decimal_number, "--acceptance", args.acceptance, least=0.0)
    if share is not None and not 0.0 < share <= 1.0:
        reading.fault("--acceptance", f"found {share:g}", "above 0 and at most 1")
    reading.done()
    return Speculation(draft=draft, drafted_tokens=count, acceptance=share)


def _refuse_other_kinds(
    reading: Reading, args: argparse.Namespace, kind: tuple[bool, bool]
) -> None:
    """Keep a complaint for each option that belongs to another kind of question of serving."""
    flags = {
        (True, False): "--decode", (False, True): "--prefill",
        (True, True): "--decode and --prefill together",
    }  # fmt: skip
    for name in sorted({name for names in _OF_SERVING.values() for name in names}):
        if name not in _OF_SERVING[kind]:
            kinds = [flags[other] for other, names in _OF_SERVING.items() if name in names]
            refuse_idle(reading, args, (name,), f"applies only with {' or '.join(kinds)}")


def process_grid(text: str) -> tuple[int, int] | None:
    """Return rows and columns of a grid of devices, such as ``2x4``; None: any grid."""
    rows, times, columns = text.partition("x")
    if text == "any":
        return None
    if not times:
        raise SpecError(Fault("--process-grid", f"found {text!r}", "such as 2x4, or any"))
    return whole_number("--process-grid", rows), whole_number("--process-grid", columns)


def program_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a program: sizes of dims, shapes of inputs, numbers."""
    from typing import get_args

    from meshwright.spec.system import DType

    reading, sizes = Reading(), {}
    for text in args.dim or ():
        name, equals, number = text.partition("=")
        if not (name and equals):
            reading.fault("--dim", f"found {text!r}", "such as batch=8")
            continue
        sizes[name] = reading.value(whole_number, f"--dim {name}", number, kilo=1024)
    found: dict[str, Any] = {"sizes": sizes, "inputs": tuple(args.input or ())}
    if args.precision is not None:
        found["precision"] = reading.value(one_of, "--precision", args.precision, get_args(DType))
    reading.done()
    return found


def precision_of(args: argparse.Namespace, system: SystemSpec | None) -> Any:
    """Return the types of matrix products, weights and cache; any where no system was read."""
    from typing import get_args

    from meshwright.catalog.huggingface.quantization import USUAL
    from meshwright.spec.system import DType
    from meshwright.spec.workload import Precision

    reading, types = Reading(), get_args(DType)
    stated = {"matmul": "precision", "weight": "weights", "kv_cache": "kv_cache"}
    found: dict[str, Any] = {}
    for field, name in stated.items():
        known = (*types, *USUAL) if field == "weight" else types
        if getattr(args, name) is not None:
            found[field] = reading.value(one_of, option_of(name), getattr(args, name), known)
    if found.get("weight") in USUAL:  # the model says how it is stored, see model_of
        del found["weight"]
    reading.done()
    if system is None:
        return Precision()
    if "matmul" in found:
        found.setdefault("weight", found["matmul"])
    return Precision.on(system.chip, **found)
