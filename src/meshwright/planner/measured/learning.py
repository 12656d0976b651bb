"""Factors of the resources behind measured jobs, and which short trials would tell more."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.diagnosis.factors import STEP_NOISE, Factors, Measurement, estimated
from meshwright.diagnosis.priors import prior_spreads, residual_spread
from meshwright.plans import Trials
from meshwright.pricing.intervals import half_width
from meshwright.pricing.problem import Problem
from meshwright.search.improving.trials import choose_trials

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
    return estimated(measurements, expected_spreads(measurements[0].problem))


def expected_spreads(problem: Problem) -> FloatArray:
    """Return the standard deviation of ln(factor) of each resource before any measurement."""
    return prior_spreads(problem.calibration, residual_spread(half_width(problem)))


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
