"""The views of a validation: predicted against measured, by source, and the largest misses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, log
from typing import NamedTuple

import numpy as np

from meshwright.calibration.errors import (
    SHARE,
    Errors,
    by_group,
    errors_of,
    intervals_of,
    is_wrongly_fitting,
    memory_errors_by_group,
    noise_of,
)
from meshwright.calibration.figures import frozen, plan_regrets, seen
from meshwright.calibration.picture import coverage_spec, error_spec, per_chip, ratio_spec
from meshwright.calibration.prediction import Prediction, predict, used_bytes
from meshwright.calibration.rows import FROZEN, Row, is_frozen
from meshwright.calibration.serving import predict_all, server_name_of
from meshwright.calibration.sram import predict_sram
from meshwright.calibration.validation import Validation, views_of
from meshwright.catalog.calibration import (
    CoverageRecord,
    ErrorRecord,
    FitRecord,
    GroupRecord,
    fit_record,
    serving_record,
    sram_part,
)
from meshwright.catalog.frameworks import load_framework
from meshwright.catalog.workloads import load_server, server_names
from meshwright.cost.parts import MemoryPart
from meshwright.spec.calibration import Spread
from meshwright.view import charts
from meshwright.view.drawn import ranked
from meshwright.view.markdown import markdown_of
from meshwright.view.parts import (
    Cell,
    Chart,
    Folded,
    Page,
    Part,
    Section,
    Table,
    Text,
    Tile,
)
from meshwright.view.registry import view
from meshwright.view.words import counted, percent

GIB = 2.0**30
NUM_MISSES = 20
"""Rows that are listed as misses, and drawn as such: of few rows one in ten."""
NUM_WORST_MEMORY = 6
MOST_SOURCES = 10
"""Sources on the first screen."""
ERROR_HEAD = ("median [%]", "p90 [%]", "bias [+%]")
TRAITS = {
    "experts": "with experts", "narrow_words": "words of 8 bits or less",
    "unseen_family": "chips of a family that no other source has",
    "unseen_server": "a server without measured rows",
    "unnamed_framework": "framework not named", "host_bound": "a step that only waits for its host",
}  # fmt: skip


class Others(NamedTuple):
    """Validations of the same rows, priced in other ways."""

    before: Validation
    """Validation under the uncalibrated constants."""
    unnamed: Validation
    """Validation without the frameworks of the rows."""


@view(Validation)
def validation_page(found: Validation, others: Others | None = None) -> Page:
    """Return the page of predictions of measured rows.

    Parameters
    ----------
    others
        The same rows under other constants, where a document compares them.
    """
    record = fit_record(found.calibration)
    sections = (
        Section("agree", "Does it agree with measurements?", list(_agree(found, others, record))),
        Section("sources", "How large are errors, by source?",
                list(_sources(found, others, record))),
        Section("intervals", "Do intervals hold what was measured?",
                list(_intervals(found, others, record))),
        Section("misses", "What are the largest misses?", list(_misses(found))),
        Section("memory", "Is memory right?", list(_memory(found, record))),
        Section("choices", "Is the fastest plan found?", list(_choices(found))),
        Section("serving", "And of serving?", list(_serving(found, others))),
        Section("traffic", "And of requests at a rate?", list(_traffic(found))),
        Section("sram", "And of machines that serve from SRAM?", list(_sram(found))),
        Section("refused", "Which rows are refused?", list(_refusals(found))),
        Section("unstated", "What do sources leave unstated?", list(_unstated(found))),
    )  # fmt: skip
    shown = [section for section in sections if section.parts]
    keys = {section.key for section in shown}
    return Page(
        title="Predictions against measurements",
        subtitle=f"{counted(len(found.predictions), 'row')}, {found.calibration} constants; errors "
        "are |ln(predicted / measured)| of the throughput: 5 % is a factor of 1.05 either way",
        tiles=[
            tile if tile.section in keys else replace(tile, section="")
            for tile in _tiles(found, record)
        ],
        sections=shown,
        warnings=[
            *(f"left out: {fault}" for fault in found.bad_rows),
            *([f"without effect: {', '.join(found.without_effect)}"] if found.without_effect
              else []),
        ],
        command=found.command,
        version=found.version,
    )  # fmt: skip


def documents(found: Validation, stem: str) -> dict[str, str]:
    """Return the documents of a validation and their pictures, by file name.

    Rows are predicted again: under the uncalibrated constants, and without their framework.

    Parameters
    ----------
    stem
        First part of the file names.
    """
    files: dict[str, str] = {}
    for rows, name in (
        (found.trained, stem),
        ((*found.served, *found.traffic, *found.sram), f"{stem}_inference"),
    ):
        if rows:
            part, asked = replace(found, predictions=rows), [entry.row for entry in rows]
            unnamed = part
            if name == stem:
                unnamed = replace(
                    part, predictions=tuple(predict(asked, found.calibration, is_named=False))
                )
            before = Validation(tuple(predict_all(asked, "uncalibrated")), "uncalibrated")
            files |= markdown_of(validation_page(part, Others(before, unnamed)), name)
    return files


def _known(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the rows that are both predicted and measured."""
    return [entry for entry in predictions if entry.log_error is not None]


