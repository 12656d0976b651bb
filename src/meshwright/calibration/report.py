"""Results of a validation: data for programs, and tables for a screen or a document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NotRequired, Protocol

from typing_extensions import TypedDict

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
    is_wrongly_fitting,
    median_of_medians,
    memory_errors_by_group,
    noise_of,
)
from meshwright.calibration.fit.report import text_table
from meshwright.calibration.picture import coverage_svg, error_svg, ratio_svg
from meshwright.calibration.prediction import Prediction, predict, used_bytes
from meshwright.calibration.rows import FROZEN, Row, SoftwareFields, passed_over
from meshwright.calibration.serving import predict_all, server_name_of
from meshwright.calibration.serving_report import (
    figure_lines,
    figures_data,
    figures_of,
    plan_lines,
)
from meshwright.calibration.sram import predict_sram
from meshwright.catalog.calibration import (
    ErrorRecord,
    FitRecord,
    GroupRecord,
    MemoryErrorRecord,
    ServingRecord,
    fit_record,
    serving_record,
    sram_part,
)
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.workloads import load_server, server_names
from meshwright.cost.parts import MemoryPart
from meshwright.view.markdown import markdown_table
from meshwright.view.notebook import figure
from meshwright.view.words import counted, percent

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page

GIB = 2.0**30
NUM_WORST = 20
NUM_WORST_MEMORY = 6
VIEWS: dict[str, Callable[[Row], str]] = {
    "server": server_name_of,
    "chip": lambda row: row.hardware.chip or "not stated",
    "batch": lambda row: "queue" if row.batch is None else str(row.batch),
    "model": lambda row: row.model.name or "unnamed",
}
"""Groups of rows of serving."""


def views_of(predictions: Sequence[Prediction]) -> dict[str, dict[str, Errors]]:
    """Return the errors of rows that could be priced, under each view."""
    used = [entry for entry in predictions if entry.refused is None]
    found = {}
    for view, label in VIEWS.items():
        parts: dict[str, list[Prediction]] = {}
        for entry in used:
            parts.setdefault(label(entry.row), []).append(entry)
        found[view] = {name: errors_of(rows) for name, rows in sorted(parts.items())}
    return found


@dataclass(frozen=True)
class Validation(Shown):
    """Rows with their predictions under one calibration."""

    predictions: tuple[Prediction, ...]
    calibration: str
    bad_rows: tuple[Fault, ...] = ()
    """Faults of rows that cannot be read and are left out."""
    version: str = ""
    command: str = ""

    def page(self) -> Page:
        """Return the report as data."""
        from meshwright.calibration.page import validation_page

        return validation_page(self)

    def brief(self) -> str:
        """Return the errors of predictions, and the coverage of their intervals."""
        held = self.intervals
        lines = [
            f"{counted(len(self.predictions), 'row')}, {self.calibration} constants",
            f"median over sources of the median error: {percent(self.median_of_medians)}; nine of "
            f"ten rows within {percent(self.overall.p90_abs_log_error)}",
        ]
        if held.rows and held.covered is not None:
            lines.append(f"80 % intervals hold {held.covered:.1%} of {counted(held.rows, 'row')}")
        return "\n".join(lines)

    def rows(self) -> Rows:
        """Return the rows with their predicted and measured values."""
        return [entry.as_row() for entry in self.predictions]

    def plot_agreement(self) -> AltairChart:
        """Draw predicted over measured throughput of every row of training [tokens/s]."""
        from meshwright.calibration.page import agreement_of

        return figure(agreement_of(self), "no row of training could be predicted")

    def plot_serving(self) -> AltairChart:
        """Draw predicted over measured throughput of every row of serving [tokens/s]."""
        from meshwright.calibration.page import serving_of

        return figure(serving_of(self), "no row of serving could be predicted")

    def plot_memory(self) -> AltairChart:
        """Draw predicted over measured memory of the fullest device [GiB]."""
        from meshwright.calibration.page import memory_of

        return figure(memory_of(self), "no row states a memory that could be predicted")

    def plot_errors(self) -> AltairChart:
        """Draw the errors of each source, |ln(predicted / measured)| [%]: median to p90."""
        from meshwright.calibration.page import errors_chart

        return figure(errors_chart(self), "no row of training could be predicted")

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
            if entry.row.is_serving and not entry.row.is_one_user
        )

    @property
    def sram(self) -> tuple[Prediction, ...]:
        """The figures of machines that serve from SRAM."""
        return tuple(entry for entry in self.predictions if entry.row.is_one_user)

    @property
    def frozen(self) -> tuple[Prediction, ...]:
        """Rows of training that no constant, interval or rule was made from."""
        return tuple(entry for entry in self.trained if entry.row.group in FROZEN)

    @property
    def _main(self) -> tuple[Prediction, ...]:
        seen = tuple(entry for entry in self.trained if entry.row.group not in FROZEN)
        return seen or self.trained or self.served or self.sram

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


INTRODUCTION = """# Validation

