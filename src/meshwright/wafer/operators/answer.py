"""Two levels: options for each operator alone on its links, then their cost with all others.

Both are exact within their bounds. The bound of the whole plan leaves out contention, and
resharding where it is close enough without, and takes the best way to lay each option.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter

from meshwright.base.arrays import gap_of
from meshwright.base.cluster import HERE, Cluster
from meshwright.base.errors import UnsupportedError
from meshwright.cost.problem import MOST_DEVICES, Problem
from meshwright.search.exhaustive import Progress
from meshwright.sharding.space import divisors
from meshwright.sharding.strategy import AXES, plan_string
from meshwright.topology.network import Network
from meshwright.train.answer import Candidate, OperatorOption, OperatorPlan, OperatorRun
from meshwright.wafer.operators.assignment import (
    Assignment,
    SharedTable,
    assign,
    bound_with_moves_s,
    lower_bound_s,
    model_graph,
    on_demand,
)
from meshwright.wafer.operators.model import ModelGraph
from meshwright.wafer.operators.options import (
    Base,
    Options,
    cut_of,
    frame_of,
    has_frame,
    likely_bases,
)
from meshwright.wafer.operators.prices import Place, places_of
from meshwright.wafer.operators.simulation import simulate_operators
from meshwright.wafer.price import nesting_of, physical_network
from meshwright.wafer.search import has_placement
from meshwright.wafer.simulation import MOST_TASKS_TO_RANK

PROVEN = 0.05
"""Gap above which the bound is worked out again with the least cost of resharding."""
LITTLE = 0.01
"""Gain at which no further frame is tried on shared links."""


@dataclass(frozen=True)
class Planned:
    """The best options of all operators, as they run with all others, and the two proofs."""

    level_one: Assignment
    """Options chosen alone on their links."""
    level_two: Assignment
    """Options chosen on shared links: the plan."""
    lower_bound_s: float
    """No plan of the frames takes less, wherever its operators run [s]."""
    search_s: float
    """Wall-clock time [s]."""

    @property
    def time_s(self) -> float:
        """Seconds of a step."""
        return self.level_two.assigned.total_s

    @property
    def gap(self) -> float:
        """Share by which the plan may lie above the best possible of its frames."""
        return gap_of(self.time_s, self.lower_bound_s)


def plan_operators(problem: Problem, bases: Sequence[Base], physical: Network) -> Planned | None:
    """Return the fastest plan over some frames; None where nothing fits under any of them."""
    start_s = time.perf_counter()
    best: tuple[Assignment, Assignment] | None = None
    found_s = float("inf")
    frames: list[ModelGraph] = []
    for base in bases:
        model = model_graph(problem, base.frame, physical, base.way)
        mine = [model.under(plan_options) for plan_options in base.option_sets] if model else []
        frames += mine
        # The fastest ones alone come first; options with little to gain are left to the bound.
        near = [frame for frame in mine if best is None or lower_bound_s(frame, found_s) < found_s]
        alone = [found for found in map(assign, near) if found is not None]
        table: SharedTable | None = None
        for found in sorted(alone, key=lambda found: found.assigned.total_s):
            enough_s = found_s / (1.0 + LITTLE)
            if found.assigned.total_s < enough_s:
                table = SharedTable(found, table)
                shared = table.routed(on_demand(table, enough_s, base.way))
                if shared.assigned.total_s < found_s:
                    best, found_s = (found, shared), shared.assigned.total_s
    if best is None:
        return None
    # A bound that is far below is worked out again with the least cost of resharding.
    bound_s, enough_s = found_s, found_s / (1.0 + PROVEN)
    for frame in frames:
        frame_s = lower_bound_s(frame, enough_s)
        if frame_s < enough_s:
            frame_s = bound_with_moves_s(frame, enough_s)
        bound_s = min(bound_s, frame_s)
    return Planned(*best, bound_s, time.perf_counter() - start_s)


NUM_BASES = 2
"""Micro-batches (with their recomputation) under which operators choose without a pipeline."""


def operator_plan(
    problem: Problem, best: Candidate, *,
    allowed: Mapping[str, Sequence[object]] | None = None, cluster: Cluster = HERE,
    progress: Progress | None = None,
) -> OperatorPlan | None:  # fmt: skip
    """Return the best plan with a strategy for each group of operators; None where nothing fits.

    Every degree of pipelines is tried, and the pipeline of the best strategy for all operators.

    Parameters
    ----------
    best
        The best plan with one strategy for all operators: it is among the assignments.
    """
    start_s = time.perf_counter()
    known = {name: tuple(values) for name, values in (allowed or {}).items()}
    physical = physical_network(problem)
    found = plan_operators(problem, _bases(problem, best, known, cluster, progress), physical)
    if found is None:
        return None
    plan = as_data(problem, found)
    step = simulate_operators(problem, plan, physical, most_tasks=MOST_TASKS_TO_RANK)
    spent_s = time.perf_counter() - start_s
    return replace(plan, simulated_s=step.step_time_s, search_s=spent_s)


def _bases(
    problem: Problem, best: Candidate, allowed: Mapping[str, tuple[object, ...]],
    cluster: Cluster, progress: Progress | None,
) -> list[Base]:  # fmt: skip
    """Return the frames to try: those of each degree of pipelines, fast ones first."""
    pipelines = {*divisors(problem.system.num_devices), int(best.strategy.pp)}
    found = [
        base
        for stages in sorted(pipelines)
        if stages in allowed.get("pp", (stages,))
        for base in likely_bases(
            problem, NUM_BASES if stages == 1 else 1, stages, allowed=allowed, cluster=cluster,
            progress=progress,
        )
    ]  # fmt: skip
    found.sort(key=attrgetter("uniform_s"))
    placement, own = best.placement, best.plan_options
    if placement is None or not has_frame(own):
        return found
    levels = len(placement.grid_shape)
    laid = nesting_of(placement.axes, placement.shapes, own, levels)
    frame = frame_of(problem, best.strategy, own, cut_of(laid))
    return [Base(frame, (frame.plan_options,), way=(best.strategy, laid)), *found]


def check_operators(problem: Problem) -> None:
    """Refuse a problem that does not allow a strategy for each operator.

    Raises
    ------
    UnsupportedError
        Off grids, on very large ones, below a cap on power, and for a framework.
    """
    if title := problem.workload.software.framework:
        raise UnsupportedError(
            f"{title} starts one strategy for all operators: plan without --framework, or without "
            "--with per_operator"
        )
    if problem.system.is_power_capped:
        raise UnsupportedError(
            "a strategy for each operator is priced without its energy: it takes a system without "
            "a cap on power"
        )
    is_small = problem.system.num_devices <= MOST_DEVICES
    if not (has_placement(problem) and is_small):
        raise UnsupportedError(
            f"a strategy for each operator needs a grid of at most {MOST_DEVICES:,} devices, not "
            f"{problem.system.name}"
        )


def as_data(problem: Problem, found: Planned) -> OperatorPlan:
    """Return a plan of operators as plain data."""
    alone, shared = found.level_one, found.level_two
    contended, options = shared.assigned, shared.model.prices.options
    used = sorted(set(contended.options))
    return OperatorPlan(
        options=tuple(_option(options, index) for index in used),
        runs=tuple(_runs(shared, used)),
        assignment=tuple(used.index(contended.options[node]) for node in shared.model.node_of),
        num_sequences=options.frame.num_sequences,
        fidelity="contended",
        step_time_s=contended.total_s,
        time_parts_s={**contended.time.row(), "reshard_s": contended.reshard_s},
        memory_bytes=contended.memory_bytes,
        closed_form_s=alone.assigned.total_s,
        closed_form_bound_s=alone.lower_bound_s,
        lower_bound_s=found.lower_bound_s,
        num_options=len(alone.model.prices.options),
        search_s=found.search_s,
    )


def _option(options: Options, index: int) -> OperatorOption:
    """Return one option as plain data."""
    strategy, plan_options, choice = (
        options.strategy(index), options.option_sets[index], options.choices[index],
    )  # fmt: skip
    used = [(a, s) for a, s in zip(choice.axes, choice.shapes, strict=True) if max(s) > 1]
    return OperatorOption(
        text=plan_string(strategy, plan_options),
        strategy=strategy,
        plan_options=replace(plan_options, axis_order=(*choice.axes,)),
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
    chosen_of = [found.assigned.options[node] for node in found.model.node_of]
    for place, option in zip(places_of(prices.problem), chosen_of, strict=True):
        layer += place[0] < kinds and place[1] == 0
        by_place.setdefault(place, []).append((layer, number[option]))
    for place, chosen in by_place.items():
        names = tuple(op.name for op in prices.groups[place[0]][place[1]].ops)
        is_layer = place[0] < kinds
        for option, equal in groupby(chosen, key=itemgetter(1)):
            layers = [at for at, _ in equal]
            first, last = (layers[0], layers[-1]) if is_layer else (None, None)
            yield OperatorRun(names, first, last, option)
