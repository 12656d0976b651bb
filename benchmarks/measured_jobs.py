"""Does one measured job help to predict the others on the same machine?

A family is one source, model, chip and precision. Each of its rows in turn is the measured job;
the factors that it suggests adjust the prediction of the other rows. Then all rows but one are
measured, and the one left out is predicted. Estimates are made in the slopes at the calibrated
constants: one pricing for each row.

    python benchmarks/measured_jobs.py [--calibration uncalibrated] [--measurements FILE]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.prediction import Prediction, measurement, predict
from meshwright.calibration.reading import read_rows
from meshwright.calibration.rows import published_rows
from meshwright.train.measured.factors import (
    PLAN_ERROR,
    RESOURCES,
    STEP_NOISE,
    logs_and_slopes,
    lowest_values,
    most_probable,
    noise_covariance,
)
from meshwright.train.measured.trials import expected_spreads

NORMAL_90 = 1.645
UNEXPLAINED = PLAN_ERROR**2 + STEP_NOISE**2


@dataclass(frozen=True)
class Outcome:
    """Errors of the rows of one family, ln(measured / predicted)."""

    group: str
    before: list[float] = field(default_factory=list)
    after_one: list[float] = field(default_factory=list)
    """With one other row measured."""
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
    errors: FloatArray
    """ln(measured / predicted), (rows,)."""
    slopes: FloatArray
    """(rows, resources)."""
    noise: FloatArray
    """(rows, rows)."""
    spreads: FloatArray
    lowest: FloatArray

    def learned(self, rows: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return ln(factor) behind some rows, and their covariance."""
        return most_probable(
            self.errors[rows], self.slopes[rows], self.noise[np.ix_(rows, rows)], self.spreads,
            self.lowest,
        )  # fmt: skip

    def error(self, row: int, learned: tuple[FloatArray, FloatArray]) -> tuple[float, bool]:
        """Return the error of a row under factors, and whether it lies in its 90 % interval."""
        values, covariance = learned
        slope = self.slopes[row]
        left = float(self.errors[row] - slope @ values)
        spread = np.sqrt(slope @ covariance @ slope + UNEXPLAINED)
        return left, bool(abs(left) <= NORMAL_90 * spread)


def families(predictions: list[Prediction]) -> list[Family]:
    """Return the families of two rows or more."""
    found = defaultdict(list)
    for entry in predictions:
        if entry.log_error is not None:
            row = entry.row
            found[row.group, row.model.name, row.hardware.chip, row.precision].append(entry)
    return [family(rows) for rows in found.values() if len(rows) > 1]


def family(rows: list[Prediction]) -> Family:
    """Return a family with its slopes at the calibrated constants."""
    jobs = [measurement(entry) for entry in rows]
    logs, slopes = logs_and_slopes(jobs, np.zeros(len(RESOURCES)))
    return Family(
        rows[0].row.group,
        np.log([job.step_s for job in jobs]) - logs,
        slopes,
        noise_covariance(jobs),
        expected_spreads(jobs[0].problem),
        lowest_values(jobs),
    )


def outcome(rows: Family) -> Outcome:
    """Return what measuring one row, or all others, does to the errors of a family."""
    found, every = Outcome(rows.group), list(range(len(rows.errors)))
    found.before.extend(rows.errors.tolist())
    whole = rows.learned(every)
    for index in every:
        others = [n for n in every if n != index]
        one, rest = rows.learned([index]), rows.learned(others)
        for other in others:
            error, is_inside = rows.error(other, one)
            found.after_one.append(error)
            found.inside.append(is_inside)
        error, is_inside = rows.error(index, rest)
        found.after_others.append(error)
        found.inside_others.append(is_inside)
        found.residuals.append(rows.error(index, whole)[0])
    return found


def shown(values: list[float]) -> str:
    """Return mean and median of absolute errors."""
    size = np.abs(values)
    return f"{size.mean():>8.1%}{np.median(size):>8.1%}"


def table(name: str, outcomes: list[Outcome]) -> str:
    """Return one line: families, rows, errors before and after, coverage."""
    joined = {
        field: [value for entry in outcomes for value in getattr(entry, field)]
        for field in ("before", "after_one", "after_others", "inside", "inside_others", "residuals")
    }
    return (
        f"{name[:18]:<19}{len(outcomes):>5}{len(joined['before']):>6}{shown(joined['before'])}"
        f"{shown(joined['after_one'])}{shown(joined['after_others'])}"
        f"{np.mean(joined['inside']):>8.0%}{np.mean(joined['inside_others']):>8.0%}"
        f"{np.std(joined['residuals']):>8.3f}"
    )


def main() -> None:
    """Print a table by source."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibration", default="calibrated")
    parser.add_argument("--measurements")
    args = parser.parse_args()
    rows = published_rows() if args.measurements is None else read_rows(Path(args.measurements))
    found = families(predict(rows, args.calibration))
    outcomes = [outcome(entry) for entry in found]
    print(f"{'':<30}{'before':>16}{'one measured':>16}{'others measured':>16}{'in 90 %':>16}")
    print(
        f"{'source':<19}{'fam.':>5}{'rows':>6}" + f"{'mean':>8}{'median':>8}" * 3
        + f"{'one':>8}{'others':>8}{'left':>8}"
    )  # fmt: skip
    for group in dict.fromkeys(entry.group for entry in outcomes):
        print(table(group, [entry for entry in outcomes if entry.group == group]))
    print(table("all", outcomes))
    means = [[np.abs(v).mean() for v in (e.before, e.after_one, e.after_others)] for e in outcomes]
    better = np.mean([after < before for before, after, _ in means])
    told = np.mean(means, axis=0)
    print(
        f"mean over families: {told[0]:.1%} before, {told[1]:.1%} with one row measured, "
        f"{told[2]:.1%} with all others; one row helps {better:.0%} of the families"
    )


if __name__ == "__main__":
    main()
