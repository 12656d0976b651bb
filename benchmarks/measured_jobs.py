"""Does one measured job help to predict the others on the same machine?

A family is one source, model, chip and precision. Each of its rows in turn is the measured job;
the factors that it suggests adjust the prediction of the other rows, and a plain ratio (all times
of the family are off by as much as this one) stands beside them. So do two rows, drawn twenty
times, and all rows but one. Estimates are made in the slopes at the calibrated constants: one
pricing for each row. With ``--left-out`` the predictions are those of constants that know nothing
of the source (a fit of some minutes): what somebody gets who is in no table.

    python benchmarks/measured_jobs.py [--left-out] [--calibration NAME] [--measurements FILE]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.fit.training import fit, fit_rows
from meshwright.calibration.prediction import Prediction, measurement, predict
from meshwright.calibration.rows import FROZEN, Row, published, read_rows
from meshwright.train.measured.learning import Jobs, jobs_of

NORMAL_90 = 1.645
NUM_PAIRS = 20
"""Of rows that are measured together, drawn in each family."""


@dataclass(frozen=True)
class Outcome:
    """Errors of the rows of one family, ln(measured / predicted)."""

    group: str
    before: list[float] = field(default_factory=list)
    after_one: list[float] = field(default_factory=list)
    """With one other row measured."""
    after_ratio: list[float] = field(default_factory=list)
    """With the plain ratio of one other row."""
    after_two: list[float] = field(default_factory=list)
    """With two other rows measured."""
    after_others: list[float] = field(default_factory=list)
    """With all other rows measured."""
    inside: list[bool] = field(default_factory=list)
    """Whether the row lies in the 90 % interval that one other row leaves."""
    inside_others: list[bool] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)
    """Of rows under factors of the whole family."""


@dataclass(frozen=True)
class Family:
    """The rows of one family, as far as an estimate in their slopes needs them."""

    group: str
    jobs: Jobs

    def learned(self, rows: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return ln(factor) behind some rows, and their covariance."""
        return self.jobs.some(np.isin(np.arange(len(self.jobs.errors)), rows)).most_probable()

    def error(self, row: int, learned: tuple[FloatArray, FloatArray]) -> tuple[float, bool]:
        """Return the error of a row under factors, and whether it lies in its 90 % interval."""
        values, covariance = learned
        slope = self.jobs.slopes[row]
        left = float(self.jobs.errors[row] - slope @ values)
        spread = np.sqrt(slope @ covariance @ slope + self.jobs.expected_noise[row, row])
        return left, bool(abs(left) <= NORMAL_90 * spread)


def families(predictions: list[Prediction], errors: Mapping[str, float]) -> list[Family]:
    """Return the families of two rows or more.

    Parameters
    ----------
    errors
        ln(predicted / measured) of throughputs by the name of a row, instead of those of the
        predictions; empty: those.
    """
    found = defaultdict(list)
    for entry in predictions:
        row = entry.row
        if entry.log_error is not None and (not errors or row.id in errors):
            found[row.group, row.model.name, row.system.chip, row.precision].append(entry)
    return [family(rows, errors) for rows in found.values() if len(rows) > 1]


def family(rows: list[Prediction], errors: Mapping[str, float]) -> Family:
    """Return a family with its slopes at the calibrated constants."""
    jobs = jobs_of([measurement(entry) for entry in rows])
    known = np.array([errors[entry.row.id] for entry in rows]) if errors else jobs.errors
    return Family(rows[0].row.group, replace(jobs, errors=known))


def left_out_errors(rows: Sequence[Row]) -> dict[str, float]:
    """Return ln(predicted / measured) of rows under constants that know nothing of their source."""
    found = fit(fit_rows([row for row in rows if row.group not in FROZEN]))
    names = [entry.row.id for entry in found.rows.predictions]
    return dict(zip(names, found.left_out_errors.tolist(), strict=True))


