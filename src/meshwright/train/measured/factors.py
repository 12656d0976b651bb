"""Factors of the resources, estimated from measured steps: the most probable ones, and how sure.

ln(measured) = ln t(x) + what no factor explains, with x = ln(factor) of each resource. x is normal
around 0 with the spreads of ``priors``. The most probable x is found by Gauss-Newton steps, its
covariance by the curvature there (Laplace). One measurement is one equation for six unknowns: what
it cannot tell apart stays as uncertain as before, and correlated.

Source: Gelman et al., Bayesian Data Analysis (2013), sections 4.1 (normal approximation at the
mode) and 14.8 (normal priors as additional rows of a least-squares problem).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.calibration import Calibration
from meshwright.train.measured.resources import (
    NAMES,
    RESOURCES,
    lowest_log_factors,
    scaled,
    scaled_intervals,
)

PLAN_ERROR = 0.05
"""Standard deviation of ln(time) of one plan that no resource explains. Rows of one source, model
and chip leave 0.055 with factors of their own (benchmarks/measured_jobs.py)."""
CHOICE_ERROR = 0.4
"""Error of the effect of a choice on ln(time), as a share of the effect, where degrees and
micro-batch stay. 28 pairs of published rows miss by 0.35 of it (benchmarks/choice_effects.py)."""
STEP_NOISE = 0.02
"""Standard deviation of ln(time) when the same plan is measured again, over some steps."""
TAIL = 1.645
"""Standard deviations from the middle to the 5th and the 95th percentile."""
STEP = 0.02
"""Of a logarithm, for differences."""
MOST_ROUNDS = 12
CLOSE = 1e-4


@dataclass(frozen=True)
class Measurement:
    """One measured job: what ran, and how long a step took."""

    name: str
    problem: Problem
    strategy: Strategy
    structure: PlanOptions
    step_s: float


@dataclass(frozen=True)
class Factor:
    """How much longer the work on one resource takes than calibrated."""

    resource: str
    factor: float
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""
    prior_low: float
    """The same before the measurements."""
    prior_high: float


@dataclass(frozen=True)
class Factors:
    """The factors that measurements suggest, with all that is known about their errors."""

    num_measurements: int
    factors: tuple[Factor, ...]
    """One for each resource, in their order."""
    log_covariance: tuple[tuple[float, ...], ...]
    """Of the logarithms of the factors."""

    @property
    def values(self) -> FloatArray:
        """The factors alone, shape (resources,)."""
        return np.array([entry.factor for entry in self.factors])

    def draws(self, num_draws: int, generator: np.random.Generator) -> FloatArray:
        """Return draws of the factors relative to their middle, shape (resources, draws)."""
        values, vectors = np.linalg.eigh(np.array(self.log_covariance))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(np.exp(root @ generator.standard_normal((len(values), num_draws))))

    def applied(self, calibration: Calibration) -> Calibration:
        """Return constants under the factors, with intervals as wide as those of the factors."""
        changed = scaled(calibration, self.values)
        widths = [(e.low / e.factor, e.high / e.factor) for e in self.factors]
        told = f"{self.num_measurements} measurement" + "s" * (self.num_measurements > 1)
        return replace(
            changed,
            intervals=scaled_intervals(calibration.intervals, changed, widths),
            source=f"{calibration.source}; adjusted by {told}",
        )


def estimated(measurements: Sequence[Measurement], spreads: FloatArray) -> Factors:
    """Return the most probable factors behind some measurements.

    Parameters
    ----------
    spreads
        Standard deviations of ln(factor) before them, shape (resources,).
    """
    target = np.log([entry.step_s for entry in measurements])
    noise = noise_covariance(measurements)
    lowest = lowest_values(measurements)
    values = np.zeros(len(RESOURCES))
    for _ in range(MOST_ROUNDS):
        logs, slopes = logs_and_slopes(measurements, values)
        found, covariance = most_probable(target - logs + slopes @ values, slopes, noise, spreads,
                                          lowest)  # fmt: skip
        step, values = found - values, found
        if np.abs(step).max() < CLOSE:
            break
    return _factors(len(measurements), values, covariance, spreads)


def most_probable(
    errors: FloatArray, slopes: FloatArray, noise: FloatArray, spreads: FloatArray,
    lowest: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return ln(factor) of least squares, (resources,), and their covariance.

    Least (errors - slopes x)' noise^-1 (errors - slopes x) + sum (x / spreads)^2 with x at least
    ``lowest``; the covariance is the inverse of its curvature.

    Parameters
    ----------
    errors
        ln(measured / predicted without factors) of each job, (jobs,).
    slopes
        Derivatives of ln(time) in ln(factor), (jobs, resources).
    noise
        Covariance of what no factor explains, (jobs, jobs).
    """
    from scipy.optimize import lsq_linear

    whiten = np.linalg.inv(np.linalg.cholesky(noise))
    matrix = np.vstack([whiten @ slopes, np.diag(1.0 / spreads)])
    target = np.concatenate([whiten @ errors, np.zeros(len(spreads))])
    found = lsq_linear(matrix, target, (lowest - 1e-9, np.full(len(spreads), np.inf))).x
    return np.asarray(found), np.asarray(np.linalg.inv(matrix.T @ matrix), dtype=float)


