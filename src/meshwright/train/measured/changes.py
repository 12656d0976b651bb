"""Plans that differ from a given one by a single change, on as many devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from meshwright.cost.problem import Problem
from meshwright.sharding.space import virtual_stage_counts
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, ScheduleKind, Strategy

MOVED = ("tp", "cp", "pp", "dp_shard")
"""Axes that take devices from one another."""


@dataclass(frozen=True)
class SingleChange:
    """One thing changed, and what comes of it; the workload holds the software."""

    what: str
    problem: Problem
    strategy: Strategy
    structure: PlanOptions


def single_changes(
    problem: Problem, strategy: Strategy, structure: PlanOptions
) -> Iterator[SingleChange]:
    """Yield every single change, legal or not: degrees by a factor of two, choices, software."""
    for what, degrees in _degree_changes(problem, strategy):
        changed = replace(strategy, **degrees)
        yield SingleChange(what, problem, changed, _fitting(structure, strategy, changed))
    for what, choices in _choice_changes(strategy, structure):
        yield SingleChange(what, problem, strategy, replace(structure, **choices))
    yield from _software_changes(problem, strategy, structure)


def _fitting(structure: PlanOptions, before: Strategy, after: Strategy) -> PlanOptions:
    """Return the structure with what follows from the degrees brought in line."""
    choices: dict[str, Any] = {}
    if (after.tp > 1) != (before.tp > 1):
        choices["sequence_parallel"] = after.tp > 1
    if after.dp_shard * after.cp == 1:
        choices["zero_stage"] = 0
    elif before.dp_shard * before.cp == 1:
        choices["zero_stage"] = 1
    if after.num_virtual_stages > 1:
        choices["schedule"] = ScheduleKind.INTERLEAVED
    elif structure.schedule is ScheduleKind.INTERLEAVED or before.pp == 1:
        choices["schedule"] = ScheduleKind.ONE_F_ONE_B
    return replace(structure, **choices)


Degrees = dict[str, float]


def _degree_changes(problem: Problem, strategy: Strategy) -> Iterator[tuple[str, Degrees]]:
    """Yield changed degrees: devices from one axis to another, chunks, micro-batches, experts."""
    yield from _moved_devices(strategy)
    if strategy.pp > 1:
        counts = list(virtual_stage_counts(problem.model.num_layers, int(strategy.pp)))
        fewer = [n for n in counts if n < strategy.num_virtual_stages][-1:]
        for count in fewer + [n for n in counts if n > strategy.num_virtual_stages][:1]:
            yield _change(strategy, "num_virtual_stages", float(count))
    yield from _halved_and_doubled(strategy, "micro_batch_size")
    if problem.num_experts:
        yield from _halved_and_doubled(strategy, "ep")


def _moved_devices(strategy: Strategy) -> Iterator[tuple[str, Degrees]]:
    """Yield degrees in which one axis has half of its devices and another one twice as many."""
    for source, target in permutations(MOVED, 2):
        half, double = getattr(strategy, source) / 2.0, getattr(strategy, target) * 2.0
        if half == int(half):
            degrees = {source: half, target: double}
            words = ", ".join(_shown(strategy, name, degrees) for name in (source, target))
            has_no_chunks = source == "pp" and half == 1
            yield words, degrees | ({"num_virtual_stages": 1.0} if has_no_chunks else {})


def _halved_and_doubled(strategy: Strategy, name: str) -> Iterator[tuple[str, Degrees]]:
    """Yield half of a degree, where that is whole, and twice the degree."""
    for value in (getattr(strategy, name) / 2.0, getattr(strategy, name) * 2.0):
        if value == int(value):
            yield _change(strategy, name, value)


def _change(strategy: Strategy, name: str, value: float) -> tuple[str, dict[str, float]]:
    """Return one changed degree, and how to call that."""
    return _shown(strategy, name, {name: value}), {name: value}


_WORDS = {"dp_shard": "dp", "num_virtual_stages": "vpp", "micro_batch_size": "mbs"}


def _shown(strategy: Strategy, name: str, degrees: dict[str, float]) -> str:
    """Return a changed degree in words: ``tp 8 to 4``."""
    times = strategy.dp_replicate if name == "dp_shard" else 1.0
    before, after = getattr(strategy, name) * times, degrees[name] * times
    return f"{_WORDS.get(name, name)} {before:.0f} to {after:.0f}"


def _choice_changes(
    strategy: Strategy, structure: PlanOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changed choices."""
    for recompute in Recompute:
        if recompute is not structure.recompute:
            yield f"recompute {structure.recompute} to {recompute}", {"recompute": recompute}
    yield from _state_changes(strategy, structure)
    if strategy.pp > 1 and strategy.num_virtual_stages == 1:
        for kind in (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE):
            if kind is not structure.schedule:
                yield f"schedule {structure.schedule} to {kind}", {"schedule": kind}
    if strategy.tp > 1:
        turned = not structure.sequence_parallel
        words = "with" if turned else "without"
        yield f"{words} sequence parallelism", {"sequence_parallel": turned}


def _state_changes(
    strategy: Strategy, structure: PlanOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes of where weights, gradients and optimizer state are kept."""
    if strategy.dp_shard * strategy.cp > 1:
        for stage in range(4):
            if stage != structure.zero_stage:
                yield f"zero {structure.zero_stage} to {stage}", {"zero_stage": stage}
    if structure.zero_stage == 3:
        keeps = structure.reshard_after_forward
        words = "kept" if keeps else "gathered again"
        yield f"weights {words} for the backward pass", {"reshard_after_forward": not keeps}
    if structure.offload is not Offload.NONE:
        yield "nothing offloaded", {"offload": Offload.NONE}


def _software_changes(
    problem: Problem, strategy: Strategy, structure: PlanOptions
) -> Iterator[SingleChange]:
    """Yield the same plan under software that hides more."""
    software = problem.workload.software
    if not structure.overlap_data_parallel and strategy.dp > 1:
        overlapped = replace(structure, overlap_data_parallel=True)
        yield SingleChange("gradients travel beside computation", problem, strategy, overlapped)
    if not structure.overlap_tensor_parallel and structure.sequence_parallel and strategy.tp > 1:
        changed = _with_software(problem, async_tensor_parallel=True)
        decomposed = replace(structure, overlap_tensor_parallel=True)
        yield SingleChange("tp communication is decomposed", changed, strategy, decomposed)
    if not software.cuda_graphs:
        recorded = _with_software(problem, cuda_graphs=True)
        yield SingleChange("kernel launches are recorded", recorded, strategy, structure)


def _with_software(problem: Problem, **settings: bool) -> Problem:
    """Return the problem with changed settings of its software."""
    software = problem.workload.software.model_copy(update=settings)
    return replace(problem, workload=problem.workload.model_copy(update={"software": software}))
