"""Why nothing can be served, and the least change after which something can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.base.units import format_bytes, format_seconds
from meshwright.search.counts import Counts
from meshwright.serve.columns import ServingColumns, legal_rows
from meshwright.serve.price import price_serving
from meshwright.serve.problem import ServingProblem
from meshwright.serve.space import ServingSpace, degree_table, layouts
from meshwright.sharding.strategy import PlanOptions, Strategy, row, take
from meshwright.spec.system import NetworkLevel
from meshwright.spec.workload import BYTES_OF, Precision

_ANY_LEVEL = NetworkLevel(name="any", size=1, bandwidth_bytes_per_s=1.0e9, latency_s=0.0)
FACTORS = (2, 4, 8, 16, 32, 64)
"""How many times the devices are tried."""


def memory_shortfall(space: ServingSpace, counts: Counts) -> str:
    """Return what the leanest candidate needs, and what would make room for it."""
    capacity = space.problem.system.chip.main_memory.capacity_bytes
    closest = leanest(space)
    if closest is None:
        refused = ", ".join(f"{name} {number}" for name, number in counts.refused.most_common(3))
        return f"no candidate is legal; {counts.summary}; refused most often by: {refused}"
    needed, strategy = closest
    text = (
        f"nothing fits: {counts.summary}; the leanest, {_degrees_text(strategy)} with one sequence,"
        f" needs {format_bytes(needed)} of {format_bytes(capacity)} on each device"
    )
    changes = [name for name, problem in _changes(space.problem) if _fits(space, problem)]
    if not changes:
        return f"{text}; not even {FACTORS[-1]} times the devices or lower precision would do"
    return f"{text}; would fit: {' or '.join(_least(changes))}"


def leanest(space: ServingSpace) -> tuple[float, Strategy] | None:
    """Return the least memory of any legal split with one sequence [bytes], and the split."""
    degrees = degree_table(space)
    found: tuple[float, Strategy] | None = None
    if degrees is None:
        return None
    for structure, own in layouts(space, degrees):
        columns = take(degrees, np.flatnonzero(own))
        columns = take(columns, legal_rows(space, structure, columns, Counts()))
        if not len(columns.tp):
            continue
        groups = np.ones(len(columns.tp)) if space.problem.is_decode else columns.pp
        needed = price_serving(space.problem, structure, columns, groups).memory_bytes
        index = int(np.argmin(needed))
        if found is None or needed[index] < found[0]:
            found = float(needed[index]), row(columns, index)
    return found


def _fits(space: ServingSpace, problem: ServingProblem) -> bool:
    """Return whether anything fits after a change; fixed numbers of devices are let go."""
    allowed = {k: v for k, v in space.choices.allowed.items() if k not in ("num_devices", "dp")}
    closest = leanest(ServingSpace(problem, replace(space.choices, allowed=allowed)))
    return closest is not None and closest[0] <= problem.system.chip.main_memory.capacity_bytes


def _changes(problem: ServingProblem) -> Iterator[tuple[str, ServingProblem]]:
    """Yield changes, the least ones first: lower precision, then more devices."""
    precision = problem.workload.precision
    for weight in ("fp8", "fp4"):
        if BYTES_OF[weight] < BYTES_OF[precision.weight]:
            yield f"weights in {weight}", _with_precision(problem, {"weight": weight})
    if BYTES_OF[precision.kv_cache] > 1.0:
        yield "a KV cache in fp8", _with_precision(problem, {"kv_cache": "fp8"})
    for factor in FACTORS:
        number = problem.system.num_alive * factor
        yield f"{number} devices", _with_devices(problem, factor)


def _least(changes: list[str]) -> list[str]:
    """Return the least change of each sort: only the first number of devices."""
    devices = [change for change in changes if change.endswith("devices")]
    weights = [change for change in changes if change.startswith("weights")]
    others = [change for change in changes if change not in (*devices, *weights)]
    return [*weights[:1], *others, *devices[:1]]


def _with_precision(problem: ServingProblem, update: dict[str, str]) -> ServingProblem:
    values = {**problem.workload.precision.model_dump(), **update}
    precision = Precision.model_validate(values)
    return replace(problem, workload=problem.workload.model_copy(update={"precision": precision}))


def _with_devices(problem: ServingProblem, factor: int) -> ServingProblem:
    """Return the problem on a system whose outermost level is that many times larger.

    Only memory is asked of it, so that a lone device may get any network.
    """
    system = problem.system
    outer = system.levels[-1] if system.levels else _ANY_LEVEL
    levels = (*system.levels[:-1], outer.model_copy(update={"size": outer.size * factor}))
    number = system.num_alive * factor
    update = {"levels": levels, "num_devices": number, "dead_devices": ()}
    return replace(problem, system=system.model_copy(update=update))


def latency_shortfall(
    space: ServingSpace, structures: tuple[PlanOptions, ...], columns: ServingColumns,
    in_time: BoolArray, counts: Counts,
) -> str:  # fmt: skip
    """Return how close the fastest candidate comes to the latency, or to the whole batch."""
    name = "per output token" if space.problem.is_decode else "to the first token"
    if in_time.any():
        most = int(columns.sequences_in_flight[in_time].max())
        return (
            f"no split holds the whole batch of {space.problem.workload.batch_size} sequences"
            f" at once in time; at most {most} are in flight; {counts.summary}"
        )
    index = int(np.argmin(columns.latency_s))
    limit_s = space.problem.max_latency_s or 0.0
    return (
        f"no candidate keeps {format_seconds(limit_s)} {name}: the fastest,"
        f" {_degrees_text(row(columns.strategy, index))}, takes"
        f" {format_seconds(float(columns.latency_s[index]))}; {counts.summary}"
    )


def _degrees_text(strategy: Strategy) -> str:
    """Return the degrees above one, and tp: ``tp8 pp2``."""
    names = ("tp", "pp", "cp", "dp", "ep", "etp")
    return " ".join(
        f"{name}{getattr(strategy, name):.0f}"
        for name in names
        if name == "tp" or getattr(strategy, name) > 1
    )
