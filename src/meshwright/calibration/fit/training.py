"""Errors of rows under given constants, and how each constant moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.errors import source_weights
from meshwright.calibration.fit.constants import Key, keys_of
from meshwright.calibration.jobs import Job
from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import Row
from meshwright.cost.step import price_one
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
    """Rows with a measured throughput, as jobs under the uncalibrated constants."""

    predictions: tuple[Prediction, ...]

    @cached_property
    def jobs(self) -> list[Job]:
        """What each row asks."""
        return [entry.job for entry in self.predictions if entry.job is not None]

    @cached_property
    def families(self) -> list[str]:
        """The family of chips of each row."""
        return [job.problem.system.chip.family for job in self.jobs]

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
        """Of each row, by its source."""
        return source_weights(self.groups)

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
        errors = np.zeros((len(values), len(self.jobs)))
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
        job = self.jobs[index]
        moved = STEP * np.vstack([np.zeros(len(own)), np.eye(len(own))])
        points = values[:, None, :] + moved[None, :, :]
        draws: dict[str, FloatArray] = {}
        for number, key in enumerate(own):
            column = np.exp(points[:, :, number]).reshape(-1)
            draws |= draws_of(key, column, job.problem.nominal_calibration)
        constants = calibration_columns(job.problem.nominal_calibration, draws)
        problem: Any = replace(job.problem, calibration=constants)
        priced = price_one(problem, job.structure, job.strategy)
        shape = points.shape[:2]
        seconds = np.broadcast_to(np.asarray(priced.step.time.total_s), points[..., 0].size)
        tokens = job.problem.workload.tokens_per_step
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


HUBER = 0.05
"""Log errors beyond it count linearly: outliers do not pull."""
NOISE = 0.1
"""Log error of a row that weighs as much as a prior of one spread."""
MOST_ROUNDS = 8
CLOSE = 0.01
FEWEST_ROWS = 4
"""Rows of a family, below which it gets what the other families have."""
INFORMED = 0.02
"""Largest slope below which rows say nothing about a constant."""
MOST_REWEIGHTINGS = 30
SETTLED = 1e-4
"""Change of a step, of a logarithm, at which its weights are those of its errors."""

Stacks = frozenset[str]
"""Stacks whose rows a fit leaves out."""
NOTHING: Stacks = frozenset()


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with the errors of the rows that made them and of rows left out."""

    rows: FitRows
    keys: tuple[Key, ...]
    values: FloatArray
    """Logarithms, (keys,)."""
    spreads: FloatArray
    """Standard deviations of the logarithms, by the curvature at the fit, (keys,)."""
    informed: tuple[bool, ...]
    """Whether rows say anything about a constant."""
    errors_without: dict[Stacks, FloatArray]
    """ln(predicted / measured) of all rows, by the stacks that the constants know nothing of:
    none, one, two."""

    @property
    def errors(self) -> FloatArray:
        """ln(predicted / measured) of rows that made the fit, (rows,)."""
        return self.errors_without[NOTHING]

    @cached_property
    def left_out_errors(self) -> FloatArray:
        """The same, each row predicted by constants fitted without its stack, (rows,).

        NaN where there is one stack alone.
        """
        return self.left_out_errors_without(NOTHING)

    def left_out_errors_without(self, others: Stacks) -> FloatArray:
        """Return what would be left out of a fit that knows nothing of some stacks at all."""
        found = np.full(len(self.rows.stacks), np.nan)
        for row, stack in enumerate(self.rows.stacks):
            errors = self.errors_without.get(others | {stack})
            if errors is not None:
                found[row] = errors[row]
        return found


def fit(rows: FitRows) -> Fit:
    """Return the constants of least robust error that stay near what is expected of them.

    Gauss-Newton steps with Huber weights on log errors; each constant is held by a prior. Fits
    without one stack and without two are made at the same time, as columns of the same prices.
    """
    keys = keys_of(sorted(set(rows.families)))
    left_out = left_out_of(rows.stacks)
    kept = np.array([[stack not in out for stack in rows.stacks] for out in left_out])
    values, errors, slopes = _solved(rows, keys, kept)
    spreads = robust_step(errors[0], slopes[0], rows.weights, keys, values[0])[1]
    return Fit(
        rows=rows,
        keys=tuple(keys),
        values=values[0],
        spreads=spreads,
        informed=tuple(_informed(rows, key, slopes[0, :, n]) for n, key in enumerate(keys)),
        errors_without=dict(zip(left_out, errors, strict=True)),
    )


def left_out_of(stacks: Sequence[str]) -> list[Stacks]:
    """Return which stacks are left out of which fit: none, each one, each two, never all."""
    names = list(dict.fromkeys(stacks))
    return [
        frozenset(out)
        for number in range(min(3, len(names)))
        for out in combinations(names, number)
    ]


def _informed(rows: FitRows, key: Key, slopes: FloatArray) -> bool:
    """Return whether the rows of a constant feel it."""
    mine = [n for n, family in enumerate(rows.families) if key.family in ("", family)]
    return len(mine) >= FEWEST_ROWS and float(np.abs(slopes[mine]).max()) > INFORMED


def _solved(
    rows: FitRows, keys: Sequence[Key], kept: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the constants of each fit, with the errors and slopes of all rows there.

    Parameters
    ----------
    kept
        Which rows each fit has, (fits, rows).
    """
    values = np.tile(np.log([key.free.prior for key in keys]), (len(kept), 1))
    errors, slopes = rows.errors_and_slopes(keys, values)
    moving = np.arange(len(kept))
    for _ in range(MOST_ROUNDS):
        weighed = [(kept[n], rows.weights[kept[n]], keys, values[n]) for n in moving]
        steps = np.array([
            robust_step(errors[n, mine], slopes[n, mine], *rest)[0]
            for n, (mine, *rest) in zip(moving, weighed, strict=True)
        ])  # fmt: skip
        steps = np.clip(steps, -0.5, 0.5)
        values[moving] += steps
        errors[moving], slopes[moving] = rows.errors_and_slopes(keys, values[moving])
        moving = moving[np.abs(steps).max(axis=1) >= CLOSE]
        if not len(moving):
            break
    return values, errors, slopes


def robust_step(
    errors: FloatArray, slopes: FloatArray, weights: FloatArray, keys: Sequence[Key],
    values: FloatArray, huber: float = HUBER,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return the step to the least robust error within the bounds, and the spreads there.

    Errors beyond ``huber`` count by their size, smaller ones by its square.
    """
    from scipy.optimize import lsq_linear

    prior = np.log([key.free.prior for key in keys])
    spread = np.array([key.free.spread for key in keys])
    lowest = np.log([key.free.lowest for key in keys]) - values - 1e-9
    highest = np.log([key.free.highest for key in keys]) - values + 1e-9
    step = np.zeros(len(keys))
    for _ in range(MOST_REWEIGHTINGS):
        before, left = step, np.abs(errors + slopes @ step)
        pull = np.sqrt(weights * np.minimum(1.0, huber / np.maximum(left, 1e-9))) / NOISE
        matrix = np.vstack([slopes * pull[:, None], np.diag(1.0 / spread)])
        target = np.concatenate([-errors * pull, (prior - values) / spread])
        step = lsq_linear(matrix, target, (lowest, highest)).x
        if np.abs(step - before).max() < SETTLED:
            break
    covariance = np.linalg.inv(matrix.T @ matrix)
    return step, np.sqrt(np.diag(covariance))
