"""A whole fit: its calibration file, data for programs, and lines for a reader."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import TypedDict

from meshwright.base.records import Listed, Rows, Scalar
from meshwright.calibration.fit.memory import (
    GIB,
    PRIOR,
    MemoryFit,
    constants_of_memory,
    fit_memory,
    memory_record,
    memory_rows,
)
from meshwright.calibration.fit.record import (
    calibration_text,
    constants_of,
    constants_of_serving,
    constants_of_sram,
    fit_record,
    serving_alone_text,
    serving_fit_record,
    serving_text,
    sram_record,
    sram_text,
)
from meshwright.calibration.fit.serving import ServingFit, fit_serving, serving_rows
from meshwright.calibration.fit.sram import SramFit, fit_sram
from meshwright.calibration.fit.training import Fit, FitRows, fit, fit_rows, usable
from meshwright.calibration.prediction import predict
from meshwright.calibration.rows import Row, passed_over
from meshwright.catalog.calibration import (
    UNCALIBRATED,
    CoverageRecord,
    GroupRecord,
    MemoryRecord,
    PooledErrorRecord,
    ServingRecord,
    SramRecord,
    load_calibration,
)
from meshwright.spec.calibration import Spread
from meshwright.view.screen import screen_width
from meshwright.view.words import percent


class FittedRecord(TypedDict, total=False):
    """Errors of a fit on its own rows and on each source left out, by fitted part."""

    num_rows: int
    unused: Mapping[str, str]
    """Reasons why rows were not used, by the name of the row."""
    without_effect: Sequence[str]
    """Fields of the rows that no price reads, each with its number of rows."""
    expected: PooledErrorRecord | None
    """Errors of the calibration that the rows adjust; null: they adjust none."""
    fitted: PooledErrorRecord
    left_out: PooledErrorRecord
    left_out_alone: PooledErrorRecord | None
    """Errors of sources on chips that no other source has; not part of ``left_out``."""
    unnamed: PooledErrorRecord | None
    """Errors of rows when left out and priced without their framework."""
    spread: Spread | None
    intervals: Mapping[str, CoverageRecord]
    """Coverage by a property that rows share."""
    groups: Mapping[str, GroupRecord]
    """Errors by source."""
    memory: MemoryRecord | None
    """Errors of the memory; null: no row states memory."""
    serving: ServingRecord
    sram: SramRecord


@dataclass(frozen=True)
class Fitted(Listed):
    """A calibration file, with lines for a reader and data for a program."""

    text: str
    lines: list[str]
    data: dict[str, Any]

    def brief(self) -> str:
        """Return the first lines for a reader."""
        return "\n".join(self.lines[:3])

    def rows(self) -> Rows:
        """Return the sources of the rows, or the kernels, with their errors."""
        if "kernels" in self.data:
            return [_flat(entry) for entry in self.data["variants"]]
        fits = [self.data, *(self.data[name] for name in ("serving", "sram") if name in self.data)]
        return [
            {"source": name, **_flat(group)}
            for fit in fits
            for name, group in fit.get("groups", {}).items()
        ]


def _flat(record: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return a record with the parts of its records beside the rest: ``left_out_median``."""
    found: dict[str, Scalar] = {}
    for name, value in record.items():
        if isinstance(value, list | tuple):
            value = dict(zip(("median", "p90"), value, strict=True))
        if isinstance(value, Mapping):
            found |= {f"{name}_{part}": amount for part, amount in value.items()}
        else:
            found[name] = value
    return found


def fitted(rows: Sequence[Row], name: str, command: str, calibration: str = UNCALIBRATED) -> Fitted:
    """Return the constants of training fitted to some rows, and on top those of serving and SRAM.

    Parameters
    ----------
    name
        Name of the calibration.
    command
        Command that writes the file, for its first line.
    calibration
        Calibration with the expected constants: few rows adjust it, and it is kept where they say
        nothing.
    """
    served = [row for row in rows if row.is_serving and not row.is_one_user]
    steps = predict([r for r in rows if not r.is_serving], UNCALIBRATED, is_placed=False)
    trained = usable(steps)
    unused = {
        entry.row.id: f"{entry.refused}: {entry.detail}" if entry.refused else NOT_MEASURED
        for entry in steps
        if entry.log_error is None and not (entry.memory and entry.memory.measured_bytes)
    }
    made = Fitted(serving_alone_text(len(served), name, command), [], {})
    if trained.predictions:
        steps_of_rows = [entry.row for entry in trained.predictions]
        found = fit(trained, fit_rows(steps_of_rows, is_named=False), calibration)
        memory = fit_memory(memory_rows(steps), expected_memory(trained, calibration))
        lines = [*fit_lines(found), *(["", *memory_fit_lines(memory)] if memory else [])]
        data = fit_record(found, memory).model_dump()
        made = Fitted(calibration_text(found, name, command, memory), lines, data)
    with TemporaryDirectory() as folder:
        base = Path(folder) / "base.yaml"
        base.write_text(made.text, encoding="utf-8")
        requests = serving_rows(served, str(base), calibration)
        serving = fit_serving(requests) if requests.columns else None
        unused |= requests.refused
        sram = fit_sram([row for row in rows if row.is_one_user], str(base))
    if serving is not None:
        lines = [*made.lines, "", *serving_fit_lines(serving)]
        data = made.data | {"serving": serving_fit_record(serving).model_dump(exclude_unset=True)}
        made = Fitted(made.text + serving_text(serving), lines, data)
    if sram is not None:
        lines = [*made.lines, "", *sram_fit_lines(sram)]
        data = made.data | {"sram": sram_record(sram).model_dump()}
        made = Fitted(made.text + sram_text(sram), lines, data)
    if not made.data:
        return made
    told = [f"not used: {row}, {why}" for row, why in unused.items()]
    fields = passed_over(rows)
    told += [f"without effect: {', '.join(fields)}"] if fields else []
    data = made.data | {"unused": unused, "without_effect": fields}
    return replace(made, lines=[*made.lines, *([""] if told else []), *told], data=data)