def _tiles(found: Validation, record: FitRecord | None) -> Iterator[Tile]:
    known = _known(found.predictions)
    if not known:
        yield Tile("Does it agree with measurements?", "no row could be predicted",
                   section="refused", mood="bad", label="errors")  # fmt: skip
        return
    if (headline := found.median_of_medians) is not None:
        out = "" if record is None else percent(record.left_out.median_of_medians)
        beside = f"\n{out} where a source is left out of the fit" if out else ""
        yield Tile("Does it agree with measurements?",
                   f"{percent(headline)} off: median over sources of the median error",
                   f"nine of ten rows within {percent(found.overall.p90_abs_log_error)}; bias "
                   f"{percent(found.overall.bias_log, sign=True)} (above 0: too fast){beside}",
                   "agree", label="errors")  # fmt: skip
    held = found.intervals
    if held.rows and held.covered is not None:
        left_out = [] if record is None else list(record.intervals.items())[:1]
        beside = "".join(f"{percent(one.covered)} where the source is left out ({name})"
                         for name, one in left_out)  # fmt: skip
        yield Tile("Do intervals hold what was measured?",
                   f"80 % intervals hold {held.covered:.1%} of {counted(held.rows, 'row')}, score "
                   f"{held.score:.3f}", beside, "intervals", label="intervals")  # fmt: skip
    if found.overall.memory_median_abs_error is not None:
        wrong = sum(is_wrongly_fitting(entry) for entry in found.trained)
        yield Tile("Is memory right?", f"{percent(found.overall.memory_median_abs_error)} off; "
                   f"{counted(wrong, 'row')} wrongly predicted to fit, or not to",
                   section="memory", label="memory")  # fmt: skip
    miss = worst([*found.trained, *found.served], 1)
    if miss:
        yield Tile("What is the largest miss?", f"{percent(miss[0].log_error, sign=True)}: "
                   f"{miss[0].row.id}", section="misses", label="worst", spare=2)  # fmt: skip
    if found.served:
        errors = views_of(found.served)["server"]
        medians = [e.median_abs_log_error for e in errors.values()
                   if e.median_abs_log_error is not None]  # fmt: skip
        if medians:
            rows = [(name, one.rows, *_cells(one))
                    for name, one in _sources_of(found.served).items()][-MOST_SOURCES:]  # fmt: skip
            head = ("serving", "rows [#]", *ERROR_HEAD)
            yield Tile("And of serving?", f"{min(medians):.1%} to {max(medians):.1%} off: medians "
                       "of throughput, by server", section="serving", label="serving",
                       part=None if found.trained else Table(head, rows))  # fmt: skip
    refused = sum(entry.refused is not None for entry in found.predictions)
    if refused:
        yield Tile("Which rows are refused?", f"{counted(refused, 'row')} of "
                   f"{len(found.predictions):,}", section="refused", label="refused",
                   spare=1)  # fmt: skip
    if found.trained:
        yield Tile("How large are errors, by source?",
                   counted(len(by_group(found.trained)), "source"), section="sources",
                   label="sources", part=sources_table(found, None, record, MOST_SOURCES),
                   spare=3)  # fmt: skip


