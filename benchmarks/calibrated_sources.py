"""Do measured jobs of a source help to predict its other rows, and are they ever a loss?

Of each source on a family of chips one, two or three rows are the measured jobs, drawn many times;
the rule of `calibrate` decides by them alone. The error of the rows of other plans is the median of
|ln(measured / predicted)|, its mean over the draws stands before and after. Constants and prior of
a source are those of a fit without it and the other sources of its vendor (ten minutes of one
core). With ``--seen`` its rows are priced by constants that have seen it.

    python benchmarks/calibrated_sources.py [--seen] [--write] [--small]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.fit.between import Source, drawn_sources, fit_between, sources_of
from meshwright.calibration.fit.training import NOTHING, Stacks, fit, fit_rows, usable
from meshwright.calibration.prediction import measurement, predict
from meshwright.calibration.rows import is_frozen, published
from meshwright.spec.calibration import Between
from meshwright.train.measured.learning import Jobs

NUMBERS = (1, 2, 3)
NUM_DRAWS = 20
SEED = 0
CHANGED = 0.01
"""Change of an error that counts."""
HALF_OF_80_PERCENT = 1.2816
SMALL = 40
"""Rows of the smallest size."""
PAGE = Path(__file__).parents[1] / "docs" / "how_to" / "from_my_job.md"
BEGIN, END = "<!-- calibrated sources -->\n", "<!-- end -->\n"
ErrorsWithout = Callable[[Stacks], FloatArray]
"""ln(measured / predicted) of all rows under fits without some stacks and that of each row."""


@dataclass(frozen=True)
class Outcome:
    """Errors of the other rows of a source, means over draws, and coverage after."""

    before: float
    after: float
    applied: float
    """Share of the draws in which the factors apply."""
    inside: float
    """Share of the other rows in the 80 % interval of the factors, where they apply."""


def outcomes(jobs: Jobs) -> list[Outcome]:
    """Return what one, two and three measured jobs do to a source."""
    generator, found = np.random.default_rng(SEED), []
    for number in NUMBERS:
        draws = (generator.permutation(len(jobs.errors))[:number] for _ in range(NUM_DRAWS))
        kept = [entry for draw in draws if (entry := one_draw(jobs, draw)) is not None]
        before, after, applied, inside = np.array(kept).T
        share = float(np.nanmean(inside)) if applied.any() else np.nan
        found.append(Outcome(before.mean(), after.mean(), float(applied.mean()), share))
    return found


def one_draw(jobs: Jobs, drawn: FloatArray) -> tuple[float, ...] | None:
    """Return the outcome of some measured jobs; None: no other plan is left."""
    chosen = np.isin(np.arange(len(jobs.errors)), drawn)
    others = jobs.some(~jobs.same[chosen].any(axis=0))
    if not len(others.errors):
        return None
    measured = jobs.some(chosen)
    factors, covariance = measured.most_probable()
    left = others.errors - others.slopes @ factors
    is_applied = measured.verdict().is_applied
    spread = np.sqrt(np.diag(others.slopes @ covariance @ others.slopes.T + others.expected_noise))
    inside = np.abs(left) <= HALF_OF_80_PERCENT * spread
    before = np.median(np.abs(others.errors))
    if not is_applied:
        return before, before, 0.0, np.nan
    return before, np.median(np.abs(left)), 1.0, inside.mean()


def judged(
    sources: Sequence[Source], blind: Sequence[Source], errors_without: ErrorsWithout,
    seen: FloatArray | None,
) -> dict[str, list[Outcome]]:  # fmt: skip
    """Return the outcomes of each source of more than three jobs, with a prior that misses it.

    Parameters
    ----------
    blind
        Frozen sources, which no fit has seen.
    seen
        Errors under constants that have seen the source; None: those that have not.
    """
    found, known = {}, [one.with_errors(errors_without(NOTHING)) for one in sources]
    for stack in dict.fromkeys(source.stack for source in sources):
        others = [one.with_errors(errors_without(frozenset({stack}))) for one in sources]
        between = fit_between([one for one in others if one.stack != stack])
        mine = known if seen is None else [one.with_errors(seen) for one in sources]
        found |= of_sources([one for one in mine if one.stack == stack], between)
    return found | of_sources(blind, fit_between(known))


def of_sources(sources: Sequence[Source], between: Between | None) -> dict[str, list[Outcome]]:
    """Return the outcomes of sources under a prior, by name."""
    return {
        f"{source.group} {source.family}": outcomes(replace(source.jobs, between=between))
        for source in sources
        if between is not None and len(source.rows) > max(NUMBERS)
    }


def frozen_sources() -> list[Source]:
    """Return the frozen sources under the published constants."""
    frozen = [row for row in published("training") if is_frozen(row)]
    rows = usable(predict(frozen, "calibrated", is_placed=False))
    return drawn_sources(rows, lambda place: measurement(rows.predictions[place]))


def by_source(found: dict[str, list[Outcome]]) -> str:
    """Return the errors of each source before and after, and the share of draws that apply."""
    head = ("source", *(f"{n}, {c}" for n in NUMBERS for c in ("before", "after", "applied")))
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    for name, entries in found.items():
        cells = [
            f"{value:.1%}" for one in entries for value in (one.before, one.after, one.applied)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def counts(found: dict[str, list[Outcome]]) -> str:
    """Return the number of sources that get better and worse, and their median errors."""
    lines = ["| measured | better | same | worse | at most | before | after | applied | inside |",
             f"|---|{'---:|' * 8}"]  # fmt: skip
    for index, number in enumerate(NUMBERS):
        own = [entries[index] for entries in found.values()]
        before, after, applied, inside = (
            np.array([getattr(one, name) for one in own])
            for name in ("before", "after", "applied", "inside")
        )
        gains = after - before
        lines.append(
            f"| {number} | {(gains < -CHANGED).sum()} | {(np.abs(gains) <= CHANGED).sum()} | "
            f"{(gains > CHANGED).sum()} | {gains.max():+.1%} | {np.median(before):.1%} | "
            f"{np.median(after):.1%} | {applied.mean():.0%} | {np.nanmean(inside):.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the tables, or put them where the page has them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seen", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    rows = [row for row in published("training") if not is_frozen(row)]
    fitted = fit(fit_rows(rows[:: len(rows) // SMALL] if args.small else rows))
    seen = fitted.errors if args.seen else None
    blind = [] if args.small else frozen_sources()
    every = judged(sources_of(fitted), blind, fitted.left_out_errors_without, seen)
    found = counts(every)
    if args.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + found + END + rest.partition(END)[2], "utf-8")
    print(f"{by_source(every)}\n{found}", end="")


if __name__ == "__main__":
    main()
