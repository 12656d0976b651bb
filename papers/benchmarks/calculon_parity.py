"""Writes docs/results/calculon_parity.md: the peer's 50 reference points beside ours.

A provider prices points; each provider is one group of columns. A difference above 5 % must come
with its reason, or the script fails.

Run: python papers/benchmarks/calculon_parity.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from calculon_mapping import GIVEN
from calculon_mechanisms import MECHANISMS
from calculon_own_model import own_model_rows
from calculon_points import ROOT, Estimate, Point, difference, differs, reference_points

from meshwright_papers.calculon.executions import executions_from_rows
from meshwright_papers.calculon.machine import application_named, system_named
from meshwright_papers.calculon.step import REFUSALS, evaluate

PAGE = ROOT / "docs" / "results" / "calculon_parity.md"


@dataclass(frozen=True)
class Provider:
    """A way to price points: one group of columns."""

    title: str
    rows: Callable[[Sequence[Point]], list[Estimate]]
    given: str = ""
    """What it is told, and what it adds."""
    mechanisms: Mapping[str, str] = field(default_factory=dict)
    """What the words of its reasons mean."""


def preset_rows(points: Sequence[Point]) -> list[Estimate]:
    """Return the points under the compatibility preset."""
    return [_preset_row(point) for point in points]


def _preset_row(point: Point) -> Estimate:
    application, system = application_named(point.model), system_named(point.system)
    rows = executions_from_rows([point.execution], application, len(system.networks))
    result = evaluate(application, system, rows)
    refusal = REFUSALS[result.refusal[0]]
    if refusal:
        return Estimate(None, None, refusal)
    return Estimate(float(result.total_s[0]), float(result.memory.near_bytes[0]))


PROVIDERS = (
    Provider("compatibility preset", preset_rows),
    Provider("own model", own_model_rows, GIVEN, MECHANISMS),
)


def unexplained(points: Sequence[Point], estimates: Sequence[Estimate]) -> list[str]:
    """Return the points that differ by more than 5 %, or in refusal, without a reason."""
    return [
        point.name
        for point, estimate in zip(points, estimates, strict=True)
        if differs(point, estimate) and not estimate.reason
    ]


def seconds(value: float | None, refusal: str) -> str:
    """Return a step time as a cell, or the refusal."""
    return f"refused: {refusal}" if value is None else f"{value:.4g}"


def gibibytes(value: float | None) -> str:
    """Return a memory as a cell."""
    return "" if value is None else f"{value / 2**30:,.2f}"


def percent(value: float | None) -> str:
    """Return a difference as a cell; what is below a part in 1e9 is equal."""
    if value is None:
        return ""
    return "=" if abs(value) < 1e-9 else f"{value:+.1%}"


def table(points: Sequence[Point], provider: Provider, estimates: Sequence[Estimate]) -> list[str]:
    """Return the lines of one table: the peer, ours, the differences, the reason."""
    lines = [
        f"| point | theirs, s | {provider.title}, s | time | theirs, GiB "
        f"| {provider.title}, GiB | memory | reason |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for point, estimate in zip(points, estimates, strict=True):
        cells = [
            point.name,
            seconds(point.step_s, point.refusal),
            seconds(estimate.step_s, estimate.refusal),
            percent(difference(estimate.step_s, point.step_s)),
            gibibytes(point.memory_bytes),
            gibibytes(estimate.memory_bytes),
            percent(difference(estimate.memory_bytes, point.memory_bytes)),
            estimate.reason if differs(point, estimate) else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def legend(provider: Provider, estimates: Sequence[Estimate]) -> list[str]:
    """Return what the words of the reasons mean, as far as they occur."""
    reasons = " ".join(estimate.reason for estimate in estimates)
    used = [name for name in provider.mechanisms if name in reasons]
    lines = [f"* **{name}**: {provider.mechanisms[name]}." for name in used]
    head = "Reasons: the largest terms of the difference, as shares of the peer's number."
    return ["", head, "", *lines] if lines else []


def summary(points: Sequence[Point], estimates: Sequence[Estimate]) -> str:
    """Return one sentence: how far the steps are from the peer, and from what was published."""
    pairs = list(zip(points, estimates, strict=True))
    parts = [difference(e.step_s, p.step_s) for p, e in pairs]
    far = [abs(part) for part in parts if part is not None]
    errors = [abs(e.step_s / p.published_s - 1) for p, e in pairs if p.published_s and e.step_s]
    same = sum(bool(p.refusal) == bool(e.refusal) for p, e in pairs)
    return (
        f"{len(far)} step times within {max(far):.2g} of the peer's (relative, the largest); "
        f"{same} of {len(pairs)} fit or are refused alike; against the {len(errors)} published "
        f"times: {sum(errors) / len(errors):.2%} on average, {max(errors):.2%} at worst."
    )


def page(points: Sequence[Point], groups: Sequence[tuple[Provider, list[Estimate]]]) -> str:
    """Return the document."""
    lines = [
        "# Parity with Calculon",
        "",
        "Written by `papers/benchmarks/calculon_parity.py`; do not edit by hand.",
        "",
        "50 points: 48 that fit and 2 that the peer refuses. Theirs: Calculon 0.1.0 (repository",
        "calculon-ai/calculon, commit caa4b11, Apache-2.0), run on the same inputs. Step time of",
        "one global batch, memory of one processor. Published times: arXiv 2205.05198, Table 5.",
        "`=` means equal to a part in 1e9.",
    ]
    for provider, estimates in groups:
        lines += ["", f"## {provider.title[0].upper()}{provider.title[1:]}", ""]
        if provider.given:
            lines += [provider.given, ""]
        lines += [summary(points, estimates), "", *table(points, provider, estimates)]
        lines += legend(provider, estimates)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; fail where a difference has no reason."""
    points = reference_points()
    groups = [(provider, provider.rows(points)) for provider in PROVIDERS]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(points, groups), encoding="utf-8")
    open_points = {p.title: names for p, e in groups if (names := unexplained(points, e))}
    for title, names in open_points.items():
        print(f"{title}: differs by more than 5 % without a reason: {', '.join(names)}")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if open_points else 0


if __name__ == "__main__":
    sys.exit(main())
