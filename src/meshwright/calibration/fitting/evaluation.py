"""Errors of rows under given constants, and how each constant moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.calibration.fitting.constants import Key
from meshwright.calibration.predictions import Prediction, predict
from meshwright.calibration.questions import Question
from meshwright.calibration.rows import Row
from meshwright.cost.price import price_one
from meshwright.spec.calibration import CalibrationOf, calibration_columns

STEP = 0.03
"""Of a logarithm, for differences."""
BASE = "uncalibrated"
PARTS = 5
VENDOR_STACKS = {
    "nemo-24.07": "nemo and megatron-bridge", "megatron-bridge": "nemo and megatron-bridge",
    "megatron-sc21": "Megatron papers", "korthikanti-2022": "Megatron papers",
    "megatron-2020": "Megatron papers",
}  # fmt: skip
"""Sources that are no witnesses of each other: one software of one vendor."""


@dataclass(frozen=True)
class FitRows:
    """Rows with a measured throughput, as questions under the uncalibrated constants."""

    predictions: tuple[Prediction, ...]

    @cached_property
    def questions(self) -> list[Question]:
        """What each row asks."""
        return [entry.question for entry in self.predictions if entry.question is not None]

    @cached_property
    def families(self) -> list[str]:
        """The family of chips of each row."""
        return [question.problem.system.chip.family for question in self.questions]

    @cached_property
    def groups(self) -> list[str]:
        """The source of each row."""
        return [entry.row.group for entry in self.predictions]

    @cached_property
    def stacks(self) -> list[str]:
        """What each row is left out with: its source and others of the same vendor.

        Where there is one alone, every fifth row: they are the only witnesses of each other.
        """
        stacks = [VENDOR_STACKS.get(group, group) for group in self.groups]
        if len(set(stacks)) > 1:
            return stacks
        return [f"{stack}, part {row % PARTS + 1}" for row, stack in enumerate(stacks)]

    @cached_property
    def weights(self) -> FloatArray:
        """One over the root of the rows of its source: large tables do not drown small ones."""
        counts = {group: self.groups.count(group) for group in set(self.groups)}
        return np.array([counts[group] ** -0.5 for group in self.groups])

    def errors_and_slopes(
        self, keys: Sequence[Key], values: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return ln(predicted / measured) of each row under each fit, and its slopes.

        Parameters
        ----------
        values
            Logarithms of the constants, one fit a line: (fits, keys). A row is priced once, with
            all fits and all steps as columns.

        Returns
        -------
        errors, slopes
            Of shape (fits, rows) and (fits, rows, keys).
        """
        errors = np.zeros((len(values), len(self.questions)))
        slopes = np.zeros((*errors.shape, len(keys)))
        for index, family in enumerate(self.families):
            mine = [n for n, key in enumerate(keys) if key.family in ("", family)]
            found = self._log_errors(index, [keys[n] for n in mine], values[:, mine])
            errors[:, index] = found[:, 0]
            slopes[:, index, mine] = (found[:, 1:] - found[:, :1]) / STEP
        return errors, slopes

    def _log_errors(self, index: int, own: Sequence[Key], values: FloatArray) -> FloatArray:
        """Return the log error of a row under each fit, as it is and with each constant a step up.

        Shape (fits, 1 + keys).
        """
        question = self.questions[index]
        moved = STEP * np.vstack([np.zeros(len(own)), np.eye(len(own))])
        points = values[:, None, :] + moved[None, :, :]
        draws: dict[str, FloatArray] = {}
        for number, key in enumerate(own):
            column = np.exp(points[:, :, number]).reshape(-1)
            draws |= draws_of(key, column, question.problem.calibration)
        constants = calibration_columns(question.problem.calibration, draws)
        problem: Any = replace(question.problem, calibration=constants)
        priced = price_one(problem, question.structure, question.strategy)
        shape = points.shape[:2]
        seconds = np.broadcast_to(np.asarray(priced.step.time.total_s), points[..., 0].size)
        tokens = question.problem.workload.tokens_per_step
        measured = self.predictions[index].measured_tokens_per_s
        assert measured is not None
        return np.asarray(np.log(tokens / seconds / measured), dtype=float).reshape(shape)


def draws_of(key: Key, column: Any, base: CalibrationOf[float]) -> dict[str, Any]:
    """Return the constants that a free one stands for."""
    if not key.free.scales:
        return {key.free.name: column}
    return {name: getattr(base, name) * column for name in key.free.scales}


def fit_rows(rows: Sequence[Row]) -> FitRows:
    """Return the rows that a fit can use."""
    found = [entry for entry in predict(rows, BASE) if entry.log_error is not None]
    return FitRows(tuple(found))
