"""Factors of the resources of a machine, estimated from measured steps.

Constants give the cost of work on each resource; a factor scales them. Expected
factors (the prior) come from the calibration; the most probable ones from the measurements; and a
difference between a measured and a predicted step is split over the resources.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import factorial
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, Num
from meshwright.base.records import Brief, Listed, Rows, scalars
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.search.intervals import Distances
from meshwright.sharding.strategy import PlanOptions, Strategy, stack
from meshwright.spec.calibration import Calibration, CalibrationOf, calibration_columns
from meshwright.view.words import counted, words


@dataclass(frozen=True)
class Resource:
    """A resource that work waits for. A factor above 1 multiplies the time of the work on it."""

    name: str
    title: str
    rates: tuple[str, ...] = ()
    """Constants that are shares of the rate in the data sheet: divided by the factor."""
    times: tuple[str, ...] = ()
    """Constants that are seconds, or shares of a step: multiplied by the factor."""

    @property
    def main(self) -> str:
        """The constant with the interval that tells how well the resource is known."""
        return (*self.rates, *self.times)[0]


RESOURCES = (
    Resource(
        "compute",
        "matrix units",
        rates=(
            "matmul_sustained_efficiency",
            "attention_forward_efficiency",
            "attention_backward_efficiency",
        ),
    ),
    Resource("memory", "memory traffic", rates=("memory_efficiency", "elementwise_efficiency")),
    Resource("fast_network", "network inside a host or grid", rates=("fast_network_efficiency",)),
    Resource("slow_network", "network between hosts", rates=("slow_network_efficiency",)),
    Resource(
        "launches", "launches by the host", times=("launch_s", "operator_s", "collective_launch_s")
    ),
    Resource("waiting", "waiting for the slowest device", times=("jitter",)),
)
"""Resources in the order of all lists."""

NAMES = tuple(resource.name for resource in RESOURCES)
SCALED = tuple(name for resource in RESOURCES for name in (*resource.rates, *resource.times))
"""The constants of all resources."""
LEAST_FACTOR = 1e-3
"""Least factor of times, which no data sheet bounds."""


def scaled(
    calibration: CalibrationOf[Any], factors: Sequence[Num] | FloatArray
) -> CalibrationOf[Any]:
    """Return the constants under factors of the resources.

    Parameters
    ----------
    factors
        One number, or one column of draws, for each of ``RESOURCES`` [1].
    """
    changed: dict[str, Any] = {}
    for resource, factor in zip(RESOURCES, factors, strict=True):
        changed |= {name: getattr(calibration, name) / factor for name in resource.rates}
        changed |= {name: getattr(calibration, name) * factor for name in resource.times}
    return calibration_columns(calibration, changed)


def lowest_log_factors(calibration: CalibrationOf[float]) -> list[float]:
    """Return ln of the least factor of each resource: no rate is above its data sheet."""
    return [
        math.log(max((getattr(calibration, name) for name in resource.rates), default=LEAST_FACTOR))
        for resource in RESOURCES
    ]


def scaled_intervals(
    intervals: Mapping[str, tuple[float, float]], calibration: CalibrationOf[float],
    widths: Sequence[tuple[float, float]],
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Return the intervals of constants, those of the resources as wide as their factors."""
    found = dict(intervals)
    for resource, (low, high) in zip(RESOURCES, widths, strict=True):
        for name in resource.rates:
            value = getattr(calibration, name)
            found[name] = (value / high, min(value / low, max(1.0, value)))
        for name in resource.times:
            value = getattr(calibration, name)
            found[name] = (value * low, value * high)
    return found


