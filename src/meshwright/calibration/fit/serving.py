"""The constants of serving fitted to rows of requests; sources, servers and chips left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, weighted_quantile
from meshwright.base.cluster import HERE, Cluster, every_answer
from meshwright.calibration.errors import SHARE, source_weights
from meshwright.calibration.fit.constants import Free, Key
from meshwright.calibration.fit.quantiles import conformal, quantile_spread
from meshwright.calibration.fit.spread import HeldOut, ends_of
from meshwright.calibration.fit.training import NOISE, STEP, robust_step, solved
from meshwright.calibration.rows import RefusedError, Row
from meshwright.calibration.serving import Column, columns_of, end_to_end_rate, serving_jobs
from meshwright.catalog.calibration import UNCALIBRATED, load_serving, under
from meshwright.search.intervals import (
    E2E,
    EXPERTS,
    SERVING_TRAITS,
    THROUGHPUT,
    TPOT,
    TTFT,
    UNSEEN,
    UNSEEN_SERVER,
)
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
FIGURES = (THROUGHPUT, TPOT)
"""Measured figures with a quantile of models that are left out."""
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
        """Source, server, family of chips and model of each row."""
        found: dict[str, list[str]] = {"source": [], "server": [], "family": [], "model": []}
        for column in self.columns:
            serving = column.setting.serving
            number = len(column.jobs)
            found["source"] += [job.row.group for job in column.jobs]
            found["server"] += [serving.server.name] * number
            found["family"] += [self.family_of(column)] * number
            found["model"] += [serving.problem.model.name] * number
        return found

    @cached_property
    def _places(self) -> list[slice]:
        """The rows of each column."""
        ends = np.cumsum([len(column.jobs) for column in self.columns]).tolist()
        return [slice(*pair) for pair in pairwise([0, *ends])]

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
        return [job.figure_told for column in self.columns for job in column.jobs]

    def of_one_source(self, name: str) -> BoolArray:
        """Return whether no other source has rows of the family or server of each row, (rows,)."""
        sources, labels = (np.array(self.labels[each]) for each in ("source", name))
        alone = {one for one in labels.tolist() if len(set(sources[labels == one])) == 1}
        return np.isin(labels, list(alone))

    @cached_property
    def clients(self) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
        """Places of the times per output token and to the first token of the same clients."""
        names = [row.id for row in self.rows]
        steps, firsts = (
            {name: place for place, name in enumerate(names) if self.figures[place] == figure}
            for figure in (TPOT, TTFT)
        )
        both = [name for name in steps if name in firsts]
        return np.array([steps[n] for n in both], int), np.array([firsts[n] for n in both], int)

    def end_to_end(self, errors: FloatArray) -> FloatArray:
        """Return ln(predicted / measured) of whole requests of clients, (clients,)."""
        measured = np.concatenate([column.measured() for column in self.columns])
        found = []
        for step, first in zip(*self.clients, strict=True):
            rates = [
                end_to_end_rate(self.rows[step], measured[step] * up[0], measured[first] * up[1])
                for up in ((1.0, 1.0), np.exp(errors[[step, first]]))
            ]
            found.append(np.log(rates[1] / rates[0]))
        return np.array(found)

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
        steps = [STEP * np.vstack([np.zeros(len(mine)), np.eye(len(mine))]) for mine in self._own]
        found = self._log_errors(values, steps)
        for mine, rows, one in zip(self._own, self._places, found, strict=True):
            errors[rows] = one[0]
            slopes[rows, mine] = (one[1:] - one[0]).T / STEP
        return errors, slopes

    def best_starts(self, values: FloatArray) -> FloatArray:
        """Return the best move of each constant alone before the first step, (keys,).

        Where two times compete and the longer one counts, the shorter one has no slope: a constant
        far from its expected value would never be found.
        """
        lost = np.zeros((len(STARTS), len(values)))
        moved = [np.vstack([np.zeros(len(mine)), *(move * np.eye(len(mine)) for move in STARTS)])
                 for mine in self._own]  # fmt: skip
        found = self._log_errors(values, moved)
        for mine, rows, one in zip(self._own, self._places, found, strict=True):
            more = (np.abs(one[1:]) - np.abs(one[0])) * self.weights[rows]
            lost[:, mine] += more.sum(axis=1).reshape(len(STARTS), len(mine))
        spread = np.array([key.free.spread for key in self.keys])
        bounds = np.log([(key.free.lowest, key.free.highest) for key in self.keys])
        moves = np.array(STARTS)[:, None] + 0.0 * values
        lost = lost / NOISE + (moves / spread) ** 2 / 2.0
        inside = (values + moves >= bounds[:, 0]) & (values + moves <= bounds[:, 1])
        lost = np.where(inside & (lost < 0), lost, 0.0)
        best = lost.argmin(axis=0)
        return np.where(lost.min(axis=0) < 0, np.array(STARTS)[best], 0.0)

    def errors(self, values: FloatArray, wanted: BoolArray) -> FloatArray:
        """Return ln(predicted / measured) of some rows, for logarithms of the constants."""
        steps = [
            np.zeros((int(wanted[rows].any()), len(mine)))
            for mine, rows in zip(self._own, self._places, strict=True)
        ]
        errors = np.full(len(self.rows), np.nan)
        places = [rows for rows, step in zip(self._places, steps, strict=True) if len(step)]
        for rows, one in zip(places, self._log_errors(values, steps), strict=True):
            errors[rows] = one[0]
        return errors[wanted]

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
        """Return ln(predicted / measured) of each column that has draws, (draws, rows).

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
            if len(step)
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
    """Errors of each row under constants fitted without its ``source``, ``server``, ``family`` of
    chips or ``model``, (rows,)."""


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
            found[~kept] = rows.errors(values + step, ~kept)
    return found


