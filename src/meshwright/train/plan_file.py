"""Rules of plan files in JSON beyond the types of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from meshwright.base.errors import Fault
from meshwright.catalog.answer_file import AnswerFile
from meshwright.cost.parts import TENSORS, MemoryPart, TimePart
from meshwright.network.placement import LAID_IN
from meshwright.sharding.dealing import chunk_lengths, is_dealt
from meshwright.sharding.strategy import AXES
from meshwright.spec.system import SystemSpec
from meshwright.train.answer import Candidate, Placement, Plan
from meshwright.train.measured.factors import NAMES, Factor, Factors


def plan_faults(plan: Plan) -> list[Fault]:
    """Return the faults of a plan: of all candidates and factors, then of placements."""
    listed = list(_candidates_of(plan))
    faults = [fault for path, entry in listed for fault in candidate_faults(path, entry)]
    if not faults:
        for path, entry in listed:
            faults += run_faults(f"{path}.strategy", entry, plan.model.num_layers)
            faults += placement_faults(f"{path}.placement", entry, plan.system)
    return [*faults, *factor_faults(plan.factors)]


def _upgrade(data: dict[str, Any]) -> None:
    """Bring a plan of an earlier version up to date.

    The time that a power cap costs was added; strategy and plan options lay in a list of segments;
    frameworks had no price of their own.
    """
    runners_up, why_not = (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        for entries in (data.get("runners_up"), data.get("why_not"))
    )
    listed = [data.get("best"), *runners_up, *(why.get("candidate") for why in why_not)]
    for candidate in listed:
        if not isinstance(candidate, dict):
            continue
        match candidate.get("segments"):
            case [{"strategy": strategy, "plan_options": plan_options}]:
                del candidate["segments"]
                candidate |= {"strategy": strategy, "plan_options": plan_options}
        names = candidate.get("launches_with")
        if isinstance(names, list) and "frameworks" not in candidate:
            candidate["frameworks"] = [{"framework": name} for name in names]
        price = candidate.get("estimate")
        parts = price.get("time_parts_s") if isinstance(price, dict) else None
        if isinstance(parts, dict):
            parts.setdefault("throttle_s", 0.0)
            parts.setdefault("main_memory_s", 0.0)


MOST_DEGREE = 10**9
"""Largest degree or micro-batch."""
PLAN_FILE = AnswerFile(Plan, faults=plan_faults, upgrade=_upgrade, workloads=("training",))
to_data, to_json, from_json = PLAN_FILE.to_data, PLAN_FILE.to_json, PLAN_FILE.from_json
save, load = PLAN_FILE.save, PLAN_FILE.load


def _candidates_of(plan: Plan) -> Iterator[tuple[str, Candidate]]:
    """Yield every candidate of a plan with its path."""
    yield "best", plan.best
    for index, candidate in enumerate(plan.runners_up):
        yield f"runners_up.{index}", candidate
    for index, why in enumerate(plan.why_not):
        yield f"why_not.{index}.candidate", why.candidate


def candidate_faults(path: str, candidate: Candidate) -> Iterator[Fault]:
    """Yield the faults of a candidate: odd degrees, plan options out of range, missing parts."""
    yield from _choice_faults(path, candidate)
    price = candidate.estimate
    for name, expected in (
        ("time_parts_s", TimePart),
        ("memory_parts_bytes", MemoryPart),
        ("memory_most_bytes", TENSORS),
    ):
        if set(getattr(price, name)) != set(expected):
            yield Fault(f"{path}.estimate.{name}", f"expected the parts {', '.join(expected)}")
    for name in ("step_time_s", "tokens_per_s", "memory_capacity_bytes", "num_devices_used"):
        if getattr(price, name) <= 0:
            yield Fault(f"{path}.estimate.{name}", f"found {getattr(price, name)}, must be above 0")


def _choice_faults(path: str, candidate: Candidate) -> Iterator[Fault]:
    for name, degree in vars(candidate.strategy).items():
        if not (1 <= degree <= MOST_DEGREE and degree == int(degree)):
            message = f"found {degree!r}, expected a whole number from 1 to {MOST_DEGREE}"
            yield Fault(f"{path}.strategy.{name}", message)
    stage, order = candidate.plan_options.zero_stage, candidate.plan_options.axis_order
    if stage not in range(4):
        yield Fault(f"{path}.plan_options.zero_stage", f"found {stage}, expected 0 to 3")
    for name, least in LEAST.items():
        if (number := getattr(candidate.plan_options, name)) < least:
            yield Fault(f"{path}.plan_options.{name}", f"found {number}, expected {least} or more")
    if sorted(order) != sorted(AXES):
        yield Fault(f"{path}.plan_options.axis_order", f"expected each of {' '.join(AXES)} once")


LEAST = {"embedding_layers": 0, "head_layers": 0, "recompute_layers": 0, "recompute_run": 1}
"""Choices that are numbers, with the least value of each."""


def run_faults(path: str, candidate: Candidate, num_layers: int) -> Iterator[Fault]:
    """Yield a fault where a candidate cuts the model into more chunks than it can fill.

    Chunks are at most two more than layers: the first may be the embedding alone,
    the last one the head.
    """
    stages, chunks = int(candidate.strategy.pp), int(candidate.strategy.num_virtual_stages)
    plan_options = candidate.plan_options
    if stages * chunks > num_layers + 2 or not is_dealt(
        chunk_lengths(num_layers, stages * chunks, plan_options), stages
    ):
        message = (
            f"{stages * chunks} chunks (pp x num_virtual_stages) are too many for {num_layers} "
            "layers"
        )
        yield Fault(f"{path}.num_virtual_stages", message)


def placement_faults(path: str, candidate: Candidate, system: SystemSpec) -> Iterator[Fault]:
    """Yield the faults of the placement of a candidate on a system, by field."""
    placement = candidate.placement
    if placement is None:
        return
    if not any(level.kind in ("mesh", "torus") for level in system.levels):
        yield Fault(path, f"is on a grid, which {system.name} is not", "null")
        return
    sides = tuple(level.size for level in system.levels[::-1])
    if placement.grid_shape != sides:
        expected = "x".join(map(str, sides))
        yield Fault(f"{path}.grid_shape", f"found {placement.grid_shape}", f"{expected}")
        return
    yield from _axis_faults(path, candidate, placement)
    yield from _device_faults(path, candidate, placement)


def _axis_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield the faults of the blocks of the axes."""
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
    if placement.lies_in not in LAID_IN:
        yield Fault(f"{path}.lies_in", f"found {placement.lies_in!r}", ", ".join(LAID_IN))
    # Along a cover axes are longer than a side: its devices are checked one by one.
    for level, side in enumerate(placement.grid_shape if placement.lies_in == "blocks" else ()):
        length = prod(shape[level] for shape in placement.shapes.values())
        if length > side:
            message = f"blocks are {length} long on a side of {side}"
            yield Fault(f"{path}.shapes", message)