# --------------------------------------------------------------------------- charts of predictions


def _agreement(
    title: str, entries: Sequence[Prediction], values: Sequence[tuple[float, float]], what: str,
    unit: str,
) -> Chart:  # fmt: skip
    """Return predicted over measured values, those furthest off as misses.

    Parameters
    ----------
    values
        Predicted and measured, of each row.
    """
    errors = [log(predicted / measured) for predicted, measured in values]
    order = sorted(range(len(entries)), key=lambda place: -abs(errors[place]))
    marked = min(NUM_MISSES, ceil(len(entries) / 10))
    kinds = [
        "largest misses" if number < marked
        else "frozen: seen by no fit" if is_frozen(entries[place].row) else "other rows"
        for number, place in enumerate(order)
    ]  # fmt: skip
    inside = sum(abs(error) <= 0.2 for error in errors) / len(errors)
    return Chart(
        title,
        f"{len(entries):,} rows, {inside:.0%} of them within 20 %; on the line predictions are "
        f"right; the {counted(marked, 'largest miss', 'largest misses')} marked",
        charts.agreement(
            [entries[place].row.id for place in order], [values[place][1] for place in order],
            [values[place][0] for place in order], kinds, f"measured {what} [{unit}]",
            f"predicted {what} [{unit}]",
        ),
    )  # fmt: skip


def _agree(
    found: Validation, others: Others | None, record: FitRecord | None
) -> Iterator[Part]:  # fmt: skip
    """Yield the headline under each kind of constants, and predicted over measured values."""
    yield Table(
        ("constants", "median over sources of their medians [%]", "p90 of all rows [%]"),
        list(_headline(found, others, record)), "Errors",
    )  # fmt: skip
    known, sram = _known(found.trained), _known(found.sram)
    if known:
        values = [per_chip(entry) for entry in known]
        yield _agreement("Throughput of training", known, values, "throughput of a chip",
                         "tokens/s")  # fmt: skip
    if sram:
        yield _agreement("Speed of one user, from SRAM", sram, _totals(sram), "speed",
                         "tokens/s")  # fmt: skip


def _headline(
    found: Validation, others: Others | None, record: FitRecord | None
) -> Iterator[tuple[Cell, ...]]:
    """Yield the headline: uncalibrated, fitted, left out, frozen, each with and without a name."""
    unnamed = "framework not named"
    if others is not None:
        yield "uncalibrated", *_heads(others.before)
    yield found.calibration, *_heads(found)
    if not found.trained:
        return
    if others is not None:
        yield f"{found.calibration}, {unnamed}", *_heads(others.unnamed)
    if record is not None:
        for name, errors in (
            ("sources left out", record.left_out),
            ("sources left out with chips of no other source", record.left_out_alone),
            (f"sources left out, {unnamed}", record.unnamed),
        ):
            if errors is not None:
                yield name, errors.median_of_medians, errors.p90
    for name, way in (("", found), (f", {unnamed}", others.unnamed if others else None)):
        if way is not None and way.frozen:
            yield f"frozen sources{name}", *_heads(replace(way, predictions=way.frozen))


def _heads(found: Validation) -> tuple[Cell, Cell]:
    return found.median_of_medians, found.overall.p90_abs_log_error


def _totals(entries: Sequence[Prediction]) -> list[tuple[float, float]]:
    return [(entry.predicted_tokens_per_s or 0.0, entry.measured_tokens_per_s or 0.0)
            for entry in entries]  # fmt: skip


def _least_and_most(errors: Mapping[str, Errors]) -> str:
    known = {name: one.median_abs_log_error for name, one in errors.items()
             if one.median_abs_log_error is not None}  # fmt: skip
    ordered = sorted(known, key=lambda name: known[name])
    return (f"Medians from {percent(known[ordered[0]])} ({ordered[0]}) to "
            f"{percent(known[ordered[-1]])} ({ordered[-1]})")  # fmt: skip


def _has_errors(errors: Mapping[str, Errors]) -> bool:
    return any(one.median_abs_log_error is not None for one in errors.values())


