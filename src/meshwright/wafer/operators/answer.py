"""A strategy for each group of operators: searched, proven, and told as plain data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.base.errors import UnsupportedError
from meshwright.cost.pipeline import TIME_PARTS
from meshwright.cost.problem import Problem
from meshwright.sharding.strategy import AXES, plan_string
from meshwright.train.answer import OperatorOption, OperatorPlan, OperatorRun
from meshwright.train.search import Progress
from meshwright.wafer.candidates import MOST_DEVICES, has_placement
from meshwright.wafer.operators.assignment import Assignment
from meshwright.wafer.operators.frames import likely_bases
from meshwright.wafer.operators.options import Options
from meshwright.wafer.operators.plan import Planned, plan_operators
from meshwright.wafer.operators.price import Place
from meshwright.wafer.price import physical_network

NUM_BASES = 2
"""Micro-batches (with their recomputation) under which operators choose."""


def operator_plan(
    problem: Problem, *,
    allowed: Mapping[str, Sequence[object]] | None = None, progress: Progress | None = None,
) -> OperatorPlan | None:  # fmt: skip
    """Return the best plan with a strategy for each group of operators; None where nothing fits.

    One pipeline stage, all state on the device.
    """
    start_s = time.perf_counter()
    known = {name: tuple(values) for name, values in (allowed or {}).items()}
    bases = likely_bases(problem, NUM_BASES, allowed=known, progress=progress)
    found = plan_operators(problem, bases, physical_network(problem))
    if found is None:
        return None
    plan = as_data(problem, found)
    return replace(plan, search_s=time.perf_counter() - start_s)


def check_operators(problem: Problem) -> None:
    """Refuse a problem whose operators cannot have strategies of their own.

    Raises
    ------
    UnsupportedError
        Off grids, on very large ones, for models with experts, and below a cap on power.
    """
    if problem.system.is_power_capped:
        raise UnsupportedError(
            "a strategy for each operator is priced without its energy: it takes a system without "
            "a cap on power"
        )
    if not has_placement(problem):
        raise UnsupportedError(
            f"a strategy for each operator needs a grid of at most {MOST_DEVICES:,} devices and a "
            f"model without experts: not {problem.model.name} on {problem.system.name}"
        )


def as_data(problem: Problem, found: Planned) -> OperatorPlan:
    """Return a plan of operators as plain data."""
    alone, shared = found.level_one, found.level_two
    contended, options = shared.assigned, shared.model.prices.options
    used = sorted(set(contended.options))
    parts = {name: float(np.ravel(getattr(contended.time, name))[0]) for name in TIME_PARTS}
    return OperatorPlan(
        options=tuple(_option(options, index) for index in used),
        runs=tuple(_runs(shared, used)),
        fidelity="contended",
        step_time_s=contended.total_s,
        time_parts_s={**parts, "reshard_s": contended.reshard_s},
        memory_bytes=contended.memory_bytes,
        closed_form_s=alone.assigned.total_s,
        closed_form_bound_s=alone.lower_bound_s,
        lower_bound_s=found.lower_bound_s,
        num_options=len(alone.model.prices.options),
        search_s=found.search_s,
    )


def _option(options: Options, index: int) -> OperatorOption:
    """Return one option as plain data."""
    strategy, structure, choice = (
        options.strategy(index), options.structures[index], options.choices[index],
    )  # fmt: skip
    used = [(a, s) for a, s in zip(choice.axes, choice.shapes, strict=True) if max(s) > 1]
    return OperatorOption(
        text=plan_string(strategy, structure),
        strategy=strategy,
        structure=replace(structure, axis_order=(*choice.axes,)),
        axes=tuple(axis for axis, _ in used if axis in AXES),
        shapes={axis: shape[::-1] for axis, shape in used},
    )


def _runs(found: Assignment, used: Sequence[int]) -> Iterator[OperatorRun]:
    """Yield the options of each group of operators, equal layers together."""
    prices = found.model.prices
    number = {option: index for index, option in enumerate(used)}
    kinds = len(prices.problem.graph.layers)
    by_place: dict[Place, list[tuple[int, int]]] = {}
    layer = -1
    for place, option in zip(found.assigned.places, found.assigned.options, strict=True):
        layer += place[0] < kinds and place[1] == 0
        by_place.setdefault(place, []).append((layer, number[option]))
    for place, chosen in by_place.items():
        names = tuple(op.name for op in prices.groups[place[0]][place[1]].ops)
        for first, last, option in _equal_in_a_row(chosen):
            is_layer = place[0] < kinds
            yield OperatorRun(
                names, first if is_layer else None, last if is_layer else None, option
            )


def _equal_in_a_row(chosen: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield first layer, last layer and option of each run of equal options."""
    start = 0
    for end in range(1, len(chosen) + 1):
        if end == len(chosen) or chosen[end][1] != chosen[start][1]:
            yield chosen[start][0], chosen[end - 1][0], chosen[start][1]
            start = end
