"""Rows of a user's own jobs as measurements of resources."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.base.errors import Fault, SpecError
from meshwright.calibration.predictions import Prediction, predict
from meshwright.calibration.rows import Row
from meshwright.train.measured.factors import Measurement


def measurements(rows: Sequence[Row], calibration: str, origin: str) -> list[Measurement]:
    """Return the measured steps of rows.

    Raises
    ------
    SpecError
        With every row that cannot be priced, or has no throughput.
    """
    predictions = predict(rows, calibration)
    faults = [
        Fault(entry.row.id, *_why_not(entry))
        for entry in predictions
        if entry.question is None or entry.measured_tokens_per_s is None
    ]
    if faults or not predictions:
        raise SpecError(faults or Fault("", "holds no row"), origin=origin)
    return [measurement(entry) for entry in predictions]


def measurement(entry: Prediction) -> Measurement:
    """Return the measured step of a row that has one."""
    question, tokens_per_s = entry.question, entry.measured_tokens_per_s
    assert question is not None
    assert tokens_per_s is not None
    step_s = question.problem.workload.tokens_per_step / tokens_per_s
    return Measurement(
        entry.row.id, question.problem, question.strategy, question.structure, step_s
    )


def _why_not(entry: Prediction) -> tuple[str, str]:
    """Return why a row is no measurement of a step, and what would make it one."""
    if entry.refused is not None:
        return f"{entry.refused}: {entry.detail}", "complete it, or leave it out"
    return "has no measured time or throughput", "leave it out"
