"""Flow files in JSON: links with bandwidth and latency; flows with a size, a start, ends, a route.

A file holds one or several scenarios: demands where flows state their ends, routes where they state
their links. All its faults are reported at once, each with its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import (
    FileFields,
    Location,
    PlainValues,
    Tree,
    path_text,
    read_json,
    shown,
)
from meshwright.spec.flows import FlowScenario, Label, PlacementFile, depths_of

LARGEST = 1e24
"""Largest bandwidth, size or time in a file."""
SMALLEST = 1e-9
"""Smallest bandwidth; beyond these bounds times are no longer finite numbers."""


@dataclass(frozen=True)
class Record:
    """One JSON object and its place; faults of the file are noted."""

    value: Mapping[Any, Any]
    at: Location
    plain: PlainValues

    def refuse(self, name: str, message: str, fix: str = "") -> None:
        """Note a fault of a field."""
        self.plain.refuse((*self.at, name), message, fix)

    def expect(self, known: Sequence[str], ignored: Sequence[str] = ()) -> None:
        """Note fields that do not exist."""
        for name in self.value:
            if name not in known and name not in ignored:
                missing = [other for other in known if other not in self.value]
                self.refuse(name, "unknown field", nearest(name, missing or known))

    def take(self, name: str, is_right: Callable[[object], bool], expected: str) -> Any:
        """Return the value of a field; None where it is missing or wrong, which is noted."""
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

        def is_right(value: object) -> bool:
            if not isinstance(value, int | float) or isinstance(value, bool):
                return False
            return least <= value <= LARGEST

        found = self.take(name, is_right, f"a number from {least:g} to {LARGEST:g}")
        return math.nan if found is None else float(found)

    def label(self, name: str) -> Label:
        """Return a text or a whole number that names something; empty where it is wrong."""
        found = self.take(name, is_label, "a text or a whole number")
        return "" if found is None else found

    def labels(self, name: str) -> tuple[Label, ...]:
        """Return the names of a field that may hold one or a list of them, or be left out."""
        found = self.value.get(name, [])
        entries = found if isinstance(found, list) else [found]
        for index, entry in enumerate(entries):
            if not is_label(entry):
                at = (*self.at, name, index) if isinstance(found, list) else (*self.at, name)
                self.plain.refuse(at, f"found {shown(entry)}, expected a text or a whole number")
        return tuple(filter(is_label, entries))

    def entries(self, name: str) -> list[object]:
        """Return a list; empty where a field is left out that may be."""
        return self.take(name, lambda value: isinstance(value, list), "a list") or []

    def records(self, name: str) -> Iterator[Record]:
        """Yield the objects of a list."""
        for index, entry in enumerate(self.entries(name)):
            at = (*self.at, name, index)
            if isinstance(entry, dict):
                yield Record(entry, at, self.plain)
            else:
                self.plain.refuse(at, f"found {shown(entry)}, expected an object")


def is_label(value: object) -> TypeGuard[Label]:
    """Return whether a value can name a link or a flow."""
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


SCHEMA = "flows-on-a-mesh/1"
_ABOUT = ("schema", "engine", "config", "units", "semantics")
_LINK = ("id", "bw_Bps", "lat_s", "src", "dst"), ("carried_bytes", "busy_s")
_FLOW = (
    ("id", "bytes", "start_s", "route", "src", "dst", "after"),
    ("finish_s", "finish_rtt_weighted_s"),
)
_SCENARIO = (
    ("name", "links", "flows"),
    (
        *_ABOUT, "description", "rows", "cols", "routing", "makespan_s", "simgrid_wall_s",
        "max_relative_difference_to_exact_rational_progressive_filling", "system", "phases",
    ),
)  # fmt: skip
"""Fields that are read, and documented ones that are not: descriptions and results."""


def _object_of(path: Path) -> FileFields:
    """Return the object that a JSON file holds."""
    content = read_json(path)
    if not isinstance(content, dict):
        found = type(content).__name__
        raise SpecError(Fault("", f"expected an object, found a {found}"), origin=str(path))
    return content


def read_flow_file(
    path: Path, *, needs_routes: bool = True, links: Sequence[Mapping[str, object]] = ()
) -> tuple[FlowScenario, ...]:
    """Return the scenarios of a flow file; a file may hold one scenario without the list.

    Parameters
    ----------
    needs_routes
        Each flow must state its route; else its ends, and every link those of its own.
    links
        Links of a system, for files that state none.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    content = _object_of(path)
    if content.get("schema", SCHEMA) != SCHEMA:
        message = f"found {shown(content['schema'])}, this command reads {SCHEMA!r}"
        raise SpecError(Fault("schema", message), origin=str(path))
    top = Record(content, (), PlainValues(Tree(content, {}), content))
    records = [top]
    if "scenarios" in content or "flows" not in content:
        top.expect(("scenarios",), _ABOUT)
        records = list(top.records("scenarios"))
        if content.get("scenarios") == []:
            top.refuse("scenarios", "is empty", "at least one scenario")
    scenarios = tuple(_scenario(record, needs_routes, links) for record in records)
    _refuse_repeated(records, "name", [scenario.name for scenario in scenarios])
    if top.plain.faults:
        raise SpecError(top.plain.faults, origin=str(path))
    return scenarios


