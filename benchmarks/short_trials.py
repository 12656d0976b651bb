"""Do the short trials that we would name find faster plans? On published families of plans.

A family is rows that differ only in the plan. Its predictions and their covariance (shared
resources, an error of each plan) say which plans to try; a trial reveals the measured time of a
row. Beside it: trying the plans predicted to be fastest, and trying at random.

    python benchmarks/short_trials.py [--calibration uncalibrated] [--measurements FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.errors import Family, families_of
from meshwright.calibration.prediction import measurement, predict
from meshwright.calibration.rows import published, read_rows
from meshwright.search.robustness import choose_trials
from meshwright.train.measured.factors import PLAN_ERROR, STEP_NOISE
from meshwright.train.measured.learning import jobs_of

MOST = 3
FEWEST_PLANS = 3
NUM_DRAWS = 2000
NUM_RANDOM = 200


@dataclass(frozen=True)
class Plans:
    """The plans of one family."""

    predicted: FloatArray
    """ln(time), (plans,)."""
    measured: FloatArray
    covariance: FloatArray
    """Of what the predictions leave open, (plans, plans)."""

    def regret(self, trials: Sequence[int]) -> float:
        """Return how much slower than the best the plan chosen after some trials was."""
        run = list(trials)
        expected = self.predicted
        if run:
            seen = self.covariance[np.ix_(run, run)] + STEP_NOISE**2 * np.eye(len(run))
            gain = self.covariance[:, run] @ np.linalg.inv(seen)
            expected = expected + gain @ (self.measured[run] - self.predicted[run])
        chosen = self.measured[int(expected.argmin())]
        return float(np.expm1(chosen - self.measured.min()))

    def named(self, number: int) -> Sequence[int]:
        """Return the trials that lower the expected regret most."""
        normal = np.random.default_rng(0).standard_normal((len(self.predicted), NUM_DRAWS))
        root = np.linalg.cholesky(self.covariance)
        draws = self.predicted[:, None] + root @ normal
        return choose_trials(draws, STEP_NOISE, most=number, worth=0.0).chosen

    def fastest(self, number: int) -> Sequence[int]:
        """Return the plans that are predicted to be the fastest."""
        return [int(index) for index in self.predicted.argsort()[:number]]

    def at_random(self, number: int) -> float:
        """Return the mean regret after trials of plans at random."""
        generator = np.random.default_rng(0)
        count, drawn = len(self.predicted), min(number, len(self.predicted))
        draws = (generator.choice(count, drawn, replace=False) for _ in range(NUM_RANDOM))
        return float(np.mean([self.regret([int(n) for n in draw]) for draw in draws]))


def plans_of(family: Family) -> Plans:
    """Return the plans of a family with what is open about their times."""
    jobs = jobs_of([measurement(entry) for entry in family.rows])
    measured = np.log([measurement(entry).step_s for entry in family.rows])
    shared = jobs.slopes @ jobs.prior @ jobs.slopes.T
    return Plans(measured - jobs.errors, measured, shared + PLAN_ERROR**2 * np.eye(len(measured)))


def main() -> None:
    """Print the mean regret of each way to choose trials."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibration", default="calibrated")
    parser.add_argument("--measurements")
    args = parser.parse_args()
    path = args.measurements
    rows = published("training") if path is None else read_rows(Path(path))
    used = [entry for entry in predict(rows, args.calibration) if entry.refused is None]
    found = [f for f in families_of(used) if len(f.rows) >= FEWEST_PLANS]
    every = [plans_of(family) for family in found]
    counts = [len(family.rows) for family in found]
    print(f"{len(every)} families of {min(counts)} to {max(counts)} plans; mean regret [%]")
    print(f"{'trials':<10}{'named here':>12}{'fastest':>10}{'random':>10}")
    ways: list[Callable[[Plans, int], float]] = [
        lambda plans, number: plans.regret(plans.named(number)),
        lambda plans, number: plans.regret(plans.fastest(number)),
        Plans.at_random,
    ]
    for number in range(MOST + 1):
        shown = [100.0 * np.mean([way(plans, number) for plans in every]) for way in ways]
        print(f"{number:<10}{shown[0]:>12.2f}{shown[1]:>10.2f}{shown[2]:>10.2f}")


if __name__ == "__main__":
    main()
