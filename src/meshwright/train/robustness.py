"""Whether the winner would still win if the calibrated constants were a little different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.search.best import TIE, Found
from meshwright.sharding.strategy import stack
from meshwright.spec.calibration import calibration_columns
from meshwright.train.measured.factors import Factors
from meshwright.train.measured.resources import SCALED, scaled

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
    constants = problem.calibration
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
