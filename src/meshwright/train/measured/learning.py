"""Factors learned from measured jobs, and the decision whether they replace the published ones.

Jobs of one source share factors of the resources. Their prior is as wide as published sources
differ from constants that were fitted without them; each job has an error of its own around them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.problem import Problem
from meshwright.search.intervals import EXPERTS, HOST, NARROW, UNSEEN, traits_of
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
    common=0.15,
    resources=dict.fromkeys(NAMES, 0.15),
    job=Tail(distance=0.1, factors={}),
    job_scatter=0.5,
)
"""Differences that are assumed where constants were not fitted."""
LEAST_EVIDENCE = 3.0
"""Evidence from which jobs have factors of their own: substantial (Jeffreys 1961, appendix B)."""
TAIL = 1.645
"""Standard deviations from the middle to the 5th and the 95th percentile."""
MOST_ROUNDS = 12
CLOSE = 1e-4


NODES, CHANCES = np.array([-(3.0**0.5), 0.0, 3.0**0.5]), np.array([1.0, 4.0, 1.0]) / 6.0
"""Values of a normal number, with their chances: its first five moments are right."""
JOB_TRAITS = (EXPERTS, NARROW, HOST)
"""Traits that widen the error of a job around the factors of its source."""


@dataclass(frozen=True)
class Jobs:
    """Measured jobs of one source, in the slopes at the constants that price them."""

    errors: FloatArray
    """ln(measured / predicted), (jobs,)."""
    slopes: FloatArray
    """Derivatives of ln(time) in ln(factor), (jobs, resources)."""
    degrees: FloatArray
    """Degrees of the traits, (jobs, traits)."""
    same: BoolArray
    """Whether two jobs have one plan, (jobs, jobs)."""
    lowest: FloatArray
    """Least ln(factor), (resources,)."""
    between: Between
    """Differences between sources."""

    @property
    def prior(self) -> FloatArray:
        """Covariance of ln(factor) before the jobs, (resources, resources)."""
        return prior_covariance(self.between)

    @property
    def noise(self) -> FloatArray:
        """Covariance that no factor explains, for each scale of the source, (nodes, jobs, jobs)."""
        tail, scales = self.between.job, np.exp(self.between.job_scatter * NODES)
        factors = np.array([tail.factors.get(name, 1.0) for name in JOB_TRAITS])
        own = tail.distance * np.prod(factors**self.degrees, axis=1)
        shared = np.outer(own, own) * self.same
        again = STEP_NOISE**2 * np.eye(len(own))
        return np.asarray(scales[:, None, None] ** 2 * shared + again)

    @property
    def expected_noise(self) -> FloatArray:
        """Mean of the noise over the scales, (jobs, jobs)."""
        return np.tensordot(CHANCES, self.noise, 1)

    def some(self, kept: BoolArray) -> Jobs:
        """Return some of the jobs."""
        return replace(
            self, errors=self.errors[kept], slopes=self.slopes[kept], degrees=self.degrees[kept],
            same=self.same[np.ix_(kept, kept)],
        )  # fmt: skip

    @property
    def num_plans(self) -> int:
        """Number of different plans."""
        return len(np.unique(self.same, axis=0))

    @cached_property
    def log_densities(self) -> FloatArray:
        """Logarithm of the density of the errors by scale, the factors being unknown, (nodes,)."""
        shared = self.slopes @ self.prior @ self.slopes.T
        return np.array([log_normal(self.errors, noise + shared) for noise in self.noise])

    @property
    def log_density(self) -> float:
        """Logarithm of the density of the errors, factors and scale being unknown."""
        return log_mean(self.log_densities)

    @property
    def evidence(self) -> float:
        """Probability of the errors with factors of the source over that without any [1]."""
        alone = np.array([log_normal(self.errors, noise) for noise in self.noise])
        return float(np.exp(min(self.log_density - log_mean(alone), MOST_LOG)))

    def most_probable(self) -> tuple[FloatArray, FloatArray]:
        """Return the expected ln(factor), (resources,), and their covariance, over all scales."""
        weights = CHANCES * np.exp(self.log_densities - self.log_density)
        values, covariances = zip(*(self._at(noise) for noise in self.noise), strict=True)
        mean = weights @ np.array(values)
        apart = np.array(values) - mean
        return mean, np.tensordot(weights, np.array(covariances), 1) + (apart.T * weights) @ apart

    def _at(self, noise: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln(factor) of least squares, (resources,), and their covariance.

        Least (errors - slopes x)' noise^-1 (errors - slopes x) + x' prior^-1 x with x at least
        ``lowest``; the covariance is the inverse of its curvature.
        """
        whiten, held = (np.linalg.inv(np.linalg.cholesky(v)) for v in (noise, self.prior))
        matrix = np.vstack([whiten @ self.slopes, held])
        target = np.concatenate([whiten @ self.errors, np.zeros(len(held))])
        covariance = np.linalg.inv(matrix.T @ matrix)
        found = covariance @ (matrix.T @ target)
        if np.any(found < self.lowest):
            from scipy.optimize import lsq_linear

            bounds = self.lowest - 1e-9, np.full(len(held), np.inf)
            found = lsq_linear(matrix, target, bounds).x
        return np.asarray(found, dtype=float), np.asarray(covariance, dtype=float)

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