def expected_log_spread(measurement: Measurement, log_covariance: Any) -> float:
    """Return the standard deviation of ln(measured / predicted) that is expected of a job.

    Parameters
    ----------
    log_covariance
        Of the logarithms of the factors, (resources, resources).
    """
    _, slopes = logs_and_slopes([measurement], np.zeros(len(RESOURCES)))
    variance = slopes[0] @ np.array(log_covariance) @ slopes[0]
    return float(np.sqrt(variance + PLAN_ERROR**2 + STEP_NOISE**2))


def step_seconds(
    problem: Problem, strategy: Strategy, structure: PlanOptions, factors: FloatArray
) -> FloatArray:
    """Return the step time of one strategy under columns of factors [s].

    Parameters
    ----------
    factors
        Shape (resources, draws).
    """
    columns: Any = replace(problem, calibration=scaled(problem.calibration, factors))
    num_draws = factors.shape[1]
    priced = price_columns(columns, structure, stack([strategy] * num_draws))
    return np.asarray(priced.step.time.total_s + np.zeros(num_draws))


def logs_and_slopes(
    measurements: Sequence[Measurement], values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ln(time) of each job, (jobs,), and its slopes in ln(factor), (jobs, resources)."""
    moved = values[:, None] + STEP * np.hstack([np.zeros((len(values), 1)), np.eye(len(values))])
    logs = np.log(
        [
            step_seconds(entry.problem, entry.strategy, entry.structure, np.exp(moved))
            for entry in measurements
        ]
    )
    return logs[:, 0], (logs[:, 1:] - logs[:, :1]) / STEP


def noise_covariance(measurements: Sequence[Measurement]) -> FloatArray:
    """Return the covariance of what no factor explains; equal plans share the error of theirs."""
    plans = [
        (entry.problem.model, entry.problem.system, entry.problem.workload,
         entry.strategy, entry.structure)
        for entry in measurements
    ]  # fmt: skip
    same = np.array([[a == b for b in plans] for a in plans], dtype=float)
    return np.asarray(PLAN_ERROR**2 * same + STEP_NOISE**2 * np.eye(len(plans)))


def lowest_values(measurements: Sequence[Measurement]) -> FloatArray:
    """Return the least ln(factor) of each resource, (resources,): that of its data sheet."""
    limits = [lowest_log_factors(entry.problem.calibration) for entry in measurements]
    return np.asarray(np.minimum(np.max(limits, axis=0), 0.0))


def _factors(
    number: int, values: FloatArray, covariance: FloatArray, spreads: FloatArray
) -> Factors:
    """Return the estimate as plain numbers."""
    deviations = np.sqrt(np.diag(covariance))
    told = tuple(
        Factor(
            name,
            float(np.exp(value)),
            float(np.exp(value - TAIL * deviation)),
            float(np.exp(value + TAIL * deviation)),
            float(np.exp(-TAIL * spread)),
            float(np.exp(TAIL * spread)),
        )
        for name, value, deviation, spread in zip(NAMES, values, deviations, spreads, strict=True)
    )
    rows = tuple(tuple(float(entry) for entry in row) for row in covariance)
    return Factors(number, told, rows)
