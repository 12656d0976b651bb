"""What limits a plan: how its time changes when one resource of the system gets better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.cost.problem import Problem
from meshwright.cost.step import price_one
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.chip import ChipSpec
from meshwright.spec.system import SystemSpec

FACTOR = 2.0
"""Each resource is doubled in turn."""


@dataclass(frozen=True)
class Change:
    """One changed resource, and the step time of the same plan with it."""

    what: str
    step_time_s: float
    faster_by_fraction: float


def changes(problem: Problem, strategy: Strategy, structure: PlanOptions) -> list[Change]:
    """Return the changes that help this plan most, largest first."""
    base_s = _step_s(problem, strategy, structure)
    found = []
    for what, changed in _systems(problem):
        step_s = _step_s(replace(problem, system=changed), strategy, structure)
        found.append(Change(what, step_s, 1.0 - step_s / base_s))
    graphs = problem.workload.software.model_copy(update={"cuda_graphs": True})
    recorded = problem.workload.model_copy(update={"software": graphs})
    step_s = _step_s(replace(problem, workload=recorded), strategy, structure)
    found.append(Change("kernel launches recorded in graphs", step_s, 1.0 - step_s / base_s))
    return sorted(found, key=lambda change: -change.faster_by_fraction)


def _step_s(problem: Problem, strategy: Strategy, structure: PlanOptions) -> float:
    return float(price_one(problem, structure, strategy).step.time.total_s[0])


def _systems(problem: Problem) -> Iterator[tuple[str, SystemSpec]]:
    """Yield the system with one resource doubled, and how to call that."""
    system, chip = problem.system, problem.system.chip
    rates = {
        name: {dtype: rate * FACTOR for dtype, rate in getattr(chip, name).items()}
        for name in ("matmul_flops_per_s", "best_matmul_flops_per_s")
    }
    yield "twice the matrix rate", _with_chip(system, chip.model_copy(update=rates))
    memory = chip.main_memory
    if memory.bandwidth_bytes_per_s is not None:
        faster = memory.model_copy(
            update={"bandwidth_bytes_per_s": memory.bandwidth_bytes_per_s * FACTOR}
        )
        memories = (*chip.memories[:-1], faster)
        yield (
            f"twice the {memory.name} bandwidth",
            _with_chip(system, chip.model_copy(update={"memories": memories})),
        )
    for index, level in enumerate(system.levels):
        wider = level.model_copy(
            update={"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s * FACTOR}
        )
        levels = (*system.levels[:index], wider, *system.levels[index + 1 :])
        yield f"twice the {level.name} bandwidth", system.model_copy(update={"levels": levels})


def _with_chip(system: SystemSpec, chip: ChipSpec) -> SystemSpec:
    return system.model_copy(update={"chip": chip})
