"""Factors learned from measured jobs, and the decision whether they replace the published ones.

Jobs of one source share factors of the resources. Their prior is as wide as published sources
differ from constants that were fitted without them; each job has an error of its own around them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.problem import Problem
from meshwright.search.intervals import UNSEEN, distance_of, traits_of
from meshwright.spec.calibration import Between, Tail
from meshwright.train.measured.factors import (
    NAMES,
    STEP_NOISE,
    Factor,
    Factors,
    Measurement,
    Verdict,
    logs_and_slopes,
    lowest_values,
)

NO_FACTORS = np.zeros(len(NAMES))
"""ln(factor) of all resources under the constants themselves."""
UNFITTED = Between(
    common=0.15, resources=dict.fromkeys(NAMES, 0.15), job=Tail(distance=0.1, factors={})
)
"""Differences that are assumed where constants were not fitted."""
LEAST_EVIDENCE = 1.0
"""Evidence from which jobs have factors of their own."""
TAIL = 1.645
"""Standard deviations from the middle to the 5th and the 95th percentile."""
MOST_ROUNDS = 12
CLOSE = 1e-4


@dataclass(frozen=True)
class Jobs:
    """Measured jobs of one source, in the slopes at the constants that price them."""

    errors: FloatArray
    """ln(measured / predicted), (jobs,)."""
    slopes: FloatArray
    """Derivatives of ln(time) in ln(factor), (jobs, resources)."""
    same: BoolArray
    """Whether two jobs have one plan, (jobs, jobs)."""
    noise: FloatArray
    """Covariance that no factor explains, (jobs, jobs)."""
    prior: FloatArray
    """Covariance of ln(factor) before the jobs, (resources, resources)."""
    lowest: FloatArray
    """Least ln(factor), (resources,)."""

    def some(self, kept: BoolArray) -> Jobs:
        """Return some of the jobs."""
        return replace(
            self, errors=self.errors[kept], slopes=self.slopes[kept],
            same=self.same[np.ix_(kept, kept)], noise=self.noise[np.ix_(kept, kept)],
        )  # fmt: skip

    @property
    def num_plans(self) -> int:
        """Number of different plans."""
        return len(np.unique(self.same, axis=0))

    def most_probable(self) -> tuple[FloatArray, FloatArray]:
        """Return ln(factor) of least squares, (resources,), and their covariance.

        Least (errors - slopes x)' noise^-1 (errors - slopes x) + x' prior^-1 x with x at least
        ``lowest``; the covariance is the inverse of its curvature.
        """
        from scipy.optimize import lsq_linear

        whiten, held = (np.linalg.inv(np.linalg.cholesky(v)) for v in (self.noise, self.prior))
        matrix = np.vstack([whiten @ self.slopes, held])
        target = np.concatenate([whiten @ self.errors, np.zeros(len(held))])
        found = lsq_linear(matrix, target, (self.lowest - 1e-9, np.full(len(held), np.inf))).x
        return np.asarray(found), np.asarray(np.linalg.inv(matrix.T @ matrix), dtype=float)

    @property
    def evidence(self) -> float:
        """Probability of the errors with factors of the source over that without any [1]."""
        spread = self.slopes @ self.prior @ self.slopes.T
        log_ratio = log_normal(self.errors, self.noise + spread)
        return float(np.exp(min(log_ratio - log_normal(self.errors, self.noise), MOST_LOG)))

    def left_out(self) -> FloatArray:
        """Return the error of each job under factors of all other plans, (jobs,); NaN: no other."""
        left = np.full(len(self.errors), np.nan)
        for index, mine in enumerate(self.same if self.num_plans > 1 else ()):
            factors, _ = self.some(~mine).most_probable()
            left[index] = self.errors[index] - self.slopes[index] @ factors
        return left

    def verdict(self) -> Verdict:
        """Return whether the factors of these jobs replace the published constants."""
        before, evidence = float(np.abs(self.errors).mean()), self.evidence
        left = float(np.abs(self.left_out()).mean()) if self.num_plans > 1 else None
        found = partial(Verdict, num_plans=self.num_plans, evidence=evidence, before=before,
                        left_out=left)  # fmt: skip
        if evidence < LEAST_EVIDENCE:
            return found(False, f"{before:.0%} off, as jobs of published sources are: constants "
                         "stay as published")  # fmt: skip
        if left is None:
            return found(True, f"{before:.0%} off, more than jobs of published sources are")
        shown = f"{left:.0%} off when left out, {before:.0%} under the published constants"
        if left >= before:
            return found(False, f"{shown}: constants stay as published")
        return found(True, shown)


MOST_LOG = 50.0
"""Largest logarithm of an evidence that is told."""


def log_normal(errors: FloatArray, covariance: FloatArray) -> float:
    """Return the logarithm of the density of errors around 0, without its constant part."""
    root = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(root, errors)
    return float(-0.5 * scaled @ scaled - np.log(np.diag(root)).sum())


def jobs_of(measurements: Sequence[Measurement], values: FloatArray = NO_FACTORS) -> Jobs:
    """Return measured jobs in the slopes at some ln(factor), around which errors are."""
    logs, slopes = logs_and_slopes(measurements, values)
    problems = [entry.problem for entry in measurements]
    plans = [(entry.problem.model, entry.problem.system, entry.problem.workload,
              entry.strategy, entry.plan_options) for entry in measurements]  # fmt: skip
    same = np.array([[a == b for b in plans] for a in plans])
    own = [job_spread(problem, slope) for problem, slope in zip(problems, slopes, strict=True)]
    return Jobs(
        errors=np.log([entry.step_s for entry in measurements]) - logs + slopes @ values,
        slopes=slopes,
        same=same,
        noise=np.outer(own, own) * same + STEP_NOISE**2 * np.eye(len(plans)),
        prior=np.mean([prior_covariance(problem) for problem in problems], axis=0),
        lowest=lowest_values(measurements),
    )


def between_of(problem: Problem) -> Between:
    """Return the differences between sources that the constants of a problem state."""
    return problem.nominal_calibration.between or UNFITTED


def prior_covariance(problem: Problem) -> FloatArray:
    """Return the covariance of ln(factor) before any measurement, (resources, resources).

    c^2 + diag(s_r^2), c of all resources and s_r of each; both wider for a family of chips
    without measured rows, as its intervals are.
    """
    between, constants = between_of(problem), problem.nominal_calibration
    own = [between.resources[name] for name in NAMES]
    spread, wider = constants.spread, 1.0
    if spread is not None and not constants.is_calibrated:
        wider = max(tail.factors.get(UNSEEN, 1.0) for tail in (spread.slower, spread.faster))
    return np.asarray(wider**2 * (between.common**2 + np.diag(np.square(own))))


def degrees_of(problem: Problem, slopes: FloatArray) -> dict[str, float]:
    """Return the degrees of the traits of a job.

    Parameters
    ----------
    slopes
        Those of ln(time) in ln(factor), (resources,): that of launches is the share of the host.
    """
    share = float(slopes[NAMES.index("launches")])
    return traits_of(problem, is_seen=True, host_share=share)


def job_spread(problem: Problem, slopes: FloatArray) -> float:
    """Return the standard deviation of ln(time) of a job around the factors of its source."""
    return distance_of(between_of(problem).job, degrees_of(problem, slopes))


def learn(measurements: Sequence[Measurement]) -> Factors:
    """Return the factors behind measured steps of one family of chips, applied where they help.

    They are applied where the jobs are more probable with factors of their own than under the
    published constants, and where plans left out are foreseen better by the others.

    Raises
    ------
    SpecError
        Measurements of several families of chips: they say nothing about each other.
    """
    chips = {entry.problem.system.chip.family for entry in measurements}
    if len(chips) != 1:
        found = ", ".join(sorted(chips)) or "none"
        raise SpecError(Fault("measurements", f"of chips of one family, found {found}"))
    jobs = jobs_of(measurements)
    verdict = jobs.verdict()
    if verdict.is_applied:
        return replace(estimated(measurements), verdict=verdict)
    return _factors(jobs, NO_FACTORS, jobs.prior, verdict)


def estimated(measurements: Sequence[Measurement]) -> Factors:
    """Return the most probable factors behind some measurements, whether they help or not."""
    values = NO_FACTORS
    for _ in range(MOST_ROUNDS):
        jobs = jobs_of(measurements, values)
        found, covariance = jobs.most_probable()
        step, values = found - values, found
        if np.abs(step).max() < CLOSE:
            break
    return _factors(jobs, values, covariance)


def _factors(
    jobs: Jobs, values: FloatArray, covariance: FloatArray, verdict: Verdict | None = None
) -> Factors:
    """Return factors as plain numbers."""
    deviations, spreads = np.sqrt(np.diag(covariance)), np.sqrt(np.diag(jobs.prior))
    entries = tuple(
        Factor(name, *np.exp([value, value - TAIL * deviation, value + TAIL * deviation,
                              -TAIL * spread, TAIL * spread]).tolist())
        for name, value, deviation, spread in zip(NAMES, values, deviations, spreads, strict=True)
    )  # fmt: skip
    rows = tuple(tuple(row) for row in covariance.tolist())
    return Factors(len(jobs.errors), entries, rows, verdict)


def expected_log_spread(measurement: Measurement, factors: Factors | None = None) -> float:
    """Return the expected standard deviation of ln(measured / predicted) of a job.

    Parameters
    ----------
    factors
        Those that the prediction holds; None: none were learned.
    """
    _, (slopes,) = logs_and_slopes([measurement], NO_FACTORS)
    problem = measurement.problem
    covariance = prior_covariance(problem) if factors is None else np.array(factors.log_covariance)
    own = job_spread(problem, slopes)
    return math.sqrt(slopes @ covariance @ slopes + own**2 + STEP_NOISE**2)
