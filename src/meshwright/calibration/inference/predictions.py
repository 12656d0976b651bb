"""Rows of requests priced: those that share all but their requests as one column."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import MeshwrightError
from meshwright.calibration.inference.questions import (
    InferenceQuestion,
    Setting,
    inference_question,
)
from meshwright.calibration.predictions import Prediction, predict
from meshwright.calibration.refusals import Reason, RefusedError
from meshwright.calibration.rows import Row
from meshwright.catalog.calibration import serving_spread
from meshwright.cost.intervals import traits_of
from meshwright.serve.requests import Requests, Served
from meshwright.spec.calibration import ServingConstantsOf, Spread


def predict_all(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row, of training or of inference, in the order of the rows."""
    training = iter(predict([row for row in rows if not row.is_inference], calibration))
    served = iter(predict_inference([row for row in rows if row.is_inference], calibration))
    return [next(served if row.is_inference else training) for row in rows]


def predict_inference(rows: Sequence[Row], calibration: str) -> list[Prediction]:
    """Return the prediction of each row of requests, or the reason for which there is none."""
    spread = serving_spread(calibration)
    asked = [_asked(row, calibration) for row in rows]
    answers: dict[int, Prediction] = {}
    for column in columns_of([entry for entry in asked if not isinstance(entry, Prediction)]):
        for question, prediction in zip(column.questions, column.predictions(spread), strict=True):
            answers[id(question.row)] = prediction
    return [e if isinstance(e, Prediction) else answers[id(e.row)] for e in asked]


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
        """Return the price of the column, under other constants where they are given.

        Parameters
        ----------
        constants
            Numbers, or columns of draws: the price then holds all questions under the first draw,
            then all under the second, and so on.
        """
        serving, draws = self.setting.serving, 1
        if constants is not None:
            draws = max(np.size(value) for value in vars(constants).values())
            columns = {
                name: np.repeat(np.broadcast_to(value, draws), len(self.questions))
                for name, value in vars(constants).items()
            }
            problem = serving.problem.with_constants(ServingConstantsOf(**columns))
            serving = replace(serving, problem=problem)
        return serving.served(
            Requests(
                np.tile([question.prompt_tokens for question in self.questions], draws),
                np.tile([question.answer_tokens for question in self.questions], draws),
                np.tile([question.batch for question in self.questions], draws),
            )
        )

    def tokens_per_s(self, served: Served) -> FloatArray:
        """Return the throughput of each question as its source defines it [tokens/s].

        Of each draw in turn, where constants were drawn.
        """
        draws = np.size(served.step_s) // len(self.questions)
        prompt = np.tile([question.prompt_tokens for question in self.questions], draws)
        answer = np.tile([question.answer_tokens for question in self.questions], draws)
        kinds = np.tile([_measured(question.row)[0] for question in self.questions], draws)
        prompts_s = np.where(served.prompt_s > 0, served.prompt_s, np.nan)
        rates = {
            "total": served.requests_per_s * (prompt + answer),
            "output": served.requests_per_s * answer,
            "prompts": served.at_once * prompt / prompts_s,
            "steps": served.at_once / served.step_s,
        }
        found = np.select([kinds == kind for kind in rates], list(rates.values()))
        return np.asarray(found * self.setting.replicas, dtype=float)

    def measured(self) -> FloatArray:
        """Return what was measured, in the same terms [tokens/s]."""
        return np.array([_measured(question.row)[1] for question in self.questions])

    def predictions(self, spread: Spread | None) -> list[Prediction]:
        """Return the predictions of the column, with intervals where their spread is known."""
        served, problem = self.served(), self.setting.serving.problem
        factor = None
        if spread is not None:
            traits = traits_of(problem, is_seen=problem.calibration.is_calibrated)
            factor = float(np.exp(spread.of(traits)))
        rooms = np.broadcast_to(served.room, len(self.questions))
        numbers = zip(
            self.questions, self.tokens_per_s(served), self.measured(), rooms, strict=True
        )
        return [
            Prediction(
                question.row,
                predicted_tokens_per_s=float(predicted),
                measured_tokens_per_s=float(measured),
                has_room=bool(room >= 1.0),
                interval=(predicted / factor, predicted * factor) if factor else None,
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
