"""Rows priced: the throughput and the memory that the cost model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.errors import MeshwrightError
from meshwright.calibration.measured import has_measurement, measured_tokens_per_s
from meshwright.calibration.memory.prediction import RowMemory, row_memory
from meshwright.calibration.questions import Question, question_of
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import Row
from meshwright.cost.intervals import interval
from meshwright.cost.price import price_one
from meshwright.cost.step import TIME_PARTS

DID_NOT_FIT = "oom"


@dataclass(frozen=True)
class Prediction:
    """A row beside what the model says; all that is not known is None."""

    row: Row
    question: Question | None = None
    predicted_tokens_per_s: float | None = None
    measured_tokens_per_s: float | None = None
    memory: RowMemory | None = None
    has_room: bool | None = None
    """Of requests: whether the cache of one of full length has room beside the model."""
    parts_s: dict[str, float] | None = None
    interval: tuple[float, float] | None = None
    """Between which throughputs four of five such rows lie [tokens/s]."""
    refused: Reason | None = None
    detail: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the row is predicted to fit; None: not asked."""
        return self.memory.fits if self.memory else self.has_room

    @property
    def log_error(self) -> float | None:
        """ln(predicted / measured) of the throughput."""
        if not (self.predicted_tokens_per_s and self.measured_tokens_per_s):
            return None
        return float(np.log(self.predicted_tokens_per_s / self.measured_tokens_per_s))


def predict(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row, or the reason for which there is none.

    Where the calibration was fitted, each has the interval in which four of five rows alike lay
    whose source was left out of the fit.
    """
    return [_predicted(row, calibration) for row in rows]


def _predicted(row: Row, calibration: str) -> Prediction:
    """Return the prediction of one row."""
    try:
        if not has_measurement(row):
            raise RefusedError(Reason.MEASURED, row.task)
        question = question_of(row, calibration)
        return compared(question)
    except RefusedError as error:
        return Prediction(row, refused=error.reason, detail=error.detail)
    except MeshwrightError as error:
        return Prediction(row, refused=Reason.PLAN, detail=str(error).splitlines()[0])


def compared(question: Question) -> Prediction:
    """Return the prediction of a question beside its measurement."""
    priced = price_one(question.problem, question.structure, question.strategy)
    row, work = question.row, question.problem.workload
    memory, measured = row_memory(question, priced), measured_tokens_per_s(question)
    if measured is None and memory.measured_bytes is None and row.task != DID_NOT_FIT:
        raise RefusedError(Reason.MEASURED, "the rule by which FLOPs were counted is not known")
    predicted = work.tokens_per_step / _one(priced.step.time.total_s)
    return Prediction(
        row,
        question,
        predicted_tokens_per_s=predicted,
        measured_tokens_per_s=measured,
        memory=memory,
        parts_s={name: _one(getattr(priced.step.time, name)) for name in TIME_PARTS},
        interval=interval(question.problem, predicted),
    )


def _one(column: Any) -> float:
    """Return the number of a column of one row."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])
