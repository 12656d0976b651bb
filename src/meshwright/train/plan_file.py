"""Plans to JSON and back, whole or not at all.

Field names are stable and carry their unit; ``docs/plan_json.md`` lists them. Values that are not
known (energy without a power figure, money without a price) are null, never zero.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from meshwright.base.errors import Fault, SpecError
from meshwright.cost.memory import MEMORY_PARTS
from meshwright.cost.pipeline import TIME_PARTS
from meshwright.sharding.strategy import AXES
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import FORMAT, Candidate, Placement, Plan, Segment, WhyNot
from meshwright.train.measured.factors import NAMES, Factor, Factors

Answer = TypeVar("Answer")


def to_data(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain data, ready for JSON."""
    data = {entry.name: _plain(getattr(plan, entry.name)) for entry in dataclasses.fields(plan)}
    data["best"]["plan"] = plan.best.text
    for candidate, entry in zip(plan.runners_up, data["runners_up"], strict=True):
        entry["plan"] = candidate.text
    data["why_not"] = [why_not_data(why) for why in plan.why_not]
    return data


def candidate_data(candidate: Candidate) -> dict[str, Any]:
    """Return one candidate as plain data."""
    data: dict[str, Any] = _plain(candidate)
    data["plan"] = candidate.text
    return data


def why_not_data(why: WhyNot) -> dict[str, Any]:
    """Return one comparison as plain data."""
    return {**_plain(why), "candidate": candidate_data(why.candidate)}


