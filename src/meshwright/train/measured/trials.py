"""What measured jobs teach, and which few plans to run for some steps when not all can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.cost.interval import half_width
from meshwright.cost.problem import Problem
from meshwright.train.answer import Candidate, Trials
from meshwright.train.measured.factors import (
    HALF_OF_80_PERCENT,
    STEP_NOISE,
    Factors,
    Measurement,
    estimated,
    expected_log_spread,
    prior_spreads,
    residual_spread,
)

MOST_TRIALS = 3
WORTH = 0.002
"""Trials that lower the expected regret by less than this share of a step are not worth it."""
SEED = 20_240_003


@dataclass(frozen=True)
class TrialChoice:
    """Plans to run for some steps, by their place among the candidates, and what that is worth."""

    chosen: tuple[int, ...]
    """In the order in which they tell most; empty: nothing is worth a trial."""
    best_shares: FloatArray
    """Share of the draws in which each candidate is the fastest."""
    regrets: tuple[float, ...]
    """Expected regret before any trial, and after each one more of those chosen, as fractions."""


def with_plan_errors(log_times: FloatArray, spread: float, seed: int = SEED) -> FloatArray:
    """Return draws of ln(time) with what is wrong with the price of each single plan on top.

    Parameters
    ----------
    log_times
        Shape (candidates, draws): what shared constants do to all candidates together.
    spread
        Standard deviation of the error of one plan alone.
    """
    generator = np.random.default_rng(seed)
    return np.asarray(log_times + spread * generator.standard_normal(log_times.shape))


def expected_regret(
    log_times: FloatArray, trials: Sequence[int], noise: float, seed: int = SEED
) -> float:
    """Return how much slower than the best the plan chosen after some trials is, on average [1].

    Draws of ln(time) are taken as jointly normal with their mean m and covariance C. Trials T
    measure y = ln(time) + noise; the plan of the least expected ln(time) is chosen:

        m' = m + C[:, T] (C[T, T] + noise^2)^-1 (y - m[T])

    Each draw serves as the truth once. Plans that share a resource move together in C, so that a
    trial of one tells of the others.

    Parameters
    ----------
    log_times
        Shape (candidates, draws).
    noise
        Standard deviation of ln(measured time) of a trial.

    Source: Raiffa and Schlaifer, Applied Statistical Decision Theory (1961), chapter 5
    (preposterior analysis of normal processes).
    """
    mean = log_times.mean(axis=1, keepdims=True)
    run = list(trials)
    expected = np.broadcast_to(mean, log_times.shape)
    if run:
        errors = np.random.default_rng(seed).standard_normal(log_times.shape)[run]
        apart = log_times - mean
        covariance = apart @ apart.T / apart.shape[1]
        gain = covariance[:, run] @ np.linalg.inv(
            covariance[np.ix_(run, run)] + noise**2 * np.eye(len(run))
        )
        expected = mean + gain @ (apart[run] + noise * errors)
    chosen = expected.argmin(axis=0)
    taken = log_times[chosen, np.arange(log_times.shape[1])]
    return float(np.expm1(taken - log_times.min(axis=0)).mean())


def choose_trials(
    log_times: FloatArray,
    noise: float,
    *,
    known: Sequence[int] = (),
    most: int = MOST_TRIALS,
    worth: float = WORTH,
) -> TrialChoice:
    """Return the trials that lower the expected regret most, one after another.

    Parameters
    ----------
    log_times
        Draws of ln(time), shape (candidates, draws).
    noise
        Standard deviation of ln(measured time) of a trial.
    known
        Candidates that were measured already.
    """
    chosen: list[int] = []
    regrets = [expected_regret(log_times, (), noise)]
    while len(chosen) < most:
        left = [n for n in range(len(log_times)) if n not in chosen and n not in known]
        after = [expected_regret(log_times, [*chosen, n], noise) for n in left]
        if not left or regrets[-1] - min(after) < worth:
            break
        chosen.append(left[int(np.argmin(after))])
        regrets.append(min(after))
    counts = np.bincount(log_times.argmin(axis=0), minlength=len(log_times))
    return TrialChoice(tuple(chosen), counts / log_times.shape[1], tuple(regrets))


LEAST_SHARE = 0.05
"""Plans that are the best in fewer draws are not listed with the trials."""


def learn(measurements: Sequence[Measurement]) -> Factors:
    """Return the factors of the resources behind measured steps of one family of chips.

    Raises
    ------
    SpecError
        Measurements of several families of chips: they say nothing about each other.
    """
    chips = {entry.problem.system.chip.family: entry.problem for entry in measurements}
    if len(chips) != 1:
        found = ", ".join(sorted(chips)) or "none"
        raise SpecError(Fault("measurements", f"of chips of one family, found {found}"))
    spreads = np.mean([expected_spreads(entry.problem) for entry in measurements], axis=0)
    return estimated(measurements, spreads)


def expected_spreads(problem: Problem) -> FloatArray:
    """Return the standard deviation of ln(factor) of each resource before any measurement."""
    return prior_spreads(problem.calibration, residual_spread(half_width(problem)))


def with_measured_interval(problem: Problem, entry: Candidate, factors: Factors) -> Candidate:
    """Return a candidate with the interval in which four of five of its measurements are expected.

    What the factors leave open, as far as the candidate feels it, and the error of its own; never
    wider than without measurements.

    Parameters
    ----------
    problem
        Under constants that are adjusted by the factors.
    """
    price = entry.estimate
    job = Measurement(entry.text, problem, entry.strategy, entry.structure, price.step_time_s)
    left = HALF_OF_80_PERCENT * expected_log_spread(job, factors.log_covariance)
    before = half_width(problem)
    times = math.exp(left if before is None else min(left, before))
    interval_s = price.step_time_s / times, price.step_time_s * times
    return replace(entry, estimate=replace(price, interval_s=interval_s))


def trials_of(texts: Sequence[str], log_times: FloatArray, known: Sequence[int] = ()) -> Trials:
    """Return which of some plans to run for a few steps, given draws of ln(time) of each.

    Parameters
    ----------
    log_times
        Shape (plans, draws).
    known
        Plans that were measured already.
    """
    found = choose_trials(log_times, STEP_NOISE, known=known)
    shares = zip(texts, found.best_shares.tolist(), strict=True)
    return Trials(
        run=tuple(texts[index] for index in found.chosen),
        best_fraction={text: share for text, share in shares if share >= LEAST_SHARE},
        regret_fractions=found.regrets,
    )
