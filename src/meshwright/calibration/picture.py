"""The validation as charts: predicted over measured, errors and held intervals by source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwright.calibration.errors import SHARE, Errors, by_group, errors_of
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import FROZEN, is_frozen
from meshwright.catalog.calibration import GroupRecord
from meshwright.view import charts
from meshwright.view.charts import Spec
from meshwright.view.words import percent

FITTED, LEFT_OUT = "predicted", "source left out"
SEEN, UNSEEN = "in the fit", "frozen"
RATIO = "predicted over measured"
ENDS = ("median", "90th percentile")
ERROR = "error [%]"
LEAST = 0.01
"""Value at which smaller errors are drawn, because the axis is logarithmic [%]."""
INSIDE = "rows inside their interval [%]"


def per_chip(entry: Prediction) -> tuple[float, float]:
    """Return predicted and measured throughput for each chip [tokens/s]."""
    assert entry.job is not None
    chips = entry.job.problem.system.num_devices
    return (entry.predicted_tokens_per_s or 0.0) / chips, (entry.measured_tokens_per_s or 0) / chips


def ratio_spec(predictions: Sequence[Prediction]) -> Spec:
    """Return predicted over measured throughput of every row, a row for each source."""
    known = [entry for entry in predictions if entry.log_error is not None]
    groups = by_group(known)
    labels = {name: f"{name} ({len(rows):,})" for name, rows in groups.items()}
    order = _by_error({name: errors_of(rows) for name, rows in groups.items()})
    return charts.strips(
        [labels[entry.row.group] for entry in known],
        [math.exp(entry.log_error or 0.0) for entry in known],
        [UNSEEN if is_frozen(entry.row) else SEEN for entry in known],
        [labels[name] for name in order], RATIO,
    )  # fmt: skip


def error_spec(errors: Mapping[str, Errors], groups: Mapping[str, GroupRecord]) -> Spec:
    """Return the errors of each source, and those of constants fitted without it.

    Parameters
    ----------
    groups
        Errors of each source when it was left out; empty where that is not known.
    """
    drawn: list[tuple[str, str, float | None, float | None]] = []
    for name in _by_error(errors):
        median, p90 = errors[name].median_abs_log_error, errors[name].p90_abs_log_error
        left_out = groups[name].left_out if name in groups else None
        alone = ", alone" if name in groups and groups[name].alone else ""
        frozen = ", frozen" if name in FROZEN else ""
        label = f"{name} ({errors[name].rows_used:,}{alone}{frozen})"
        drawn.append((label, FITTED, median, p90))
        if left_out is not None:
            drawn.append((label, LEFT_OUT, left_out.median, left_out.p90))
    known = [
        (label, kind, max(100.0 * median, LEAST), max(100.0 * p90, LEAST))
        for label, kind, median, p90 in drawn
        if median is not None and p90 is not None
    ]
    rows, kinds, medians, p90s = zip(*known, strict=True)
    return charts.spreads(rows, kinds, medians, p90s, ENDS, ERROR)


def coverage_spec(groups: Mapping[str, GroupRecord]) -> Spec:
    """Return the share of the rows of each source inside their intervals, and the target."""
    held = {name: group.covered for name, group in groups.items() if group.covered is not None}
    order = sorted(held, key=lambda name: -held[name])
    return charts.bars(
        [f"{name} ({groups[name].rows:,})" for name in order],
        [100.0 * held[name] for name in order], [percent(held[name]) for name in order],
        INSIDE, colour=charts.COLOURS[2], limit=100.0 * SHARE, limit_name="meant to be inside [%]",
    )  # fmt: skip


def _by_error(errors: Mapping[str, Errors]) -> list[str]:
    """Return the sources that have an error, the least one first."""
    known = {name: one.median_abs_log_error for name, one in errors.items()}
    return sorted((name for name in known if known[name] is not None),
                  key=lambda name: known[name] or 0.0)  # fmt: skip
