"""Reads flow files in JSON: links with bandwidth and latency; flows with a size, a start, a route.

A file holds one or several scenarios. All its faults are reported at once, each with its path.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import Location, PlainValues, Tree, path_text, read_json, shown

LARGEST = 1e24
"""No bandwidth, size or time of a file is larger."""
SMALLEST = 1e-9
"""No bandwidth is smaller; beyond these bounds times are no longer finite numbers."""
Label = int | str


@dataclass(frozen=True)
class Record:
    """One JSON object and its place; faults of the file and what is not read of it are noted."""

    value: Mapping[str, Any]
    at: Location
    plain: PlainValues
    warnings: list[str]

    def refuse(self, name: str, message: str, fix: str = "") -> None:
        """Note a fault of a field."""
        self.plain.refuse((*self.at, name), message, fix)

    def expect(self, known: Sequence[str], ignored: Sequence[str]) -> None:
        """Note fields that are not read; one that must mean a missing field is a fault."""
        missing = [name for name in known if name not in self.value]
        for name in self.value:
            if name in known or name in ignored:
                continue
            if difflib.get_close_matches(name.lower(), [m.lower() for m in missing], 1, 0.6):
                self.refuse(name, "unknown field", nearest(name, missing))
            else:
                self.warnings.append(f"{path_text((*self.at, name))}: not read: unknown field")

    def take(self, name: str, is_right: Callable[[Any], bool], expected: str) -> Any:
        """Return the value of a field, or None where it is missing or wrong, which is noted."""
        found = self.value.get(name)
        if found is None:
            what = "is null" if name in self.value else "is missing"
            self.refuse(name, what, f"expected {expected}")
        elif not is_right(found):
            self.refuse(name, f"found {shown(found)}, expected {expected}")
            return None
        return found

    def number(self, name: str, *, least: float = 0.0, default: float | None = None) -> float:
        """Return a number within bounds; NaN where it is wrong."""
        if name not in self.value and default is not None:
            return default

        def is_right(value: Any) -> bool:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and least <= value <= LARGEST

        found = self.take(name, is_right, f"a number from {least:g} to {LARGEST:g}")
        return math.nan if found is None else float(found)

    def label(self, name: str) -> Label:
        """Return a text or a whole number that names something; empty where it is wrong."""
        found = self.take(name, is_label, "a text or a whole number")
        return "" if found is None else found

    def entries(self, name: str) -> list[Any]:
        """Return a list."""
        return self.take(name, lambda value: isinstance(value, list), "a list") or []

    def records(self, name: str) -> Iterator[Record]:
        """Yield the objects of a list."""
        for index, entry in enumerate(self.entries(name)):
            at = (*self.at, name, index)
            if isinstance(entry, dict):
                yield Record(entry, at, self.plain, self.warnings)
            else:
                self.plain.refuse(at, f"found {shown(entry)}, expected an object")


def is_label(value: object) -> bool:
    """Tell whether a value can name a link or a flow."""
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


SCHEMA = "flows-on-a-mesh/1"
_FILE = ("scenarios",), ("schema", "engine", "config", "units", "semantics")
_LINK = ("id", "bw_Bps", "lat_s"), ()
_FLOW = (("id", "bytes", "start_s", "route"), ("src", "dst", "finish_s", "finish_rtt_weighted_s"))
_SCENARIO = (
    ("name", "links", "flows"),
    (
        *_FILE[1], "description", "rows", "cols", "routing", "makespan_s", "simgrid_wall_s",
        "max_relative_difference_to_exact_rational_progressive_filling",
    ),
)  # fmt: skip
"""Fields that are read, and documented ones that are not: descriptions and reference results."""


@dataclass(frozen=True)
class FlowScenario:
    """Flows and the links they share, as columns."""

    name: str
    link_ids: tuple[Label, ...]
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    flow_ids: tuple[Label, ...]
    num_bytes: FloatArray
    start_s: FloatArray
    routes: tuple[tuple[int, ...], ...]
    """Links of each flow, as indices in ``link_ids``."""


@dataclass(frozen=True)
class FlowFile:
    """The scenarios of a file, and what in it was not read."""

    scenarios: tuple[FlowScenario, ...]
    warnings: tuple[str, ...]


def read_flow_file(path: Path) -> FlowFile:
    """Return the scenarios of a flow file; a file may hold one scenario without the list.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        found = type(content).__name__
        raise SpecError(Fault("", f"expected an object, found a {found}"), origin=str(path))
    if content.get("schema", SCHEMA) != SCHEMA:
        message = f"found {shown(content['schema'])}, this command reads {SCHEMA!r}"
        raise SpecError(Fault("schema", message), origin=str(path))
    top = Record(content, (), PlainValues(Tree(content, {}), content), [])
    records = [top]
    if "scenarios" in content or "flows" not in content:
        top.expect(*_FILE)
        records = list(top.records("scenarios"))
        if content.get("scenarios") == []:
            top.refuse("scenarios", "is empty", "at least one scenario")
    scenarios = tuple(map(_scenario, records))
    _refuse_repeated(records, "name", [scenario.name for scenario in scenarios])
    if top.plain.faults:
        raise SpecError(top.plain.faults, origin=str(path))
    return FlowFile(scenarios, tuple(top.warnings))


