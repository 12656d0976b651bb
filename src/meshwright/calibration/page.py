"""The reports of validations: predicted against measured, by source, and the largest misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, log

from meshwright.base.units import format_bytes
from meshwright.calibration.errors import (
    SHARE,
    Errors,
    by_group,
    is_wrongly_fitting,
    memory_errors_by_group,
)
from meshwright.calibration.kernel_report import KernelErrors, KernelValidation
from meshwright.calibration.picture import coverage_spec, error_spec, per_chip, ratio_spec
from meshwright.calibration.prediction import Prediction
from meshwright.calibration.report import (
    TRAITS,
    Validation,
    chips_text,
    degrees_text,
    error_shares,
    requests_text,
    views_of,
    worst,
)
from meshwright.calibration.rows import is_frozen
from meshwright.catalog.calibration import (
    ErrorRecord,
    FitRecord,
    GroupRecord,
    fit_record,
    serving_record,
)
from meshwright.view import charts
from meshwright.view.parts import Chart, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import GIB, count_chart
from meshwright.view.words import counted, percent

NUM_MISSES = 20
"""Rows that are listed as misses, and drawn as such: of few rows one in ten."""
ERROR = "median |ln(predicted / measured)| [%]"


def validation_page(found: Validation) -> Page:
    """Return the report of predictions of measured rows."""
    record = fit_record(found.calibration)
    sections = (
        Section("agree", "Does it agree with measurements?", list(_agree_parts(found))),
        Section("sources", "How large are errors, by source?", list(_source_parts(found, record))),
        Section("intervals", "Do intervals hold what was measured?",
                list(_interval_parts(found, record))),
        Section("misses", "What are the largest misses?", list(_miss_parts(found))),
        Section("memory", "Is memory right?", list(_memory_parts(found))),
        Section("serving", "And of serving?", list(_serving_parts(found))),
        Section("refused", "Which rows are refused?", list(_refusal_parts(found))),
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
        warnings=[str(fault) for fault in found.bad_rows],
        command=found.command,
        version=found.version,
    )


def _known(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the rows that are both predicted and measured."""
    return [entry for entry in predictions if entry.log_error is not None]


def _all(found: Validation) -> list[Prediction]:
    return [*found.trained, *found.served]


def _tiles(found: Validation, record: FitRecord | None) -> Iterator[Tile]:
    known = _known(found.predictions)
    if not known:
        yield Tile("Does it agree with measurements?", "No row could be predicted", "", "refused",
                   "bad")  # fmt: skip
        return
    if (headline := found.median_of_medians) is not None:
        out = "" if record is None else percent(record.left_out.median_of_medians)
        beside = f"; {out} where a source is left out of the fit" if out else ""
        yield Tile("Does it agree with measurements?", f"{percent(headline)} off",
                   f"median over sources of their medians{beside}", "agree")  # fmt: skip
    yield Tile("How far off are most?", f"{percent(found.overall.p90_abs_log_error)} or less",
               "nine of ten rows; bias "
               f"{percent(found.overall.bias_log, sign=True)} (above 0: too fast)",
               "sources")  # fmt: skip
    held = found.intervals
    if held.rows and held.covered is not None:
        left_out = [] if record is None else list(record.intervals.items())[:1]
        beside = "".join(f"; {percent(one.covered)} where the source is left out ({name})"
                         for name, one in left_out)  # fmt: skip
        yield Tile("Do intervals hold what was measured?", f"{held.covered:.1%} inside",
                   f"80 % are meant to be{beside}", "intervals")  # fmt: skip
    miss = worst(_all(found), 1)
    if miss:
        yield Tile("What is the largest miss?", percent(miss[0].log_error, sign=True),
                   miss[0].row.id, "misses")  # fmt: skip
    if found.overall.memory_median_abs_error is not None:
        wrong = sum(is_wrongly_fitting(entry) for entry in found.trained)
        yield Tile("Is memory right?", f"{percent(found.overall.memory_median_abs_error)} off",
                   f"median; {counted(wrong, 'row')} wrongly predicted to fit, or not to",
                   "memory")  # fmt: skip
    if found.served:
        errors = views_of(found.served)["server"]
        medians = [e.median_abs_log_error for e in errors.values()
                   if e.median_abs_log_error is not None]  # fmt: skip
        if medians:
            yield Tile("And of serving?", f"{min(medians):.1%} to {max(medians):.1%} off",
                       "median of throughput, by server", "serving")  # fmt: skip
    refused = sum(entry.refused is not None for entry in found.predictions)
    if refused:
        yield Tile("Which rows are refused?", counted(refused, "row"),
                   f"of {len(found.predictions):,}", "refused")  # fmt: skip


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