Written by `meshwright validate --document docs/results/validation.md`. Each published row is
predicted from its stated configuration alone. Errors are |ln(predicted / measured)| of the
throughput: 5 % is a factor of 1.05 either way; a bias above 0 is predicted too fast. Left out:
constants fitted anew without that source, and without other sources of its vendor. Not named: the
same question without `--framework` and what goes with it, as `plan` asks it where nobody says what
runs it. Frozen: sources that nobody looked at before constants and intervals were made.
"""
INTERVALS = """## Intervals

Each prediction has an interval in which four of five measurements are expected: one in ten is
slower, one in ten faster. Each end is further away for jobs with experts, with words of products
below 16 bits (for each halving), on chips of which no measured row is of the family, where no
framework is named, and where a step waits for its host. Distances and factors come from the errors
of sources left out; each source counts once, because the next job is of a new one. Judged here on
sources of which neither the constants nor the distances know anything. The score is width plus ten
times the distance of what lies outside, in logarithms; small is good.
"""
SOURCES = """(1) No other source has rows of its chips: left out, it gets constants fitted to none.
Noise: how far apart rows of one configuration were measured, largest over smallest,
their median. Ranks: mean rank correlation of throughput inside sweeps.
"""
SERVING_INTRODUCTION = """# Validation of serving

