"""Robustness of a choice: candidates under draws of uncertain constants, and trials worth running.

Nothing here knows the candidates: times come as arrays of candidates by draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.search.exhaustive import TIE

MOST_TRIALS = 3
WORTH = 0.002
"""Trials that lower the expected regret by less than this share of a step are not worth it."""
SEED = 20_240_003


def drawn(value: float, low: float, high: float, at: FloatArray) -> FloatArray:
    """Return draws of a constant: evenly below its value and above it, as often either way.

    An interval that lies unevenly about its value thus shifts no median.

    Parameters
    ----------
    at
        Place in the range, from -1, the lowest value, to 1, the highest.
    """
    return np.where(at < 0.0, value + at * (value - low), value + at * (high - value))


@dataclass(frozen=True)
class DrawnTimes:
    """Times of some candidates under perturbed constants, with shares and regrets."""

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


@dataclass(frozen=True)
class TrialChoice:
    """Plans to run for some steps, by their place among the candidates, and the gain of this."""

    chosen: tuple[int, ...]
    """Most informative first; empty: nothing is worth a trial."""
    best_shares: FloatArray
    """Share of the draws in which each candidate is the fastest."""
    regrets: tuple[float, ...]
    """Expected regret before any trial, and after each further chosen trial, as fractions."""


def with_plan_errors(log_times: FloatArray, spread: float, seed: int = SEED) -> FloatArray:
    """Return draws of ln(time) with the price error of each single plan added.

    Parameters
    ----------
    log_times
        Shape (candidates, draws): draws of shared constants, which move all candidates together.
    spread
        Standard deviation of the error of one plan alone.
    """
    generator = np.random.default_rng(seed)
    return np.asarray(log_times + spread * generator.standard_normal(log_times.shape))


def expected_regret(log_times: FloatArray, trials: Sequence[int], noise: float) -> float:
    """Return the mean slowdown of the plan chosen after some trials over the best plan [1].

    Draws of ln(time) are taken as jointly normal with their mean m and covariance C. Trials T
    measure y = ln(time) + noise; the plan of the least expected ln(time) is chosen:

        m' = m + C[:, T] (C[T, T] + noise^2)^-1 (y - m[T])

    Each draw serves as the truth once. Plans that share a resource move together in C, so that a
    trial of one informs about the others.

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
        errors = np.random.default_rng(SEED).standard_normal(log_times.shape)[run]
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
