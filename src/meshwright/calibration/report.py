"""What a validation or a fit found: data for programs, and lines for a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from meshwright.calibration.errors import (
    Errors,
    Family,
    Intervals,
    by_group,
    errors_of,
    families_of,
    intervals_of,
    is_wrongly_fitting,
    median_of_medians,
    memory_errors_by_group,
    noise_of,
)
from meshwright.calibration.fit.memory import (
    GIB,
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
    fit_record,
    serving_alone_text,
    serving_fit_record,
    serving_text,
)
from meshwright.calibration.fit.serving import ServingFit, fit_serving, serving_rows
from meshwright.calibration.fit.training import BASE, Fit, fit, fit_rows
from meshwright.calibration.jobs import Reason
from meshwright.calibration.prediction import Prediction, predict, used_bytes
from meshwright.calibration.rows import Row
from meshwright.calibration.serving import server_name_of
from meshwright.cost.memory import MEMORY_PARTS
from meshwright.report.screen import percent

NUM_WORST = 8
NUM_WORST_MEMORY = 6
WIDTH = 100
"""Of a line; longer ones are cut."""
VIEWS: dict[str, Callable[[Row], str]] = {
    "server": server_name_of,
    "chip": lambda row: row.hardware.chip or "not stated",
    "batch": lambda row: "queue" if row.batch is None else str(row.batch),
    "model": lambda row: row.model.name or "unnamed",
}
"""By which rows of serving are grouped."""


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
class Validation:
    """Rows with their predictions under one calibration."""

    predictions: tuple[Prediction, ...]
    calibration: str

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
        return tuple(entry for entry in self.predictions if entry.row.is_serving)

    @cached_property
    def overall(self) -> Errors:
        """The errors of all rows of training, pooled; where there are none, of all others."""
        return errors_of(self.trained or self.served)

    @property
    def median_of_medians(self) -> float | None:
        """The headline: median over sources of the median error of each, of training alone."""
        rows = by_group(self.trained or self.served)
        return median_of_medians({name: errors_of(found) for name, found in rows.items()})

    @cached_property
    def intervals(self) -> Intervals:
        """How the intervals of all rows of training held what was measured, else of all others."""
        return intervals_of(self.trained or self.served)

    @cached_property
    def families(self) -> list[Family]:
        """Rows that differ only in the plan."""
        return families_of(entry for entry in self.predictions if entry.refused is None)


# for programs


def validation_data(found: Validation) -> dict[str, Any]:
    """Return a validation for programs."""
    served = {"inference": _serving_data(found.served)} if found.served else {}
    return {
        "groups": {name: asdict(errors) for name, errors in found.groups.items()},
        "overall": asdict(found.overall) | {"median_of_medians": found.median_of_medians},
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
        "memory": memory_data(found.trained),
    } | served


def memory_data(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the memory of a validation for programs: errors, and each row in its parts."""
    by_group = memory_errors_by_group(predictions)
    groups = {name: found.model_dump() for name, found in by_group.items()}
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
                "parts_bytes": asdict(entry.memory.use),
            }
            for entry in predictions
            if entry.memory is not None
        ],
    }