def _cells(errors: Errors | ErrorRecord) -> tuple[Cell, Cell, Cell]:
    """Return median, 90th percentile and bias."""
    if isinstance(errors, ErrorRecord):
        return errors.median, errors.p90, errors.bias
    return errors.median_abs_log_error, errors.p90_abs_log_error, errors.bias_log


def _sources(
    found: Validation, others: Others | None, record: FitRecord | None
) -> Iterator[Part]:  # fmt: skip
    """Yield the errors of each source of training, also of constants fitted without it."""
    groups = {} if record is None else record.groups
    errors = {name: found.groups[name] for name in by_group(found.trained)}
    if not errors:
        return
    yield sources_table(found, others, record)
    if not _has_errors(errors):
        return
    yield Chart(
        "Predicted over measured throughput by source (rows)",
        "A thin stroke a row; the bar holds the middle half, the thick stroke is the median; "
        "frozen: seen by no fit",
        ratio_spec(_known(found.trained)),
    )
    says = f"{_least_and_most(errors)}; from the median to the 90th percentile"
    if record is not None:
        says += ", and of constants fitted without the source; alone: no other has its chips"
    yield Chart("Errors of each source (rows)", says, error_spec(errors, groups))


def sources_table(
    found: Validation, others: Others | None, record: FitRecord | None, most: int | None = None
) -> Table:  # fmt: skip
    """Return a row for each source of training, of the most rows first where not all are shown."""
    rows: list[tuple[Cell, ...]] = []
    parts = by_group(found.trained)
    names = sorted(parts, key=lambda name: -len(parts[name]))[:most] if most else list(parts)
    for name in names:
        errors, group = found.groups[name], record.groups.get(name) if record else None
        kind = "alone" if group and group.alone else "frozen" if name in FROZEN else ""
        unnamed = (None,) * 3 if others is None else _cells(others.unnamed.groups[name])
        rows.append((
            name, kind, errors.rows, errors.rows_used, *_cells(errors),
            *_cells(group.left_out if group else ErrorRecord()), *unnamed,
            noise_of(parts[name]), errors.spearman,
        ))  # fmt: skip
    head = (
        "source", "", "rows [#]", "used [#]", *ERROR_HEAD, "left out [%]", "its p90 [%]",
        "its bias [+%]", "not named [%]", "its p90 [%]", "its bias [+%]", "noise [%]", "ranks [1]",
    )  # fmt: skip
    if most is not None:
        return Table([*head[:2], *head[3:9]], [(*row[:2], *row[3:9]) for row in rows])
    caption = (
        "Errors of each source; left out: of constants fitted without it (alone: no other source "
        "has its chips); noise: largest over smallest of one configuration; ranks: mean rank "
        "correlation of throughput inside sweeps"
    )
    return Table(head, rows, caption)


def _intervals(
    found: Validation, others: Others | None, record: FitRecord | None
) -> Iterator[Part]:  # fmt: skip
    """Yield the width of intervals, and their coverage on sources left out."""
    if record is None or record.spread is None or not found.trained:
        return
    yield Text(
        "Each prediction has an interval in which four of five measurements are expected: one in "
        "ten is slower, one in ten faster. The ends come from the errors of sources left out; each "
        "source counts once, because the next job is of a new one. The score is width plus ten "
        "times the distance of measurements outside, in logarithms; small is good."
    )
    yield from _widths({"step": record.spread}, record.intervals)
    known = [group.covered for group in record.groups.values() if group.covered is not None]
    if known:
        enough = sum(share >= SHARE for share in known)
        yield Chart(
            "Rows inside their interval, source left out of fit and intervals",
            f"{enough} of {len(known)} sources have four of five rows inside (the line)",
            coverage_spec(record.groups),
        )  # fmt: skip
    parts = by_group(found.frozen)
    unnamed = by_group(others.unnamed.frozen) if others is not None else {}
    if parts:
        rows = [
            (name, len(parts[name]), intervals_of(parts[name]).covered,
             intervals_of(unnamed[name]).covered if name in unnamed else None)
            for name in parts
        ]  # fmt: skip
        yield Table(("frozen source", "rows [#]", "inside [%]", "framework not named [%]"), rows)