NEW = {"model": (), "family": (UNSEEN,), "server": (UNSEEN_SERVER,)}
"""Traits of a question by what is new of it."""


@dataclass(frozen=True)
class FigureRows:
    """Rows of one figure, with errors of constants fitted without a part of the rows."""

    errors: Mapping[str, FloatArray]
    """ln(predicted / measured) by what is left out, (rows,); NaN: nothing is left."""
    degrees: Mapping[str, FloatArray]
    """Degrees of the traits by what is left out, (rows, traits)."""
    labels: Mapping[str, NDArray[np.str_]]
    """Label of each row by what is left out, (rows,)."""

    @property
    def weights(self) -> FloatArray:
        """Weights of the rows by what is left out: all that are left out together count once."""
        return np.concatenate([
            source_weights(self.labels[name].tolist()) ** 2 * (name in NEW) for name in self.errors
        ])  # fmt: skip

    def spread(self) -> tuple[Spread | None, HeldOut | None]:
        """Return the spread of the rows, and all with intervals made without rows of their model.

        The latter is None where there is one model.
        """
        errors, degrees = (
            np.concatenate(list(each.values())) for each in (self.errors, self.degrees)
        )
        models = np.tile(self.labels["model"], len(self.errors))
        counted = np.where(self.weights > 0.0, errors, np.nan)
        spread = quantile_spread(counted, degrees, self.weights, SERVING_TRAITS)
        ends = np.full((2, len(errors)), np.nan)
        for model in np.unique(models):
            mine = models == model
            others = np.where(mine, np.nan, counted)
            other = quantile_spread(others, degrees, self.weights, SERVING_TRAITS)
            if other is None:
                return spread, None
            ends[:, mine] = ends_of(other, degrees[mine], SERVING_TRAITS)
        kinds, groups = self._kinds, np.concatenate(list(self.labels.values()))
        tested = HeldOut(errors, ends[0], ends[1], kinds, tuple(groups.tolist()))
        return conformal(spread, tested, self.weights)

    @property
    def _kinds(self) -> dict[str, BoolArray]:
        """Rows by what is new, (rows,)."""
        sparse = np.concatenate([each[:, 0] > 0 for each in self.degrees.values()])
        new = np.repeat(list(self.errors), len(self.labels["model"]))
        return {
            "dense, new model": ~sparse & (new == "model"),
            "with experts, new model": sparse & (new == "model"),
            "new chips": new == "family", "new server": new == "server",
            "new source": new == "source",
        }  # fmt: skip


def figure_rows(found: ServingFit) -> dict[str, FigureRows]:
    """Return the rows of each figure that some state."""
    rows = found.rows
    labels = {name: np.array(rows.labels[name]) for name in (*NEW, "source")}
    few = {name: rows.of_one_source(name) for name in ("family", "server")}
    sparse, zeros = np.array(rows.with_experts, dtype=float), np.zeros(len(rows.rows))
    degrees = {
        name: np.column_stack([sparse, zeros + (UNSEEN in new), zeros + (UNSEEN_SERVER in new)])
        for name, new in NEW.items()
    } | {"source": np.column_stack([sparse, few["family"], few["server"]])}
    places = {
        name: np.flatnonzero(np.array(rows.figures) == name) for name in FIGURES if name != TTFT
    }
    found_rows = {}
    for figure, kept in {**places, E2E: rows.clients[0]}.items():
        if len(kept):
            errors = {
                name: rows.end_to_end(found.left_out[name]) if figure == E2E
                else found.left_out[name][kept] for name in degrees
            }  # fmt: skip
            found_rows[figure] = FigureRows(
                errors, {name: one[kept] for name, one in degrees.items()},
                {name: one[kept] for name, one in labels.items()},
            )  # fmt: skip
    return found_rows


def first_token_spread(found: ServingFit) -> Spread | None:
    """Return the distance of times to the first token from predictions without their source.

    Few models have such times, and a model that is left out often takes its server along: no
    quantile of models holds. Both ends are the 80 % quantile of rows of dense models, each source
    once; throughput gives the factors of experts and of chips without rows.
    """
    errors, rows = np.abs(found.left_out["source"]), found.rows
    sparse, first = np.array(rows.with_experts), np.array(rows.figures) == TTFT
    known, alone = ~np.isnan(errors), rows.of_one_source("family")
    weights = source_weights(rows.labels["source"]) ** 2

    def width(mine: BoolArray) -> float:
        kept = known & mine
        return weighted_quantile(errors[kept], weights[kept], SHARE) if kept.any() else np.nan

    plain = width(~sparse & ~first & ~alone)
    distance = width(~sparse & first & ~alone)
    if np.isnan(plain) or np.isnan(distance):
        return None
    sizes = {EXPERTS: width(sparse & ~first & ~alone), UNSEEN: width(~sparse & ~first & alone)}
    factors = {name: max(size / plain, 1.0) for name, size in sizes.items() if size == size}
    even = Tail(distance=max(distance, plain), factors=factors)
    return Spread(slower=even, faster=even)
