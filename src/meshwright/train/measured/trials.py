"""Intervals under learned factors, and the few plans to run for some steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from meshwright.base.arrays import FloatArray
from meshwright.cost.problem import Problem
from meshwright.search.intervals import Distances, distances
from meshwright.search.robustness import choose_trials
from meshwright.train.answer import Candidate, Trials
from meshwright.train.measured.factors import STEP_NOISE, Factors, Measurement
from meshwright.train.measured.learning import expected_log_spread

HALF_OF_80_PERCENT = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of normal values."""
LEAST_SHARE = 0.05
"""Least share of draws in which a listed plan is the best."""


def with_measured_interval(problem: Problem, entry: Candidate, factors: Factors) -> Candidate:
    """Return a candidate with the interval of four of five of its expected measurements.

    Its width is the spread left by the factors, as far as it acts on the candidate, and the error
    of the plan itself; never wider than without measurements.

    Parameters
    ----------
    problem
        Problem under constants that the factors adjust.
    """
    if not factors.is_applied:
        return entry
    price = entry.estimate
    job = Measurement(entry.text, problem, entry.strategy, entry.plan_options, price.step_time_s)
    left = HALF_OF_80_PERCENT * expected_log_spread(job, factors)
    before = distances(problem) or Distances(left, left)
    interval_s = (
        price.step_time_s * math.exp(-min(left, before.faster)),
        price.step_time_s * math.exp(min(left, before.slower)),
    )
    return replace(entry, estimate=replace(price, interval_s=interval_s))


def trials_of(texts: Sequence[str], log_times: FloatArray, known: Sequence[int] = ()) -> Trials:
    """Return the plans to run for a few steps, given draws of ln(time) of each.

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
