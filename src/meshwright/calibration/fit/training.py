"""Errors of rows under given constants, and their slopes over each constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.base.cluster import HERE, Cluster, every_answer
from meshwright.calibration.errors import source_weights
from meshwright.calibration.fit.constants import UNNAMED, Key, keys_of
from meshwright.calibration.jobs import Job
from meshwright.calibration.prediction import Prediction, predict
from meshwright.calibration.rows import Row
from meshwright.catalog.calibration import UNCALIBRATED
from meshwright.cost.parts import TimePart
from meshwright.cost.step import price_one
from meshwright.spec.calibration import CalibrationOf, calibration_columns

STEP = 0.03
"""Difference of a logarithm from which slopes are taken."""
PARTS = 5
VENDOR_STACKS = {
    "nemo-24.07": "nemo and megatron-bridge", "megatron-bridge": "nemo and megatron-bridge",
    "megatron-sc21": "Megatron papers", "korthikanti-2022": "Megatron papers",
    "megatron-2020": "Megatron papers", "megatron-golden": "nemo and megatron-bridge",
    "megatron-moe-zoo": "nemo and megatron-bridge",
}  # fmt: skip
"""Sources that are not independent of each other: one software of one vendor."""


@dataclass(frozen=True)
class FitRows:
    """Rows with a measured throughput, as jobs under the uncalibrated constants."""

    predictions: tuple[Prediction, ...]
    cluster: Cluster = HERE
    """Workers that price the rows."""

    @cached_property
    def jobs(self) -> list[Job]:
        """Job of each row."""
        return [entry.job for entry in self.predictions if entry.job is not None]

    @cached_property
    def families(self) -> list[str]:
        """The family of chips of each row."""
        return [job.problem.system.chip.family for job in self.jobs]

    @cached_property
    def frameworks(self) -> list[str]:
        """The framework of each row."""
        named = (job.problem.workload.software.framework for job in self.jobs)
        rows = (job.row.framework for job in self.jobs)
        return [row if name and row else UNNAMED for name, row in zip(named, rows, strict=True)]

    def held(self, key: Key) -> BoolArray:
        """Return whether each row has a constant, (rows,)."""
        pairs = zip(self.families, self.frameworks, strict=True)
        return np.array([key.holds(*pair) for pair in pairs])

    @cached_property
    def groups(self) -> list[str]:
        """The source of each row."""
        return [entry.row.group for entry in self.predictions]

    @cached_property
    def stacks(self) -> list[str]:
        """Group with which each row is left out: its source and others of the same vendor.

        If there is only one group, every fifth row: all rows then depend on each other.
        """
        stacks = [VENDOR_STACKS.get(group, group) for group in self.groups]
        if len(set(stacks)) > 1:
            return stacks
        return [f"{stack}, part {row % PARTS + 1}" for row, stack in enumerate(stacks)]

    @cached_property
    def weights(self) -> FloatArray:
        """Weight of each row, by its source."""
        return source_weights(self.groups)

    def errors_and_slopes(
        self, keys: Sequence[Key], values: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return ln(predicted / measured) of each row, (rows,), and its slopes, (rows, keys).

        Parameters
        ----------
        values
            Logarithms of the constants, (keys,). A row is priced once, with all steps as columns.
        """
        errors, slopes = np.zeros(len(self.jobs)), np.zeros((len(self.jobs), len(keys)))
        own = list(self._own(keys))
        # As it is, and with each constant a step up.
        lines = [values[mine] + STEP * np.vstack([np.zeros(len(mine)), np.eye(len(mine))])
                 for mine in own]  # fmt: skip
        for index, (found, _) in enumerate(self._priced(keys, own, lines)):
            errors[index] = found[0]
            slopes[index, own[index]] = (found[1:] - found[0]) / STEP
        return errors, slopes

    def errors(self, keys: Sequence[Key], values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln(predicted / measured) of each row under each fit, and the share of the host.

        Parameters
        ----------
        values
            Logarithms of the constants, one fit a line: (fits, keys).

        Returns
        -------
        errors, host_shares
            Host shares are of the time of a step. Both of shape (fits, rows).
        """
        own = list(self._own(keys))
        priced = self._priced(keys, own, [values[:, mine] for mine in own])
        errors, shares = zip(*priced, strict=True)
        return np.array(errors).T, np.array(shares).T

    def _own(self, keys: Sequence[Key]) -> Iterator[list[int]]:
        """Yield the keys of each row."""
        for pair in zip(self.families, self.frameworks, strict=True):
            yield [n for n, key in enumerate(keys) if key.holds(*pair)]

    def _priced(
        self, keys: Sequence[Key], own: Sequence[Sequence[int]], lines: Sequence[FloatArray]
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Return the errors and host shares of each row under lines of its own constants."""
        asked = [
            (job, entry.measured_tokens_per_s or np.nan, [keys[n] for n in mine], logs)
            for job, entry, mine, logs in zip(self.jobs, self.predictions, own, lines, strict=True)
        ]
        return [*every_answer(self.cluster, row_priced, asked)]


def row_priced(
    asked: tuple[Job, float, Sequence[Key], FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Return ln(predicted / measured) of a row, and the share of its step that waits for the host.

    Both of shape (lines,).

    Parameters
    ----------
    asked
        The row, its measured throughput [tokens/s], its own constants, and lines of their
        logarithms, (lines, constants).
    """
    job, measured_tokens_per_s, own, logs = asked
    draws: dict[str, FloatArray] = {}
    for number, key in enumerate(own):
        draws |= draws_of(key, np.exp(logs[:, number]), job.problem.nominal_calibration)
    constants = calibration_columns(job.problem.nominal_calibration, draws)
    problem: Any = replace(job.problem, calibration=constants)
    time = price_one(problem, job.plan_options, job.strategy).step.time
    tokens_per_s = job.problem.workload.tokens_per_step / np.asarray(time.total_s)
    errors = np.log(np.broadcast_to(tokens_per_s, len(logs)) / measured_tokens_per_s)
    shares = np.broadcast_to(time[TimePart.LAUNCH] / time.total_s, len(logs))
    return np.asarray(errors, dtype=float), np.asarray(shares, dtype=float)


def draws_of(key: Key, column: Any, base: CalibrationOf[float]) -> dict[str, Any]:
    """Return the values of the constants behind a free one."""
    if not key.free.scales:
        return {key.free.name: column}
    return {name: getattr(base, name) * column for name in key.free.scales}


def fit_rows(rows: Sequence[Row], *, is_named: bool = True, cluster: Cluster = HERE) -> FitRows:
    """Return the rows that a fit can use, with their framework or without."""
    return usable(predict(rows, UNCALIBRATED, is_named=is_named, is_placed=False), cluster)


def usable(predictions: Sequence[Prediction], cluster: Cluster = HERE) -> FitRows:
    """Return the rows that have a measured throughput beside their prediction."""
    return FitRows(tuple(entry for entry in predictions if entry.log_error is not None), cluster)


HUBER = 0.05
"""Log errors beyond it count linearly: outliers do not pull."""
NOISE = 0.1
"""Log error of a row that weighs as much as a prior of one spread."""
MOST_ROUNDS = 8
CLOSE = 0.01
FEWEST_ROWS = 4
"""Fewest rows of a family with its own constants; others get the constants of other families."""
INFORMED = 0.02
"""Largest slope below which rows say nothing about a constant."""
MOST_REWEIGHTINGS = 30
SETTLED = 1e-4
"""Change of a step, of a logarithm, at which its weights are those of its errors."""

Stacks = frozenset[str]
"""Stacks with rows that a fit leaves out."""
NOTHING: Stacks = frozenset()


@dataclass(frozen=True)
class Fit:
    """Fitted constants, with the errors of the rows that made them and of rows left out."""

    rows: FitRows
    keys: tuple[Key, ...]
    values: FloatArray
    """Logarithms of the constants, (keys,)."""
    spreads: FloatArray
    """Standard deviations of the logarithms, by the curvature at the fit, (keys,)."""
    informed: tuple[bool, ...]
    """Whether the rows determine a constant."""
    errors_without: dict[Stacks, FloatArray]
    """ln(predicted / measured) of all rows, by the stacks left out of the fit: none, one, two."""
    host_shares_without: dict[Stacks, FloatArray]
    """Share of the step of each row that waits for the host, by the stacks left out of the fit."""
    unnamed: Fit | None = None
    """Errors of the same constants on the rows priced without their framework."""

    @property
    def errors(self) -> FloatArray:
        """ln(predicted / measured) of rows that made the fit, (rows,)."""
        return self.errors_without[NOTHING]

    @cached_property
    def left_out_errors(self) -> FloatArray:
        """Errors of each row under constants fitted without its stack, (rows,).

        NaN where there is only one stack.
        """
        return self.left_out_errors_without(NOTHING)

    def left_out_errors_without(self, others: Stacks) -> FloatArray:
        """Return the left-out errors of a fit made without some other stacks."""
        return self._left_out(self.errors_without, others)

    def host_shares_left_out(self, others: Stacks) -> FloatArray:
        """Return the left-out shares of the step that wait for the host, (rows,)."""
        return self._left_out(self.host_shares_without, others)

    def _left_out(self, without: Mapping[Stacks, FloatArray], others: Stacks) -> FloatArray:
        """Return the figure of each row under the fit made without its stack."""
        found = np.full(len(self.rows.stacks), np.nan)
        for row, stack in enumerate(self.rows.stacks):
            figures = without.get(others | {stack})
            if figures is not None:
                found[row] = figures[row]
        return found


def fit(rows: FitRows, unnamed: FitRows | None = None) -> Fit:
    """Return the constants of least robust error that stay near their expected values.

    Gauss-Newton steps with Huber weights on log errors; each constant is held by a prior. Fits that
    leave rows out are made in the slopes at the fitted point, then predicted exactly.

    Parameters
    ----------
    unnamed
        The rows as they are priced without their framework: they make no constant.
    """
    keys = keys_of(sorted(set(rows.families)), sorted(set(rows.frameworks)))
    prior = np.log([key.free.prior for key in keys])
    fitted, errors, slopes = solved(
        lambda values: rows.errors_and_slopes(keys, values), keys, prior, rows.weights
    )
    spreads = robust_step(errors, slopes, rows.weights, keys, fitted)[1]
    left_out = left_out_of(rows.stacks)
    values = np.tile(fitted, (len(left_out), 1))
    for number, out in enumerate(left_out[1:], 1):
        kept = np.array([stack not in out for stack in rows.stacks])
        values[number] += robust_step(
            errors[kept], slopes[kept], rows.weights[kept], keys, fitted
        )[0]  # fmt: skip
    known, shares = _without(rows, keys, left_out, values)
    found = Fit(
        rows=rows, keys=tuple(keys), values=fitted, spreads=spreads,
        informed=tuple(_informed(rows, key, slopes[:, n]) for n, key in enumerate(keys)),
        errors_without=known, host_shares_without=shares,
    )  # fmt: skip
    if unnamed is None:
        return found
    known, shares = _without(unnamed, keys, left_out, values)
    same = replace(found, rows=unnamed, errors_without=known, host_shares_without=shares)
    return replace(found, unnamed=same)


def _without(
    rows: FitRows, keys: Sequence[Key], left_out: Sequence[Stacks], values: FloatArray
) -> tuple[dict[Stacks, FloatArray], dict[Stacks, FloatArray]]:
    """Return errors and host shares of rows by the stacks that their fit leaves out."""
    errors, shares = rows.errors(keys, values)
    return dict(zip(left_out, errors, strict=True)), dict(zip(left_out, shares, strict=True))


def left_out_of(stacks: Sequence[str]) -> list[Stacks]:
    """Return the stacks that each fit leaves out: none, each one, each two, never all."""
    names = list(dict.fromkeys(stacks))
    return [
        frozenset(out)
        for number in range(min(3, len(names)))
        for out in combinations(names, number)
    ]


def _informed(rows: FitRows, key: Key, slopes: FloatArray) -> bool:
    """Return whether the rows of a constant determine it, and are enough."""
    mine = rows.held(key)
    return int(mine.sum()) >= FEWEST_ROWS and float(np.abs(slopes[mine]).max()) > INFORMED


def solved(
    errors_and_slopes: Callable[[FloatArray], tuple[FloatArray, FloatArray]], keys: Sequence[Key],
    values: FloatArray, weights: FloatArray, huber: float = HUBER,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Return fitted constants, with the errors and slopes of all rows there.

    Parameters
    ----------
    values
        Where they start, (keys,).
    """
    errors, slopes = errors_and_slopes(values)
    for _ in range(MOST_ROUNDS):
        step = robust_step(errors, slopes, weights, keys, values, huber)[0]
        values = values + np.clip(step, -0.5, 0.5)
        errors, slopes = errors_and_slopes(values)
        if np.abs(step).max() < CLOSE:
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
        # The normal equations have a row for each constant
        root = np.linalg.cholesky(matrix.T @ matrix).T
        step = lsq_linear(root, np.linalg.solve(root.T, matrix.T @ target), (lowest, highest)).x
        if np.abs(step - before).max() < SETTLED:
            break
    covariance = np.linalg.inv(matrix.T @ matrix)
    return step, np.sqrt(np.diag(covariance))
