"""Declarations value by value, with unit and source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.spec.declaration import Declaration, Provenance, file_key

_UNITS: Final = {
    "_bytes_per_param": "B/parameter", "_bytes_per_s": "B/s", "_flops_per_s": "FLOP/s",
    "_j_per_flop": "J/FLOP", "_j_per_byte": "J/B", "_usd_per_hour": "USD/hour",
    "_k_per_w": "K/W", "_celsius": "C", "_bytes": "B", "_mm2": "mm2",
    "_usd": "USD", "_hz": "Hz", "_s": "s", "_w": "W", "_m": "m",
}  # fmt: skip
_SHOWN_WHEN_UNKNOWN: Final = ("peak_power_w", "idle_power_w", "price_usd", "rent_usd_per_hour")
_SHOWN_ELSEWHERE: Final = (
    "name", "also_called", "vendor", "chip", "other_chips", "notes", "sources", "provenance",
    "source",
)  # fmt: skip


@dataclass(frozen=True)
class DeclaredValue:
    """One value of a declaration, with its path, its unit and its origin."""

    path: str
    """Path in the file, members of a list by their name: ``memories[hbm].bandwidth``."""
    value: float | str | None
    """Value in SI units; None: unknown."""
    unit: str
    origin: Provenance | None
    is_default: bool = False
    """Whether it is a default that the file does not state."""


def declared_values(
    declaration: Declaration, origins: Mapping[str, Provenance], origin_path: str = ""
) -> Iterator[DeclaredValue]:
    """Yield the values of a declaration in the order of its fields.

    Parameters
    ----------
    origins
        Origin of each value by its path in the file.
    origin_path
        Path of the declaration itself in that file.
    """
    for name, info in type(declaration).model_fields.items():
        if name in _SHOWN_ELSEWHERE:
            continue
        key, entry = info.alias or file_key(name), getattr(declaration, name)
        is_default = name not in declaration.model_fields_set
        for path, origin, value in _leaves(entry, key, f"{origin_path}.{key}".removeprefix(".")):
            if isinstance(value, Declaration):
                for inner in declared_values(value, origins, origin):
                    yield replace(inner, path=f"{path}.{inner.path}")
            elif value is not None or name in _SHOWN_WHEN_UNKNOWN:
                yield DeclaredValue(path, value, unit_of(name), origins.get(origin), is_default)


def _leaves(entry: Any, path: str, origin: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the members of a field with their path and the path of their origin."""
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            yield f"{path}.{key}", f"{origin}.{key}", value
    elif isinstance(entry, tuple):
        for index, value in enumerate(entry):
            shown = getattr(value, "name", index)
            named = value if isinstance(value, Declaration) else str(value)
            yield f"{path}[{shown}]", f"{origin}[{index}]", named
    elif isinstance(entry, bool):
        yield path, origin, "yes" if entry else None
    else:
        yield path, origin, entry


def unit_of(field_name: str) -> str:
    """Return the unit that a field name ends in; counts and shares have none."""
    return next((unit for end, unit in _UNITS.items() if field_name.endswith(end)), "")


def value_text(value: float | str | None, unit: str) -> str:
    """Return a value as people write it."""
    if value is None or isinstance(value, str):
        return "unknown" if value is None else value
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value)
    if unit in ("J/FLOP", "J/B"):
        return f"{value / 1e-12:.4g} p{unit}"
    if unit in ("USD", "USD/hour", "mm2", "m", "", "B/parameter"):
        return f"{value:,.10g} {unit}".rstrip()
    return format_si(value, unit, digits=4)


def origin_text(entry: DeclaredValue) -> str:
    """Return the origin of a value in words."""
    origin = entry.origin
    if origin is None:
        needs_none = entry.value is None or isinstance(entry.value, str)
        return "" if needs_none else "default" if entry.is_default else "no source stated"
    words = "assumed" if origin.kind == "assumed" else origin.source or ""
    if origin.kind == "derived":
        words = f"derived from {origin.source}" if origin.source else "derived"
    if origin.low is not None and origin.high is not None:
        low, high = value_text(origin.low, entry.unit), value_text(origin.high, entry.unit)
        words += f", {low} to {high}"
    return f"{words}: {origin.note}" if origin.note else words


def value_record(entry: DeclaredValue) -> dict[str, Any]:
    """Return a value for a program, in SI units."""
    record: dict[str, Any] = {"field": entry.path, "value": entry.value, "unit": entry.unit}
    if entry.is_default:
        record["origin"] = "default"
    if entry.origin is not None:
        record |= entry.origin.model_dump(exclude_none=True)
        record["origin"] = record.pop("kind")
    return record
