"""Do measured jobs of a source help to predict its other rows, and are they ever a loss?

Of each source on a family of chips one, two or three rows of different plans are the measured
jobs, drawn twelve times; the error of its other rows at the median, |ln(measured / predicted)|, is
compared before and after. ``all`` takes every draw, in the slopes at the published constants;
``proven`` takes draws of three plans in which each keeps at most half of its error under the
factors of the other two, and the published constants otherwise: a rule on trial, in no command.

    python benchmarks/calibrated_sources.py [--most-rows 20] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.prediction import Prediction, measurement, predict
from meshwright.calibration.rows import Row, published
from meshwright.train.measured.factors import (
    RESOURCES,
    STEP_NOISE,
    logs_and_slopes,
    lowest_values,
    most_probable,
    noise_covariance,
)
from meshwright.train.measured.trials import expected_covariance

SOURCE_ERROR = 0.15
"""Standard deviation of ln(time) that plans of one source keep, on trial."""
LEAST_PLANS = 3
MOST_LEFT = 0.5
"""Largest share of its error that a plan keeps under factors of the others, on trial."""

NUM_DRAWS = 12
WORSE = 0.01
"""Rise of the median error that counts as a loss."""
NUMBERS = (1, 2, 3)


def sources(rows: list[Row], most_rows: int, seed: int) -> dict[str, list[Prediction]]:
    """Return predictions of up to ``most_rows`` rows of each source, by source and chip family."""
    generator, groups, found = np.random.default_rng(seed), defaultdict(list), defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    for group, own in groups.items():
        drawn = sorted(generator.permutation(len(own))[:most_rows].tolist())
        for entry in predict([own[n] for n in drawn], "calibrated", is_placed=False):
            if entry.job is not None and entry.log_error is not None:
                found[f"{group} {entry.job.problem.system.chip.family}"].append(entry)
    return {name: own for name, own in found.items() if len(own) > max(NUMBERS)}


def medians(rows: list[Prediction], seed: int) -> list[tuple[float, float, float, float]]:
    """Return for each number of measured rows the error before, after all, after proven draws,
    and the share of draws that are proven."""
    jobs = [measurement(entry) for entry in rows]
    logs, slopes = logs_and_slopes(jobs, np.zeros(len(RESOURCES)))
    errors = np.log([job.step_s for job in jobs]) - logs
    same = noise_covariance(jobs) - STEP_NOISE**2 * np.eye(len(jobs)) > STEP_NOISE**2
    noise, lowest = SOURCE_ERROR**2 * same + STEP_NOISE**2 * np.eye(len(jobs)), lowest_values(jobs)
    priors = np.array([expected_covariance(job.problem) for job in jobs])
    generator, found = np.random.default_rng(seed), []
    for number in NUMBERS:
        before, every, sure, shares = [], [], [], []
        for _ in range(NUM_DRAWS):
            chosen = generator.permutation(len(jobs))[:number]
            others = ~same[chosen].any(axis=0)
            own = np.ix_(chosen, chosen)
            known = errors[chosen], slopes[chosen], noise[own], priors[chosen].mean(axis=0), lowest
            after = errors - slopes @ most_probable(*known)[0]
            is_proven = len(np.unique(same[own], axis=0)) >= LEAST_PLANS and bool(
                np.all(
                    np.abs(left_out_errors(*known, same[own])) <= MOST_LEFT * np.abs(errors[chosen])
                )
            )
            before.append(errors[others])
            every.append(after[others])
            sure.append((after if is_proven else errors)[others])
            shares.append(is_proven)
        found.append((_median(before), _median(every), _median(sure), float(np.mean(shares))))
    return found


def left_out_errors(
    errors: FloatArray, slopes: FloatArray, noise: FloatArray, prior: FloatArray,
    lowest: FloatArray, same: BoolArray,
) -> FloatArray:  # fmt: skip
    """Return the error of each job under the factors of all other plans, (jobs,)."""
    left = []
    for index, mine in enumerate(same):
        rest = ~mine
        own = noise[np.ix_(rest, rest)]
        factors, _ = most_probable(errors[rest], slopes[rest], own, prior, lowest)
        left.append(errors[index] - slopes[index] @ factors)
    return np.array(left)


def _median(errors: list[FloatArray]) -> float:
    """Return the median size of errors."""
    return float(np.median(np.abs(np.concatenate(errors))))


def main() -> None:
    """Print a line for each source, and the greatest loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-rows", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    known = [row for row in published("training") if row.task not in ("oom", "memory")]
    table = {
        name: medians(rows, args.seed)
        for name, rows in sources(known, args.most_rows, args.seed).items()
    }
    print(f"{'':<28}" + "".join(f"{f'{n} measured':>32}" for n in NUMBERS))
    print(f"{'source':<28}" + f"{'before':>8}{'all':>8}{'proven':>8}{'draws':>8}" * len(NUMBERS))
    for name, lines in table.items():
        print(f"{name[:27]:<28}" + "".join(f"{v:>8.1%}" for line in lines for v in line))
    values = np.array(list(table.values()))
    for index, number in enumerate(NUMBERS):
        for column, title in ((1, "all"), (2, "proven")):
            gains = values[:, index, column] - values[:, index, 0]
            print(
                f"{number} measured, {title}: {(gains < 0).sum()} of {len(gains)} better, "
                f"{(gains > WORSE).sum()} worse by over {WORSE:.0%}, at most {gains.max():+.1%}"
            )


if __name__ == "__main__":
    main()