def _serving_data(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the errors of serving for programs: of all rows, and by each view."""
    views = {
        f"by_{view}": {name: asdict(errors) for name, errors in parts.items()}
        for view, parts in views_of(predictions).items()
    }
    return {"overall": asdict(errors_of(predictions)), **views}


# a validation for a reader


def validation_lines(found: Validation) -> Iterator[str]:
    """Yield the errors by source, the families, the worst rows and the refusals."""
    headline = percent(found.median_of_medians)
    yield f"median over sources of the median error: {headline}   ({found.calibration} constants)"
    yield "errors are |ln(predicted / measured)| of the throughput; bias above 0: too fast"
    yield ""
    yield from _group_lines(found)
    held = found.intervals
    if held.rows and held.covered is not None:
        yield f"80 % intervals hold {held.covered:.1%} of {held.rows} rows, score {held.score:.3f}"
    yield ""
    yield from _serving_lines(found.served)
    yield from memory_lines(found.trained)
    yield from _family_lines(found.families)
    yield from _worst_lines(found.predictions)
    yield from _refusal_lines(found.predictions)


def text_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1
) -> Iterator[str]:
    """Yield a table: columns of words at the left come first, then those of numbers."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        shown = (
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(shown).rstrip()[:WIDTH]


def _group_lines(found: Validation) -> Iterator[str]:
    """Yield the table of errors: one line for each source, and all rows together."""
    entries = by_group(found.predictions)
    title = "all of training" if found.trained and found.served else "all rows"
    parts = [(name, errors, noise_of(entries[name])) for name, errors in found.groups.items()]
    parts.append((title, found.overall, noise_of(found.trained or found.served)))
    head = ("source", "rows", "used", "median", "p90", "bias", "noise", "memory", "fits-", "ooms-",
            "ranks", "regret")  # fmt: skip
    rows = [
        (
            name if len(name) < 20 else f"{name[:16]}...", errors.rows, errors.rows_used,
            *error_shares(errors), percent(noise), percent(errors.memory_median_abs_error),
            errors.false_fits, errors.false_ooms,
            "-" if errors.spearman is None else f"{errors.spearman:.2f}",
            percent(errors.regret_mean),
        )
        for name, errors, noise in parts
    ]  # fmt: skip
    yield from text_table(head, rows)


def error_shares(errors: Errors) -> tuple[str, str, str]:
    """Return median, 90th percentile and bias in per cent."""
    median, p90 = percent(errors.median_abs_log_error), percent(errors.p90_abs_log_error)
    return median, p90, percent(errors.bias_log, sign=True)


def _serving_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the errors of serving by server, chip and batch."""
    if not predictions:
        return
    views = views_of(predictions)
    parts = {f"{view} {name}": errors for view in ("server", "chip", "batch")
             for name, errors in views[view].items()}  # fmt: skip
    named = {"all rows": errors_of(predictions)} | parts
    rows = [(name, errors.rows_used, *error_shares(errors)) for name, errors in named.items()]
    yield from text_table(("serving", "rows", "median", "p90", "bias"), rows)
    yield ""


def memory_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the errors of memory by source, the worst rows, and wrong answers on what fits."""
    groups = memory_errors_by_group(predictions)
    if groups["all rows"].rows:
        yield "memory: |ln(predicted / measured)|; bias above 0: too full"
        rows = [
            (name, errors.rows, percent(errors.median), percent(errors.p90),
             percent(errors.bias, sign=True))
            for name, errors in groups.items()
        ]  # fmt: skip
        yield from text_table(("source", "rows", "median", "p90", "bias"), rows)
        known = [entry for entry in predictions if entry.memory_log_error is not None]
        known.sort(key=lambda entry: -abs(entry.memory_log_error or 0.0))
        yield from (_memory_line(entry) for entry in known[:NUM_WORST_MEMORY])
        yield ""
    wrong = [entry for entry in predictions if is_wrongly_fitting(entry)]
    if wrong:
        yield "rows that did not fit and are taken to fit, or ran and are taken not to fit"
        yield from (_memory_line(entry) for entry in wrong)
        yield ""


def _memory_line(entry: Prediction) -> str:
    """Return one row with what fills its memory."""
    assert entry.memory is not None
    use, error = entry.memory.use, entry.memory_log_error
    shown = "" if error is None else f"{error:+.1%}"
    parts = {name: getattr(use, name) / GIB for name in MEMORY_PARTS if name != "margin_bytes"}
    largest = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {size:.1f}"
        for name, size in sorted(parts.items(), key=lambda part: -part[1])[:3]
    )
    counted = used_bytes(use) if error is None else entry.memory.predicted_bytes
    return f"  {shown:>7}  {entry.row.id:<24} {counted / GIB:.1f} GiB: {largest}"[:WIDTH]


class ChoiceTotals(NamedTuple):
    """What choosing by prediction costs over all families of plans."""

    regret: float
    rule_of_thumb_regret: float
    ordered_pairs: int
    right_pairs: int


def choice_totals(families: Sequence[Family]) -> ChoiceTotals:
    """Return the mean regrets, and the pairs of plans in the right order."""
    return ChoiceTotals(
        sum(family.regret for family in families) / len(families),
        sum(family.rule_of_thumb_regret for family in families) / len(families),
        sum(family.ordered_pairs for family in families),
        sum(family.right_pairs for family in families),
    )


def _family_lines(families: Sequence[Family]) -> Iterator[str]:
    """Yield what choosing by prediction costs, beside a rule of thumb."""
    if not families:
        return
    mean, thumb, pairs, right = choice_totals(families)
    share = f"{right / pairs:.0%} of {pairs}" if pairs else "none"
    yield f"{len(families)} families of rows that differ only in the plan: regret {mean:.1%};"
    yield f"  of the least model parallelism {thumb:.1%}; pairs in the right order: {share}"
    yield f"  {'source and model':<38}{'chips':>6}{'plans':>6}{'regret':>8}{'rule':>8}  chosen"
    for family in sorted(families, key=lambda family: -family.regret):
        row = family.best.row
        yield (
            f"  {f'{row.group} {row.model.name}'[:37]:<38}{row.hardware.chips or 0:>6}"
            f"{len(family.rows):>6}{family.regret:>8.1%}{family.rule_of_thumb_regret:>8.1%}"
            f"  {degrees_text(family.chosen)}"
        )[:WIDTH]
    yield ""