UNFITTED = 0.15
"""Spread of ln(predicted / measured) that is assumed where constants were not fitted."""
MOST = 0.42
"""Largest expected spread: a factor of 2 from the 5th to the 95th percentile."""
HALF_OF_80_PERCENT = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of normal values."""


def residual_spread(ends: Distances | None) -> float:
    """Return the spread of measurements of such questions around their prediction, in ln(time).

    Parameters
    ----------
    ends
        Ends of the 80 % interval of ln(measured / predicted); None: nothing was fitted.

    Returns
    -------
    float
        The standard deviation of a normal error with an interval of the same width.
    """
    if ends is None:
        return UNFITTED
    return (ends.slower + ends.faster) / 2.0 / HALF_OF_80_PERCENT


def prior_covariance(calibration: CalibrationOf[float], residual: float) -> FloatArray:
    """Return the covariance of ln(factor) before measurements, (resources, resources).

    Half of the variance of rows left out is taken as common to all resources, as software that is
    slower in everything; the other half, or the interval of its constant where that is wider,
    belongs to each resource alone: c^2 + diag(s_r^2) with c = residual / sqrt(2) and s_r = max(c,
    interval), each up to ``MOST``.

    Parameters
    ----------
    residual
        Standard deviation of ln(predicted / measured) of rows left out of the fit.
    """
    common = min(residual / math.sqrt(2.0), MOST)
    own = [min(max(common, _of_interval(calibration, entry)), MOST) for entry in RESOURCES]
    return np.asarray(common**2 + np.diag(np.square(own)))


def _of_interval(calibration: CalibrationOf[float], resource: Resource) -> float:
    """Return the standard deviation of the logarithm of a constant, uniform over its interval.

    It is that of a lognormal value with the same ratio v of standard deviation to mean:
    sqrt(ln(1 + v^2)).
    """
    value = getattr(calibration, resource.main)
    low, high = calibration.intervals.get(resource.main, (value, value))
    if value <= 0:
        return 0.0
    variation = (high - low) / math.sqrt(12.0) / value
    return math.sqrt(math.log1p(variation**2))


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
"""Step of a logarithm for differences [1]."""
MOST_ROUNDS = 12
CLOSE = 1e-4


@dataclass(frozen=True)
class Measurement:
    """One measured job: its plan, and the time of a step."""

    name: str
    problem: Problem
    strategy: Strategy
    plan_options: PlanOptions
    step_s: float


@dataclass(frozen=True)
class Factor(Brief):
    """Time of the work on one resource over its calibrated time."""

    resource: str
    factor: float
    low: float
    """5th percentile."""
    high: float
    """95th percentile."""
    prior_low: float
    """5th percentile before the measurements."""
    prior_high: float


@dataclass(frozen=True)
class Factors(Listed):
    """Factors of the resources from measurements, with their errors."""

    num_measurements: int
    factors: tuple[Factor, ...]
    """One for each resource, in their order."""
    log_covariance: tuple[tuple[float, ...], ...]
    """Covariance of the logarithms of the factors."""

    def brief(self) -> str:
        """Return the factor of the time on each resource, in words."""
        shown = ", ".join(f"{words(one.resource)} {one.factor:.2f}x" for one in self.factors)
        return f"{counted(self.num_measurements, 'measured job')}: {shown}"

    def rows(self) -> Rows:
        """Return the factor of each resource with its intervals."""
        return [scalars(one) for one in self.factors]

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
        jobs = f"{self.num_measurements} measurement" + "s" * (self.num_measurements > 1)
        return replace(
            changed,
            intervals=scaled_intervals(calibration.intervals, changed, widths),
            source=f"{calibration.source}; adjusted by {jobs}",
        )


def estimated(measurements: Sequence[Measurement], prior: FloatArray) -> Factors:
    """Return the most probable factors behind some measurements.

    Parameters
    ----------
    prior
        Covariance of ln(factor) before them, shape (resources, resources).
    """
    target = np.log([entry.step_s for entry in measurements])
    noise = noise_covariance(measurements)
    lowest = lowest_values(measurements)
    values = np.zeros(len(RESOURCES))
    for _ in range(MOST_ROUNDS):
        logs, slopes = logs_and_slopes(measurements, values)
        found, covariance = most_probable(target - logs + slopes @ values, slopes, noise, prior,
                                          lowest)  # fmt: skip
        step, values = found - values, found
        if np.abs(step).max() < CLOSE:
            break
    return _factors(len(measurements), values, covariance, prior)


def most_probable(
    errors: FloatArray, slopes: FloatArray, noise: FloatArray, prior: FloatArray,
    lowest: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return ln(factor) of least squares, (resources,), and their covariance.

    Least (errors - slopes x)' noise^-1 (errors - slopes x) + x' prior^-1 x with x at least
    ``lowest``; the covariance is the inverse of its curvature.

    Parameters
    ----------
    errors
        ln(measured / predicted without factors) of each job, (jobs,).
    slopes
        Derivatives of ln(time) in ln(factor), (jobs, resources).
    noise
        Covariance that no factor explains, (jobs, jobs).
    prior
        Covariance of ln(factor) before the jobs, (resources, resources).
    """
    from scipy.optimize import lsq_linear

    whiten = np.linalg.inv(np.linalg.cholesky(noise))
    matrix = np.vstack([whiten @ slopes, np.linalg.inv(np.linalg.cholesky(prior))])
    target = np.concatenate([whiten @ errors, np.zeros(len(prior))])
    found = lsq_linear(matrix, target, (lowest - 1e-9, np.full(len(prior), np.inf))).x
    return np.asarray(found), np.asarray(np.linalg.inv(matrix.T @ matrix), dtype=float)


