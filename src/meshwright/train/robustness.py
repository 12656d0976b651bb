"""How firm a plan is: other constants within their intervals, and twice of one resource.

Whether the winner would still win if the calibrated constants were drawn anew, and what limits it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, column
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns, price_one
from meshwright.search.best import TIE, Found
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.calibration import calibration_columns
from meshwright.spec.chip import ChipSpec
from meshwright.spec.system import SystemSpec
from meshwright.train.measured.factors import SCALED, Factors, scaled

NUM_DRAWS = 256
SEED = 20_240_001


@dataclass(frozen=True)
class Verdict:
    """Step times of some candidates under perturbed constants, and what follows."""

    times_s: FloatArray
    """Shape (candidates, draws)."""

    @property
    def wins(self) -> FloatArray:
        """Share of the draws in which each candidate is the fastest."""
        best = self.times_s.argmin(axis=0)
        counts = np.bincount(best, minlength=len(self.times_s)).astype(np.float64)
        return counts / float(self.times_s.shape[1])

    def stays_first(self, index: int) -> float:
        """Return the share of the draws in which a candidate is the fastest, ties included."""
        limit_s = self.times_s.min(axis=0) * (1.0 + TIE)
        return float((self.times_s[index] <= limit_s).mean())

    @property
    def largest_regret(self) -> FloatArray:
        """Most that each candidate loses against the best of its draw, as a fraction."""
        best_s = self.times_s.min(axis=0)
        worst: FloatArray = (self.times_s / best_s - 1.0).max(axis=1)
        return worst

    def interval_s(self, index: int) -> tuple[float, float]:
        """Return the 5th and 95th percentile of the time of one candidate [s]."""
        low, high = np.percentile(self.times_s[index], [5.0, 95.0])
        return float(low), float(high)


def perturbed(
    problem: Problem, num_draws: int = NUM_DRAWS, seed: int = SEED, factors: Factors | None = None
) -> Problem:
    """Return the problem with a column of draws in place of each constant that has an interval.

    Draws are independent, the same ones for every candidate. Where factors of the resources were
    measured, constants of a resource move together, as their errors do.

    Parameters
    ----------
    factors
        Those under which the constants of the problem stand; None: nothing was measured.
    """
    generator = np.random.default_rng(seed)
    constants = problem.nominal_calibration
    draws = {
        name: _drawn(getattr(constants, name), low, high, generator.uniform(-1.0, 1.0, num_draws))
        for name, (low, high) in sorted(constants.intervals.items())
        if high > low and (factors is None or name not in SCALED)
    }
    if factors is not None:
        constants = scaled(constants, factors.draws(num_draws, generator))
    return replace(problem, calibration=calibration_columns(constants, draws))


def _drawn(value: float, low: float, high: float, at: FloatArray) -> FloatArray:
    """Return draws of a constant: evenly below its value and above it, as often either way.

    An interval that lies unevenly about its value thus shifts no median.

    Parameters
    ----------
    at
        From -1, the lowest value, to 1, the highest.
    """
    return np.where(at < 0.0, value + at * (value - low), value + at * (high - value))


def robustness(
    problem: Problem, found: Sequence[Found], num_draws: int = NUM_DRAWS, seed: int = SEED,
    factors: Factors | None = None,
) -> Verdict:  # fmt: skip
    """Return the times of candidates under perturbed constants."""
    shaken = perturbed(problem, num_draws, seed, factors)
    times = []
    for candidate in found:
        strategies = stack([candidate.strategy] * num_draws)
        priced = price_columns(shaken, candidate.structure, strategies)
        times.append(priced.step.time.total_s + np.zeros(num_draws))
    return Verdict(np.array(times))


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
    return float(column(price_one(problem, structure, strategy).step.time.total_s)[0])


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
