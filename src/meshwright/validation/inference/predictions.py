"""Rows of requests priced: those that share all but their requests as one column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import MeshwrightError
from meshwright.catalog.calibration import serving_record
from meshwright.pricing.serving.requests import Requests, Served
from meshwright.spec.calibration import ServingConstantsOf
from meshwright.validation.inference.questions import (
    InferenceQuestion,
    Setting,
    inference_question,
)
from meshwright.validation.predictions import Prediction, predict, with_interval
from meshwright.validation.refusals import Reason, RefusedError
from meshwright.validation.rows import Row


def predict_all(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row, of training or of inference, in the order of the rows."""
    training = iter(predict([row for row in rows if not row.is_inference], calibration))
    served = iter(predict_inference([row for row in rows if row.is_inference], calibration))
    return [next(served if row.is_inference else training) for row in rows]


def predict_inference(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row of requests, or the reason for which there is none."""
    record = serving_record(calibration)
    tails = record.interval if record else None
    asked = [_asked(row, calibration) for row in rows]
    answers: dict[int, Prediction] = {}
    for places in columns_of([entry for entry in asked if not isinstance(entry, Prediction)]):
        for question, prediction in zip(places.questions, places.predictions(), strict=True):
            answers[id(question.row)] = prediction
    found = [e if isinstance(e, Prediction) else answers[id(e.row)] for e in asked]
    return [with_interval(entry, tails) for entry in found]


def _asked(row: Row, calibration: str) -> InferenceQuestion | Prediction:
    """Return the question of a row, or its refusal."""
    try:
        _measured(row)
        return inference_question(row, calibration)
    except RefusedError as error:
        return Prediction(row, refused=error.reason, detail=error.detail)
    except MeshwrightError as error:
        return Prediction(row, refused=Reason.PLAN, detail=str(error).splitlines()[0])


@dataclass(frozen=True)
class Column:
    """Questions that are priced together: one setting, all batches or all queues."""

    setting: Setting
    questions: tuple[InferenceQuestion, ...]

    def served(self, constants: ServingConstantsOf[Any] | None = None) -> Served:
        """Return the price of the column, under other constants where they are given."""
        serving = self.setting.serving
        if constants is not None:
            problem = replace(serving.problem, constants=constants)
            shared = {"graph", "pieces", "head", "_layouts", "engine", "efficiencies"}
            vars(problem).update({k: v for k, v in vars(serving.problem).items() if k in shared})
            serving = replace(serving, problem=problem)
        asked = self.questions
        return serving.served(
            Requests(
                np.array([question.prompt_tokens for question in asked]),
                np.array([question.answer_tokens for question in asked]),
                np.array([question.batch for question in asked]),
            )
        )

    def tokens_per_s(self, served: Served) -> FloatArray:
        """Return the throughput of each question as its source defines it [tokens/s]."""
        columns = np.broadcast_arrays(
            served.requests_per_s, served.prompt_s, served.step_s, served.at_once
        )
        found = []
        for question, rate, prompt_s, step_s, at_once in zip(self.questions, *columns, strict=True):
            kind = _measured(question.row)[0]
            prompt, answer = question.prompt_tokens, question.answer_tokens
            value = {
                "total": rate * (prompt + answer),
                "output": rate * answer,
                "prompts": at_once * prompt / prompt_s if prompt_s else np.nan,
                "steps": at_once / step_s,
            }[kind]
            found.append(value * self.setting.replicas)
        return np.array(found)

    def measured(self) -> FloatArray:
        """Return what was measured, in the same terms [tokens/s]."""
        return np.array([_measured(question.row)[1] for question in self.questions])

    def predictions(self) -> list[Prediction]:
        """Return the predictions of the column."""
        served = self.served()
        rooms = np.broadcast_to(served.room, len(self.questions))
        numbers = zip(
            self.questions, self.tokens_per_s(served), self.measured(), rooms, strict=True
        )
        return [
            Prediction(
                question.row,
                predicted_tokens_per_s=float(predicted),
                measured_tokens_per_s=float(measured),
                fits=bool(room >= 1.0),
            )
            for question, predicted, measured, room in numbers
        ]


def columns_of(questions: Sequence[InferenceQuestion]) -> list[Column]:
    """Return questions by what they share."""
    found: dict[tuple[int, bool], list[InferenceQuestion]] = defaultdict(list)
    for question in questions:
        found[id(question.setting), np.isinf(question.batch)].append(question)
    return [Column(asked[0].setting, tuple(asked)) for asked in found.values()]


def _measured(row: Row) -> tuple[str, float]:
    """Return which throughput a row states, and how much [tokens/s].

    ``total`` counts prompts and answers, ``output`` answers alone; ``prompts`` and ``steps`` are
    those of one phase.

    Raises
    ------
    RefusedError
        When it states none.
    """
    found, batch = row.measured, row.batch or 0
    prompt, answer = row.input_len or 0, row.output_len or 0
    if found.total_tokens_per_s:
        return "total", found.total_tokens_per_s
    if found.output_tokens_per_s:
        return "output", found.output_tokens_per_s
    if found.output_tokens_per_s_per_chip and row.hardware.chips:
        return "output", found.output_tokens_per_s_per_chip * row.hardware.chips
    if found.latency_s and batch:
        return "total", (prompt + answer) * batch / found.latency_s
    if found.tpot_ms and batch:
        return "steps", 1e3 * batch / found.tpot_ms
    if found.ttft_ms and batch:
        return "prompts", 1e3 * batch * prompt / found.ttft_ms
    raise RefusedError(Reason.MEASURED, "no throughput, and no time of a batch")