def _widths(
    spreads: Mapping[str, Spread], intervals: Mapping[str, CoverageRecord]
) -> Iterator[Part]:  # fmt: skip
    """Yield the distances of the ends of intervals, their factors, and what they held."""
    sides = [(f"{name}, {side}", getattr(spread, side))
             for name, spread in spreads.items() for side in ("slower", "faster")]  # fmt: skip
    factors = [name for name in TRAITS if any(name in tail.factors for _, tail in sides)]
    yield Table(
        ("end of the interval", "distance [%]", *(f"{TRAITS[name]} [x]" for name in factors)),
        [(name, tail.distance, *(tail.factors.get(one) for one in factors))
         for name, tail in sides],
        "Distance of the ends, and its factor for each trait",
    )  # fmt: skip
    if intervals:
        yield Table(
            ("rows", "number [#]", "sources [#]", "inside [%]", "median source [%]",
             "sources with 60 % inside [%]", "score [1]", "slower [%]", "faster [%]"),
            [(TRAITS.get(name, name), held.rows, held.sources, held.covered,
              held.covered_by_source, held.held_sources, held.score, held.slower, held.faster)
             for name, held in intervals.items()],
            "Rows left out of constants and intervals",
        )  # fmt: skip


def _misses(found: Validation) -> Iterator[Part]:
    for what, entries in (("training", found.trained), ("serving", found.served)):
        rows = []
        for entry in worst(entries, NUM_MISSES):
            how = f"{chips_text(entry)} {degrees_text(entry)}" if entry.job is not None else \
                requests_text(entry.row)  # fmt: skip
            rows.append((entry.row.id, entry.row.model.name or "", how,
                         entry.measured_tokens_per_s, entry.predicted_tokens_per_s, _inside(entry),
                         entry.log_error))  # fmt: skip
        if rows:
            head = ("row", "model", "how it ran", "measured tokens/s [#]", "predicted [#]",
                    "interval held it", "error [+%]")  # fmt: skip
            yield Table(head, rows, f"The largest misses of {what}")


def _inside(entry: Prediction) -> str:
    """Return whether the interval of a row held the measured value."""
    if entry.interval is None or entry.measured_tokens_per_s is None:
        return ""
    low, high = entry.interval
    return "yes" if low <= entry.measured_tokens_per_s <= high else "no"


def _memory(found: Validation, record: FitRecord | None) -> Iterator[Part]:
    """Yield the errors of memory, and rows that are wrongly predicted to fit, or not to."""
    known = [entry for entry in found.trained if entry.memory_log_error is not None]
    if not known:
        return
    fitted = record.memory.groups if record is not None and record.memory is not None else {}
    rows = []
    for name, mine in memory_errors_by_group(found.trained).items():
        errors = found.groups.get(name, found.overall)
        out = fitted[name].left_out if name in fitted else ErrorRecord()
        rows.append((name, mine.rows, *_cells(mine), out.median, out.p90, errors.false_fits,
                     errors.false_ooms))  # fmt: skip
    head = ("source", "rows [#]", *ERROR_HEAD, "left out [%]", "its p90 [%]", "false fits [#]",
            "false OOMs [#]")  # fmt: skip
    yield Table(head, rows, "Errors of memory of the fullest device; a row that ran must fit")
    yield _agreement(
        "Memory of the fullest device", known,
        [(entry.memory.predicted_bytes / GIB, (entry.memory.measured_bytes or 0.0) / GIB)
         for entry in known if entry.memory is not None], "memory", "GiB",
    )  # fmt: skip
    known.sort(key=lambda entry: -abs(entry.memory_log_error or 0.0))
    wrong = [entry for entry in found.trained if is_wrongly_fitting(entry)]
    for caption, entries in (("Largest errors of memory", known[:NUM_WORST_MEMORY]),
                             ("Wrongly predicted to fit, or not to", wrong)):  # fmt: skip
        if entries:
            yield Table(
                ("row", "chips", "plan", "largest parts [GiB]>", "predicted [bytes]", "measured",
                 "error [+%]"),
                [_memory_row(entry) for entry in entries], caption,
            )  # fmt: skip


