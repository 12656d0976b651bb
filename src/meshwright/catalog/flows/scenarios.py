"""Scenarios of flows: links with bandwidth and latency, flows with a size, a start and a route."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import SpecError, nearest
from meshwright.catalog.flows.fields import (
    SMALLEST,
    Complaints,
    Label,
    Record,
    is_label,
    read_object,
    shown,
)

SCHEMA = "flows-on-a-mesh/1"
_FILE = ("scenarios",), ("schema", "engine", "config", "units", "semantics")
_LINK = ("id", "bw_Bps", "lat_s"), ()
_FLOW = (
    ("id", "bytes", "start_s", "route"),
    ("src", "dst", "finish_s", "finish_rtt_weighted_s"),
)
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
    complaints = Complaints()
    top = read_object(path, complaints)
    if top.value.get("schema", SCHEMA) != SCHEMA:
        found = shown(top.value["schema"])
        complaints.refuse("schema", f"found {found}, this command reads {SCHEMA!r}")
        raise SpecError(complaints.faults, origin=str(path))
    if "scenarios" in top.value or "flows" not in top.value:
        top.expect(*_FILE)
        records = list(top.records("scenarios"))
        if top.value.get("scenarios") == []:
            complaints.refuse("scenarios", "is empty", "at least one scenario")
    else:
        records = [top]
    scenarios = tuple(_scenario(record) for record in records)
    _refuse_repeated(((r.at("name"), s.name) for r, s in zip(records, scenarios, strict=True)),
                     complaints)  # fmt: skip
    if complaints.faults:
        raise SpecError(complaints.faults, origin=str(path))
    return FlowFile(scenarios, tuple(complaints.warnings))


def _scenario(record: Record) -> FlowScenario:
    """Return one scenario; what is wrong with it is noted."""
    record.expect(*_SCENARIO)
    links, flows = list(record.records("links")), list(record.records("flows"))
    for entry in links:
        entry.expect(*_LINK)
    for entry in flows:
        entry.expect(*_FLOW)
    link_ids, flow_ids = _ids(links, record.complaints), _ids(flows, record.complaints)
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


def _ids(records: Iterable[Record], complaints: Complaints) -> tuple[Label, ...]:
    """Return the names of links or flows, of which no two are the same."""
    listed = [(record.at("id"), record.label("id")) for record in records]
    _refuse_repeated(listed, complaints)
    return tuple(name for _, name in listed)


def _refuse_repeated(listed: Iterable[tuple[str, Label]], complaints: Complaints) -> None:
    """Complain of names that stand at two paths."""
    first: dict[Label, str] = {}
    for path, name in listed:
        if name != "" and first.setdefault(name, path) != path:
            complaints.refuse(path, f"{name!r} stands at {first[name]} already")


def _route(flow: Record, number: dict[Label, int]) -> Iterator[int]:
    """Yield the links of a flow; each must be known, and none may come twice."""
    entries = flow.entries("route")
    ends = flow.value.get("src"), flow.value.get("dst")
    if entries == [] and isinstance(flow.value.get("route"), list) and ends[0] != ends[1]:
        message = f"is empty, but src {shown(ends[0])} and dst {shown(ends[1])} differ"
        flow.complaints.refuse(flow.at("route"), message, "list its links")
    seen: set[int] = set()
    for index, entry in enumerate(entries):
        path = f"{flow.at('route')}[{index}]"
        link = number.get(entry) if is_label(entry) else None
        if link is None:
            fix = nearest(str(entry), map(str, number))
            flow.complaints.refuse(path, f"{shown(entry)} is no link of this scenario", fix)
        elif link in seen:
            flow.complaints.refuse(path, f"passes {shown(entry)} twice")
        else:
            seen.add(link)
            yield link
