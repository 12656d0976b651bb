"""The validation as a document: tables in Markdown, and predicted against measured as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from meshwright.catalog.calibration import FitRecord
from meshwright.validation.errors import by_group, noise_of
from meshwright.validation.frameworks import FRAMEWORKS
from meshwright.validation.inference.outcome import percent
from meshwright.validation.outcome import Validation, refusal_counts, worst
from meshwright.validation.predictions import Prediction

SIDE = 480
MARGIN = 56
NUM_WORST = 15
INTRODUCTION = """# Validation

Written by `meshwright validate --document docs/validation.md`. Each published row is predicted
from its stated configuration alone. Errors are |ln(predicted / measured)| of the throughput: 5 %
is a factor of 1.05 either way; a bias above 0 is predicted too fast. Left out: constants fitted
without that source, and without other sources of its vendor.
"""
COLOURS = (
    "#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#2e4057", "#8d96a3", "#c17817",
)  # fmt: skip


def document_text(
    found: Validation, before: Validation, record: FitRecord | None, picture: str
) -> str:
    """Return the document: what was held against what, how wrong, where worst, what was refused.

    Parameters
    ----------
    before
        The same rows under the uncalibrated constants.
    record
        What the fit reached on sources left out; None: the constants were not fitted.
    picture
        File name of the picture beside the document.
    """
    return "\n".join(_lines(found, before, record, picture)) + "\n"


def _lines(
    found: Validation, before: Validation, record: FitRecord | None, picture: str
) -> Iterator[str]:
    yield INTRODUCTION
    yield from _headline(found, before, record)
    yield f"\n![predicted against measured]({picture})\n\n## By source\n"
    yield from _group_table(found, before, record)
    yield ""
    yield from _choices(found)
    yield "## Worst rows\n\n| row | model | error |\n|---|---|---:|"
    for entry in worst(found.predictions, NUM_WORST):
        error = percent(entry.log_error, sign=True)
        yield f"| {entry.row.id} | {entry.row.model.name} | {error} |"
    yield "\n## Refused rows\n\n| reason | rows |\n|---|---:|"
    for reason, number in refusal_counts(found.predictions):
        yield f"| {reason} | {number} |"
    yield "\n## What sources leave unstated\n\n| framework | default |\n|---|---|"
    for framework in FRAMEWORKS:
        yield f"| {framework.name} | {framework.why} |"


def _headline(found: Validation, before: Validation, record: FitRecord | None) -> Iterator[str]:
    """Yield the headline: uncalibrated, fitted, left out."""
    yield "| constants | median over sources of their medians | p90 of all rows |"
    yield "|---|---:|---:|"
    for name, entry in (("uncalibrated", before), (found.calibration, found)):
        p90 = percent(entry.overall.p90_abs_log_error)
        yield f"| {name} | {percent(entry.median_of_medians)} | {p90} |"
    if record is not None:
        out = record.left_out
        yield f"| sources left out | {percent(out.median_of_medians)} | {percent(out.p90)} |"


def _group_table(found: Validation, before: Validation, record: FitRecord | None) -> Iterator[str]:
    """Yield one line for each source."""
    yield (
        "| source | rows | used | uncalibrated | median | p90 | bias | left out | its p90 | noise "
        "| ranks |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    rows = by_group(found.predictions)
    for name, errors in found.groups.items():
        group = record.groups.get(name) if record else None
        out = group.left_out if group else None
        alone = " (1)" if group and group.alone else ""
        ranks = "-" if errors.spearman is None else f"{errors.spearman:.2f}"
        cells = (
            f"{name}{alone}", errors.rows, errors.rows_used,
            percent(before.groups[name].median_abs_log_error),
            percent(errors.median_abs_log_error), percent(errors.p90_abs_log_error),
            percent(errors.bias_log, sign=True), percent(out.median if out else None),
            percent(out.p90 if out else None), percent(noise_of(rows[name])), ranks,
        )  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield "(1) No other source has rows of its chips: left out, it gets constants fitted to none."


def _choices(found: Validation) -> Iterator[str]:
    """Yield what choosing by prediction costs."""
    families = found.families
    if not families:
        return
    mean = sum(family.regret for family in families) / len(families)
    thumb = sum(family.rule_of_thumb_regret for family in families) / len(families)
    pairs = sum(family.ordered_pairs for family in families)
    right = sum(family.right_pairs for family in families)
    yield "## Choosing by prediction"
    yield ""
    yield f"In {len(families)} families of rows that differ only in the plan, the plan predicted"
    yield f"fastest was {mean:.1%} slower than the fastest measured one; the one of least model"
    yield f"parallelism {thumb:.1%}. Of {pairs} pairs measured more than 5 % apart, {right} are in"
    yield "the right order."
    yield ""


def picture_svg(predictions: Sequence[Prediction]) -> str:
    """Return predicted against measured throughput for each chip, by source, as SVG."""
    points = [entry for entry in predictions if entry.log_error is not None]
    values = [value for entry in points for value in _per_chip(entry)]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def place(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / (high - low) * SIDE

    size = SIDE + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size + 160}" height="{size}" '
        f'viewBox="0 0 {size + 160} {size}" font-family="sans-serif" font-size="12">',
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{SIDE}" height="{SIDE}" fill="none" '
        'stroke="#888"/>',
        f'<line x1="{MARGIN}" y1="{MARGIN + SIDE}" x2="{MARGIN + SIDE}" y2="{MARGIN}" '
        'stroke="#888"/>',
        f'<text x="{MARGIN}" y="{size - 12}">measured tokens/s for each chip (log)</text>',
        f'<text x="{MARGIN}" y="{MARGIN - 12}">predicted tokens/s for each chip (log)</text>',
    ]
    for number, (group, rows) in enumerate(by_group(points).items()):
        colour = COLOURS[number % len(COLOURS)]
        lines.append(
            f'<text x="{size}" y="{MARGIN + 18 * (number + 1)}" fill="{colour}">{group}</text>'
        )
        for entry in rows:
            predicted, measured = _per_chip(entry)
            lines.append(
                f'<circle cx="{place(measured):.1f}" cy="{size - place(predicted):.1f}" r="2.5" '
                f'fill="{colour}" fill-opacity="0.6"/>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _per_chip(entry: Prediction) -> tuple[float, float]:
    """Return predicted and measured throughput for each chip [tokens/s]."""
    assert entry.question is not None
    chips = entry.question.problem.system.num_devices
    return (entry.predicted_tokens_per_s or 0.0) / chips, (entry.measured_tokens_per_s or 0) / chips
