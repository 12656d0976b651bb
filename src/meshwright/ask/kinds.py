"""Kinds of values: each reads text or a number once, into what formulas take.

A field of a question is annotated with one of them: ``seq: Tokens | None``. Numbers are SI values;
text carries its unit. Standard library only, and what a kind reads with is imported when it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import EnumMeta
from functools import partial
from numbers import Real
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from meshwright.base.errors import Fault, SpecError, nearest

LARGEST = 10**12
"""Largest count of tokens, sequences or devices."""
MOST_QUANTITY = 1e24
"""Largest size, rate, time or power, in bytes, bytes/s, seconds or watts."""


@dataclass(frozen=True)
class Kind:
    """A kind of value."""

    name: str
    """Type as Python shows it."""
    read: Callable[[str, Any], Any]
    """Returns the value of a text or a number, or raises a fault that names the option."""
    choices: tuple[str, ...] = ()
    is_declared: bool = False
    """Whether a declaration of this package may stand in place of its name."""
    is_list: bool = False
    """Whether commas separate several values."""


def kind_of(annotation: Any) -> Kind:
    """Return the kind of an annotation: one of this module, a type, or a tuple of one of them."""
    found = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    (one,) = (part for part in found if part is not type(None))
    if get_origin(one) is Annotated:
        return next(part for part in get_args(one) if isinstance(part, Kind))
    if get_origin(one) is tuple:
        inner = _switch() if get_args(one)[0] is bool else kind_of(get_args(one)[0])
        return Kind(f"{inner.name}, or several", partial(_several, inner), inner.choices,
                    inner.is_declared, is_list=True)  # fmt: skip
    if get_origin(one) is Literal:
        return _chosen({str(value): value for value in get_args(one)})
    if isinstance(one, EnumMeta):
        members: Iterable[Any] = one
        return _chosen({str(member.value): member for member in members})
    return Kind("bool", _flag) if one is bool else Kind("str", _text)


def _text(option: str, value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _flag(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SpecError(Fault(option, f"found {value!r}, expected True or False"))
    return value


def _several(inner: Kind, option: str, value: Any) -> tuple[Any, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    entries = parts if isinstance(parts, list | tuple) else (parts,)
    return tuple(inner.read(option, entry) for entry in entries)


def _chosen(values: dict[str, Any]) -> Kind:
    def read(option: str, value: Any) -> Any:
        return values[one_of(option, str(value), values)]

    shown = (repr(value if isinstance(value, int) else text) for text, value in values.items())
    return Kind(" | ".join(shown), read, tuple(values))


def _switch() -> Kind:
    def read(option: str, value: Any) -> bool:
        text = value if isinstance(value, str) else "on" if value is True else "off"
        return one_of(option, text, ("on", "off")) == "on"

    return Kind("bool", read, ("on", "off"))


# ------------------------------------------------------------------------------------ numbers


def one_of(option: str, text: str, values: Iterable[str]) -> str:
    """Return a text that is one of the allowed values."""
    names = list(values)
    if text not in names:
        raise SpecError(Fault(option, f"found {text!r}", nearest(text, names)))
    return text


def whole_number(
    option: str, value: Any, *, kilo: int = 1000, least: int = 1, most: int = LARGEST
) -> int:
    """Return a whole number that is at least ``least``; see :func:`parse_count` for k and M."""
    from meshwright.base.units import parse_count

    number = parse_count(value if isinstance(value, str) else _plain(value), kilo=kilo)
    if number is None or not least <= number <= most:
        limits = f"above {least - 1}" if most == LARGEST else f"from {least} to {most}"
        message = f"found {value!r}, expected a whole number {limits}"
        such = "4096, 128k (131072) or 1M (1048576)" if kilo == 1024 else "8"
        raise SpecError(Fault(option, message, f"such as {such}"))
    return number


def _plain(value: Any) -> str:
    """Return a number as digits: ``64.0`` is 64, ``True`` is none."""
    is_whole = isinstance(value, Real) and not isinstance(value, bool) and value == value // 1
    return str(int(value) if is_whole else value)


def decimal_number(
    option: str, value: Any, *, least: float = 0.0, most: float = LARGEST, is_open: bool = False
) -> float:
    """Return a number from ``least`` to ``most``; ``is_open`` leaves ``least`` itself out."""
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not least <= number <= most or (is_open and number == least):
        limits = f"a number of at least {least:g}"
        if most < LARGEST:
            limits = f"a number above {least:g} and at most {most:g}"
        raise SpecError(Fault(option, f"found {value!r}, expected {limits}"))
    return number


def quantity(option: str, value: Any, dimension: str) -> float:
    """Return a quantity above 0, such as ``15T`` tokens or ``50 ms``; a number is in SI units."""
    from meshwright.base.units import parse_quantity

    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
    else:
        try:
            number = parse_quantity(str(value), dimension)
        except ValueError as error:
            raise SpecError(Fault(option, str(error))) from error
    if not 0 < number < MOST_QUANTITY:
        bound = f"less than {MOST_QUANTITY:g}" if number > 0 else "more than 0"
        raise SpecError(Fault(option, f"found {value!r}, expected {bound}"))
    return number


def rent_of(option: str, value: Any) -> float:
    """Return the rent of a device [USD/h]; a bare number is in USD/h."""
    bare = str(value).strip().removeprefix("$").replace("_", "")
    try:
        float(bare)
    except ValueError:
        return quantity(option, value, "usd_per_hour")
    return quantity(option, f"{bare} USD/h", "usd_per_hour")


def _idle_power(option: str, value: Any) -> float:
    return 0.0 if value == "off" else quantity(option, value, "w")


def _grid(option: str, value: Any) -> tuple[int, int] | Literal["any"]:
    """Return rows and columns of a grid of devices, such as ``2x4``; or any grid."""
    if value == "any":
        return "any"
    rows, times, columns = str(value).partition("x")
    if not times:
        raise SpecError(Fault(option, f"found {value!r}", "such as 2x4, or any"))
    return whole_number(option, rows), whole_number(option, columns)


# -------------------------------------------------------------------------- words of the field


def _dtype(option: str, value: Any) -> str:
    from meshwright.spec.system import DType

    return one_of(option, str(value), get_args(DType))


def _weights(option: str, value: Any) -> str:
    from meshwright.catalog.huggingface.quantization import USUAL
    from meshwright.spec.system import DType

    return one_of(option, str(value), (*get_args(DType), *USUAL))


def _batch_ramp(option: str, value: Any) -> Any:
    """Return the growth of the batch of a run: ``16,16,5859375``."""
    from meshwright.spec.workload import BatchRamp

    parts = value.split(",") if isinstance(value, str) else list(value)
    if len(parts) != len(BatchRamp.model_fields):
        raise SpecError(Fault(option, f"found {value!r}", "three numbers such as 16,16,5859375"))
    start, increment, sequences = (whole_number(option, part) for part in parts)
    return BatchRamp(start=start, increment=increment, sequences=sequences)


SWITCHES: dict[str, tuple[str, Any, Any]] = {
    "compile": ("compiled", False, True),
    "loss": ("loss", "plain", "compiled"),
    "async_tp": ("async_tensor_parallel", False, True),
    "cuda_graphs": ("cuda_graphs", False, True),
    "loss_in_parts": ("logit_tiles", 1, 8),
}
"""Field of the software of each switch, with its value off and on."""


def _switches(option: str, value: Any) -> dict[str, Any]:
    """Return the software that ``compile+async_tp`` states: switches without a name are off."""
    named = [] if value == "none" else str(value).split("+")
    for name in named:
        one_of(option, name, SWITCHES)
    return {field: on if name in named else off for name, (field, off, on) in SWITCHES.items()}


TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
TARGET_WORDS = {"all": TARGETS, "attention": TARGETS[:4], "mlp": TARGETS[4:]}
"""Words for several targets of adapters."""


def _targets(option: str, value: Any) -> tuple[str, ...]:
    words = [*TARGETS, *TARGET_WORDS]
    named = [one_of(option, text, words) for text in str(value).split("+")]
    found = {target for name in named for target in TARGET_WORDS.get(name, (name,))}
    return tuple(target for target in TARGETS if target in found)


def _modules(option: str, value: Any) -> tuple[str, ...]:
    from meshwright.graph.recompute import MODULES

    return tuple(one_of(option, name, MODULES) for name in dict.fromkeys(str(value).split("+")))


def _tensors(option: str, value: Any) -> tuple[str, ...]:
    from meshwright.graph.recompute import TENSORS

    return tuple(one_of(option, name, TENSORS) for name in dict.fromkeys(str(value).split("+")))


MOST_STAGES = 4096
"""Most stages with stated numbers of layers."""


def _stage_layers(option: str, value: Any) -> tuple[int, ...]:
    """Return the layers of each stage: ``7+8*14+7`` has sixteen of them."""
    found: list[int] = []
    for part in str(value).split("+"):
        length, times, count = part.partition("*")
        least = whole_number(option, length, least=0)
        repeats = whole_number(option, count) if times else 1
        if len(found) + repeats > MOST_STAGES:
            message = f"{value!r} has more than {MOST_STAGES} stages"
            raise SpecError(Fault(option, message, "7+8*14+7"))
        found += [least] * repeats
    return tuple(found)


AXIS_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp",
               "tp-pp-dp-cp")  # fmt: skip


def _axis_order(option: str, value: Any) -> tuple[str, ...]:
    from meshwright.sharding.space import order_named

    return order_named(one_of(option, str(value), AXIS_ORDERS))


def _sizes(option: str, value: Any) -> dict[str, int]:
    """Return the sizes of dims: ``batch=8``."""
    found, faults = {}, list[Fault]()
    for text in value:
        name, equals, number = str(text).partition("=")
        try:
            if not (name and equals):
                raise SpecError(Fault(option, f"found {text!r}", "such as batch=8"))
            found[name] = whole_number(f"{option} {name}", number, kilo=1024)
        except SpecError as error:
            faults += error.faults
    if faults:
        raise SpecError(faults)
    return found


def _workers(option: str, value: Any) -> tuple[int, int]:
    """Return the numbers of prefill and of decode workers: ``2P3D``."""
    parts = re.fullmatch(r"(\d{1,6})P(\d{1,6})D", str(value), re.IGNORECASE)
    counts = [int(part) for part in parts.groups()] if parts else []
    if not counts or 0 in counts:
        raise SpecError(Fault(option, f"found {value!r}", "such as 2P3D"))
    return counts[0], counts[1]


Count = Annotated[int, Kind("int", whole_number)]
Count0 = Annotated[int, Kind("int", partial(whole_number, least=0))]
"""A count that may be 0."""
Rank = Annotated[int, Kind("int", partial(whole_number, most=65536))]
"""Rank of adapters: no hidden size is larger."""
Processes = Annotated[int, Kind("int", partial(whole_number, most=1024))]
ManyDevices = Annotated[int, Kind("int", partial(whole_number, most=10_000))]
"""Beyond them the shapes of a dragonfly take long to try."""
Port = Annotated[int, Kind("int", partial(whole_number, least=0, most=2**16 - 1))]
Tokens = Annotated[int, Kind("int", partial(whole_number, kilo=1024))]
"""A length of a sequence: 128k is 131072."""
Tokens0 = Annotated[int, Kind("int", partial(whole_number, kilo=1024, least=0))]
"""A length that may be 0."""
TokensOfRun = Annotated[float, Kind("float", partial(quantity, dimension="tokens"))]
Bytes = Annotated[float, Kind("float [bytes]", partial(quantity, dimension="bytes"))]
BytesPerS = Annotated[float, Kind("float [bytes/s]", partial(quantity, dimension="bytes_per_s"))]
Seconds = Annotated[float, Kind("float [s]", partial(quantity, dimension="s"))]
Duration = Annotated[float, Kind("float [s]", partial(quantity, dimension="duration"))]
Watts = Annotated[float, Kind("float [W]", partial(quantity, dimension="w"))]
IdleWatts = Annotated[float, Kind("float [W] | 'off'", _idle_power)]
Rent = Annotated[float, Kind("float [USD/h]", rent_of)]
Imbalance = Annotated[float, Kind("float", partial(decimal_number, least=1.0))]
Spread = Annotated[float, Kind("float", partial(decimal_number, most=4.0))]
"""A standard deviation over its mean."""
PerSecond = Annotated[float, Kind("float [1/s]", partial(decimal_number, is_open=True))]
Percentile = Annotated[float, Kind("float", partial(decimal_number, least=1.0, most=99.9))]
Share = Annotated[float, Kind("float", partial(decimal_number, most=1.0, is_open=True))]
Workers = Annotated[tuple[int, int], Kind("str", _workers)]
Grid = Annotated[tuple[int, int] | Literal["any"], Kind("str", _grid)]

Name = Annotated[Any, Kind("str", _text, is_declared=True)]
"""A name of a catalog, a file, or a declaration."""
DTypeName = Annotated[Any, Kind("str", _dtype, is_declared=True)]
Weights = Annotated[str, Kind("str", _weights)]
Ramp = Annotated[Any, Kind("str", _batch_ramp, is_declared=True)]
Switches = Annotated[dict[str, Any], Kind("str", _switches)]
Targets = Annotated[tuple[str, ...], Kind("str", _targets)]
Modules = Annotated[tuple[str, ...], Kind("str", _modules)]
Tensors = Annotated[tuple[str, ...], Kind("str", _tensors)]
StageLayers = Annotated[tuple[int, ...], Kind("str", _stage_layers)]
AxisOrder = Annotated[tuple[str, ...], Kind("str", _axis_order, AXIS_ORDERS)]
Sizes = Annotated[dict[str, int], Kind("dict[str, int]", _sizes)]
