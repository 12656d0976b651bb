"""What measured jobs did to a plan, and which trials would tell more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.diagnosis.factors import Factors
from meshwright.plans import Trials
from meshwright.report.lines import counted, words, wrapped


def factor_lines(factors: Factors) -> Iterator[str]:
    """Yield the factors under which the constants of a plan stand."""
    told = [
        f"{words(entry.resource)} {entry.factor:.2f} ({entry.low:.2f} to {entry.high:.2f})"
        for entry in factors.factors
    ]
    number = counted(factors.num_measurements, "measurement")
    text = "work takes so many times as long as calibrated: " + ", ".join(told)
    yield from wrapped(f"adjusted by {number}: ", text)


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
