"""A validation: measured rows with their predictions, and the errors of these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from meshwright.base.errors import Fault
from meshwright.base.records import Rows, Shown
from meshwright.calibration.errors import (
    Errors,
    Family,
    FigureErrors,
    Intervals,
    PooledErrors,
    by_group,
    errors_of,
    families_of,
    intervals_of,
    median_of_medians,
    memory_errors_by_group,
)
from meshwright.calibration.figures import (
    Figures,
    figure_errors,
    figures_of,
    one_figure,
    times_by_name,
)
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.rows import FROZEN, Row
from meshwright.calibration.serving import server_name_of
from meshwright.catalog.calibration import RowsErrorRecord

VIEWS: dict[str, Callable[[Row], str]] = {
    "server": server_name_of,
    "chip": lambda row: row.system.chip,
    "batch": lambda row: "queue" if row.batch is None else str(row.batch),
    "model": lambda row: row.model.name or "unnamed",
}
"""Groups of rows of serving."""


def views_of(predictions: Sequence[Prediction]) -> dict[str, dict[str, Errors]]:
    """Return the errors of rows that could be priced, under each view."""
    used = [entry for entry in predictions if entry.refused is None]
    return {
        view: {name: errors_of(rows) for name, rows in sorted(by_group(used, label).items())}
        for view, label in VIEWS.items()
    }


@dataclass(frozen=True)
class RowErrors:
    """Throughput of a row, predicted and measured."""

    id: str
    predicted_tokens_per_s: float | None
    measured_tokens_per_s: float | None
    interval: tuple[float, float] | None
    """Throughputs between which four of five such rows lie [tokens/s]."""
    refused: str | None
    """Reason why the row is not predicted."""


@dataclass(frozen=True)
class MemoryOfRow:
    """Memory of a row, predicted and measured."""

    id: str
    predicted_bytes: float
    measured_bytes: float | None
    counting: str
    """Bytes that the measurement counts as memory."""
    fits: bool | None
    parts_bytes: Mapping[str, float]


@dataclass(frozen=True)
class MemoryOfRows:
    """Memory of the rows that state it, and errors by source."""

    overall: RowsErrorRecord
    groups: Mapping[str, RowsErrorRecord]
    rows: tuple[MemoryOfRow, ...]


@dataclass(frozen=True)
class ServingErrors:
    """Errors of rows of serving: of all, of each figure, and by each view."""

    overall: Errors
    figures: Mapping[str, Mapping[str, FigureErrors]]
    """Errors by figure: of rows that may be fitted (``seen``), and of ``frozen`` ones."""
    by_server: Mapping[str, Errors]
    by_chip: Mapping[str, Errors]
    by_batch: Mapping[str, Errors]
    by_model: Mapping[str, Errors]


@dataclass(frozen=True)
class Validation(Shown):
    """Predictions of measured rows under one calibration, and their errors by source."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "groups": "groups", "overall": "pooled", "rows": "row_errors", "bad_rows": "bad_rows",
        "without_effect": "without_effect",
        "memory": "memory", "inference": "inference",
        "sram": "sram_errors", "traffic": "traffic_errors",
    }  # fmt: skip
    predictions: tuple[Prediction, ...]
    calibration: str
    bad_rows: tuple[Fault, ...] = ()
    """Faults of rows that cannot be read and are left out."""
    version: str = ""
    command: str = ""

    def rows(self) -> Rows:
        """Return the rows with their predicted and measured values."""
        return [entry.as_row() for entry in self.predictions]

    @cached_property
    def groups(self) -> dict[str, Errors]:
        """The errors of each source."""
        return {name: errors_of(rows) for name, rows in by_group(self.predictions).items()}

    @property
    def trained(self) -> tuple[Prediction, ...]:
        """The rows of training."""
        return tuple(entry for entry in self.predictions if not entry.row.is_serving)

    @property
    def served(self) -> tuple[Prediction, ...]:
        """The rows of requests."""
        return tuple(
            entry
            for entry in self.predictions
            if entry.row.is_serving and not (entry.row.is_one_user or entry.row.has_rate)
        )

    @property
    def sram(self) -> tuple[Prediction, ...]:
        """The figures of machines that serve from SRAM."""
        return tuple(entry for entry in self.predictions if entry.row.is_one_user)

    @property
    def traffic(self) -> tuple[Prediction, ...]:
        """The rows of requests at a rate."""
        return tuple(entry for entry in self.predictions if entry.row.has_rate)

    @cached_property
    def times(self) -> Mapping[str, Sequence[Prediction]]:
        """Predictions of requests at a rate, by measured time."""
        return times_by_name(self.traffic)

    @property
    def frozen(self) -> tuple[Prediction, ...]:
        """Rows of training that no constant, interval or rule was made from."""
        return tuple(entry for entry in self.trained if entry.row.group in FROZEN)

    @property
    def _main(self) -> tuple[Prediction, ...]:
        seen = tuple(entry for entry in self.trained if entry.row.group not in FROZEN)
        return seen or self.trained or self.served or self.sram or self.traffic

    @cached_property
    def overall(self) -> Errors:
        """The errors of rows of training that may be fitted, pooled; without them, of others."""
        return errors_of(self._main)

    @property
    def median_of_medians(self) -> float | None:
        """The headline: median over sources of the median error of each, of training alone."""
        rows = by_group(self._main)
        return median_of_medians({name: errors_of(found) for name, found in rows.items()})

    @cached_property
    def intervals(self) -> Intervals:
        """Coverage of the intervals of all rows of training, else of all others."""
        return intervals_of(self._main)

    @cached_property
    def families(self) -> list[Family]:
        """Rows that differ only in the plan."""
        return families_of(entry for entry in self.predictions if entry.refused is None)

    @property
    def pooled(self) -> PooledErrors:
        """The errors of all rows, and the median over sources of the median error of each."""
        return PooledErrors(**vars(self.overall), median_of_medians=self.median_of_medians)

    @property
    def row_errors(self) -> tuple[RowErrors, ...]:
        """Throughput of each row, predicted and measured."""
        return tuple(
            RowErrors(
                id=entry.row.id,
                predicted_tokens_per_s=entry.predicted_tokens_per_s,
                measured_tokens_per_s=entry.measured_tokens_per_s,
                interval=entry.interval,
                refused=None if entry.refused is None else str(entry.refused),
            )
            for entry in self.predictions
        )

    @property
    def without_effect(self) -> list[str]:
        """Fields of the rows that no price reads, each with its number of rows."""
        counts = Counter(name for entry in self.predictions for name in entry.row.without_effect)
        return [f"{name} ({number})" for name, number in counts.most_common()]

    @property
    def memory(self) -> MemoryOfRows:
        """Memory of the rows that state it, and errors by source."""
        groups = dict(memory_errors_by_group(self.trained))
        rows = tuple(
            MemoryOfRow(
                id=entry.row.id,
                predicted_bytes=entry.memory.predicted_bytes,
                measured_bytes=entry.memory.measured_bytes,
                counting=str(entry.memory.counting),
                fits=entry.memory.fits,
                parts_bytes=entry.memory.use.row(),
            )
            for entry in self.trained
            if entry.memory is not None
        )
        return MemoryOfRows(groups.pop("all rows"), groups, rows)

    @cached_property
    def figures(self) -> Figures:
        """Predictions of rows of requests, by measured figure."""
        return figures_of(self.served)

    @property
    def inference(self) -> ServingErrors | None:
        """The errors of rows of requests; None: there are none."""
        if not self.served:
            return None
        views = views_of(self.served)
        return ServingErrors(
            errors_of(self.served), figure_errors(self.figures), views["server"], views["chip"],
            views["batch"], views["model"],
        )  # fmt: skip

    @property
    def sram_errors(self) -> Errors | None:
        """The errors of machines that serve from SRAM; None: there are no rows."""
        return errors_of(self.sram) if self.sram else None

    @property
    def traffic_errors(self) -> dict[str, FigureErrors] | None:
        """The errors of requests at a rate, by measured time; None: there are no rows."""
        if not self.traffic:
            return None
        return {name: one_figure(entries) for name, entries in self.times.items()}
