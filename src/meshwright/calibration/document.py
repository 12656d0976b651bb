"""The validation as documents: tables in Markdown, those of training around two pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshwright.calibration.errors import (
    Errors,
    by_group,
    errors_of,
    is_wrongly_fitting,
    memory_errors_by_group,
    noise_of,
)
from meshwright.calibration.frameworks import FRAMEWORKS
from meshwright.calibration.picture import scatter_svg, sources_svg
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.report import (
    Validation,
    chips_text,
    choice_totals,
    degrees_text,
    error_shares,
    refusal_counts,
    requests_text,
    views_of,
    worst,
)
from meshwright.calibration.rows import Row
from meshwright.calibration.serving import predict_all
from meshwright.catalog.calibration import (
    FitRecord,
    GroupRecord,
    ServingRecord,
    fit_record,
    serving_record,
)
from meshwright.catalog.workloads import load_server, server_names
from meshwright.report.markdown import markdown_table
from meshwright.report.screen import percent

NUM_WORST = 20
INTRODUCTION = """# Validation

Written by `meshwright validate --document docs/validation.md`. Each published row is predicted
from its stated configuration alone. Errors are |ln(predicted / measured)| of the throughput: 5 %
is a factor of 1.05 either way; a bias above 0 is predicted too fast. Left out: constants fitted
anew without that source, and without other sources of its vendor.
"""
INTERVALS = """## Intervals

Each prediction has an interval in which four of five measurements are expected; it lies evenly, as
a factor, about the prediction. It is wider for jobs with experts, with words of products
below 16 bits (for each halving), and on chips of which no measured row is of the family. Half-width
and factors come from the errors of sources left out. Judged here on sources of which neither the
constants nor the widths know anything. The score is width plus ten times the distance of what lies
outside, in logarithms; small is good.
"""
SERVING_INTRODUCTION = """# Validation of serving

