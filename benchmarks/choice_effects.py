"""How far off is the effect of a choice where degrees and micro-batch stay?

Pairs of published rows on one machine that differ in choices or software alone: the ratio of their
throughputs, measured and predicted, and the error as a share of the predicted effect.

    python benchmarks/choice_effects.py [--calibration NAME]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from itertools import combinations

import numpy as np

from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import published
from meshwright.sharding.strategy import PlanOptions


def pairs(calibration: str) -> Iterator[tuple[Prediction, Prediction]]:
    """Yield rows that differ in choices or software alone."""
    found = defaultdict(list)
    for entry in predict(published("training"), calibration):
        if entry.log_error is not None and entry.job is not None:
            row, job = entry.row, entry.job
            batch = job.problem.workload.global_batch_size
            model = row.model.model_copy(update={"name": None})
            key = (row.group, model, row.system, batch, row.precision, job.strategy)
            found[key].append(entry)
    for rows in found.values():
        for one, other in combinations(rows, 2):
            if differences(one, other):
                yield one, other


def differences(one: Prediction, other: Prediction) -> list[str]:
    """Return the names of the choices in which two rows differ."""
    assert one.job is not None
    assert other.job is not None
    first, second = one.job, other.job
    plan_options = [entry.name for entry in fields(PlanOptions)]
    found = [
        n for n in plan_options if getattr(first.plan_options, n) != getattr(second.plan_options, n)
    ]
    ours, theirs = first.problem.workload.software, second.problem.workload.software
    return found + [n for n in type(ours).model_fields if getattr(ours, n) != getattr(theirs, n)]


def main() -> None:
    """Print each pair, and the error of all as a share of their effect."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibration", default="calibrated")
    effects, errors = [], []
    for one, other in pairs(parser.parse_args().calibration):
        measured = np.log((one.measured_tokens_per_s or 1.0) / (other.measured_tokens_per_s or 1.0))
        predicted = np.log(
            (one.predicted_tokens_per_s or 1.0) / (other.predicted_tokens_per_s or 1.0)
        )
        effects.append(predicted)
        errors.append(predicted - measured)
        names = " ".join(differences(one, other))
        print(f"{one.row.group:<18}{names[:50]:<52}{measured:>+8.3f}{predicted:>+8.3f}")
    share = np.sqrt(np.mean(np.square(errors)) / np.mean(np.square(effects)))
    print(f"{len(errors)} pairs: root mean square error {share:.2f} of the predicted effect")


if __name__ == "__main__":
    main()
