"""Errors of predictions: of each source, of all, and the cost of choosing plans by them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import FloatArray
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import DID_NOT_FIT, Row
from meshwright.catalog.calibration import ErrorRecord, PooledErrorRecord, RowsErrorRecord

TIE = 0.05
"""Measured plans that differ by less are equally good."""
FEWEST_IN_SWEEP = 4
SHARE = 0.8
"""Share of measurements that an interval should hold."""


@dataclass(frozen=True)
class Errors:
    """Errors of some rows; unknown values are None."""

    rows: int
    rows_used: int
    rows_refused: int
    median_abs_log_error: float | None
    p90_abs_log_error: float | None
    bias_log: float | None
    """Median of ln(predicted / measured): above 0 is predicted too fast."""
    memory_median_abs_error: float | None
    """Median of |ln(predicted / measured)| of the bytes."""
    false_fits: int
    """Number of rows that ran out of memory and are predicted to fit."""
    false_ooms: int
    """Number of rows that ran and are predicted not to fit."""
    spearman: float | None
    """Mean rank correlation of throughput inside sweeps, weighted by their rows."""
    regret_mean: float | None
    """Mean over families of plans of the regret: slowdown of the plan ranked first from the
    best."""


@dataclass(frozen=True)
class PooledErrors(Errors):
    """Errors of the rows of several sources."""

    median_of_medians: float | None
    """Median over sources of the median error of each."""


@dataclass(frozen=True)
class FigureErrors(Errors):
    """Errors of one figure of serving."""

    inside: float | None
    """Share of rows within their interval."""


@dataclass(frozen=True)
class Family:
    """Rows that differ only in the plan, and the cost of choosing among them."""

    rows: tuple[Prediction, ...]
    best: Prediction
    """Fastest row as measured."""
    chosen: Prediction
    """Fastest row as predicted."""
    by_rule: Prediction
    """Row with the least model parallelism."""
    regret: float
    """Slowdown of the chosen row from the best, as a fraction."""
    rule_of_thumb_regret: float
    ordered_pairs: int
    """Number of pairs with measurements that differ by more than a tie."""
    right_pairs: int


@dataclass(frozen=True)
class Intervals:
    """Coverage of 80 % intervals on some rows."""

    rows: int
    """Measured rows that have an interval."""
    covered: float | None
    """Share of these rows inside their interval."""
    score: float | None
    """Mean of :func:`interval_score`."""


def intervals_of(predictions: Iterable[Prediction]) -> Intervals:
    """Return the coverage of the intervals of some rows."""
    known = [e for e in predictions if e.interval is not None and e.log_error is not None]
    errors = log_errors(known)
    ends = [
        (e.predicted_tokens_per_s / e.interval[0], e.interval[1] / e.predicted_tokens_per_s)
        for e in known
        if e.interval is not None and e.predicted_tokens_per_s is not None
    ]
    slower, faster = np.log(np.array(ends, dtype=float).reshape(-1, 2)).T
    return Intervals(
        rows=len(known),
        covered=_of(np.mean, (errors <= slower) & (-errors <= faster)),
        score=_of(np.mean, interval_score(errors, slower, faster)),
    )


def interval_score(errors: FloatArray, slower: FloatArray, faster: FloatArray) -> FloatArray:
    """Return the interval score of each logarithm: small is good.

    Width, and 2 / (1 - share) times the distance of errors outside. Source: Gneiting and Raftery
    2007, Strictly proper scoring rules, section 6.2.

    Parameters
    ----------
    errors
        ln(predicted / measured), (rows,).
    slower, faster
        Distances of the ends of intervals of ln(measured throughput) below and above ln(predicted),
        (rows,).
    """
    outside = np.maximum(errors - slower, 0.0) + np.maximum(-errors - faster, 0.0)
    return np.asarray(slower + faster + 2.0 / (1.0 - SHARE) * outside, dtype=float)


def errors_of(predictions: Sequence[Prediction]) -> Errors:
    """Return the errors of some rows."""
    used = [entry for entry in predictions if entry.refused is None]
    logs = log_errors(used)
    found = (entry.memory_log_error for entry in used)
    memory = np.array([error for error in found if error is not None], dtype=float)
    regrets = [family.regret for family in families_of(used)]
    return Errors(
        rows=len(predictions),
        rows_used=len(used),
        rows_refused=len(predictions) - len(used),
        median_abs_log_error=_of(np.median, np.abs(logs)),
        p90_abs_log_error=_of(_p90, np.abs(logs)),
        bias_log=_of(np.median, logs),
        memory_median_abs_error=_of(np.median, np.abs(memory)),
        false_fits=sum(e.row.task == DID_NOT_FIT and e.fits is True for e in used),
        false_ooms=sum(e.row.task != DID_NOT_FIT and e.fits is False for e in used),
        spearman=_spearman_of_sweeps(used),
        regret_mean=_of(np.mean, regrets),
    )


def error_record(errors: FloatArray) -> ErrorRecord:
    """Return the errors of rows as files of a fit state them; NaN: not all of them are known.

    Parameters
    ----------
    errors
        ln(predicted / measured), (rows,).
    """
    if np.isnan(errors).any():
        return ErrorRecord(median=None, p90=None, bias=None)
    size = np.abs(errors)
    return ErrorRecord(
        median=_rounded(np.median(size)), p90=_rounded(_p90(size)), bias=_rounded(np.median(errors))
    )


def pooled_error_record(errors: FloatArray, groups: NDArray[np.str_]) -> PooledErrorRecord:
    """Return the errors of rows of several sources as files state them; NaN rows are left out."""
    known = ~np.isnan(errors)
    if not known.any():
        return PooledErrorRecord(median_of_medians=None, median=None, p90=None, bias=None)
    size = np.abs(errors)
    medians = [np.median(size[known & (groups == g)]) for g in dict.fromkeys(groups[known])]
    pooled = error_record(errors[known]).model_dump()
    return PooledErrorRecord(median_of_medians=_rounded(np.median(medians)), **pooled)


def memory_error_record(errors: FloatArray) -> RowsErrorRecord:
    """Return the errors of memory as files state them; NaN rows are left out."""
    known = errors[~np.isnan(errors)]
    found = error_record(known if len(known) else np.array([np.nan])).model_dump()
    return RowsErrorRecord(rows=len(known), **found)


def memory_errors_by_group(predictions: Sequence[Prediction]) -> dict[str, RowsErrorRecord]:
    """Return the errors of each source that states memory, and of all rows as ``all rows``."""
    known = [entry for entry in predictions if entry.memory_log_error is not None]
    return {
        name: memory_error_record(np.array([e.memory_log_error for e in rows], dtype=float))
        for name, rows in {**by_group(known), "all rows": known}.items()
    }


def is_wrongly_fitting(entry: Prediction) -> bool:
    """Return whether a row that ran is taken not to fit, or the other way round."""
    return entry.fits is not None and entry.fits is (entry.row.task == DID_NOT_FIT)


def source_weights(groups: Sequence[str]) -> FloatArray:
    """Return one over the root of the rows of its source: large tables do not drown small ones."""
    counts = Counter(groups)
    return np.array([counts[group] ** -0.5 for group in groups])


def by_group(
    predictions: Iterable[Prediction], label: Callable[[Row], str] = lambda row: row.group
) -> dict[str, list[Prediction]]:
    """Return the rows of each label, their source, in the order in which labels appear."""
    found: dict[str, list[Prediction]] = {}
    for entry in predictions:
        found.setdefault(label(entry.row), []).append(entry)
    return found


def log_errors(predictions: Iterable[Prediction]) -> FloatArray:
    """Return ln(predicted / measured) of the rows that have both."""
    found = (entry.log_error for entry in predictions)
    return np.array([error for error in found if error is not None], dtype=float)


def median_of_medians(groups: Mapping[str, Errors]) -> float | None:
    """Return the headline: the median over sources of the median error of each."""
    medians = [e.median_abs_log_error for e in groups.values()]
    return _of(np.median, [median for median in medians if median is not None])


def families_of(predictions: Iterable[Prediction]) -> list[Family]:
    """Return the families of two plans or more; equal plans are one, of median throughput."""
    found: dict[Hashable, dict[Hashable, list[Prediction]]] = defaultdict(lambda: defaultdict(list))
    for entry in predictions:
        if entry.log_error is not None:
            found[_setup_key(entry)][_plan_key(entry)].append(entry)
    plans = (
        [_middle(rows) for rows in of_plan.values()]
        for of_plan in found.values()
        if len(of_plan) > 1
    )
    return [_family(rows) for rows in plans]


def noise_of(predictions: Iterable[Prediction]) -> float | None:
    """Return the median distance between measurements of repeated configurations."""
    found: dict[Hashable, list[float]] = defaultdict(list)
    for entry in predictions:
        if entry.measured_tokens_per_s is not None and entry.job is not None:
            key = (_setup_key(entry), _plan_key(entry))
            found[key].append(entry.measured_tokens_per_s)
    return _of(np.median, [max(e) / min(e) - 1.0 for e in found.values() if len(e) > 1])


def _setup_key(entry: Prediction) -> Hashable:
    """Return the model, chips, batch and requests of a row: all but its plan."""
    row = entry.row
    model = row.model.model_copy(update={"name": None})
    compiled = row.software.compiled, row.software.async_tensor_parallel
    server = row.framework if row.is_serving else None
    return (
        row.group, row.task, model, row.system, row.precision, compiled, server,
        row.sequence_length, row.global_batch_size, row.batch, row.prompt_tokens,
        row.answer_tokens, *sorted(row.conditions.items()),
    )  # fmt: skip


def _plan_key(entry: Prediction) -> Hashable:
    """Return the plan of a row."""
    job = entry.job
    return (job.strategy, job.plan_options) if job else None


def _middle(rows: Sequence[Prediction]) -> Prediction:
    """Return a row of median throughput for several measurements of one plan."""
    values = [row.measured_tokens_per_s or 0.0 for row in rows]
    return replace(rows[0], measured_tokens_per_s=float(np.median(values)))


def _family(rows: Sequence[Prediction]) -> Family:
    """Return the regret of choosing by prediction, and by rule of thumb, in a family."""
    measured = np.array([row.measured_tokens_per_s for row in rows], dtype=float)
    predicted = np.array([row.predicted_tokens_per_s for row in rows], dtype=float)
    thumb = min(range(len(rows)), key=lambda index: _rule_of_thumb(rows[index]))
    pairs = [
        (measured[a] - measured[b]) * (predicted[a] - predicted[b]) > 0
        for a, b in combinations(range(len(rows)), 2)
        if max(measured[a], measured[b]) > (1.0 + TIE) * min(measured[a], measured[b])
    ]
    chosen = int(predicted.argmax())
    return Family(
        rows=tuple(rows),
        best=rows[int(measured.argmax())],
        chosen=rows[chosen],
        by_rule=rows[thumb],
        regret=_regret(measured, chosen),
        rule_of_thumb_regret=_regret(measured, thumb),
        ordered_pairs=len(pairs),
        right_pairs=sum(pairs),
    )


def _regret(measured: FloatArray, chosen: int) -> float:
    """Return the slowdown of a chosen plan from the best, as a fraction; 0 within a tie."""
    slower = float(measured.max() / measured[chosen] - 1.0)
    return slower if slower > TIE else 0.0


def _rule_of_thumb(entry: Prediction) -> tuple[float, float, float]:
    """Return the order of a common rule: least model parallelism, then the largest micro-batch."""
    assert entry.job is not None
    s = entry.job.strategy
    return s.tp * s.pp * s.cp, s.tp, -s.micro_batch_size


def _spearman_of_sweeps(predictions: Iterable[Prediction]) -> float | None:
    """Return the mean rank correlation over sweeps of one model on one number of equal chips."""
    sweeps: dict[Hashable, list[Prediction]] = defaultdict(list)
    for entry in predictions:
        if entry.log_error is not None:
            row = entry.row
            key = (row.group, row.model.name, row.task, row.system.chip, row.system.num_chips)
            sweeps[key].append(entry)
    found, weights = [], []
    for rows in sweeps.values():
        distinct = {(_setup_key(row), _plan_key(row)) for row in rows}
        correlation = _spearman(rows) if len(distinct) >= FEWEST_IN_SWEEP else None
        if correlation is not None:
            found.append(correlation)
            weights.append(float(len(rows)))
    return float(np.average(found, weights=weights)) if found else None


def _spearman(rows: Sequence[Prediction]) -> float | None:
    """Return the rank correlation of predicted and measured throughput; None: all are equal."""
    measured = _ranks([row.measured_tokens_per_s or 0.0 for row in rows])
    predicted = _ranks([row.predicted_tokens_per_s or 0.0 for row in rows])
    if np.ptp(measured) == 0 or np.ptp(predicted) == 0:
        return None
    return float(np.corrcoef(measured, predicted)[0, 1])


def _ranks(values: Sequence[float]) -> FloatArray:
    """Return the rank of each value; equal ones share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2.0)[inverse], dtype=float)


def _p90(values: FloatArray) -> float:
    return float(np.quantile(values, 0.9))


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


def _of(statistic: Callable[[Any], Any], values: Any) -> float | None:
    """Return a statistic of values; None where there are none."""
    return float(statistic(values)) if len(values) else None
