"""Factors of the resources of a machine: what they scale, and what each adds to a step.

Constants give the cost of work on each resource; a factor scales them. A difference between a
measured and a predicted step is split over the resources.
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


RESOURCES = (
    Resource("compute", "matrix units", rates=("matmul_sustained_efficiency",)),
    Resource(
        "attention",
        "attention kernels",
        rates=("attention_forward_efficiency", "attention_backward_efficiency"),
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


PLAN_ERROR = 0.05
"""Standard deviation of ln(time) of one plan that no resource explains. Rows of one source, model
and chip leave 0.055 with factors of their own (benchmarks/measured_jobs.py)."""
CHOICE_ERROR = 0.4
"""Error of the effect of a choice on ln(time), as a share of the effect, where degrees and
micro-batch stay. 28 pairs of published rows miss by 0.35 of it (benchmarks/choice_effects.py)."""
STEP_NOISE = 0.02
"""Standard deviation of ln(time) when the same plan is measured again, over some steps."""
STEP = 0.02
"""Step of a logarithm for differences [1]."""


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
class Verdict(Brief):
    """Whether measured jobs adjust the constants, and why."""

    is_applied: bool
    reason: str
    num_plans: int
    """Different plans among the jobs."""
    evidence: float
    """Probability of the jobs if sources differ, over that if theirs is as published [1]."""
    before: float
    """Mean |ln(measured / predicted)| of the jobs under the published constants."""
    left_out: float | None = None
    """Mean |ln(measured / predicted)| of each plan under factors of others; None: there is one."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of few plans."""
        if self.num_plans >= FEWEST_PLANS:
            return ()
        plans = counted(self.num_plans, "plan")
        return (f"{plans} measured: measure {FEWEST_PLANS} or more, near the ones in question",)


FEWEST_PLANS = 3
"""Plans from which factors are no longer a guess."""


@dataclass(frozen=True)
class Factors(Listed):
    """Factors of the resources from measurements, with their errors."""

    num_measurements: int
    factors: tuple[Factor, ...]
    """One for each resource, in their order."""
    log_covariance: tuple[tuple[float, ...], ...]
    """Covariance of the logarithms of the factors."""
    verdict: Verdict | None = None
    """Whether they are applied; None: without question."""

    @property
    def is_applied(self) -> bool:
        """Whether the factors adjust the constants."""
        return self.verdict is None or self.verdict.is_applied

    def brief(self) -> str:
        """Return the factor of the time on each resource, in words, or why constants stay."""
        if self.verdict is not None and not self.is_applied:
            return self.verdict.reason
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
        if not self.is_applied:
            return calibration
        changed = scaled(calibration, self.values)
        widths = [(e.low / e.factor, e.high / e.factor) for e in self.factors]
        jobs = f"{self.num_measurements} measurement" + "s" * (self.num_measurements > 1)
        return replace(
            changed,
            intervals=scaled_intervals(calibration.intervals, changed, widths),
            source=f"{calibration.source}; adjusted by {jobs}",
        )


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


def lowest_values(measurements: Sequence[Measurement]) -> FloatArray:
    """Return the least ln(factor) of each resource, (resources,): the rate of its data sheet."""
    limits = [lowest_log_factors(entry.problem.nominal_calibration) for entry in measurements]
    return np.asarray(np.minimum(np.max(limits, axis=0), 0.0))


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