def _memory_row(entry: Prediction) -> tuple[Cell, ...]:
    """Return a row with the memory of its fullest device by part."""
    assert entry.memory is not None
    use, error = entry.memory.use, entry.memory_log_error
    parts = {name: size / GIB for name, size in use.row().items() if name != MemoryPart.MARGIN}
    largest = ", ".join(f"{name} {size:.1f}" for name, size in list(ranked(parts).items())[:3])
    ran = "" if entry.fits is None or not is_wrongly_fitting(entry) else \
        "ran out" if entry.fits else "ran"  # fmt: skip
    return (entry.row.id, chips_text(entry), degrees_text(entry), largest,
            used_bytes(use) if error is None else entry.memory.predicted_bytes, ran,
            error)  # fmt: skip


def _choices(found: Validation) -> Iterator[Part]:
    """Yield the cost of choosing by prediction."""
    families = found.families
    if not families:
        return
    mean = sum(family.regret for family in families) / len(families)
    thumb = sum(family.rule_of_thumb_regret for family in families) / len(families)
    pairs = sum(family.ordered_pairs for family in families)
    right = sum(family.right_pairs for family in families)
    yield Text(
        f"In {len(families)} families of rows that differ only in the plan, the plan predicted "
        f"fastest was {mean:.1%} slower than the fastest measured one; the one of least model "
        f"parallelism (the rule) {thumb:.1%}. Of {pairs} pairs measured more than 5 % apart, "
        f"{right} are in the right order."
    )
    yield Table(
        ("source", "model", "chips", "measured best", "predicted best", "plans [#]", "regret [%]",
         "rule [%]", "pairs>"),
        [(f.best.row.group, f.best.row.model.name, chips_text(f.best), degrees_text(f.best),
          degrees_text(f.chosen), len(f.rows), f.regret, f.rule_of_thumb_regret,
          f"{f.right_pairs} of {f.ordered_pairs}")
         for f in sorted(families, key=lambda family: -family.regret)],
    )  # fmt: skip


def _serving(found: Validation, others: Others | None) -> Iterator[Part]:
    """Yield the errors of rows of requests: by figure, by view, of plans, and of capacity."""
    if not found.served:
        return
    record = serving_record(found.calibration)
    rows: list[tuple[Cell, ...]] = []
    for figure, entries in found.figures.by_name.items():
        rows.append((figure, "fitted", *_figure(seen(entries))))
        if record is not None and figure in record.figures:
            out = record.figures[figure]
            held = record.intervals.get(f"{figure}, new source")
            rows.append((figure, "left out", out.rows, *_cells(out.left_out),
                         held.covered if held else None))  # fmt: skip
        rows.append((figure, "frozen", *_figure(frozen(entries))))
    head = ("rows [#]", *ERROR_HEAD, "inside [%]")
    yield Table(("figure", "constants", *head), rows,
                "Throughput, and times under load (clients in a closed loop); inside: rows within "
                "their 80 % interval")  # fmt: skip
    if record is not None and record.spreads:
        yield from _widths(record.spreads, record.intervals)
    known = _known(found.served)
    if known:
        yield _agreement("Throughput of serving", known, _totals(known), "throughput",
                         "tokens/s")  # fmt: skip
    yield from _by_views(found, others)
    for view_, label in FIGURE_VIEWS.items():
        keep = frozen if view_ == "frozen" else seen
        rows = sorted(
            (name, figure, *_figure(mine))
            for figure, entries in found.figures.by_name.items()
            for name, mine in by_group(keep(entries), label).items()
        )
        if rows:
            yield Table((view_, "figure", *head), rows)
    yield from _plans(found)
    judged = [entry for entry in found.served if entry.fits is not None]
    wrong = sum(not entry.fits for entry in judged)
    yield Text(f"All {len(judged)} rows with a capacity ran. {wrong} are predicted to have no room "
               "for the cache of a single request of full length.")  # fmt: skip


FIGURE_VIEWS: dict[str, Callable[[Row], str]] = {
    "source": lambda row: row.group,
    "server": server_name_of,
    "chip": lambda row: row.system.chip,
    "frozen": lambda row: f"{row.model.name}, {row.system.chip}, {row.framework}"
    if row.closed_loop else row.group,
}  # fmt: skip
"""Groups of the figures of serving; of frozen ones a family, or a whole source."""


