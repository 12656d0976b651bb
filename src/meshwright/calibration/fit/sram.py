"""The constants of machines that serve from SRAM fitted to published figures; each left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import Free, Key
from meshwright.calibration.fit.training import CLOSE, MOST_ROUNDS, NOISE, STEP, robust_step
from meshwright.calibration.rows import RefusedError, Row
from meshwright.calibration.sram import SramJob, sram_job

REDUCTION = Free("reduction_s", 1e-6, 1.0, 1e-8, 1e-4)
"""Constant of each family of chips: about a thousand cycles, out over the cores and back."""
DRAFTED = Free("tokens_per_pass", 2.5, 0.5, 1.0, 8.0)
"""Constant of each server that drafts tokens."""


@dataclass(frozen=True)
class SramFit:
    """Fitted constants, with the error of each row, and of each row left out."""

    jobs: tuple[SramJob, ...]
    keys: tuple[Key, ...]
    values: FloatArray
    """Logarithms of the constants, (keys,)."""
    spreads: FloatArray
    """Standard deviations of the logarithms, (keys,)."""
    errors: FloatArray
    """ln(predicted / published), (rows,)."""
    left_out: FloatArray
    """Errors of each row under constants fitted without it, (rows,)."""


def fit_sram(rows: Sequence[Row], calibration: str) -> SramFit | None:
    """Return the constants of least squares that stay near expected values; None: no row.

    Errors are not cut as those of tables are: each of few rows is another model on another number
    of chips, and the error of the constants is in all of them. The spread of a constant is that by
    the curvature at the fit, for errors as large as those left.
    """
    found = []
    for row in rows:
        try:
            found.append(sram_job(row, calibration))
        except RefusedError:
            continue
    jobs = tuple(found)
    if not jobs:
        return None
    keys = [Key(REDUCTION, family) for family in sorted({job.family for job in jobs})]
    keys += [Key(DRAFTED, server) for server in sorted({job.server for job in jobs} - {""})]
    every = np.ones(len(jobs), dtype=bool)
    values, spreads = _solved(jobs, keys, every)
    errors = _errors(jobs, keys, values)
    left_out = np.array([
        _errors(jobs, keys, _solved(jobs, keys, np.arange(len(jobs)) != n)[0])[n]
        for n in range(len(jobs))
    ])  # fmt: skip
    wide = max(float(np.sqrt(np.mean(errors**2))) / NOISE, 1.0)
    return SramFit(jobs, tuple(keys), values, wide * spreads, errors, left_out)


def _solved(
    jobs: Sequence[SramJob], keys: Sequence[Key], kept: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return the constants fitted to the rows that are kept, and their spreads."""
    values, weights = np.log([key.free.prior for key in keys]), np.ones(int(kept.sum()))
    for _ in range(MOST_ROUNDS):
        errors, moved = _errors(jobs, keys, values), STEP * np.eye(len(keys))
        slopes = np.stack([_errors(jobs, keys, values + step) - errors for step in moved], axis=1)
        step, spreads = robust_step(
            errors[kept], slopes[kept] / STEP, weights, keys, values, huber=math.inf
        )
        values = values + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < CLOSE:
            break
    return values, spreads


def _errors(jobs: Sequence[SramJob], keys: Sequence[Key], values: FloatArray) -> FloatArray:
    """Return ln(predicted / published) of each row, for logarithms of the constants."""
    known = dict(zip([key.family for key in keys], np.exp(values).tolist(), strict=True))
    predicted = [job.tokens_per_s(known[job.family], known.get(job.server, 1.0)) for job in jobs]
    published = [job.row.measured.tokens_per_s_per_user for job in jobs]
    return np.asarray(np.log(np.array(predicted) / np.array(published, dtype=float)), dtype=float)
