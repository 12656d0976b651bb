"""A robust fit of the free constants, and the same with each source left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.validation.fitting.constants import Key, keys_of
from meshwright.validation.fitting.evaluation import FitRows

HUBER = 0.05
"""Log errors beyond it count linearly: outliers do not pull."""
NOISE = 0.1
"""Log error of a row that weighs as much as a prior of one spread."""
MOST_ROUNDS = 6
CLOSE = 0.01
FEWEST_ROWS = 5
INFORMED = 0.02
"""Mean slope below which rows say nothing about a constant."""


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
    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    left_out_errors: FloatArray
    """The same, each row predicted by constants fitted without its source, (rows,)."""


def fit(rows: FitRows) -> Fit:
    """Return the constants of least robust error that stay near what is expected of them.

    Gauss-Newton steps with Huber weights on log errors; each constant is held by a prior. Sources
    left out: refitted in the slopes at the fitted point, then predicted exactly.
    """
    keys = keys_of(sorted(set(rows.families)))
    values = np.log([key.free.prior for key in keys])
    for _ in range(MOST_ROUNDS):
        errors, slopes = rows.errors_and_slopes(keys, values)
        step = np.clip(robust_step(errors, slopes, rows.weights, keys, values)[0], -0.5, 0.5)
        values = values + step
        if np.abs(step).max() < CLOSE:
            break
    errors, slopes = rows.errors_and_slopes(keys, values)
    spreads = robust_step(errors, slopes, rows.weights, keys, values)[1]
    return Fit(
        rows=rows,
        keys=tuple(keys),
        values=values,
        spreads=spreads,
        informed=tuple(_informed(rows, key, slopes[:, n]) for n, key in enumerate(keys)),
        errors=errors,
        left_out_errors=_left_out(rows, keys, values, errors, slopes),
    )


def _informed(rows: FitRows, key: Key, slopes: FloatArray) -> bool:
    """Return whether the rows of a constant feel it."""
    mine = [n for n, family in enumerate(rows.families) if key.family in ("", family)]
    return len(mine) >= FEWEST_ROWS and float(np.abs(slopes[mine]).max()) > INFORMED


def _left_out(
    rows: FitRows, keys: Sequence[Key], values: FloatArray, errors: FloatArray, slopes: FloatArray
) -> FloatArray:
    """Return the error of each row under constants fitted without the stack of its source."""
    found = np.full(len(errors), np.nan)
    stacks = np.array(rows.stacks)
    for stack in dict.fromkeys(rows.stacks):
        kept, out = stacks != stack, np.flatnonzero(stacks == stack)
        if kept.any():
            weights = rows.weights[kept]
            step = robust_step(errors[kept], slopes[kept], weights, keys, values)[0]
            found[out] = rows.errors(keys, values + step, out.tolist())
    return found


def robust_step(
    errors: FloatArray, slopes: FloatArray, weights: FloatArray, keys: Sequence[Key],
    values: FloatArray,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Return the step to the least robust error within the bounds, and the spreads there."""
    from scipy.optimize import lsq_linear

    prior = np.log([key.free.prior for key in keys])
    spread = np.array([key.free.spread for key in keys])
    lowest = np.log([key.free.lowest for key in keys]) - values - 1e-9
    highest = np.log([key.free.highest for key in keys]) - values + 1e-9
    step = np.zeros(len(keys))
    for _ in range(30):
        left = np.abs(errors + slopes @ step)
        pull = np.sqrt(weights * np.minimum(1.0, HUBER / np.maximum(left, 1e-9))) / NOISE
        matrix = np.vstack([slopes * pull[:, None], np.diag(1.0 / spread)])
        target = np.concatenate([-errors * pull, (prior - values) / spread])
        step = lsq_linear(matrix, target, (lowest, highest)).x
    covariance = np.linalg.inv(matrix.T @ matrix)
    return step, np.sqrt(np.diag(covariance))
