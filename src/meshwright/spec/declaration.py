"""The base of every declaration, the field types that carry a unit, and the origin of a value.

In Python a field is an SI float and its name ends in the unit (``bandwidth_bytes_per_s``). In a
text file the same field is written without the suffix and with the unit in the value
(``bandwidth: 3.35 TB/s``); a bare number is refused there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from meshwright.base.errors import Fault, SpecError
from meshwright.base.records import Brief
from meshwright.base.units import out_of_range, parse_quantity

_SUFFIXES = (
    "_bytes_per_s", "_flops_per_s", "_j_per_flop", "_j_per_byte", "_usd_per_hour", "_usd_per_kwh",
    "_k_per_w", "_celsius",
    "_bytes", "_flops", "_mm2", "_usd", "_hz", "_s", "_w", "_m",
)  # fmt: skip


UNKNOWN = "unknown"
"""Text of a file for a value that is not known."""


def file_key(field_name: str) -> str:
    """Return the key of a field in a text file: its name without the unit."""
    suffix = next((suffix for suffix in _SUFFIXES if field_name.endswith(suffix)), "")
    return field_name.removesuffix(suffix)


def dimension_of(field_name: str) -> str:
    """Return the dimension that the name of a field ends in, empty for a plain number."""
    return field_name.removeprefix(file_key(field_name)).removeprefix("_")


class Declaration(Brief, BaseModel):
    """A frozen declaration; unknown fields are refused, all faults are found at once."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        alias_generator=file_key,
        protected_namespaces=(),
        allow_inf_nan=False,
        strict=False,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_unknown(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the fields of a file in which ``unknown`` stands for None, but for text."""
        if not (info.context and info.context.get("from_file") and isinstance(value, dict)):
            return value
        texts = {
            key
            for name, field in cls.model_fields.items()
            if field.annotation in (str, str | None)
            for key in (name, field.alias)
        }
        return {
            key: None if entry == UNKNOWN and key not in texts else entry
            for key, entry in value.items()
        }

    def shown_fields(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that differ from their default, by name."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value != field.default:
                yield name, value

    def __str__(self) -> str:
        return repr(self)


D = TypeVar("D", bound=Declaration)


def declared(kind: type[D], /, **values: Any) -> D:
    """Return a declaration of values from outside.

    Raises
    ------
    SpecError
        All that is wrong with them.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        raise SpecError(faults_of(error)) from error


def faults_of(error: ValidationError) -> list[Fault]:
    """Return the faults in the values of a declaration."""
    return [
        Fault(".".join(map(str, wrong["loc"])), message_of(wrong))
        for wrong in error.errors(include_url=False)
    ]


_EXPECTED = {
    "float_type": "a number", "int_type": "a whole number", "bool_type": "true or false",
    "string_type": "text", "tuple_type": "a list", "list_type": "a list", "model_type": "fields",
    "model_attributes_type": "a mapping of fields", "mapping_type": "a mapping",
    "dict_type": "a mapping", "finite_number": "a finite number",
}  # fmt: skip
"""Words for the values that a field accepts, by the error of pydantic."""
_LIMITS = {
    "ge": "{:g} or more",
    "gt": "more than {:g}",
    "le": "at most {:g}",
    "lt": "less than {:g}",
}


def message_of(wrong: Any) -> str:
    """Return the words for one error of pydantic."""
    kind, context = wrong["type"], wrong.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "unknown field"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}"
    if kind in ("literal_error", "enum"):
        return f"expected one of {', '.join(choices_of(wrong))}"
    if limit := next((name for name in _LIMITS if name in context), None):
        return f"expected {_LIMITS[limit].format(context[limit])}"
    message: str = wrong["msg"].removeprefix("Value error, ")
    return message


def choices_of(wrong: Any) -> list[str]:
    """Return the words that a field accepts, where it accepts a choice."""
    return re.findall(r"'([^']*)'", wrong.get("ctx", {}).get("expected", ""))


def _written_in(dimension: str) -> BeforeValidator:
    """Return a validator that reads a written quantity, and refuses bare numbers in files."""

    def read(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return parse_quantity(value, dimension)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a quantity of {dimension}, found {value!r}")
        if info.context and info.context.get("from_file"):
            raise ValueError(f"the bare number {value!r} has no unit ({dimension} expected)")
        if why := out_of_range(value):
            raise ValueError(f"a quantity of {dimension} {why}")
        return float(value)

    return BeforeValidator(read)


MOST_COUNTED = 10**12
"""No count of devices, tokens or bytes that is stated as a count is larger."""


def _above_zero(value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"must be larger than 0, found {value!r}")
    return value


def _not_negative(value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"must not be negative, found {value!r}")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, found {value!r}")
    if abs(value) > MOST_COUNTED:
        raise ValueError(f"no count is beyond {MOST_COUNTED:,}")
    return value


_POSITIVE, _OR_ZERO = AfterValidator(_above_zero), AfterValidator(_not_negative)

Bytes = Annotated[float, _written_in("bytes"), _POSITIVE]
BytesPerSecond = Annotated[float, _written_in("bytes_per_s"), _POSITIVE]
FlopsPerSecond = Annotated[float, _written_in("flops_per_s"), _POSITIVE]
Seconds = Annotated[float, _written_in("s"), _OR_ZERO]
Watts = Annotated[float, _written_in("w"), _OR_ZERO]
JoulesPerFlop = Annotated[float, _written_in("j_per_flop"), _POSITIVE]
JoulesPerByte = Annotated[float, _written_in("j_per_byte"), _POSITIVE]
SquareMillimetres = Annotated[float, _written_in("mm2"), _POSITIVE]
KelvinPerWatt = Annotated[float, _written_in("k_per_w"), _POSITIVE]
Celsius = Annotated[float, _written_in("celsius")]
Metres = Annotated[float, _written_in("m"), _POSITIVE]
Usd = Annotated[float, _written_in("usd"), _POSITIVE]
UsdPerHour = Annotated[float, _written_in("usd_per_hour"), _POSITIVE]
Hertz = Annotated[float, _written_in("hz"), _POSITIVE]
MessageBytes = Annotated[float, _written_in("bytes"), _OR_ZERO]
Flops = Annotated[float, _written_in("flops"), _OR_ZERO]

Count = Annotated[int, BeforeValidator(_whole), _POSITIVE]
"""A whole number of at least one."""
CountOrZero = Annotated[int, BeforeValidator(_whole), _OR_ZERO]
"""A whole number of at least zero."""


class Source(Declaration):
    """A public document: its title, and where it is found."""

    title: str
    url: str | None = None
    repo: str | None = None
    path: str | None = None
    commit: str | None = None
    date: str | None = None


class Provenance(Declaration):
    """The origin of one value.

    ``cited`` and ``derived`` name their source; ``assumed`` states the range within which the
    value may be, as text with its unit, and the reason.
    """

    kind: Literal["cited", "derived", "assumed"] = "cited"
    source: str | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None