Written by `meshwright validate --document docs/validation.md`, next to that file. Each published
row is predicted from its stated configuration alone: throughput of a batch of equal requests that
start together, or of a queue that keeps the server busy. Errors are |ln(predicted / measured)|; a
bias above 0 is predicted too fast. Left out: constants of serving fitted without that source,
server or family of chips. How rows become jobs, and what is priced: [serving](serving.md).
"""
MEMORY = """What sources state of the fullest device, against what is predicted; left out: constants
of memory fitted without that source. A row that ran must fit, one that did not must not.
"""
TRAITS = {
    "experts": "with experts", "narrow_words": "words of 8 bits or less",
    "unseen_family": "chips of a family that no other source has",
}  # fmt: skip


def documents(found: Validation, rows: Sequence[Row], stem: str) -> dict[str, str]:
    """Return the documents of a validation and their pictures by file name.

    Parameters
    ----------
    rows
        What was predicted; it is predicted again under the uncalibrated constants.
    stem
        First part of the file names.
    """
    name = found.calibration
    before = Validation(tuple(predict_all(rows, "uncalibrated")), "uncalibrated")
    files: dict[str, str] = {}
    if found.trained:
        trained = Validation(found.trained, name), Validation(before.trained, "uncalibrated")
        files |= document(*trained, fit_record(name), stem)
    if found.served:
        text = serving_document(found.served, before.served, serving_record(name))
        files[f"{stem}_inference.md"] = text
    return files


def document(
    found: Validation, before: Validation, record: FitRecord | None, stem: str
) -> dict[str, str]:
    """Return the document of training, and the pictures that it shows, by file name.

    Parameters
    ----------
    before
        The same rows under the uncalibrated constants.
    record
        What the fit reached on sources left out; None: the constants were not fitted.
    """
    pictures = {f"{stem}.svg": scatter_svg(found.predictions)}
    if record is not None:
        pictures[f"{stem}_sources.svg"] = sources_svg(record.groups)
    text = "\n".join(_lines(found, before, record, list(pictures))) + "\n"
    return {f"{stem}.md": text} | pictures


def _lines(
    found: Validation, before: Validation, record: FitRecord | None, pictures: Sequence[str]
) -> Iterator[str]:
    yield INTRODUCTION
    yield from _headline(found, before, record)
    yield f"![predicted against measured]({pictures[0]})\n\n## By source\n"
    yield from _group_table(found, before, record)
    if record is not None:
        yield f"![errors of each source]({pictures[1]})\n"
        yield from _intervals(record)
    yield from _memory(found, record)
    yield from _choices(found)
    yield "## Worst rows\n"
    rows = [
        (
            e.row.id,
            e.row.model.name,
            chips_text(e),
            degrees_text(e),
            percent(e.log_error, sign=True),
        )
        for e in worst(found.predictions, NUM_WORST)
    ]  # fmt: skip
    yield from table(("row", "model", "chips", "plan", "error"), rows, words=4)
    yield "## Refused rows\n"
    yield from table(("reason", "rows"), refusal_counts(found.predictions))
    yield "## What sources leave unstated\n"
    yield from table(
        ("framework", "default"), [(f.name, f.why) for f in FRAMEWORKS.values()], words=2
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1
) -> Iterator[str]:
    """Yield a table, and an empty line; columns of words come first, then those of numbers."""
    yield from markdown_table(head, rows, words=words)
    yield ""


def _headline(found: Validation, before: Validation, record: FitRecord | None) -> Iterator[str]:
    """Yield the headline: uncalibrated, fitted, left out."""
    rows = [
        (name, percent(entry.median_of_medians), percent(entry.overall.p90_abs_log_error))
        for name, entry in (("uncalibrated", before), (found.calibration, found))
    ]
    if record is not None:
        parts = [("sources left out", record.left_out)]
        if record.left_out_alone is not None:
            parts.append(("those whose chips no other source has (1)", record.left_out_alone))
        rows += [(name, percent(e.median_of_medians), percent(e.p90)) for name, e in parts]
    yield from table(("constants", "median over sources of their medians", "p90 of all rows"), rows)


def _group_table(found: Validation, before: Validation, record: FitRecord | None) -> Iterator[str]:
    """Yield one line for each source."""
    head = (
        "source", "rows", "used", "uncalibrated", "median", "p90", "bias", "left out", "its p90",
        "its bias", "noise", "ranks",
    )  # fmt: skip
    entries = by_group(found.predictions)
    rows = []
    for name, errors in found.groups.items():
        group = record.groups.get(name) if record else None
        ranks = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
        rows.append((
            f"{name} (1)" if group and group.alone else name, errors.rows, errors.rows_used,
            percent(before.groups[name].median_abs_log_error),
            *error_shares(errors), *_left_out(group),
            percent(noise_of(entries[name])), ranks,
        ))  # fmt: skip
    yield from table(head, rows)
    yield "(1) No other source has rows of its chips: left out, it gets constants fitted to none."
    yield "Noise: how far apart rows of one configuration were measured, largest over smallest,"
    yield "their median. Ranks: mean rank correlation of throughput inside sweeps.\n"


def _left_out(group: GroupRecord | None) -> tuple[str, str, str]:
    """Return the errors of a source under constants fitted without it."""
    if group is None:
        return "-", "-", "-"
    out = group.left_out
    return percent(out.median), percent(out.p90), percent(out.bias, sign=True)


def _intervals(record: FitRecord) -> Iterator[str]:
    """Yield how wide intervals are, and how they held sources left out."""
    spread = record.spread
    if spread is None:
        return
    yield INTERVALS
    factors = ", ".join(f"{TRAITS[name]} x {f:.2f}" for name, f in spread.factors.items())
    yield f"Half-width {percent(spread.half_width)}; {factors}.\n"
    if not record.intervals:
        return
    rows = [
        (TRAITS.get(name, name), held.rows, percent(held.covered), f"{held.score:.3f}",
         percent(held.half_width))
        for name, held in record.intervals.items()
    ]  # fmt: skip
    yield from table(("rows", "number", "inside", "score", "median half-width"), rows)
    covered = [(name, g.rows, percent(g.covered)) for name, g in record.groups.items()]
    yield from table(("source left out", "rows", "inside"), covered)


def _memory(found: Validation, record: FitRecord | None) -> Iterator[str]:
    """Yield the errors of memory, and rows that are wrongly predicted to fit, or not to."""
    fitted = record.memory if record else None
    rows = []
    for name, mine in memory_errors_by_group(found.trained).items():
        errors = found.groups.get(name, found.overall)
        out = fitted.groups[name].left_out if fitted and name in fitted.groups else None
        rows.append((
            name, mine.rows, percent(mine.median), percent(mine.p90), percent(mine.bias, sign=True),
            percent(out.median if out else None), percent(out.p90 if out else None),
            errors.false_fits, errors.false_ooms,
        ))  # fmt: skip
    yield "## Memory\n"
    yield MEMORY
    head = ("source", "rows with memory", "median", "p90", "bias", "left out", "its p90",
            "false fits", "false out of memory")  # fmt: skip
    yield from table(head, rows)
    wrong = [
        (e.row.id, e.row.model.name, chips_text(e), degrees_text(e))
        for e in found.trained
        if is_wrongly_fitting(e)
    ]
    yield "Predicted wrongly:\n" if wrong else "All rows are predicted rightly.\n"
    if wrong:
        yield from table(("row", "model", "chips", "plan"), wrong, words=4)


def _choices(found: Validation) -> Iterator[str]:
    """Yield what choosing by prediction costs."""
    families = found.families
    if not families:
        return
    mean, thumb, pairs, right = choice_totals(families)
    yield "## Choosing by prediction"
    yield ""
    yield f"In {len(families)} families of rows that differ only in the plan, the plan predicted"
    yield f"fastest was {mean:.1%} slower than the fastest measured one; the one of least model"
    yield f"parallelism {thumb:.1%}. Of {pairs} pairs measured more than 5 % apart, {right} are in"
    yield "the right order.\n"
    rows = [
        (f.best.row.group, f.best.row.model.name, chips_text(f.best), degrees_text(f.best),
         degrees_text(f.chosen), len(f.rows), percent(f.regret), percent(f.rule_of_thumb_regret),
         f"{f.right_pairs} of {f.ordered_pairs}")
        for f in sorted(families, key=lambda family: -family.regret)
    ]  # fmt: skip
    head = ("source", "model", "chips", "measured best", "predicted best", "plans", "regret",
            "of the rule", "pairs")  # fmt: skip
    yield from table(head, rows, words=5)


def serving_document(
    found: Sequence[Prediction], before: Sequence[Prediction], record: ServingRecord | None
) -> str:
    """Return the document.

    Parameters
    ----------
    before
        The same rows under the uncalibrated constants.
    record
        What the fit reached with rows left out; None: the constants were not fitted.
    """
    return "\n".join(_serving_lines(found, before, record)).rstrip("\n") + "\n"


def _serving_lines(
    found: Sequence[Prediction], before: Sequence[Prediction], record: ServingRecord | None
) -> Iterator[str]:
    yield SERVING_INTRODUCTION
    views, plain = views_of(found), views_of(before)
    sources = {name: errors_of(rows) for name, rows in by_group(found).items()}
    plain_sources = {name: errors_of(rows) for name, rows in by_group(before).items()}
    all_rows, all_plain = {"all rows": errors_of(found)}, {"all rows": errors_of(before)}
    yield from _table("source", sources | all_rows, plain_sources | all_plain,
                      record.groups if record else {})  # fmt: skip
    yield from _table("server", views["server"], plain["server"], record.servers if record else {})
    yield from _table("chip", views["chip"], plain["chip"], {})
    if record:
        yield from _families(record.families)
    yield from _table("batch", views["batch"], plain["batch"], {})
    yield from _table("model", views["model"], plain["model"], {})
    yield from _capacity(found)
    yield "## Worst rows\n"
    rows = [
        (e.row.id, e.row.model.name, requests_text(e.row), percent(e.log_error, sign=True))
        for e in worst(found, NUM_WORST)
    ]
    yield from table(("row", "model", "requests", "error"), rows, words=3)
    yield "## What sources leave unstated\n"
    servers = [(name, load_server(name).why) for name in server_names()]
    yield from table(("server", "default"), servers, words=2)


def _table(
    view: str, parts: Mapping[str, Errors], before: Mapping[str, Errors],
    left_out: Mapping[str, GroupRecord],
) -> Iterator[str]:  # fmt: skip
    """Yield one line for each part of the rows."""
    rows = []
    for name, errors in parts.items():
        out = left_out[name].left_out if name in left_out else None
        rows.append((
            name, errors.rows, errors.rows_used, percent(before[name].median_abs_log_error),
            *error_shares(errors), percent(out.median if out else None),
            percent(out.p90 if out else None),
        ))  # fmt: skip
    yield f"## By {view}\n"
    head = (view, "rows", "used", "uncalibrated", "median", "p90", "bias", "left out", "its p90")
    yield from table(head, rows)


def _families(families: Mapping[str, GroupRecord]) -> Iterator[str]:
    """Yield the errors of each family of chips, in the fit and left out of it."""
    rows = []
    for name, part in families.items():
        shares = (part.fitted.median, part.fitted.p90, part.left_out.median, part.left_out.p90)
        rows.append((name, part.rows, *map(percent, shares)))
    yield from table(("family of chips", "rows", "median", "p90", "left out", "its p90"), rows)


def _capacity(found: Sequence[Prediction]) -> Iterator[str]:
    """Yield how many rows that ran are predicted not to fit."""
    judged = [entry for entry in found if entry.fits is not None]
    wrong = [entry for entry in judged if not entry.fits]
    yield "## Capacity\n"
    yield f"All {len(judged)} rows ran. {len(wrong)} are predicted to have no room for the cache of"
    yield "a single request of full length beside weights, buffers and the largest pass.\n"
