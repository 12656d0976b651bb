"""Why a plan is what it is: its parts against the runner-up, axes it lacks, what would help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import words, wrapped
from meshwright.train.answer import Plan, WhyNot
from meshwright.train.measured.report_factors import plan_trial_lines
from meshwright.train.report import between, question_line, why_not_lines
from meshwright.wafer.report_placement import hottest_lines, placement_lines

if TYPE_CHECKING:
    from meshwright.train.sensitivity import Change


@dataclass(frozen=True)
class Explanation:
    """What there is to say about a plan."""

    shares: Mapping[str, float]
    """Share of each part in the step."""
    changes: list[Change]
    why_not: list[WhyNot]
    """The best plan with each thing that this one lacks, and each runner-up."""
    not_possible: Mapping[str, str]
    """What no legal plan that fits has, and why."""


def explain_lines(plan: Plan, explanation: Explanation) -> Iterator[str]:
    """Yield the explanation, at most 100 columns wide."""
    price = plan.best.estimate
    yield question_line(plan)
    yield from wrapped("plan  ", plan.best.text)
    yield f"step  {format_seconds(price.step_time_s)}{between(price.interval_s)}"
    yield ""
    yield "where the time goes"
    for name, share in sorted(explanation.shares.items(), key=lambda item: -item[1]):
        if share > 0.001:
            yield f"  {words(name):<20} {share:>7.1%}"
    left = price.memory_capacity_bytes - price.memory_bytes
    yield f"memory left on the fullest device: {format_bytes(left)}"
    yield ""
    if plan.best.placement is not None:
        yield from placement_lines(plan.best.placement)
        yield from hottest_lines(plan.best.placement)
        yield ""
    yield "the same plan on a better system"
    for change in explanation.changes:
        yield f"  {change.what:<40} {change.faster_by_fraction:>7.1%} faster"
    yield ""
    for why in explanation.why_not:
        yield from why_not_lines(why)
    for name, reason in explanation.not_possible.items():
        yield from wrapped(f"why not {name}: ", reason)
    yield from plan_trial_lines(plan)