Written by `meshwright validate --document docs/results/validation.md`, next to that file. Each
published row is predicted from its stated configuration alone: throughput of a batch of equal
requests that start together, or of a queue that keeps the server busy, and both times of clients
that each send a request when the one before has ended. Errors are |ln(predicted / measured)|; a
bias above 0 is predicted too fast. Left out: constants of serving fitted without that source,
server or family of chips. How rows become jobs, and what is priced:
[serving](../explanation/serving.md).
"""
SRAM_INTRODUCTION = """Tokens per second of one user, as published, against layers cut into the
fewest stages that fit SRAM ([partition](../explanation/partition.md)); factors are predicted /
published. Left out: constants fitted without that row. Two constants of chips
(the time of a sum over the cores of a wafer, and of a language unit) and one of software (tokens
that a pass yields where drafts are checked) carry all rows. Plain: the same row, read as if none
were. No throughput of SN40L is among our sources.
"""
MEMORY = """What sources state of the fullest device, against what is predicted; left out: constants
of memory fitted without that source. A row that ran must fit, one that did not must not.
"""
PICTURES = {"": "predicted over measured, by source", "_sources": "errors of each source",
            "_intervals": "rows inside their intervals"}  # fmt: skip
"""Caption of each picture, by the end of its name."""
TRAITS = {
    "experts": "with experts", "narrow_words": "words of 8 bits or less",
    "unseen_family": "chips of a family that no other source has",
    "unnamed_framework": "framework not named", "host_bound": "a step that only waits for its host",
}  # fmt: skip


class Table(Protocol):
    """Draws a table and an empty line after it: in Markdown, or in plain text."""

    def __call__(
        self, head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1
    ) -> Iterator[str]:
        """Yield its lines; columns of words come first, then those of numbers."""
        ...


def _markdown(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1
) -> Iterator[str]:
    yield from markdown_table(head, rows, words=words)
    yield ""


class RowRecord(TypedDict):
    """Throughput of a row, predicted and measured."""

    id: str
    predicted_tokens_per_s: float | None
    measured_tokens_per_s: float | None
    interval: tuple[float, float] | None
    """Throughputs between which four of five such rows lie [tokens/s]."""
    refused: str | None
    """Reason why the row is not predicted."""


class MemoryOfRow(TypedDict):
    """Memory of a row, predicted and measured."""

    id: str
    predicted_bytes: float
    measured_bytes: float | None
    counting: str
    """Bytes that the measurement counts as memory."""
    fits: bool | None
    parts_bytes: Mapping[str, float]


class MemoryOfRows(TypedDict):
    """Memory of the rows that state it, and errors by source."""

    overall: MemoryErrorRecord
    groups: Mapping[str, MemoryErrorRecord]
    rows: Sequence[MemoryOfRow]


class ServingErrors(TypedDict):
    """Errors of rows of serving: of all, of each figure, and by each view."""

    overall: Errors
    figures: Mapping[str, Mapping[str, FigureErrors]]
    """Errors by figure: of rows that may be fitted (``seen``), and of ``frozen`` ones."""
    by_server: Mapping[str, Errors]
    by_chip: Mapping[str, Errors]
    by_batch: Mapping[str, Errors]
    by_model: Mapping[str, Errors]


class ValidationRecord(TypedDict):
    """Predictions of measured rows, and their errors by source."""

    groups: Mapping[str, Errors]
    overall: PooledErrors
    rows: Sequence[RowRecord]
    bad_rows: Sequence[Fault]
    without_effect: Sequence[str]
    """Fields of the rows that no price reads, each with its number of rows."""
    memory: MemoryOfRows
    inference: NotRequired[ServingErrors]
    sram: NotRequired[Errors]
    """Errors of machines that serve from SRAM."""


def validation_record(found: Validation) -> ValidationRecord:
    """Return a validation for programs."""
    overall = PooledErrors(**vars(found.overall), median_of_medians=found.median_of_medians)
    data: ValidationRecord = {
        "groups": found.groups,
        "overall": overall,
        "rows": [
            {
                "id": entry.row.id,
                "predicted_tokens_per_s": entry.predicted_tokens_per_s,
                "measured_tokens_per_s": entry.measured_tokens_per_s,
                "interval": entry.interval,
                "refused": None if entry.refused is None else str(entry.refused),
            }
            for entry in found.predictions
        ],
        "bad_rows": found.bad_rows,
        "without_effect": passed_over(entry.row for entry in found.predictions),
        "memory": memory_data(found.trained),
    }
    if found.served:
        data["inference"] = _serving_data(found.served, found.calibration)
    if found.sram:
        data["sram"] = errors_of(found.sram)
    return data


def memory_data(predictions: Sequence[Prediction]) -> MemoryOfRows:
    """Return the memory of a validation for programs: errors, and each row in its parts."""
    groups = dict(memory_errors_by_group(predictions))
    return {
        "overall": groups.pop("all rows"),
        "groups": groups,
        "rows": [
            {
                "id": entry.row.id,
                "predicted_bytes": entry.memory.predicted_bytes,
                "measured_bytes": entry.memory.measured_bytes,
                "counting": str(entry.memory.counting),
                "fits": entry.memory.fits,
                "parts_bytes": entry.memory.use.row(),
            }
            for entry in predictions
            if entry.memory is not None
        ],
    }


def _serving_data(predictions: Sequence[Prediction], calibration: str) -> ServingErrors:
    """Return the errors of serving for programs."""
    views = views_of(predictions)
    return {
        "overall": errors_of(predictions),
        "figures": figures_data(figures_of(predictions, calibration)),
        "by_server": views["server"],
        "by_chip": views["chip"],
        "by_batch": views["batch"],
        "by_model": views["model"],
    }


# on a screen


def validation_lines(found: Validation, *, detail: bool = True) -> Iterator[str]:
    """Yield the errors of each source for a reader; in detail, all that the documents hold."""
    headline = percent(found.median_of_medians)
    yield f"median over sources of the median error: {headline}   ({found.calibration} constants)"
    yield "errors are |ln(predicted / measured)| of the throughput; bias above 0: too fast"
    for fault in found.bad_rows:
        yield f"no row: {fault}"
    if fields := passed_over(entry.row for entry in found.predictions):
        yield f"without effect: {', '.join(fields)}"
    held = found.intervals
    if held.rows and held.covered is not None:
        rows = counted(held.rows, "row")
        yield f"80 % intervals hold {held.covered:.1%} of {rows}, score {held.score:.3f}"
    yield ""
    record, serving = fit_record(found.calibration), serving_record(found.calibration)
    if not detail:
        if found.trained:
            yield from _sources(found, None, record, text_table)
        if found.served:
            yield from _errors_by("source", _sources_of(found.served), {}, serving, text_table)
        if found.sram:
            yield from _sram_table(found, text_table)
        refused = sum(entry.refused is not None for entry in found.predictions)
        yield f"{counted(refused, 'row')} refused. Memory, plans, the worst rows and why: --detail"
        return
    lines = [*_training_lines(found, None, record, text_table, {})] if found.trained else []
    lines += _serving_lines(found, None, serving, text_table) if found.served else []
    lines += _sram_lines(found, text_table) if found.sram else []
    lines += _refusals(found.predictions, text_table)
    for line in "\n".join(lines).splitlines():
        yield line.removeprefix("## ")


# as documents


def documents(found: Validation, rows: Sequence[Row], stem: str) -> dict[str, str]:
    """Return the documents of a validation and their pictures by file name.

    Parameters
    ----------
    rows
        Rows that were predicted; they are predicted again under the uncalibrated constants.
    stem
        First part of the file names.
    """
    before = Validation(tuple(predict_all(rows, "uncalibrated")), "uncalibrated")
    files: dict[str, str] = {}
    if found.trained:
        steps = [entry.row for entry in found.trained]
        unnamed = predict(steps, found.calibration, is_named=False)
        others = Others(before, Validation(tuple(unnamed), found.calibration))
        files |= document(found, others, fit_record(found.calibration), stem)
    if found.served or found.sram:
        lines = [SERVING_INTRODUCTION]
        if found.served:
            lines += _serving_lines(found, before, serving_record(found.calibration), _markdown)
        lines += _sram_lines(found, _markdown) if found.sram else []
        lines += _refusals((*found.served, *found.sram), _markdown)
        lines.append("## What sources leave unstated\n")
        servers = [(name, load_server(name).why) for name in server_names()]
        lines += _markdown(("server", "default"), servers, words=2)
        files[f"{stem}_inference.md"] = "\n".join(lines).rstrip("\n") + "\n"
    return files


class Others(NamedTuple):
    """Validations of these rows, priced in other ways."""

    before: Validation
    """Validation under the uncalibrated constants."""
    unnamed: Validation
    """Validation without the frameworks of the rows."""


def document(
    found: Validation, others: Others, record: FitRecord | None, stem: str
) -> dict[str, str]:
    """Return the document of training, and the pictures that it shows, by file name.

    Parameters
    ----------
    record
        Errors of the fit on sources left out; None: the constants were not fitted.
    """
    drawn = {"": ratio_svg(found.trained)}
    if record is not None:
        errors = {name: found.groups[name] for name in by_group(found.trained)}
        drawn["_sources"] = error_svg(errors, record.groups)
        if record.spread is not None:
            drawn["_intervals"] = coverage_svg(record.groups)
    pictures = {end: f"{stem}{end}.svg" for end, svg in drawn.items() if svg}
    lines = [INTRODUCTION, *_training_lines(found, others, record, _markdown, pictures)]
    lines += _refusals(found.trained, _markdown)
    lines.append("## What sources leave unstated\n")
    used = dict.fromkeys(e.row.framework for e in found.trained if e.job and e.row.framework)
    defaults = [(name, load_framework(name).why) for name in used]
    lines += _markdown(("framework", "default"), defaults, words=2)
    files = {f"{stem}.md": "\n".join(lines) + "\n"}
    return files | {name: drawn[end] for end, name in pictures.items()}


def _picture(pictures: Mapping[str, str], end: str) -> Iterator[str]:
    """Yield a picture as a document shows it, where there is one."""
    if end in pictures:
        yield f"![{PICTURES[end]}]({pictures[end]})\n"


def _training_lines(
    found: Validation, others: Others | None, record: FitRecord | None, table: Table,
    pictures: Mapping[str, str],
) -> Iterator[str]:  # fmt: skip
    """Yield the validation of training, around its pictures where there are any."""
    yield from _headline(found, others, record, table)
    yield from _picture(pictures, "")
    yield "## By source\n"
    yield from _sources(found, others, record, table)
    yield SOURCES
    yield from _picture(pictures, "_sources")
    if record is not None:
        yield from _intervals(record, table, pictures)
        yield from _frozen_intervals(found, others, table)
    yield from _memory(found, record, table)
    yield from _choices(found, table)
    yield "## Worst rows\n"
    rows = [
        (e.row.id, e.row.model.name, chips_text(e), degrees_text(e),
         percent(e.log_error, sign=True))
        for e in worst(found.trained, NUM_WORST)
    ]  # fmt: skip
    yield from table(("row", "model", "chips", "plan", "error"), rows, words=4)


def _headline(
    found: Validation, others: Others | None, record: FitRecord | None, table: Table
) -> Iterator[str]:
    """Yield the headline: uncalibrated, fitted, left out, frozen, each with and without a name."""
    known = [] if others is None else [("uncalibrated", others.before)]
    known.append((found.calibration, found))
    if others is not None:
        known.append((f"{found.calibration}, framework not named", others.unnamed))
    rows = [
        (name, percent(entry.median_of_medians), percent(entry.overall.p90_abs_log_error))
        for name, entry in known
    ]
    if record is not None:
        parts = [
            ("sources left out", record.left_out),
            ("those whose chips no other source has (1)", record.left_out_alone),
            ("sources left out, framework not named", record.unnamed),
        ]
        rows += [(name, percent(e.median_of_medians), percent(e.p90)) for name, e in parts if e]
    ways = [("frozen sources", found)]
    if others is not None:
        ways.append(("frozen sources, framework not named", others.unnamed))
    for name, entry in ways:
        if entry.frozen:
            alone = Validation(entry.frozen, entry.calibration)
            errors = errors_of(entry.frozen)
            shown = percent(alone.median_of_medians), percent(errors.p90_abs_log_error)
            rows.append((name, *shown))
    yield from table(("constants", "median over sources of their medians", "p90 of all rows"), rows)


def _sources(
    found: Validation, others: Others | None, record: FitRecord | None, table: Table
) -> Iterator[str]:
    """Yield one line for each source of training."""
    head = (
        "source", "rows", "used", "median", "p90", "bias", "left out", "its p90", "its bias",
        "not named", "its p90", "its bias", "noise", "ranks",
    )  # fmt: skip
    rows = []
    for name, entries in by_group(found.trained).items():
        errors, group = found.groups[name], record.groups.get(name) if record else None
        mark = " (1)" if group and group.alone else " (frozen)" if name in FROZEN else ""
        ranks = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
        unnamed = ("-",) * 3 if others is None else error_shares(others.unnamed.groups[name])
        rows.append((
            name + mark, errors.rows, errors.rows_used, *error_shares(errors),
            *_percents(group.left_out if group else ErrorRecord()), *unnamed,
            percent(noise_of(entries)), ranks,
        ))  # fmt: skip
    yield from table(head, rows)


def error_shares(errors: Errors) -> tuple[str, str, str]:
    """Return median, 90th percentile and bias in per cent."""
    median, p90 = percent(errors.median_abs_log_error), percent(errors.p90_abs_log_error)
    return median, p90, percent(errors.bias_log, sign=True)


def _percents(errors: ErrorRecord) -> tuple[str, str, str]:
    """Return median, 90th percentile and bias in per cent, of errors in a file."""
    return percent(errors.median), percent(errors.p90), percent(errors.bias, sign=True)


def _intervals(record: FitRecord, table: Table, pictures: Mapping[str, str]) -> Iterator[str]:
    """Yield the width of intervals, and their coverage on sources left out."""
    spread = record.spread
    if spread is None:
        return
    yield INTERVALS
    yield from _picture(pictures, "_intervals")
    sides = (spread.slower, spread.faster)
    distances = [("any", *(percent(side.distance) for side in sides))] + [
        (f"{words}: times", *(f"{side.factors[name]:.2f}" for side in sides))
        for name, words in TRAITS.items()
        if name in spread.slower.factors
    ]
    yield from table(("how far the ends lie", "slower", "faster"), distances)
    if not record.intervals:
        return
    rows = [
        (TRAITS.get(name, name), held.rows, percent(held.covered),
         percent(held.covered_by_source), percent(held.held_sources), f"{held.score:.3f}",
         percent(held.slower), percent(held.faster))
        for name, held in record.intervals.items()
    ]  # fmt: skip
    head = ("rows", "number", "inside", "median source", "sources with 60 % inside", "score",
            "slower", "faster")  # fmt: skip
    yield from table(head, rows)
    covered = [(name, g.rows, percent(g.covered)) for name, g in record.groups.items()]
    yield from table(("source left out", "rows", "inside"), covered)


def _frozen_intervals(found: Validation, others: Others | None, table: Table) -> Iterator[str]:
    """Yield the coverage of intervals on frozen sources, with their framework and without."""
    ways = [found] if others is None else [found, others.unnamed]
    parts = [by_group(way.frozen) for way in ways]
    if not parts[0]:
        return
    rows = [
        (name, len(parts[0][name]), *(percent(intervals_of(part[name]).covered) for part in parts))
        for name in parts[0]
    ]
    head = ("frozen source", "rows", "inside", "framework not named")[: 2 + len(ways)]
    yield from table(head, rows)


def _memory(found: Validation, record: FitRecord | None, table: Table) -> Iterator[str]:
    """Yield the errors of memory, and rows that are wrongly predicted to fit, or not to."""
    fitted = record.memory if record else None
    rows = []
    for name, mine in memory_errors_by_group(found.trained).items():
        errors = found.groups.get(name, found.overall)
        known = fitted is not None and name in fitted.groups
        out = fitted.groups[name].left_out if fitted and known else ErrorRecord()
        rows.append((name, mine.rows, *_percents(mine), percent(out.median), percent(out.p90),
                     errors.false_fits, errors.false_ooms))  # fmt: skip
    yield "## Memory\n"
    yield MEMORY
    head = ("source", "rows", "median", "p90", "bias", "left out", "its p90",
            "false fits", "false OOMs")  # fmt: skip
    yield from table(head, rows)
    known_rows = [entry for entry in found.trained if entry.memory_log_error is not None]
    known_rows.sort(key=lambda entry: -abs(entry.memory_log_error or 0.0))
    yield from _memory_rows("Largest errors of memory", known_rows[:NUM_WORST_MEMORY], table)
    wrong = [entry for entry in found.trained if is_wrongly_fitting(entry)]
    yield from _memory_rows("Wrongly predicted to fit, or not to", wrong, table)


def _memory_rows(title: str, entries: Sequence[Prediction], table: Table) -> Iterator[str]:
    """Yield rows with the memory of their fullest device by part."""
    rows = []
    for entry in entries:
        assert entry.memory is not None
        use, error = entry.memory.use, entry.memory_log_error
        parts = {n: size / GIB for n, size in use.row().items() if n != MemoryPart.MARGIN}
        largest = ", ".join(
            f"{name.removesuffix('_bytes').replace('_', ' ')} {size:.1f}"
            for name, size in sorted(parts.items(), key=lambda part: -part[1])[:3]
        )
        counted = used_bytes(use) if error is None else entry.memory.predicted_bytes
        rows.append((entry.row.id, chips_text(entry), degrees_text(entry), largest,
                     f"{counted / GIB:.1f}", percent(error, sign=True)))  # fmt: skip
    if rows:
        yield f"{title}:\n"
        head = ("row", "chips", "plan", "largest parts [GiB]", "predicted [GiB]", "error")
        yield from table(head, rows, words=4)


def _choices(found: Validation, table: Table) -> Iterator[str]:
    """Yield the cost of choosing by prediction."""
    families = found.families
    if not families:
        return
    mean = sum(family.regret for family in families) / len(families)
    thumb = sum(family.rule_of_thumb_regret for family in families) / len(families)
    pairs = sum(family.ordered_pairs for family in families)
    right = sum(family.right_pairs for family in families)
    yield "## Choosing by prediction\n"
    yield f"In {len(families)} families of rows that differ only in the plan, the plan predicted"
    yield f"fastest was {mean:.1%} slower than the fastest measured one; the one of least model"
    yield f"parallelism {thumb:.1%}. Of {pairs} pairs measured more than 5 % apart, {right} are in"
    yield "the right order. Rule: the plan of least model parallelism.\n"
    rows = [
        (f.best.row.group, f.best.row.model.name, chips_text(f.best), degrees_text(f.best),
         degrees_text(f.chosen), len(f.rows), percent(f.regret), percent(f.rule_of_thumb_regret),
         f"{f.right_pairs} of {f.ordered_pairs}")
        for f in sorted(families, key=lambda family: -family.regret)
    ]  # fmt: skip
    head = ("source", "model", "chips", "measured best", "predicted best", "plans", "regret",
            "rule", "pairs")  # fmt: skip
    yield from table(head, rows, words=5)


def _refusals(predictions: Sequence[Prediction], table: Table) -> Iterator[str]:
    """Yield the number of refused rows for each reason, with one of them."""
    found = [entry for entry in predictions if entry.refused is not None]
    rows = []
    for reason, number in Counter(entry.refused for entry in found).most_common():
        first = next(entry for entry in found if entry.refused is reason)
        rows.append((reason, f"{first.row.id}: {first.detail}", number))
    if rows:
        yield "## Refused rows\n"
        yield from table(("reason", "such as", "rows"), rows, words=2)


def _serving_lines(
    found: Validation, before: Validation | None, record: ServingRecord | None, table: Table
) -> Iterator[str]:
    """Yield the validation of serving."""
    views, plain = views_of(found.served), views_of(before.served) if before else {}
    plain["source"] = _sources_of(before.served) if before else {}
    figures = figures_of(found.served, found.calibration)
    yield from figure_lines(figures, record, table)
    yield from plan_lines(figures, table)
    yield "## By source\n"
    yield "All kinds of rows, of clients the time per output token; frozen ones are among them.\n"
    yield from _errors_by("source", _sources_of(found.served), plain, record, table)
    for view in ("server", "chip", "batch", "model"):
        yield f"## By {view}\n"
        yield from _errors_by(view, views[view], plain, record, table)
        if view == "chip" and record:
            families = [
                (name, part.rows, percent(part.fitted.median), percent(part.fitted.p90),
                 percent(part.left_out.median), percent(part.left_out.p90))
                for name, part in record.families.items()
            ]  # fmt: skip
            head = ("family of chips", "rows", "median", "p90", "left out", "its p90")
            yield from table(head, families)
    judged = [entry for entry in found.served if entry.fits is not None]
    wrong = [entry for entry in judged if not entry.fits]
    yield "## Capacity\n"
    yield f"All {len(judged)} rows ran. {len(wrong)} are predicted to have no room for the cache of"
    yield "a single request of full length next to weights, buffers and the largest pass.\n"
    yield "## Worst rows\n"
    rows = [
        (e.row.id, e.row.model.name, requests_text(e.row), percent(e.log_error, sign=True))
        for e in worst(found.served, NUM_WORST)
    ]
    yield from table(("row", "model", "requests", "error"), rows, words=3)


def _sram_lines(found: Validation, table: Table) -> Iterator[str]:
    """Yield the figures of machines that serve from SRAM."""
    yield "## Machines that serve from SRAM\n"
    yield SRAM_INTRODUCTION
    yield from _sram_table(found, table)
    for entry in found.sram:
        row = entry.row
        why = (f"{name}: {text}" for name, text in row.reasons.items())
        known = (row.source.title, row.source.url, row.notes, *why)
        yield f"* {row.id}: {'; '.join(text for text in known if text)}"
    yield ""


def _sram_table(found: Validation, table: Table) -> Iterator[str]:
    """Yield one line for each figure; without drafts too, where a row does not state them."""
    part, entries = sram_part(found.calibration), list(found.sram)
    plain = [
        entry.row.model_copy(update={"id": f"{entry.row.id} plain", "software": SoftwareFields()})
        for entry in entries
        if "drafts_tokens" in entry.row.reasons
    ]
    entries += predict_sram(plain, found.calibration)
    before = predict_sram([entry.row for entry in entries], "uncalibrated")
    rows = []
    for entry, known in zip(entries, before, strict=True):
        row, left_out = entry.row, part.fit.left_out.get(entry.row.id) if part else None
        rows.append((
            row.id, row.hardware.chip, f"{row.measured.tokens_per_s_per_user:,.0f}",
            f"{entry.predicted_tokens_per_s or 0.0:,.0f}", _factor(entry.log_error),
            _factor(left_out), _factor(known.log_error),
        ))  # fmt: skip
    head = ("row", "chip", "public", "predicted", "factor", "left out", "uncalibrated")
    yield from table(head, rows, words=2)


def _factor(log_error: float | None) -> str:
    return "-" if log_error is None else f"{math.exp(log_error):.2f}"


def _sources_of(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Return the errors of each source of serving, and of all rows."""
    sources = {name: errors_of(rows) for name, rows in by_group(predictions).items()}
    return sources | {"all rows": errors_of(predictions)}