def agreement_of(found: Validation) -> Chart | None:
    """Return predicted over measured throughput of training; None: no row has both."""
    known = _known(found.trained)
    if not known:
        return None
    values = [per_chip(entry) for entry in known]
    return _agreement("Throughput of training", known, values, "throughput of a chip", "tokens/s")


def _agree_parts(found: Validation) -> Iterator[Part]:
    known = _known(found.trained)
    yield from filter(None, [agreement_of(found)])
    sram = _known(found.sram)
    if sram:
        yield _agreement("Speed of one user, from SRAM", sram, _totals(sram), "speed",
                         "tokens/s")  # fmt: skip
    if not (known or sram) and (served := _known(found.served)):
        yield Text(f"No row of training; {counted(len(served), 'row')} of serving are below.")


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


def errors_chart(found: Validation) -> Chart | None:
    """Return the errors of each source of training, left out too; None: no row has one."""
    errors = {name: found.groups[name] for name in by_group(found.trained)}
    if not _has_errors(errors):
        return None
    record = fit_record(found.calibration)
    says = f"{_least_and_most(errors)}; from the median to the 90th percentile"
    if record is not None:
        says += ", and of constants fitted without the source; alone: no other has its chips"
    return Chart(
        "Errors of each source (rows)",
        says,
        error_spec(errors, {} if record is None else record.groups),
    )


def _source_parts(found: Validation, record: FitRecord | None) -> Iterator[Part]:
    drawn = errors_chart(found)
    if drawn is None:
        return
    yield Chart(
        "Predicted over measured throughput by source (rows)",
        "A thin stroke a row; the bar holds the middle half, the thick stroke is the median; "
        "frozen: seen by no fit",
        ratio_spec(_known(found.trained)),
    )
    yield drawn
    names = list(by_group(found.trained))
    errors = {name: found.groups[name] for name in names}
    rows = []
    for name in names:
        group = None if record is None else record.groups.get(name)
        out = ErrorRecord() if group is None else group.left_out
        alone = group is not None and group.alone
        kept = "frozen" if any(is_frozen(e.row) for e in by_group(found.trained)[name]) else ""
        rows.append((name, "no other source has its chips" if alone else kept,
                     f"{errors[name].rows:,}", f"{errors[name].rows_used:,}",
                     *error_shares(errors[name]), percent(out.median), percent(out.p90),
                     percent(out.bias, sign=True)))  # fmt: skip
    head = ("source", "", "rows>", "used>", "median>", "p90>", "bias>", "left out: median>",
            "p90>", "bias>")  # fmt: skip
    yield Table(head, rows, "Errors of each source, and of constants fitted anew without it")


def _interval_parts(found: Validation, record: FitRecord | None) -> Iterator[Part]:
    if record is None:
        return
    yield from _coverage("Rows inside their interval, source left out of fit and intervals",
                         record.groups)  # fmt: skip
    rows = [
        (TRAITS.get(name, name), f"{held.rows:,}", percent(held.covered),
         percent(held.covered_by_source), percent(held.slower), percent(held.faster),
         f"{held.score:.3f}")
        for name, held in record.intervals.items()
    ]  # fmt: skip
    if rows:
        yield Table(("rows", "number>", "inside>", "median source>", "slow end>", "fast end>",
                     "score>"), rows, "How intervals of sources left out held")  # fmt: skip