def _device_faults(path: str, candidate: Candidate, placement: Placement) -> Iterator[Fault]:
    """Yield the faults of the named devices.

    A link may also begin or end at a node beyond the devices, such as an IO die.
    """
    room, devices = prod(placement.grid_shape), placement.devices
    num_hosted = placement.work_shares.count(0.0)
    is_whole = len(set(devices)) + num_hosted >= len(devices)
    if len(devices) != candidate.strategy.num_devices or not is_whole:
        message = f"found {len(set(devices))} devices in {len(devices)} places"
        yield Fault(f"{path}.devices", message, f"{candidate.strategy.num_devices:.0f} of them")
    for index, device in enumerate(devices):
        if not 0 <= device < room:
            yield Fault(f"{path}.devices.{index}", f"found {device}", f"0 to {room - 1}")
    for name in ("die_power_w", "die_celsius"):
        number = len(getattr(placement, name))
        if number not in (0, room):
            yield Fault(f"{path}.{name}", f"found {number} values", f"none, or {room}")
    for index, link in enumerate(placement.hottest_links):
        if min(link.source, link.target) < 0 or link.busy_s <= 0.0:
            message = f"found {link.source} to {link.target}, busy for {link.busy_s} s"
            yield Fault(f"{path}.hottest_links.{index}", message)


LARGEST = 1e6
"""Largest factor; the least one is its inverse."""


def factor_faults(factors: Factors | None) -> Iterator[Fault]:
    """Yield the faults of the factors of a plan, by field."""
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
    """Yield the numbers that are no valid factor."""
    for name in ("factor", "low", "high", "prior_low", "prior_high"):
        found = getattr(factor, name)
        if not 1.0 / LARGEST <= found <= LARGEST:
            yield Fault(f"{path}.{name}", f"found {found}, expected a number above 0")


def _covariance_faults(rows: tuple[tuple[float, ...], ...]) -> Iterator[Fault]:
    """Yield the faults of a covariance of all factors."""
    sides = {len(rows), *(len(row) for row in rows)}
    if sides != {len(NAMES)}:
        yield Fault("factors.log_covariance", f"expected {len(NAMES)} rows of as many numbers")
    elif any(abs(entry) > LARGEST for row in rows for entry in row):
        yield Fault("factors.log_covariance", "a number is beyond all covariances")
    elif any(rows[n][n] < 0.0 for n in range(len(NAMES))):
        yield Fault("factors.log_covariance", "a variance is below 0")