def outcome(rows: Family) -> Outcome:
    """Return what measuring one row, or all others, does to the errors of a family."""
    found, every = Outcome(rows.group), list(range(len(rows.jobs.errors)))
    found.before.extend(rows.jobs.errors.tolist())
    whole = rows.learned(every)
    for index in every:
        others = [n for n in every if n != index]
        one, rest = rows.learned([index]), rows.learned(others)
        for other in others:
            error, is_inside = rows.error(other, one)
            found.after_one.append(error)
            found.inside.append(is_inside)
            found.after_ratio.append(float(rows.jobs.errors[other] - rows.jobs.errors[index]))
        error, is_inside = rows.error(index, rest)
        found.after_others.append(error)
        found.inside_others.append(is_inside)
        found.residuals.append(rows.error(index, whole)[0])
    generator = np.random.default_rng(0)
    for _ in range(NUM_PAIRS if len(every) > 2 else 0):
        *two, other = generator.choice(len(every), 3, replace=False).tolist()
        found.after_two.append(rows.error(other, rows.learned(two))[0])
    return found


ERRORS = ("before", "after_ratio", "after_one", "after_two", "after_others")


def shown(values: list[float]) -> str:
    """Return mean and median of absolute errors."""
    if not values:
        return f"{'-':>8}{'-':>8}"
    size = np.abs(values)
    return f"{size.mean():>8.1%}{np.median(size):>8.1%}"


def table(name: str, outcomes: list[Outcome]) -> str:
    """Return one line: families, rows, errors before and after, coverage."""
    joined = {
        field: [value for entry in outcomes for value in getattr(entry, field)]
        for field in (*ERRORS, "inside", "inside_others", "residuals")
    }
    return (
        f"{name[:18]:<19}{len(outcomes):>5}{len(joined['before']):>6}"
        + "".join(shown(joined[name]) for name in ERRORS)
        + f"{np.mean(joined['inside']):>8.0%}{np.mean(joined['inside_others']):>8.0%}"
        f"{np.std(joined['residuals']):>8.3f}"
    )


def main() -> None:
    """Print a table by source."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibration", default="calibrated")
    parser.add_argument("--measurements")
    parser.add_argument("--left-out", action="store_true")
    args = parser.parse_args()
    path = args.measurements
    rows = published("training") if path is None else read_rows(Path(path))
    errors = left_out_errors(rows) if args.left_out else {}
    outcomes = [outcome(entry) for entry in families(predict(rows, args.calibration), errors)]
    titles = ("before", "plain ratio", "one measured", "two", "others")
    print(f"{'':<30}" + "".join(f"{title:>16}" for title in titles) + f"{'in 90 %':>16}")
    print(
        f"{'source':<19}{'fam.':>5}{'rows':>6}" + f"{'mean':>8}{'median':>8}" * len(titles)
        + f"{'one':>8}{'others':>8}{'left':>8}"
    )  # fmt: skip
    sources = list(dict.fromkeys(entry.group for entry in outcomes))
    for group in sources:
        print(table(group, [entry for entry in outcomes if entry.group == group]))
    print(table("all", outcomes))
    means = {name: [mean_size(getattr(entry, name)) for entry in outcomes] for name in ERRORS}
    told = {name: float(np.nanmean(values)) for name, values in means.items()}
    helped = np.mean(np.array(means["after_one"]) < np.array(means["before"]))
    groups = np.array([entry.group for entry in outcomes])
    gains = np.array(means["after_ratio"]) - np.array(means["after_one"])
    won = sum(float(gains[groups == group].mean()) >= 0.0 for group in sources)
    print(
        f"mean over families: {told['before']:.1%} before, {told['after_one']:.1%} with one row "
        f"measured ({told['after_ratio']:.1%} by its plain ratio), {told['after_two']:.1%} with "
        f"two, {told['after_others']:.1%} with all others; one row helps {helped:.0%} of families, "
        f"more than its ratio in {won} of {len(sources)} sources"
    )


def mean_size(values: list[float]) -> float:
    """Return the mean absolute error; NaN: of nothing."""
    return float(np.abs(values).mean()) if values else float("nan")


if __name__ == "__main__":
    main()
