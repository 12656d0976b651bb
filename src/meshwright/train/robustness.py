"""Robustness of a plan: other constants within their intervals, and twice of one resource.

Whether the winner still wins under redrawn calibrated constants, and the resource that limits it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import column, take_rows
from meshwright.base.records import Brief
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns, price_one
from meshwright.search.exhaustive import Found
from meshwright.search.robustness import DrawnTimes, drawn
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.calibration import calibration_columns
from meshwright.spec.doubled import doubled
from meshwright.train.measured.factors import SCALED, Factors, scaled

NUM_DRAWS = 256
SEED = 20_240_001


def perturbed(
    problem: Problem, num_draws: int = NUM_DRAWS, seed: int = SEED, factors: Factors | None = None
) -> Problem:
    """Return the problem with a column of draws in place of each constant that has an interval.

    Draws are independent, the same ones for every candidate. Where factors of the resources were
    measured, constants of a resource move together, as their errors do.

    Parameters
    ----------
    factors
        Those that scale the constants of the problem; None: nothing was measured.
    """
    if factors is not None and not factors.is_applied:
        factors = None
    generator = np.random.default_rng(seed)
    constants = problem.nominal_calibration
    draws = {
        name: drawn(getattr(constants, name), low, high, generator.uniform(-1.0, 1.0, num_draws))
        for name, (low, high) in sorted(constants.intervals.items())
        if high > low and (factors is None or name not in SCALED)
    }
    if factors is not None:
        constants = scaled(constants, factors.draws(num_draws, generator))
    return replace(problem, calibration=calibration_columns(constants, draws))


def robustness(
    problem: Problem, found: Sequence[Found], num_draws: int = NUM_DRAWS, seed: int = SEED,
    factors: Factors | None = None,
) -> DrawnTimes:  # fmt: skip
    """Return the times of candidates under perturbed constants."""
    columns = perturbed(problem, num_draws, seed, factors)
    times = []
    for candidate in found:
        strategies = stack([candidate.strategy] * num_draws)
        network = None
        if candidate.placement is not None:
            placement = take_rows(candidate.placement, [0] * num_draws)
            network = columns.network_with(placement, strategies)
        priced = price_columns(columns, candidate.plan_options, strategies, network)
        times.append(priced.step.time.total_s + np.zeros(num_draws))
    return DrawnTimes(np.array(times))


@dataclass(frozen=True)
class Change(Brief):
    """One changed resource, and the step time of the same plan with it, in closed form."""

    what: str
    step_time_s: float
    faster_by_fraction: float
    baseline_s: float
    """Step time without it, in closed form [s]: on a grid less than that of the plan, where axes
    share links."""


def changes(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> list[Change]:
    """Return the changes that help this plan most, largest first."""
    base_s = _step_s(problem, strategy, plan_options)
    found = []
    for what, changed in doubled(problem.system):
        step_s = _step_s(replace(problem, system=changed), strategy, plan_options)
        found.append(Change(what, step_s, 1.0 - step_s / base_s, base_s))
    if not problem.system.chip.is_dataflow:
        graphs = problem.workload.software.model_copy(update={"cuda_graphs": True})
        with_graphs = problem.workload.model_copy(update={"software": graphs})
        step_s = _step_s(replace(problem, workload=with_graphs), strategy, plan_options)
        found.append(Change("CUDA graphs", step_s, 1.0 - step_s / base_s, base_s))
    return sorted(found, key=lambda change: -change.faster_by_fraction)


def _step_s(problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> float:
    return float(column(price_one(problem, plan_options, strategy).step.time.total_s)[0])