def _scenario(
    record: Record, needs_routes: bool, system_links: Sequence[Mapping[str, object]]
) -> FlowScenario:
    """Return one scenario; its faults are noted."""
    record.expect(*_SCENARIO)
    if system_links and "links" in record.value:
        record.refuse("links", "are stated, and those of a system as well", "leave out one of both")
    elif system_links:
        record = Record({**record.value, "links": list(system_links)}, record.at, record.plain)
    links, flows = list(record.records("links")), list(record.records("flows"))
    for entry in links:
        entry.expect(*_LINK)
    for entry in flows:
        entry.expect(*_FLOW)
    link_ids = tuple(link.label("id") for link in links)
    flow_ids = tuple(flow.label("id") for flow in flows)
    _refuse_repeated(links, "id", link_ids)
    _refuse_repeated(flows, "id", flow_ids)
    link_ends: tuple[tuple[Label, Label], ...] = ()
    if any("src" in link.value or "dst" in link.value for link in links) or not needs_routes:
        link_ends = tuple((link.label("src"), link.label("dst")) for link in links)
    nodes = {node for ends in link_ends for node in ends}
    link_of = {name: index for index, name in enumerate(link_ids)}
    flow_of = {name: index for index, name in enumerate(flow_ids)}
    after = tuple(tuple(_named(flow, "after", flow_of, "flow")) for flow in flows)
    circle = [number for number, depth in enumerate(depths_of(after)) if depth < 0]
    if circle:
        first = ", ".join(repr(flow_ids[flow]) for flow in circle[:4])
        flows[circle[0]].refuse("after", f"flows wait for one another in a circle: {first}")
    return FlowScenario(
        name=str(record.label("name")),
        link_ids=link_ids,
        bandwidth_bytes_per_s=_column(link.number("bw_Bps", least=SMALLEST) for link in links),
        latency_s=_column(link.number("lat_s") for link in links),
        link_ends=link_ends,
        flow_ids=flow_ids,
        num_bytes=_column(flow.number("bytes") for flow in flows),
        start_s=_column(flow.number("start_s", default=0.0) for flow in flows),
        ends=tuple(_ends(flow, nodes, is_needed=not needs_routes) for flow in flows),
        routes=tuple(
            _route(flow, link_of, link_ends) if needs_routes or "route" in flow.value else None
            for flow in flows
        ),
        after=after,
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


def _ends(
    flow: Record, nodes: Set[Label], *, is_needed: bool
) -> tuple[Label | None, tuple[Label, ...]]:
    """Return the sender and the receivers of a flow: two of these nodes, where links state any."""
    if is_needed or "src" in flow.value:
        flow.take("src", is_label, "the node that sends")
    receivers = flow.labels("dst")
    if is_needed and "dst" not in flow.value:
        flow.refuse("dst", "is missing", "expected the node that receives, or a list of them")
    elif flow.value.get("dst") == []:
        flow.refuse("dst", "is empty", "at least one node that receives")
    elif len({*filter(is_label, receivers)}) < sum(map(is_label, receivers)):
        flow.refuse("dst", "names a node twice", "each node that receives once")
    source = flow.value.get("src")
    for name, stated in (("src", (source,)), ("dst", receivers)):
        for node in stated if nodes else ():
            if is_label(node) and node not in nodes:
                flow.refuse(name, f"no link leads to a node {shown(node)}")
    return (source if is_label(source) else None), receivers


def _named(flow: Record, name: str, number: Mapping[Label, int], kind: str) -> Iterator[int]:
    """Yield the indices of a list of names; each must be known, and none may come twice."""
    seen: set[int] = set()
    for index, entry in enumerate(flow.entries(name) if name in flow.value else []):
        found = number.get(entry) if is_label(entry) else None
        if found is not None and found not in seen:
            seen.add(found)
            yield found
            continue
        message, fix = f"names {shown(entry)} twice", ""
        if found is None:
            message = f"{shown(entry)} is no {kind} of this scenario"
            fix = nearest(str(entry), map(str, number))
        flow.plain.refuse((*flow.at, name, index), message, fix)


def _route(
    flow: Record, number: Mapping[Label, int], link_ends: Sequence[tuple[Label, Label]]
) -> tuple[int, ...]:
    """Return the links of a flow: a path or a tree from its sender to its receivers."""
    if "route" not in flow.value:
        flow.refuse("route", "is missing", "list its links, or: meshwright route FILE")
        return ()
    route = tuple(_named(flow, "route", number, "link"))
    source, receivers = flow.value.get("src"), flow.labels("dst")
    if not route:
        if flow.value.get("route") == [] and receivers not in ((), (source,)):
            ends = f"src {shown(source)} and dst {shown(flow.value['dst'])}"
            flow.refuse("route", f"is empty, but {ends} differ", "list its links")
    elif link_ends:
        reached = [link_ends[link][1] for link in route]
        begins = source
        if source is None:
            begins = next((a for a, _ in (link_ends[k] for k in route) if a not in reached), None)
        waiting: dict[Label, list[Label]] = {}
        for link in route:
            waiting.setdefault(link_ends[link][0], []).append(link_ends[link][1])
        joined = [begins]
        for node in joined:
            joined += waiting.pop(node, ()) if node is not None else ()
        missed = [shown(node) for node in receivers if node not in joined]
        if waiting or len(set(reached)) < len(reached) or begins in reached:
            flow.refuse("route", f"is not a path or tree from {shown(begins)}")
        elif missed:
            flow.refuse("route", f"does not reach {', '.join(missed)}")
    return route


def written_scenario(scenario: FlowScenario, **more: object) -> dict[str, Any]:
    """Return a scenario as a flow file holds it, with further fields."""
    links = [
        {"id": name, "bw_Bps": bandwidth, "lat_s": latency}
        | (dict(zip(("src", "dst"), ends, strict=True)) if ends else {})
        for name, bandwidth, latency, ends in zip(
            scenario.link_ids, scenario.bandwidth_bytes_per_s.tolist(),
            scenario.latency_s.tolist(), scenario.link_ends or [()] * len(scenario.link_ids),
            strict=True,
        )
    ]  # fmt: skip
    flows = []
    for flow, name in enumerate(scenario.flow_ids):
        source, receivers = scenario.ends[flow]
        route = scenario.routes[flow]
        entry: dict[str, object] = {"id": name, "bytes": float(scenario.num_bytes[flow])}
        entry |= {"start_s": float(scenario.start_s[flow])} if scenario.start_s[flow] > 0 else {}
        entry |= {} if source is None else {"src": source}
        entry |= {"dst": receivers[0] if len(receivers) == 1 else [*receivers]} if receivers else {}
        waits = [scenario.flow_ids[before] for before in scenario.after[flow]]
        entry |= {"after": waits} if waits else {}
        entry |= {} if route is None else {"route": [scenario.link_ids[link] for link in route]}
        flows.append(entry)
    return {"name": scenario.name, **more, "links": links, "flows": flows}


def read_placement_file(path: Path) -> PlacementFile:
    """Return the devices of a placement file: ``devices``, and ``axes`` where it states them.

    Raises
    ------
    SpecError
        With all faults of the file.
    """
    content = _object_of(path)
    top = Record(content, (), PlainValues(Tree(content, {}), content))
    top.expect(("devices", "axes"), ("plan", "system", "grid", "description"))
    devices: dict[int, int] = {}
    for rank, device in enumerate(top.entries("devices")):
        if not isinstance(device, int) or isinstance(device, bool) or device < 0:
            top.plain.refuse(("devices", rank), f"found {shown(device)}, expected a device")
        elif (first := devices.setdefault(device, rank)) != rank:
            top.plain.refuse(("devices", rank), f"device {device} has rank {first} already")
    axes = None
    if "axes" in content:
        stated = top.take("axes", lambda value: isinstance(value, dict), "an object of shapes")
        for axis, shape in (stated or {}).items():
            if not isinstance(shape, list) or not all(type(s) is int and s > 0 for s in shape):
                fix = "rows and columns, such as [2, 4]"
                top.plain.refuse(("axes", axis), f"found {shown(shape)}, expected {fix}")
        axes = {axis: tuple(shape) for axis, shape in (stated or {}).items()
                if isinstance(shape, list)}  # fmt: skip
    if top.plain.faults:
        raise SpecError(top.plain.faults, origin=str(path))
    return PlacementFile(tuple(devices), axes)