def _coverage(title: str, groups: Mapping[str, GroupRecord]) -> Iterator[Chart]:
    known = {name: group.covered for name, group in groups.items() if group.covered is not None}
    if not known:
        return
    enough = sum(share >= SHARE for share in known.values())
    yield Chart(
        title, f"{enough} of {len(known)} sources have four of five rows inside (the line)",
        coverage_spec(groups),
    )  # fmt: skip


def _miss_parts(found: Validation) -> Iterator[Part]:
    for what, entries in (("training", found.trained), ("serving", found.served)):
        rows = []
        for entry in worst(entries, NUM_MISSES):
            predicted, measured = entry.predicted_tokens_per_s, entry.measured_tokens_per_s
            assert predicted is not None
            assert measured is not None
            how = f"{chips_text(entry)} {degrees_text(entry)}" if entry.job is not None else \
                requests_text(entry.row)  # fmt: skip
            rows.append((entry.row.id, entry.row.model.name or "", how, f"{measured:,.0f}",
                         f"{predicted:,.0f}", _inside(entry),
                         percent(entry.log_error, sign=True)))  # fmt: skip
        if rows:
            head = ("row", "model", "how it ran", "measured tokens/s>", "predicted>",
                    "interval held it", "error>")  # fmt: skip
            yield Table(head, rows, f"The largest misses of {what}")


def _inside(entry: Prediction) -> str:
    """Return whether the interval of a row held the measured value."""
    if entry.interval is None or entry.measured_tokens_per_s is None:
        return ""
    low, high = entry.interval
    return "yes" if low <= entry.measured_tokens_per_s <= high else "no"


def memory_of(found: Validation) -> Chart | None:
    """Return predicted over measured memory; None: no row has both."""
    known = [entry for entry in found.trained if entry.memory_log_error is not None]
    if not known:
        return None
    values = [
        (entry.memory.predicted_bytes / GIB, (entry.memory.measured_bytes or 0.0) / GIB)
        for entry in known
        if entry.memory is not None
    ]
    return _agreement("Memory of the fullest device", known, values, "memory", "GiB")


def _memory_parts(found: Validation) -> Iterator[Part]:
    drawn = memory_of(found)
    if drawn is None:
        return
    yield drawn
    errors = memory_errors_by_group(found.trained)
    rows = [
        (name, f"{one.rows:,}", percent(one.median), percent(one.p90),
         percent(one.bias, sign=True))
        for name, one in errors.items()
    ]  # fmt: skip
    yield Table(("source", "rows>", "median>", "p90>", "bias>"), rows, "Errors of memory")
    wrong = [
        (entry.row.id, chips_text(entry), degrees_text(entry),
         "fits" if entry.fits else "does not fit", "ran out" if entry.fits else "ran",
         "" if entry.memory is None else format_bytes(entry.memory.predicted_bytes))
        for entry in found.trained
        if is_wrongly_fitting(entry)
    ]  # fmt: skip
    if wrong:
        yield Table(("row", "chips", "plan", "predicted", "measured", "predicted memory>"), wrong,
                    "Wrongly predicted to fit, or not to")  # fmt: skip


def serving_of(found: Validation) -> Chart | None:
    """Return predicted over measured throughput of serving; None: no row has both."""
    known = _known(found.served)
    if not known:
        return None
    return _agreement("Throughput of serving", known, _totals(known), "throughput", "tokens/s")


