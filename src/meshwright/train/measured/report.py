"""A measured step for a reader: what it says of each resource, what to change, what to try."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import WIDTH, screen_width, words, wrapped
from meshwright.train.answer import Plan
from meshwright.train.measured.diagnose import Diagnosis
from meshwright.train.measured.factors import RESOURCES
from meshwright.train.report import question_line
from meshwright.train.report_detail import trial_lines

NUM_CHANGES = 8
SURPRISING = 3.0
"""Standard deviations from the prediction beyond which something else is likely wrong."""
TITLES = {resource.name: resource.title for resource in RESOURCES}


def diagnosis_lines(plan: Plan, found: Diagnosis, *, is_whole: bool = True) -> Iterator[str]:
    """Yield a diagnosis; unless whole, its screen of 24 lines at most."""
    yield question_line(plan)
    yield from wrapped("plan  ", found.plan)
    yield from wrapped(
        "",
        f"measured {format_seconds(found.measured_s)} a step, predicted "
        f"{format_seconds(found.predicted_s)} ({found.measured_s / found.predicted_s - 1.0:+.1%}), "
        f"{abs(found.surprise):.1f} standard deviations {_side(found.surprise)}; {found.fidelity}",
    )
    if abs(found.surprise) > SURPRISING:
        text = (
            "no factor that rows of published measurements suggest explains this: check that the "
            "options describe the job, then look for what no plan changes (input, other jobs, "
            "throttling, a slow device). The intervals below do not hold then"
        )
        yield from wrapped("note: ", text)
    if plan.factors is not None:
        yield "note: factors that this plan learnt from other jobs are left aside"
    yield from _memory_line(found)
    yield ""
    yield from _loss_lines(found, is_whole=is_whole)
    yield ""
    yield from _change_lines(found, NUM_CHANGES if is_whole else 3)
    if is_whole and found.trials is not None:
        yield from trial_lines(found.trials)


def _side(surprise: float) -> str:
    return "slower" if surprise > 0 else "faster"


def _memory_line(found: Diagnosis) -> Iterator[str]:
    """Yield measured and predicted memory."""
    measured, predicted = found.measured_memory_bytes, found.predicted_memory_bytes
    if measured is not None and predicted:
        yield (
            f"memory {format_bytes(measured)} on the fullest device, predicted "
            f"{format_bytes(predicted)} ({measured / predicted - 1.0:+.1%}); applied below"
        )


def _loss_lines(found: Diagnosis, *, is_whole: bool) -> Iterator[str]:
    """Yield the difference between measured and predicted, by resource; it sums to the whole."""
    name, unit, each = ("seconds", "s", 1.0) if found.measured_s >= 1.0 else ("ms", "ms", 1e3)
    digits = max(3 - math.ceil(math.log10(found.measured_s * each)), 0) + 1
    yield "where the step differs from its prediction"
    is_wide = screen_width() >= WIDTH
    span, near = (19, 15) if is_wide else (17, 13)
    head = f"  {'':<31}{name:>9}{'5 to 95 %':>{span}}{'factor':>8}{'5 to 95 %':>{near}}"
    yield head + (f"{'before':>{near}}" if is_wide else "")
    for loss, factor in zip(found.losses, found.factors.factors, strict=True):
        low, high = (f"{seconds * each:+.{digits}f}" for seconds in (loss.low_s, loss.high_s))
        lost = f"{loss.lost_s * each:>+9.{digits}f}{f'{low} to {high}':>{span}}"
        now, before = (
            f"{low:.2f} to {high:.2f}"
            for low, high in ((factor.low, factor.high), (factor.prior_low, factor.prior_high))
        )
        title = TITLES[loss.resource]
        line = f"  {title:<31}{lost}{factor.factor:>8.2f}{now:>{near}}"
        yield line + (f"{before:>{near}}" if is_wide else "")
    yield f"  {'this plan alone, or noise':<31}{found.not_explained_s * each:>+9.{digits}f}"
    whole = (found.measured_s - found.predicted_s) * each
    yield f"  {'measured - predicted':<31}{whole:>+9.{digits}f}"
    largest = sorted(found.parts_s.items(), key=lambda item: -abs(item[1]))
    least_s = 0.5 * 10.0**-digits / each
    shown = [
        f"{words(part)} {seconds * each:+.{digits}f} {unit}"
        for part, seconds in largest[:5]
        if abs(seconds) > least_s
    ]
    if shown and is_whole:
        yield from wrapped("  by part of the step: ", ", ".join(shown))


def _change_lines(found: Diagnosis, most: int) -> Iterator[str]:
    """Yield the single changes of the largest gain."""
    helpful = [entry for entry in found.changes if entry.faster_by_fraction > 0]
    left = ", ".join(f"{why}: {number}" for why, number in found.left_out.items() if number)
    yield (
        f"single changes under these factors: {len(helpful)} of {len(found.changes)} gain"
        + (f" ({left})" if left else "")
    )
    room = 42 if screen_width() >= WIDTH else 30
    for entry in helpful[:most]:
        between = f"{entry.low_fraction:+.1%} to {entry.high_fraction:+.1%}"
        yield (
            f"  {entry.what[:room]:<{room + 1}}{format_seconds(entry.step_time_s):>8}"
            f"{entry.faster_by_fraction:>+8.1%} {between:>18}"
            f"{entry.is_faster_fraction:>6.0%} sure"
        )