def _figure(entries: Sequence[Prediction]) -> tuple[Cell, ...]:
    """Return rows, median, p90, bias, and the share inside intervals."""
    errors = errors_of(entries)
    return errors.rows_used, *_cells(errors), intervals_of(entries).covered


def _by_views(found: Validation, others: Others | None) -> Iterator[Part]:
    """Yield the errors of all rows of requests by source, server, chip, batch and model."""
    record = serving_record(found.calibration)
    views, plain = dict(views_of(found.served)), {}
    views = {"source": _sources_of(found.served), **views}
    if others is not None:
        before = others.before.served
        plain = {"source": _sources_of(before), **views_of(before)}
    kept = {"source": record.groups, "server": record.servers} if record is not None else {}
    for name, parts in views.items():
        left_out: Mapping[str, GroupRecord] = kept.get(name, {})
        rows = []
        for part, errors in parts.items():
            out = left_out[part].left_out if part in left_out else ErrorRecord()
            known = plain[name][part].median_abs_log_error if plain else None
            rows.append((part, errors.rows, errors.rows_used, known, *_cells(errors), out.median,
                         out.p90))  # fmt: skip
        head = (name, "rows [#]", "used [#]", "uncalibrated [%]", *ERROR_HEAD, "left out [%]",
                "its p90 [%]")  # fmt: skip
        yield Table(head, rows)
        if name in ("server", "chip") and _has_errors(parts):
            yield Chart(f"Errors of throughput by {name} (rows)", _least_and_most(parts),
                        error_spec(parts, {}))  # fmt: skip
    if record is not None:
        yield Table(
            ("family of chips", "rows [#]", "median [%]", "p90 [%]", "left out [%]", "its p90 [%]"),
            [(name, part.rows, part.fitted.median, part.fitted.p90, part.left_out.median,
              part.left_out.p90) for name, part in record.families.items()],
        )  # fmt: skip


def _sources_of(predictions: Sequence[Prediction]) -> dict[str, Errors]:
    """Return the errors of each source of serving, and of all rows."""
    sources = {name: errors_of(rows) for name, rows in by_group(predictions).items()}
    return sources | {"all rows": errors_of(predictions)}


def _plans(found: Validation) -> Iterator[Part]:
    """Yield the cost of choosing a plan by prediction."""
    families = plan_regrets(found.figures)
    rows = []
    for kind, is_of in (("fitted", False), ("frozen", True)):
        mine = [(regret, is_right) for row, regret, is_right in families
                if is_frozen(row) == is_of]  # fmt: skip
        if mine:
            regrets, right = zip(*mine, strict=True)
            rows.append((kind, len(mine), float(np.mean(regrets)),
                         float(np.quantile(regrets, 0.9)), float(np.mean(right))))  # fmt: skip
    if rows:
        yield Table(
            ("rows", "families [#]", "mean regret [%]", "p90 [%]", "best plan found [%]"), rows,
            "Plans of one model, chip, server and load: tokens/s a chip of the plan that is "
            "predicted best, below those of the plan measured best",
        )  # fmt: skip


def _traffic(found: Validation) -> Iterator[Part]:
    """Yield the errors of requests at a rate: of each time, then row by row."""
    if not found.traffic:
        return
    yield Text("Answers of `serve --rate` beside measured times; no constant is fitted to these "
               "rows.")  # fmt: skip
    yield Table(("time", "rows [#]", *ERROR_HEAD, "inside [%]"),
                [(name, *_figure(entries)) for name, entries in found.times.items()])  # fmt: skip
    errors: dict[str, dict[str, float | None]] = defaultdict(dict)
    for name, entries in found.times.items():
        for entry in entries:
            errors[entry.row.id][name] = entry.log_error
    names = list(found.times)
    rows: list[tuple[Cell, ...]] = []
    for entry in found.traffic:
        row, mine = entry.row, errors[entry.row.id]
        rate = row.traffic.rate_per_s if row.traffic else None
        known = [mine.get(name) for name in names]
        rows.append((row.id, row.model.name, row.system.like, rate, *known, entry.detail))
    yield Table(
        ("row", "model", "system", "rate [1/s]", *(f"{name} [%]" for name in names), "refused"),
        rows, "Errors of each row; below 0: predicted too slow",
    )  # fmt: skip