def _scenario(record: Record) -> FlowScenario:
    """Return one scenario; what is wrong with it is noted."""
    record.expect(*_SCENARIO)
    links, flows = list(record.records("links")), list(record.records("flows"))
    for entry in links:
        entry.expect(*_LINK)
    for entry in flows:
        entry.expect(*_FLOW)
    link_ids = tuple(link.label("id") for link in links)
    flow_ids = tuple(flow.label("id") for flow in flows)
    _refuse_repeated(links, "id", link_ids)
    _refuse_repeated(flows, "id", flow_ids)
    number = {name: index for index, name in enumerate(link_ids)}
    return FlowScenario(
        name=str(record.label("name")),
        link_ids=link_ids,
        bandwidth_bytes_per_s=_column(link.number("bw_Bps", least=SMALLEST) for link in links),
        latency_s=_column(link.number("lat_s") for link in links),
        flow_ids=flow_ids,
        num_bytes=_column(flow.number("bytes") for flow in flows),
        start_s=_column(flow.number("start_s", default=0.0) for flow in flows),
        routes=tuple(tuple(_route(flow, number)) for flow in flows),
    )


def _column(values: Iterable[float]) -> FloatArray:
    return np.array(list(values), dtype=np.float64)


def _refuse_repeated(records: Sequence[Record], key: str, names: Sequence[Label]) -> None:
    """Note names that two records have."""
    first: dict[Label, Record] = {}
    for record, name in zip(records, names, strict=True):
        before = first.setdefault(name, record)
        if name != "" and before is not record:
            path = path_text((*before.at, key))
            record.refuse(key, f"{name!r} is the name at {path} already")


def _route(flow: Record, number: dict[Label, int]) -> Iterator[int]:
    """Yield the links of a flow; each must be known, and none may come twice."""
    entries = flow.entries("route")
    ends = flow.value.get("src"), flow.value.get("dst")
    if entries == [] and isinstance(flow.value.get("route"), list) and ends[0] != ends[1]:
        message = f"is empty, but src {shown(ends[0])} and dst {shown(ends[1])} differ"
        flow.refuse("route", message, "list its links")
    seen: set[int] = set()
    for index, entry in enumerate(entries):
        at = (*flow.at, "route", index)
        link = number.get(entry) if is_label(entry) else None
        if link is None:
            fix = nearest(str(entry), map(str, number))
            flow.plain.refuse(at, f"{shown(entry)} is no link of this scenario", fix)
        elif link in seen:
            flow.plain.refuse(at, f"passes {shown(entry)} twice")
        else:
            seen.add(link)
            yield link