def _plain(value: Any) -> Any:
    """Return declarations, dataclasses and columns as plain data."""
    if isinstance(value, ModelSpec | SystemSpec | Training):
        return value.model_dump(mode="json", by_alias=False, exclude_defaults=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {e.name: _plain(getattr(value, e.name)) for e in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(plan: Plan) -> str:
    """Return a plan as JSON text."""
    return json.dumps(to_data(plan), indent=2)


def from_json(text: str, origin: str = "plan") -> Plan:
    """Return the plan of a JSON text.

    Raises
    ------
    SpecError
        With all faults: no JSON, fields that are missing, unknown or of the wrong type.
    """
    data = parsed(text, origin)
    _drop_derived(data)
    plan = validated(_adapter(), data, origin)
    listed = list(_candidates_of(plan))
    faults = [fault for path, entry in listed for fault in candidate_faults(path, entry)]
    if not faults:
        for path, entry in listed:
            faults += placement_faults(f"{path}.placement", entry, plan.system)
    faults += factor_faults(plan.factors)
    if faults:
        raise SpecError(faults, origin=origin)
    return plan


def _candidates_of(plan: Plan) -> Iterator[tuple[str, Candidate]]:
    """Yield every candidate of a plan with its path."""
    yield "best", plan.best
    for index, candidate in enumerate(plan.runners_up):
        yield f"runners_up.{index}", candidate
    for index, why in enumerate(plan.why_not):
        yield f"why_not.{index}.candidate", why.candidate


def candidate_faults(path: str, candidate: Candidate) -> Iterator[Fault]:
    """Yield what no candidate can be: without segments, with odd degrees, with parts missing."""
    if not candidate.segments:
        yield Fault(f"{path}.segments", "is empty", "one segment with the whole model")
    for index, segment in enumerate(candidate.segments):
        yield from _segment_faults(f"{path}.segments.{index}", segment)
    price = candidate.estimate
    for name, expected in (("time_parts_s", TIME_PARTS), ("memory_parts_bytes", MEMORY_PARTS)):
        if set(getattr(price, name)) != set(expected):
            yield Fault(f"{path}.estimate.{name}", f"expected the parts {', '.join(expected)}")
    for name in ("step_time_s", "tokens_per_s", "memory_capacity_bytes", "num_devices_used"):
        if getattr(price, name) <= 0:
            yield Fault(f"{path}.estimate.{name}", f"found {getattr(price, name)}, must be above 0")


def _segment_faults(path: str, segment: Segment) -> Iterator[Fault]:
    for name, degree in vars(segment.strategy).items():
        if not (degree >= 1 and degree == int(degree)):
            message = f"found {degree!r}, expected a whole number above 0"
            yield Fault(f"{path}.strategy.{name}", message)
    stage, order = segment.structure.zero_stage, segment.structure.axis_order
    if stage not in range(4):
        yield Fault(f"{path}.structure.zero_stage", f"found {stage}, expected 0 to 3")
    if sorted(order) != sorted(AXES):
        yield Fault(f"{path}.structure.axis_order", f"expected each of {' '.join(AXES)} once")


def parsed(text: str, origin: str) -> dict[str, Any]:
    """Return the object of a JSON text, if it has the layout of this version."""
    try:
        data = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise SpecError(Fault("", f"no JSON: {error.msg} at {where}"), origin=origin) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(Fault("", f"no JSON: {error}"), origin=origin) from error
    if not isinstance(data, dict):
        raise SpecError(
            Fault("", f"expected an object, found {type(data).__name__}"), origin=origin
        )
    found = data.get("format")
    if found != FORMAT:
        fault = Fault("format", f"found {found!r}, this version reads {FORMAT}")
        raise SpecError(fault, origin=origin)
    return data


def _finite(text: str) -> float:
    """Return a number of a JSON text; those beyond all numbers, and none at all, are refused."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def validated(adapter: TypeAdapter[Answer], data: dict[str, Any], origin: str) -> Answer:
    """Return the answer that data describe, or every fault of them at once."""
    try:
        answer = adapter.validate_python(data)
    except ValidationError as error:
        faults = [
            Fault(".".join(str(part) for part in entry["loc"]), entry["msg"])
            for entry in error.errors()
        ]
        raise SpecError(faults, origin=origin) from error
    endless = list(_not_finite(answer, ""))
    if endless:
        raise SpecError(endless, origin=origin)
    return answer


def _not_finite(value: Any, path: str) -> Iterator[Fault]:
    """Yield the numbers that a text such as "nan" became: no plan has them."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, float) and not math.isfinite(value):
        yield Fault(path, f"found {value}, expected a finite number")
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _not_finite(entry, f"{path}.{name}" if path else str(name))
    elif isinstance(value, tuple):
        for index, entry in enumerate(value):
            yield from _not_finite(entry, f"{path}.{index}")


def _drop_derived(data: dict[str, Any]) -> None:
    """Remove the plan strings, which are derived; earlier plans were never slowed down by a cap."""
    runners_up = data.get("runners_up")
    why_not = data.get("why_not")
    listed = why_not if isinstance(why_not, list) else []
    others = [why.get("candidate") for why in listed if isinstance(why, dict)]
    entries = [data.get("best"), *(runners_up if isinstance(runners_up, list) else []), *others]
    for entry in entries:
        if isinstance(entry, dict):
            entry.pop("plan", None)
            price = entry.get("estimate")
            parts = price.get("time_parts_s") if isinstance(price, dict) else None
            if isinstance(parts, dict):
                parts.setdefault("throttle_s", 0.0)


@cache
def _adapter() -> TypeAdapter[Plan]:
    """Return what checks the data of a plan; built when it is first needed."""
    return TypeAdapter(Plan)


def save(plan: Plan, path: str | Path) -> None:
    """Write a plan to a file, whole or not at all."""
    path = Path(path)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(to_json(plan) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: str | Path) -> Plan:
    """Return the plan of a file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(Fault("", f"cannot be read: {error.strerror}"), origin=str(path)) from error
    except UnicodeDecodeError as error:
        raise SpecError(Fault("", "cannot be read: no UTF-8 text"), origin=str(path)) from error
    return from_json(text, origin=str(path))


def placement_faults(path: str, candidate: Candidate, system: SystemSpec) -> Iterator[Fault]:
    """Yield what no placement of a candidate on a system can be, by field."""
    placement = candidate.placement
    if placement is None:
        return
    sides = tuple(level.size for level in system.levels[::-1])
    if placement.grid_shape != sides:
        expected = "x".join(map(str, sides))
        yield Fault(f"{path}.grid_shape", f"found {placement.grid_shape}", f"{expected}")
        return
    yield from _axis_faults(path, candidate, placement)
    yield from _device_faults(path, candidate, placement)


def _axis_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield what is wrong with the blocks of the axes."""
    degrees = {axis: getattr(candidate.strategy, axis) for axis in AXES}
    used = sorted(axis for axis, degree in degrees.items() if degree > 1)
    if sorted(placement.axes) != used:
        message = f"found {' '.join(placement.axes) or 'none'}"
        yield Fault(f"{path}.axes", message, f"those of more than one device: {' '.join(used)}")
    if sorted(placement.shapes) != used:
        yield Fault(f"{path}.shapes", f"found {' '.join(placement.shapes)}", " ".join(used))
    for axis, shape in placement.shapes.items():
        fits = len(shape) == len(placement.grid_shape) and min(shape, default=0) >= 1
        if not fits or prod(shape) != degrees.get(axis):
            message = f"found {shape}, expected sizes of a block of {degrees.get(axis, 0):g}"
            yield Fault(f"{path}.shapes.{axis}", message)
            return
    for level, side in enumerate(placement.grid_shape):
        length = prod(shape[level] for shape in placement.shapes.values())
        if length > side:
            message = f"blocks are {length} long on a side of {side}"
            yield Fault(f"{path}.shapes", message)


def _device_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield what is wrong with the devices that are named.

    A link may also begin or end at a node beyond the devices, such as an IO die.
    """
    room, devices = prod(placement.grid_shape), placement.devices
    if len(devices) != candidate.strategy.num_devices or len(set(devices)) != len(devices):
        message = f"found {len(set(devices))} devices in {len(devices)} places"
        yield Fault(f"{path}.devices", message, f"{candidate.strategy.num_devices:.0f} of them")
    for index, device in enumerate(devices):
        if not 0 <= device < room:
            yield Fault(f"{path}.devices.{index}", f"found {device}", f"0 to {room - 1}")
    for index, link in enumerate(placement.hottest_links):
        if min(link.source, link.target) < 0 or link.busy_s <= 0.0:
            message = f"found {link.source} to {link.target}, busy for {link.busy_s} s"
            yield Fault(f"{path}.hottest_links.{index}", message)


LARGEST = 1e6
"""No factor is larger, nor smaller than one over it."""


def factor_faults(factors: Factors | None) -> Iterator[Fault]:
    """Yield what no factors of a plan can be, by field."""
    if factors is None:
        return
    if factors.num_measurements < 1:
        yield Fault("factors.num_measurements", f"found {factors.num_measurements}, at least 1")
    found = tuple(entry.resource for entry in factors.factors)
    if found != NAMES:
        message = f"found {' '.join(found) or 'none'}"
        yield Fault("factors.factors", message, f"expected {' '.join(NAMES)}")
    for index, entry in enumerate(factors.factors):
        yield from _number_faults(f"factors.factors.{index}", entry)
    yield from _covariance_faults(factors.log_covariance)


def _number_faults(path: str, factor: Factor) -> Iterator[Fault]:
    """Yield numbers that no factor can be."""
    for name in ("factor", "low", "high", "prior_low", "prior_high"):
        found = getattr(factor, name)
        if not 1.0 / LARGEST <= found <= LARGEST:
            yield Fault(f"{path}.{name}", f"found {found}, expected a number above 0")


def _covariance_faults(rows: tuple[tuple[float, ...], ...]) -> Iterator[Fault]:
    """Yield what is no covariance of all factors."""
    sides = {len(rows), *(len(row) for row in rows)}
    if sides != {len(NAMES)}:
        yield Fault("factors.log_covariance", f"expected {len(NAMES)} rows of as many numbers")
    elif any(abs(entry) > LARGEST for row in rows for entry in row):
        yield Fault("factors.log_covariance", "a number is beyond all covariances")
    elif any(rows[n][n] < 0.0 for n in range(len(NAMES))):
        yield Fault("factors.log_covariance", "a variance is below 0")