def _serving_parts(found: Validation) -> Iterator[Part]:
    drawn = serving_of(found)
    if drawn is None:
        return
    yield drawn
    record = serving_record(found.calibration)
    for view, errors in views_of(found.served).items():
        if view in ("server", "chip") and _has_errors(errors):
            yield Chart(f"Errors of throughput by {view} (rows)", _least_and_most(errors),
                        error_spec(errors, {}))  # fmt: skip
    if record is not None:
        rows = [
            (name, f"{group.rows:,}", percent(group.left_out.median), percent(group.left_out.p90),
             percent(group.left_out.bias, sign=True))
            for name, group in {**record.figures, **record.servers}.items()
        ]  # fmt: skip
        yield Table(("figure or server", "rows>", "median>", "p90>", "bias>"), rows,
                    "Errors of constants fitted without the source or the server")  # fmt: skip


def _refusal_parts(found: Validation) -> Iterator[Part]:
    refused = [entry for entry in found.predictions if entry.refused is not None]
    if not refused:
        return
    reasons = Counter(str(entry.refused) for entry in refused)
    yield count_chart("Rows that are refused, by reason", dict(reasons.most_common()), "rows")
    rows = []
    for reason, _ in reasons.most_common():
        first = next(entry for entry in refused if str(entry.refused) == reason)
        rows.append((reason, f"{first.row.id}: {first.detail}"))
    yield Table(("reason", "such as"), rows)


# ----------------------------------------------------------------------------------------- kernels


def kernels_chart(found: KernelValidation) -> Chart:
    """Return the median error of each kernel and chip."""
    ordered = _by_error(found)
    names = [f"{entry.kernel} on {entry.chip} ({entry.rows:,})" for entry in ordered]
    medians = [_median(entry) for entry in ordered]
    return Chart(
        "Median error of each kernel and chip (rows)",
        f"From {percent(medians[-1])} ({names[-1]}) to {percent(medians[0])} ({names[0]})",
        charts.bars(names, [100.0 * median for median in medians],
                    [percent(median) for median in medians], ERROR),
    )  # fmt: skip


def _by_error(found: KernelValidation) -> list[KernelErrors]:
    return sorted(found.by_chip, key=lambda entry: -_median(entry))


def kernels_page(found: KernelValidation) -> Page:
    """Return the report of curves of kernels against measured times."""
    ordered = _by_error(found)
    head = ("kernel", "chip", "variant", "rows>", "median>", "p90>", "held back>", "p90>",
            "chip left out>", "p90>", "bias>")  # fmt: skip
    tables = [
        Table(head, [_kernel_row(entry) for entry in entries], caption)
        for caption, entries in (("By kernel and chip", found.by_chip),
                                 ("By variant", found.by_variant))
    ]  # fmt: skip
    best, most = ordered[-1], ordered[0]
    return Page(
        title="Curves of kernels against measured times",
        subtitle="errors are |ln(predicted / measured)| of the time of a kernel",
        tiles=[
            Tile("How many rows?", f"{sum(entry.rows for entry in found.by_chip):,}",
                 f"{len(found.by_variant)} variants", "kernels"),
            Tile("Which is predicted best?", f"{best.kernel} on {best.chip}",
                 f"median {percent(_median(best))}", "kernels"),
            Tile("Which is furthest off?", f"{most.kernel} on {most.chip}",
                 f"median {percent(_median(most))}", "kernels"),
        ],
        sections=[Section("kernels", "How large are errors, by kernel?",
                          [kernels_chart(found), *tables])],
        command=found.command,
        version=found.version,
    )  # fmt: skip


def _median(entry: KernelErrors) -> float:
    return (entry.fitted or entry.held_back or entry.left_out or (0.0, 0.0))[0]


def _kernel_row(entry: KernelErrors) -> tuple[str, ...]:
    pairs = (entry.fitted, entry.held_back, entry.left_out)
    shown = [text for pair in pairs for text in map(percent, pair or (None, None))]
    return (entry.kernel, entry.chip, entry.variant, f"{entry.rows:,}", *shown,
            percent(entry.bias, sign=True))  # fmt: skip