def _sram(found: Validation) -> Iterator[Part]:
    """Yield the figures of machines that serve from SRAM; without drafts where none are stated."""
    if not found.sram:
        return
    part, entries = sram_part(found.calibration), list(found.sram)
    plain = [
        entry.row.model_copy(update={"id": f"{entry.row.id} plain", "drafts_tokens": False})
        for entry in entries
        if "drafts_tokens" in entry.row.reasons
    ]
    entries += predict_sram(plain, found.calibration)
    before = predict_sram([entry.row for entry in entries], "uncalibrated")
    rows = []
    for entry, known in zip(entries, before, strict=True):
        row, left_out = entry.row, part.fit.left_out.get(entry.row.id) if part else None
        rows.append((
            row.id, row.system.chip, row.measured.tokens_per_s_per_user,
            entry.predicted_tokens_per_s, _factor(entry.log_error), _factor(left_out),
            _factor(known.log_error),
        ))  # fmt: skip
    yield Text(
        "Tokens per second of one user, as published, against layers cut into the fewest stages "
        "that fit SRAM; factors are predicted / published. Left out: constants fitted without that "
        "row; none where no fit has seen it. Plain: the same row without drafts. Half of the "
        f"published figures are within a factor of {_median_factor(found.sram):.2f}."
    )
    head = ("row", "chip", "published tokens/s [#]", "predicted [#]", "factor [x]", "left out [x]",
            "uncalibrated [x]")  # fmt: skip
    yield Table(head, rows)
    notes = []
    for entry in found.sram:
        row = entry.row
        why = (f"{name}: {text}" for name, text in row.reasons.items())
        known_ = (row.source.title, row.source.url, row.notes, *why)
        notes.append((row.id, "; ".join(text for text in known_ if text)))
    yield Folded("Sources of these rows", [Table(("row", "source"), notes)])


def _median_factor(entries: Sequence[Prediction]) -> float:
    """Return the factor within which half of the figures are, above or below."""
    errors = [abs(entry.log_error) for entry in entries if entry.log_error is not None]
    return exp(float(np.median(errors))) if errors else 1.0


def _factor(log_error: float | None) -> float | None:
    return None if log_error is None else exp(log_error)


def _refusals(found: Validation) -> Iterator[Part]:
    """Yield the number of refused rows for each reason, with one of them."""
    refused = [entry for entry in found.predictions if entry.refused is not None]
    if not refused:
        return
    reasons = Counter(str(entry.refused) for entry in refused)
    rows = []
    for reason, number in reasons.most_common():
        first = next(entry for entry in refused if str(entry.refused) == reason)
        rows.append((reason, f"{first.row.id}: {first.detail}", number))
    yield Table(("reason", "such as", "rows [#]"), rows)


def _unstated(found: Validation) -> Iterator[Part]:
    """Yield the defaults of frameworks and servers, which sources leave unstated."""
    used = dict.fromkeys(e.row.framework for e in found.trained if e.job and e.row.framework)
    defaults = [(name, load_framework(name).why) for name in used]
    if found.served:
        defaults += [(name, load_server(name).why) for name in server_names()]
    if defaults:
        yield Folded("Defaults of frameworks and servers", [Table(("of", "default"), defaults)])


# ----------------------------------------------------------------------------------- rows in words


def worst(predictions: Sequence[Prediction], number: int) -> list[Prediction]:
    """Return the rows of the largest error, the worst first."""
    known = [entry for entry in predictions if entry.log_error is not None]
    return sorted(known, key=lambda entry: -abs(entry.log_error or 0.0))[:number]


def chips_text(entry: Prediction) -> str:
    """Return the chips of a row."""
    assert entry.job is not None
    return f"{entry.row.system.num_chips}x{entry.job.problem.system.chip.name}"


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
    chips = f"{row.system.num_chips}x{row.system.chip}"
    return f"{chips} {server_name_of(row)} {batch} {row.prompt_tokens}+{row.answer_tokens}"