def expected_log_spread(
    measurement: Measurement, log_covariance: Sequence[Sequence[float]] | FloatArray
) -> float:
    """Return the expected standard deviation of ln(measured / predicted) of a job.

    Parameters
    ----------
    log_covariance
        Covariance of the logarithms of the factors, (resources, resources).
    """
    _, slopes = logs_and_slopes([measurement], np.zeros(len(RESOURCES)))
    variance = slopes[0] @ np.array(log_covariance) @ slopes[0]
    return float(np.sqrt(variance + PLAN_ERROR**2 + STEP_NOISE**2))


def step_seconds(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions, factors: FloatArray
) -> FloatArray:
    """Return the step time of one strategy under columns of factors [s].

    Parameters
    ----------
    factors
        Shape (resources, draws).
    """
    columns: Any = replace(problem, calibration=scaled(problem.calibration, factors))
    num_draws = factors.shape[1]
    priced = price_columns(columns, plan_options, stack([strategy] * num_draws))
    return np.asarray(priced.step.time.total_s + np.zeros(num_draws))


def logs_and_slopes(
    measurements: Sequence[Measurement], values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return ln(time) of each job, (jobs,), and its slopes in ln(factor), (jobs, resources)."""
    moved = values[:, None] + STEP * np.hstack([np.zeros((len(values), 1)), np.eye(len(values))])
    logs = np.log(
        [
            step_seconds(entry.problem, entry.strategy, entry.plan_options, np.exp(moved))
            for entry in measurements
        ]
    )
    return logs[:, 0], (logs[:, 1:] - logs[:, :1]) / STEP


def noise_covariance(measurements: Sequence[Measurement]) -> FloatArray:
    """Return the covariance that no factor explains; equal plans share the error of theirs."""
    plans = [
        (entry.problem.model, entry.problem.system, entry.problem.workload,
         entry.strategy, entry.plan_options)
        for entry in measurements
    ]  # fmt: skip
    same = np.array([[a == b for b in plans] for a in plans], dtype=float)
    return np.asarray(PLAN_ERROR**2 * same + STEP_NOISE**2 * np.eye(len(plans)))


def lowest_values(measurements: Sequence[Measurement]) -> FloatArray:
    """Return the least ln(factor) of each resource, (resources,): the rate of its data sheet."""
    limits = [lowest_log_factors(entry.problem.nominal_calibration) for entry in measurements]
    return np.asarray(np.minimum(np.max(limits, axis=0), 0.0))


def _factors(number: int, values: FloatArray, covariance: FloatArray, prior: FloatArray) -> Factors:
    """Return the estimate as plain numbers."""
    deviations, spreads = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(prior))
    entries = tuple(
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
    return Factors(number, entries, rows)


def losses_s(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions, factors: FloatArray
) -> FloatArray:
    """Return the time that the factor of each resource adds to a step [s].

    Resources act together (a slower network may hide behind slower products), so each one gets
    its mean effect over all orders in which the factors could set in. The shares sum to the
    difference between the step under all factors and under none.

    Parameters
    ----------
    problem
        Problem under the calibrated constants.
    factors
        Shape (resources, draws).

    Returns
    -------
    FloatArray
        Shape (resources, draws).

    Source: Shapley (1953), A Value for n-Person Games.
    """
    number, num_draws = factors.shape
    sets = np.arange(2**number)
    members = (sets[:, None] >> np.arange(number)) & 1
    columns = np.where(members.T[:, :, None] == 1, factors[:, None, :], 1.0)
    seconds = step_seconds(problem, strategy, plan_options, columns.reshape(number, -1))
    by_set = seconds.reshape(2**number, num_draws)
    sizes = members.sum(axis=1)
    weights = np.array([factorial(s) * factorial(number - s - 1) for s in range(number)])
    shares = []
    for index in range(len(RESOURCES)):
        without = sets[members[:, index] == 0]
        gained = by_set[without | 1 << index] - by_set[without]
        shares.append(weights[sizes[without]] @ gained / factorial(number))
    return np.array(shares)