NOT_MEASURED = "states no throughput, time or memory"


def expected_memory(rows: FitRows, calibration: str) -> tuple[float, ...]:
    """Return the constants of memory that are expected before any row: of the first family."""
    if calibration == UNCALIBRATED:
        return PRIOR
    known = load_calibration(rows.families[0], calibration)
    return known.allocator_factor, known.communication_buffer_bytes, known.communicator_bytes


def fit_lines(found: Fit) -> Iterator[str]:
    """Yield the constants and errors of a fit for a reader."""
    record = fit_record(found)
    yield f"{record.num_rows} rows"
    for name, errors in (
        (found.base, record.expected), ("fitted", record.fitted), ("left out", record.left_out),
        ("left out alone", record.left_out_alone), ("unnamed", record.unnamed),
    ):  # fmt: skip
        if errors is not None and errors.median is not None:
            yield (
                f"  {name:<15} median of medians {percent(errors.median_of_medians)}, "
                f"p90 of all rows {percent(errors.p90)}"
            )
    for name, held in record.intervals.items():
        yield (
            f"  {name.replace('_', ' '):<21} {held.rows:>5} rows: {held.covered:.1%} inside "
            f"80 % intervals, score {held.score:.3f}"
        )
    yield ""
    rows = [
        (group, part.rows, percent(part.fitted.median), percent(part.fitted.p90),
         percent(part.left_out.median), percent(part.left_out.p90), percent(part.covered),
         "no other source has its chips" if part.alone else "")
        for group, part in record.groups.items()
    ]  # fmt: skip
    head = ("source", "rows", "median", "p90", "left out", "p90", "inside", "")
    yield from text_table(head, rows)
    constants = {(family or framework, name): entry
                 for (family, framework, name), entry in constants_of(found)}  # fmt: skip
    yield from _constant_lines(constants)


def memory_fit_lines(found: MemoryFit) -> Iterator[str]:
    """Yield the constants and errors of memory for a reader."""
    record = memory_record(found)
    yield f"memory of {record.rows} rows: |ln(predicted / measured)|"
    rows = [
        (name, part.rows, percent(part.fitted.median), percent(part.fitted.p90),
         percent(part.fitted.bias, sign=True), percent(part.left_out.median))
        for name, part in {"all": record, **record.groups}.items()
    ]  # fmt: skip
    yield from text_table(("source", "rows", "median", "p90", "bias", "left out"), rows)
    for name, *value in constants_of_memory(found):
        unit, size = ("", 1.0) if name.endswith("factor") else (" GiB", GIB)
        shown = [f"{entry / size:.4g}" for entry in value]
        yield f"  {name:<22}{shown[0]}{unit}, {shown[1]} to {shown[2]}"


def serving_fit_lines(found: ServingFit) -> Iterator[str]:
    """Yield the errors and constants of a fit of serving for a reader."""
    record = serving_fit_record(found)
    views = {"source": record.groups, "server": record.servers, "chips": record.families}
    yield f"{record.num_rows} rows of serving"
    rows = [
        (view, name, part.rows, percent(part.fitted.median), percent(part.fitted.p90),
         percent(part.left_out.median), percent(part.left_out.p90))
        for view, parts in views.items()
        for name, part in parts.items()
    ]  # fmt: skip
    yield from text_table(("", "", "rows", "median", "p90", "left out", "p90"), rows, words=2)
    yield from _constant_lines(dict(constants_of_serving(found)))


def sram_fit_lines(found: SramFit) -> Iterator[str]:
    """Yield the figures of machines that serve from SRAM, and the constants, for a reader."""
    yield f"{len(found.jobs)} figures of machines that serve from SRAM: predicted / published"
    record = sram_record(found)
    rows = [
        (name, f"{math.exp(error):.2f}", f"{math.exp(record.left_out[name]):.2f}")
        for name, error in record.fitted.items()
    ]
    yield from text_table(("row", "fitted", "left out"), rows)
    yield from _constant_lines({key.place: entry for key, entry in constants_of_sram(found)})


def _constant_lines(
    constants: Mapping[tuple[str, str], tuple[float, float, float]],
) -> Iterator[str]:
    """Yield each constant with its interval."""
    for (place, name), (value, low, high) in constants.items():
        yield f"  {place or 'all':<22}{name:<34}{value:>9.4g}   {low:.4g} to {high:.4g}"


def text_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1
) -> Iterator[str]:
    """Yield a table in plain text, as wide as the screen, and an empty line.

    Columns of words come first; they are cut until the table fits. Columns without any value are
    left out.
    """
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    columns = list(zip(*lines, strict=True))
    known = [n for n, (_, *cells) in enumerate(columns) if not cells or set(cells) - {"-", ""}]
    num_words = sum(n < words for n in known)
    widths = [max(map(len, columns[n])) for n in known]
    while sum(widths) + 2 * (len(widths) - 1) > screen_width() and max(widths[:num_words]) > 1:
        widths[widths.index(max(widths[:num_words]))] -= 1
    for row in lines:
        cells = zip((row[n] for n in known), widths, strict=True)
        shown = (c[:w].ljust(w) if n < num_words else c.rjust(w) for n, (c, w) in enumerate(cells))
        yield "  ".join(shown).rstrip()
    yield ""