def _errors_by(
    view: str, parts: Mapping[str, Errors], before: Mapping[str, Mapping[str, Errors]],
    record: ServingRecord | None, table: Table,
) -> Iterator[str]:  # fmt: skip
    """Yield one line for each part of the rows of serving."""
    left_out: Mapping[str, GroupRecord] = {}
    if record is not None and view in ("source", "server"):
        left_out = record.groups if view == "source" else record.servers
    rows = []
    for name, errors in parts.items():
        out = left_out[name].left_out if name in left_out else ErrorRecord()
        plain = before[view][name].median_abs_log_error if before.get(view) else None
        rows.append((name, errors.rows, errors.rows_used, percent(plain), *error_shares(errors),
                     percent(out.median), percent(out.p90)))  # fmt: skip
    head = (view, "rows", "used", "uncalibrated", "median", "p90", "bias", "left out", "its p90")
    yield from table(head, rows)


# rows in few words


def worst(predictions: Sequence[Prediction], number: int) -> list[Prediction]:
    """Return the rows of the largest error, the worst first."""
    known = [entry for entry in predictions if entry.log_error is not None]
    return sorted(known, key=lambda entry: -abs(entry.log_error or 0.0))[:number]


def chips_text(entry: Prediction) -> str:
    """Return the chips of a row."""
    assert entry.job is not None
    return f"{entry.row.hardware.chips}x{entry.job.problem.system.chip.name}"


def degrees_text(entry: Prediction) -> str:
    """Return the plan of a row in few words: degrees that are not 1, and the micro-batch."""
    assert entry.job is not None
    s = entry.job.strategy
    degrees = {"tp": s.tp, "pp": s.pp, "vpp": s.num_virtual_stages, "cp": s.cp, "ep": s.ep,
               "dp": s.dp}  # fmt: skip
    shown = [f"{name}{degree:.0f}" for name, degree in degrees.items() if degree > 1]
    return " ".join([*shown, f"mbs{s.micro_batch_size:.0f}"])


def requests_text(row: Row) -> str:
    """Return the chips, the server and the requests of a row in few words."""
    batch = "queue" if row.batch is None else f"batch {row.batch}"
    chips = f"{row.hardware.chips}x{row.hardware.chip}"
    return f"{chips} {server_name_of(row)} {batch} {row.input_len}+{row.output_len}"