def log_mean(logs: FloatArray) -> float:
    """Return the logarithm of a mean over the scales of a source."""
    most = logs.max()
    return float(most + np.log(CHANCES @ np.exp(logs - most)))


def log_normal(errors: FloatArray, covariance: FloatArray) -> float:
    """Return the logarithm of the density of errors around 0, without its constant part."""
    root = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(root, errors)
    return float(-0.5 * scaled @ scaled - np.log(np.diag(root)).sum())


def jobs_of(measurements: Sequence[Measurement], values: FloatArray = NO_FACTORS) -> Jobs:
    """Return measured jobs in the slopes at some ln(factor), around which errors are."""
    logs, slopes = logs_and_slopes(measurements, values)
    plans = [(entry.problem.model, entry.problem.system, entry.problem.workload,
              entry.strategy, entry.plan_options) for entry in measurements]  # fmt: skip
    shares = slopes[:, NAMES.index("launches")].tolist()
    degrees = [
        traits_of(entry.problem, is_seen=True, host_share=share)
        for entry, share in zip(measurements, shares, strict=True)
    ]
    return Jobs(
        errors=np.log([entry.step_s for entry in measurements]) - logs + slopes @ values,
        slopes=slopes,
        degrees=np.array([[found[name] for name in JOB_TRAITS] for found in degrees]),
        same=np.array([[a == b for b in plans] for a in plans]),
        lowest=lowest_values(measurements),
        between=between_of(measurements[0].problem),
    )


def between_of(problem: Problem) -> Between:
    """Return the differences between sources that the constants of a problem state.

    They are wider for a family of chips without measured rows, as its intervals are.
    """
    constants = problem.nominal_calibration
    between, spread = constants.between or UNFITTED, constants.spread
    if spread is None or constants.is_calibrated:
        return between
    wider = max(tail.factors.get(UNSEEN, 1.0) for tail in (spread.slower, spread.faster))
    resources = {name: wider * own for name, own in between.resources.items()}
    return between.model_copy(update={"common": wider * between.common, "resources": resources})


def prior_covariance(between: Between) -> FloatArray:
    """Return the covariance of ln(factor) before any measurement, (resources, resources).

    c^2 + diag(s_r^2), c of all resources together and s_r of each alone.
    """
    own = [between.resources[name] for name in NAMES]
    return np.asarray(between.common**2 + np.diag(np.square(own)))


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
    jobs = jobs_of([measurement])
    covariance = jobs.prior if factors is None else np.array(factors.log_covariance)
    return math.sqrt((jobs.slopes @ covariance @ jobs.slopes.T + jobs.expected_noise).item())
