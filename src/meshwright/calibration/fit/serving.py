"""The constants of serving fitted to rows of requests; sources, servers and chips left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, weighted_quantile
from meshwright.base.cluster import HERE, Cluster, every_answer
from meshwright.calibration.errors import SHARE, source_weights
from meshwright.calibration.fit.constants import Free, Key
from meshwright.calibration.fit.training import NOISE, STEP, robust_step, solved
from meshwright.calibration.rows import RefusedError, Row
from meshwright.calibration.serving import (
    FIGURES,
    THROUGHPUT,
    TTFT,
    Column,
    columns_of,
    serving_jobs,
)
from meshwright.catalog.calibration import UNCALIBRATED, load_serving, under
from meshwright.search.intervals import EXPERTS, FIRST_TOKEN, UNSEEN
from meshwright.spec.calibration import Spread, Tail

STARTS = tuple(np.log([0.1, 1.0 / 3.0]).tolist())
"""Moves of one constant that are tried before the first step."""
OF_CHIPS = (
    Free("prompt_rate_share", 0.9, 0.25, 0.4, 1.2),
    Free("few_rows_rate_share", 0.7, 0.5, 0.02, 1.2),
    Free("weight_read_share", 0.9, 0.25, 0.5, 1.15),
    Free("cache_read_share", 0.9, 0.25, 0.4, 1.15),
    Free("collective_start_share", 1.0, 1.0, 0.2, 16.0),
    Free("expert_read_share", 0.85, 0.25, 0.4, 1.15),
    Free("attention_rate_share", 1.2, 0.35, 0.5, 2.2),
    # Of small products in recorded graphs (docs/results/kernels.md): 2 to 6 us
    Free("kernel_start_s", 3e-6, 0.7, 3e-7, 3e-5),
)
"""Constants of each family of chips; collectives start by libraries of their vendors."""
OF_SERVERS = (
    Free("host_step_s", 1e-3, 2.0, 1e-5, 0.02),
    Free("host_sequence_s", 2e-5, 2.0, 1e-7, 1e-3),
    # A request and an answer over HTTP, and two messages between processes.
    Free("host_prompt_s", 4e-3, 2.0, 1e-4, 0.5),
    # A tokeniser reads about 10^6 tokens a second; as much for copies and hashes of blocks.
    Free("host_token_s", 2e-6, 1.0, 1e-8, 1e-4),
    Free("steps_ahead", 1.0, 1.0, 0.02, 40.0),
    Free("shared_cache_extra", 0.6, 1.0, 0.05, 4.0),
)
"""Constants of each server."""
SHARED = (
    Free("core_pull", 2.5, 0.7, 1.0, 8.0),
    Free("expert_rate_share", 0.46, 0.4, 0.1, 0.9),
    Free("prompts_together", 2.0, 0.5, 1.0, 8.0),
)
"""Constants shared by all rows."""


@dataclass(frozen=True)
class ServingRows:
    """Rows of requests with a measured throughput, as columns under neutral constants."""

    columns: tuple[Column, ...]
    base: str = UNCALIBRATED
    """Calibration with the expected constants of serving."""
    trained: str = UNCALIBRATED
    """Calibration with the constants of training."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons why rows cannot be used, by the name of the row."""
    cluster: Cluster = HERE
    """Workers that price the columns."""

    @cached_property
    def rows(self) -> list[Row]:
        """The rows, column by column."""
        return [job.row for column in self.columns for job in column.jobs]

    @cached_property
    def labels(self) -> dict[str, list[str]]:
        """Source, server and family of chips of each row."""
        found: dict[str, list[str]] = {"source": [], "server": [], "family": []}
        for column in self.columns:
            serving = column.setting.serving
            number = len(column.jobs)
            found["source"] += [job.row.group for job in column.jobs]
            found["server"] += [serving.server.name] * number
            found["family"] += [self.family_of(column)] * number
        return found

    @cached_property
    def _servers_of(self) -> dict[str, set[str]]:
        """Servers that have rows on each family of chips."""
        found: dict[str, set[str]] = {}
        for column in self.columns:
            serving = column.setting.serving
            found.setdefault(serving.problem.system.chip.family, set()).add(serving.server.name)
        return found

    def family_of(self, column: Column) -> str:
        """Return the family of chips of a column, of the server alone where it is no measure.

        Rows of one server alone that another one has replaced say nothing about the kernels of
        others.
        """
        serving = column.setting.serving
        family, server = serving.problem.system.chip.family, serving.server
        is_alone = self._servers_of[family] == {server.name}
        return under(family, server) if is_alone and server.replaced_by else family

    @property
    def with_experts(self) -> list[bool]:
        """Whether the model of each row has experts."""
        return [
            column.setting.serving.problem.num_experts > 0
            for column in self.columns
            for _ in column.jobs
        ]

    @property
    def figures(self) -> list[str]:
        """Figure of each row: a throughput, or one of the times under load."""
        return [
            FIGURES.get(job.figure, THROUGHPUT) for column in self.columns for job in column.jobs
        ]

    @property
    def on_chips_of_one_source(self) -> BoolArray:
        """Whether no other source has rows on chips of the family of each row."""
        sources, families = (np.array(self.labels[name]) for name in ("source", "family"))
        alone = {
            family for family in families.tolist() if len(set(sources[families == family])) == 1
        }
        return np.array([family in alone for family in families.tolist()])

    @cached_property
    def weights(self) -> FloatArray:
        """Weight of each row, by its source."""
        return source_weights(self.labels["source"])

    @cached_property
    def keys(self) -> list[Key]:
        """The free constants of these rows, expected where the base has them."""
        families = sorted(set(self.labels["family"]))
        servers = sorted(set(self.labels["server"]))
        own = [Key(free, family) for family in families for free in OF_CHIPS]
        own += [Key(free, server) for server in servers for free in OF_SERVERS]
        own += [Key(free) for free in SHARED]
        if self.base == UNCALIBRATED:
            return own
        return [replace(key, free=self._expected(key)) for key in own]

    def _expected(self, key: Key) -> Free:
        """Return a free constant that is expected where the base has it."""
        serving = next(
            found
            for column in self.columns
            for found in (column.setting.serving,)
            if key.family in ("", found.server.name, self.family_of(column))
        )
        constants = load_serving(serving.problem.system.chip.family, serving.server, self.base)
        prior = min(max(getattr(constants, key.free.name), key.free.lowest), key.free.highest)
        return replace(key.free, prior=prior)

    def errors_and_slopes(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln(predicted / measured), (rows,), and its slopes, (rows, keys)."""
        errors = np.zeros(len(self.rows))
        slopes = np.zeros((len(self.rows), len(self.keys)))
        start = 0
        steps = [STEP * np.vstack([np.zeros(len(mine)), np.eye(len(mine))]) for mine in self._own]
        for mine, found in zip(self._own, self._log_errors(values, steps), strict=True):
            rows = slice(start, start + found.shape[1])
            errors[rows] = found[0]
            slopes[rows, mine] = (found[1:] - found[0]).T / STEP
            start = rows.stop
        return errors, slopes

    def best_starts(self, values: FloatArray) -> FloatArray:
        """Return the best move of each constant alone before the first step, (keys,).

        Where two times compete and the longer one counts, the shorter one has no slope: a constant
        far from its expected value would never be found.
        """
        lost = np.zeros((len(STARTS), len(values)))
        start = 0
        moved = [np.vstack([np.zeros(len(mine)), *(move * np.eye(len(mine)) for move in STARTS)])
                 for mine in self._own]  # fmt: skip
        for mine, found in zip(self._own, self._log_errors(values, moved), strict=True):
            rows = slice(start, start + found.shape[1])
            start = rows.stop
            more = (np.abs(found[1:]) - np.abs(found[0])) * self.weights[rows]
            lost[:, mine] += more.sum(axis=1).reshape(len(STARTS), len(mine))
        spread = np.array([key.free.spread for key in self.keys])
        bounds = np.log([(key.free.lowest, key.free.highest) for key in self.keys])
        moves = np.array(STARTS)[:, None] + 0.0 * values
        lost = lost / NOISE + (moves / spread) ** 2 / 2.0
        inside = (values + moves >= bounds[:, 0]) & (values + moves <= bounds[:, 1])
        lost = np.where(inside & (lost < 0), lost, 0.0)
        best = lost.argmin(axis=0)
        return np.where(lost.min(axis=0) < 0, np.array(STARTS)[best], 0.0)

    def errors(self, values: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of each row, for logarithms of the constants."""
        steps = [np.zeros((1, len(mine))) for mine in self._own]
        return np.concatenate([found[0] for found in self._log_errors(values, steps)])

    @cached_property
    def _own(self) -> list[list[int]]:
        """The constants that affect each column."""
        return [self._mine(column) for column in self.columns]

    def _mine(self, column: Column) -> list[int]:
        """Return the constants that affect a column."""
        serving = column.setting.serving
        own = ("", serving.server.name, self.family_of(column))
        return [
            number
            for number, key in enumerate(self.keys)
            if key.family in own
            and not (key.free.name == "core_pull" and serving.server.splits_cache)
        ]

    def _log_errors(self, values: FloatArray, steps: Sequence[FloatArray]) -> list[FloatArray]:
        """Return ln(predicted / measured) of each column, (draws, rows).

        Parameters
        ----------
        values
            Logarithms of the constants, (keys,).
        steps
            Moves of those that each column feels, (draws, constants).
        """
        asked = [
            (column, [self.keys[number].free.name for number in mine], values[mine] + step)
            for column, mine, step in zip(self.columns, self._own, steps, strict=True)
        ]
        return [*every_answer(self.cluster, column_errors, asked)]


def column_errors(asked: tuple[Column, Sequence[str], FloatArray]) -> FloatArray:
    """Return ln(predicted / measured) of a column under draws of its constants, (draws, rows).

    Parameters
    ----------
    asked
        The column, the names of constants, and the logarithms of these, (draws, constants).
    """
    column, names, logs = asked
    draws = dict(zip(names, np.exp(logs.T), strict=True))
    constants: Any = replace(column.setting.serving.problem.constants, **draws)
    predicted = column.tokens_per_s(column.served(constants)).reshape(len(logs), -1)
    return np.asarray(np.log(predicted / column.measured()), dtype=float)


@dataclass(frozen=True)
class ServingFit:
    """Fitted constants of serving, with the errors of the rows, and of rows left out."""

    rows: ServingRows
    values: FloatArray
    """Logarithms of the constants, (keys,)."""
    spreads: FloatArray
    """Standard deviations of the logarithms, by the curvature at the fit, (keys,)."""
    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    left_out: Mapping[str, FloatArray]
    """Errors of each row under constants fitted without its ``source``, ``server`` or ``family`` of
    chips, (rows,)."""


def serving_rows(
    rows: Sequence[Row], calibration: str, base: str = UNCALIBRATED, cluster: Cluster = HERE
) -> ServingRows:
    """Return the rows of requests that a fit can use, on the constants of training."""
    found, refused = [], {}
    for row in rows:
        try:
            found += serving_jobs(row, calibration)
        except RefusedError as error:
            refused[row.id] = str(error)
    return ServingRows(tuple(columns_of(found)), base, calibration, refused, cluster)


def fit_serving(rows: ServingRows) -> ServingFit:
    """Return the constants of least robust error that stay near their expected values.

    The steps of :func:`~meshwright.calibration.fit.training.fit`; fits that leave rows out are made
    in the slopes at the fitted point, then predicted exactly.
    """
    keys, values = rows.keys, np.log([key.free.prior for key in rows.keys])
    values, errors, slopes = solved(
        rows.errors_and_slopes, keys, values + rows.best_starts(values), rows.weights
    )
    spreads = robust_step(errors, slopes, rows.weights, keys, values)[1]
    left_out = {
        name: _left_out(rows, np.array(labels), values, errors, slopes)
        for name, labels in rows.labels.items()
    }
    return ServingFit(rows, values, spreads, errors, left_out)


def _left_out(
    rows: ServingRows, labels: NDArray[np.str_], values: FloatArray, errors: FloatArray,
    slopes: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return the error of each row under constants fitted without the rows of its label."""
    found = np.full(len(errors), np.nan)
    for label in np.unique(labels):
        kept = labels != label
        if kept.any():
            step = robust_step(errors[kept], slopes[kept], rows.weights[kept], rows.keys, values)[0]
            found[~kept] = rows.errors(values + step)[~kept]
    return found


def spread_of(found: ServingFit) -> Spread | None:
    """Return the distance of rows from predictions made without their source.

    Rows of dense models on chips that other sources have give the width; rows with experts, rows on
    chips that no other source has, and times to the first token under load give factors on it. Each
    source counts once, for any number of rows.
    """
    errors = np.abs(found.left_out["source"])
    sparse, first = np.array(found.rows.with_experts), np.array(found.rows.figures) == TTFT
    known, alone = ~np.isnan(errors), found.rows.on_chips_of_one_source
    weights = source_weights(found.rows.labels["source"]) ** 2

    def width(mine: BoolArray, otherwise: float) -> float:
        kept = known & mine
        return weighted_quantile(errors[kept], weights[kept], SHARE) if kept.any() else otherwise

    plain = width(~sparse & ~first & ~alone, 0.0)
    if not plain:
        return None
    factors = {
        EXPERTS: max(width(sparse & ~first & ~alone, plain) / plain, 1.0),
        UNSEEN: max(width(~sparse & ~first & alone, plain) / plain, 1.0),
        FIRST_TOKEN: max(width(~sparse & first & ~alone, plain) / plain, 1.0),
    }
    even = Tail(distance=plain, factors=factors)
    return Spread(slower=even, faster=even)