def _worst_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield the rows of the largest error."""
    found = worst(predictions, NUM_WORST)
    if not found:
        return
    yield "worst rows"
    for entry in found:
        ran = requests_text(entry.row)
        if entry.job is not None:
            ran = f"{chips_text(entry)} {degrees_text(entry)}"
        yield (
            f"  {percent(entry.log_error, sign=True):>7}  {entry.row.id:<24} "
            f"{entry.row.model.name or '':<18} {ran}"
        )[:WIDTH]
    yield ""


def worst(predictions: Sequence[Prediction], number: int) -> list[Prediction]:
    """Return the rows of the largest error, the worst first."""
    known = [entry for entry in predictions if entry.log_error is not None]
    return sorted(known, key=lambda entry: -abs(entry.log_error or 0.0))[:number]


def refusal_counts(predictions: Sequence[Prediction]) -> list[tuple[Reason, int]]:
    """Return how many rows are refused for each reason, the most frequent first."""
    refused = (entry.refused for entry in predictions)
    return Counter(reason for reason in refused if reason is not None).most_common()


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


def _refusal_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """Yield how many rows are refused for which reason, with one of them."""
    counts = refusal_counts(predictions)
    if counts:
        yield "refused"
    for reason, number in counts:
        first = next(entry for entry in predictions if entry.refused is reason)
        yield f"  {number:>4}  {reason!s:<28} such as {first.row.id}: {first.detail}"[:WIDTH]


# a fit


class Fitted(NamedTuple):
    """A calibration file, with lines for a reader and data for a program."""

    text: str
    lines: list[str]
    data: dict[str, Any]


def fitted(rows: Sequence[Row], name: str, command: str) -> Fitted:
    """Return the constants of training fitted to some rows, and on top of them those of serving.

    Parameters
    ----------
    name
        Of the calibration.
    command
        That writes the file, for its first line.
    """
    served = [row for row in rows if row.is_serving]
    steps = [row for row in rows if not row.is_serving]
    trained = fit_rows(steps)
    made = Fitted(serving_alone_text(len(served), name, command), [], {})
    if trained.predictions:
        found = fit(trained)
        memory = fit_memory(memory_rows(predict(steps, BASE)))
        lines = [*fit_lines(found), *(["", *memory_fit_lines(memory)] if memory else [])]
        data = fit_record(found, memory).model_dump()
        made = Fitted(calibration_text(found, name, command, memory), lines, data)
    with TemporaryDirectory() as folder:
        base = Path(folder) / "base.yaml"
        base.write_text(made.text, encoding="utf-8")
        usable = serving_rows(served, str(base))
        serving = fit_serving(usable) if usable.columns else None
    if serving is None:
        return made
    lines = [*made.lines, "", *serving_fit_lines(serving)]
    data = made.data | {"serving": serving_fit_record(serving).model_dump(exclude_unset=True)}
    return Fitted(made.text + serving_text(serving), lines, data)


def fit_lines(found: Fit) -> Iterator[str]:
    """Yield the constants and errors of a fit for a reader."""
    record = fit_record(found)
    yield f"{record.num_rows} rows"
    for name in ("fitted", "left_out", "left_out_alone"):
        errors = getattr(record, name)
        yield (
            f"  {name.replace('_', ' '):<15} median of medians "
            f"{percent(errors.median_of_medians)}, p90 of all rows {percent(errors.p90)}"
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
    yield from text_table(
        ("source", "rows", "median", "p90", "left out", "p90", "inside", ""), rows
    )
    yield ""
    yield from _constant_lines(dict(constants_of(found)))


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
    yield ""
    yield from _constant_lines(dict(constants_of_serving(found)))


def _constant_lines(
    constants: Mapping[tuple[str, str], tuple[float, float, float]],
) -> Iterator[str]:
    """Yield each constant with its interval."""
    for (place, name), (value, low, high) in constants.items():
        yield f"  {place or 'all':<22}{name:<34}{value:>9.4g}   {low:.4g} to {high:.4g}"
