"""Takes the sources out of a tree: plain values on one side, where each comes from on the other.

A value is written plainly (``3.35 TB/s``) or with its origin::

    bandwidth: {value: 3.35 TB/s, source: S}
    latency: {value: 2 us, assumed: true, range: [1 us, 4 us], why: no measurement found}
    capacity: {value: 80 GiB, derived: true, source: S, why: five stacks of 16 GiB}

``source:`` beside other fields is the default source of the plain values below it, and what
derived ones are derived from; a value written with ``value:`` states its own origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.base.errors import Fault, nearest
from meshwright.base.units import DIMENSIONS, parse_quantity
from meshwright.catalog.yaml_tree import Location, Tree, fault_at, path_text
from meshwright.spec.provenance import Provenance

_KEYS = ("value", "source", "assumed", "derived", "range", "why")


@dataclass
class PlainValues:
    """A tree without sources, the origin of its values by path, and the faults found."""

    value: dict[str | int, Any] = field(default_factory=dict)
    provenance: dict[str, Provenance] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    told: list[Location] = field(default_factory=list)
    """Places whose fault is noted already, so that nothing more is said about them."""
    default_source: str | None = None
    """The source that stands at the top of the file."""


def number_in(value: Any) -> tuple[float, str] | None:
    """Return the SI number and the dimension of a written value, or None where it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return (float(value), "number") if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    for dimension in DIMENSIONS:
        try:
            number = parse_quantity(value, dimension)
        except ValueError:
            continue
        return (number, dimension) if math.isfinite(number) else None
    return None


def plain_values(tree: Tree) -> PlainValues:
    """Return the tree without its sources, and with the origin of each number."""
    sources = tree.value.get("sources")
    known = tuple(map(str, sources)) if isinstance(sources, Mapping) else ()
    reader = _Reader(tree, known)
    result = reader.result
    default = tree.value.get("source")
    result.default_source = default if isinstance(default, str) else None
    for key, entry in reader.fields(tree.value, (), None).items():
        result.value[key] = entry
    return result


@dataclass
class _Reader:
    """Walks the tree once; knows the keys of the sources of the file."""

    tree: Tree
    known_sources: tuple[str, ...]
    result: PlainValues = field(default_factory=PlainValues)

    def refuse(self, at: Location, message: str, fix: str = "") -> None:
        """Note a fault."""
        self.result.faults.append(fault_at(self.tree.lines, at, message, fix))

    def read(self, value: Any, at: Location, default: str | None) -> Any:
        """Return a value without sources."""
        if isinstance(value, dict):
            is_sourced = "value" in value
            return (
                self.sourced(value, at, default) if is_sourced else self.fields(value, at, default)
            )
        if isinstance(value, list):
            return [self.read(entry, (*at, i), default) for i, entry in enumerate(value)]
        if default is not None and number_in(value) is not None:
            self.result.provenance[path_text(at)] = Provenance(kind="cited", source=default)
        return value

    def fields(
        self, value: dict[str | int, Any], at: Location, default: str | None
    ) -> dict[str | int, Any]:
        """Return a mapping without its default source; ``sources`` itself is left alone."""
        source = value.get("source")
        if source is not None and self.is_source(source, (*at, "source")):
            default = source
        return {
            key: entry if not at and key == "sources" else self.read(entry, (*at, key), default)
            for key, entry in value.items()
            if key != "source"
        }

    def is_source(self, source: Any, at: Location) -> bool:
        """Tell whether a source is one of the file, and note a fault where it is not."""
        if isinstance(source, str) and source in self.known_sources:
            return True
        fix = nearest(str(source), self.known_sources)
        self.refuse(at, f"no entry {source!r} under `sources`", fix)
        return False

    def sourced(self, entry: dict[str | int, Any], at: Location, default: str | None) -> Any:
        """Return the value of a mapping with an origin, after noting the origin."""
        for key in entry:
            if key not in _KEYS:
                allowed = f"allowed beside `value`: {', '.join(_KEYS[1:])}"
                self.refuse((*at, key), f"unknown field; {allowed}", nearest(str(key), _KEYS))
        value = entry["value"]
        if isinstance(value, dict | list):
            self.refuse((*at, "value"), "expected one number or text")
            return value
        source = entry.get("source", default)
        if "source" in entry and not self.is_source(source, (*at, "source")):
            return value
        low, high = self.interval(entry, at)
        kind = self.kind(entry, at)
        why = entry.get("why", "")
        if not isinstance(why, str):
            self.refuse((*at, "why"), f"expected text, found {why!r}")
            why = ""
        has_origin = kind == "assumed" or source is not None
        if not has_origin or not entry.keys() & {"source", "assumed", "derived"}:
            self.refuse(at, "states no origin; give `source`, or `assumed: true` with its range")
        self.result.provenance[path_text(at)] = Provenance.model_validate(
            {"kind": kind, "source": source, "note": why, "low": low, "high": high}
        )
        return value

    def kind(self, entry: dict[str | int, Any], at: Location) -> str:
        """Return cited, derived or assumed; an assumed value needs its range."""
        for key in ("assumed", "derived"):
            if entry.get(key, True) is not True:
                self.refuse((*at, key), f"can only be true, found {entry[key]!r}")
        if "assumed" in entry and "derived" in entry:
            self.refuse(at, "cannot be assumed and derived at once")
        if "assumed" in entry and "range" not in entry:
            self.refuse(at, "is assumed without a range", "add `range: [LOW, HIGH]`")
        if "derived" in entry and "why" not in entry:
            self.refuse(at, "is derived without saying how", "add `why: ...`")
        return "assumed" if "assumed" in entry else "derived" if "derived" in entry else "cited"

    def interval(
        self, entry: dict[str | int, Any], at: Location
    ) -> tuple[float | None, float | None]:
        """Return the interval of a value in SI units, checked against the value itself."""
        if "range" not in entry:
            return None, None
        bounds = entry["range"]
        numbers = [number_in(bound) for bound in bounds] if isinstance(bounds, list) else []
        value = number_in(entry["value"])
        low, high = numbers if len(numbers) == 2 else (None, None)
        if value is None or low is None or high is None:
            self.refuse((*at, "range"), f"expected [LOW, HIGH] with units, found {bounds!r}")
        elif not low[1] == value[1] == high[1]:
            self.refuse((*at, "range"), "the bounds are of another kind than the value")
        elif not low[0] <= value[0] <= high[0]:
            self.refuse((*at, "range"), f"the value {entry['value']!r} lies outside {bounds!r}")
        else:
            return low[0], high[0]
        return None, None
