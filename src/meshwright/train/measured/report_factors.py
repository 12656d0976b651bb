"""What measured jobs did to a plan, and which trials would tell more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.report.screen import counted, words, wrapped
from meshwright.train.answer import Plan, Trials
from meshwright.train.measured.factors import Factors


def factor_lines(factors: Factors) -> Iterator[str]:
    """Yield the factors under which the constants of a plan stand."""
    told = [
        f"{words(entry.resource)} {entry.factor:.2f} ({entry.low:.2f} to {entry.high:.2f})"
        for entry in factors.factors
    ]
    number = counted(factors.num_measurements, "measurement")
    text = "work takes so many times as long as calibrated: " + ", ".join(told)
    yield from wrapped(f"adjusted by {number}: ", text)


def plan_trial_lines(plan: Plan) -> Iterator[str]:
    """Yield which of the plans shown to run for a few steps, called by their rank."""
    if plan.robustness is None or plan.robustness.trials is None:
        return
    ranked = enumerate([plan.best, *plan.runners_up], 1)
    names = {entry.text: f"plan {rank}" for rank, entry in ranked}
    yield from trial_lines(plan.robustness.trials, names)


def trial_lines(trials: Trials, names: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield which plans to run for a few steps; nothing where no trial is worth them.

    Parameters
    ----------
    names
        What to call the plans, where they are not told in full.
    """
    if not trials.run:
        return
    called = names or {}
    before, after = trials.regret_fractions[0], trials.regret_fractions[-1]
    runs = ", then ".join(called.get(plan, plan) for plan in trials.run)
    shares = sorted(trials.best_fraction.items(), key=lambda item: -item[1])
    told = "; ".join(f"{called.get(plan, plan)} {share:.0%}" for plan, share in shares)
    text = (
        f"a few steps each of {runs}: expected loss against the best of these plans "
        f"{before:.1%} before, {after:.1%} after; odds of being the fastest: {told}"
    )
    yield from wrapped("trials: ", text)
