"""A sweep as a document: heat maps, best designs, groups compared, other rules beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshwright.base.units import format_si
from meshwright.report.heat_map import heat_svg
from meshwright.report.markdown import markdown_table
from meshwright.spec.sweep import HeatMap, SweepReport, SweepSpec
from meshwright.sweep.findings import (
    Record,
    best_of,
    by_value,
    gain,
    has_value,
    of,
    orders,
    ratios,
    reasons,
)
from meshwright.sweep.outcome import cells_of, records
from meshwright.sweep.run import Swept

Pictures = dict[str, str]
"""SVG by the name of its file."""


def document(
    sweep: SweepSpec, report: SweepReport, swept: Swept, folder: str, command: str
) -> tuple[str, Pictures]:
    """Return the Markdown of a sweep and its pictures.

    Parameters
    ----------
    folder
        Of the pictures, as the document links to them.
    command
        That writes the document.
    """
    found, pictures = records(swept), _pictures(sweep, report, swept)
    lines = [f"# {sweep.name[:1].upper()}{sweep.name[1:]}", "", f"Written by `{command}`.", ""]
    if sweep.about:
        lines += [*sweep.about.strip().splitlines(), ""]
    lines += [*_points(sweep, report, found), ""]
    shared = [name for name, value in pictures.items() if value[1] is None]
    lines += _links(shared, folder)
    for value in sweep.sides[report.each]:
        here = of(found, report.each, value)
        lines += [f"## {value}", "", *_best(sweep, report, here), ""]
        lines += _links([n for n, entry in pictures.items() if entry[1] == value], folder)
    if report.compare is not None:
        lines += [*_compared(sweep, report, found), ""]
    if report.beside is not None:
        lines += [*_beside(sweep, report.beside, found), ""]
    if report.remarks:
        lines += ["## What it says", ""]
        lines += [line for text in report.remarks for line in (*text.strip().splitlines(), "")]
    text = "\n".join(lines).rstrip() + "\n"
    return text, {name: svg for name, (svg, _) in pictures.items()}


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a table as lines of Markdown."""
    yield from markdown_table(columns, ([_shown(value) for value in row] for row in rows))


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return format_si(value, "").strip() if isinstance(value, float) else str(value)


def _pictures(sweep: SweepSpec, report: SweepReport, swept: Swept) -> Mapping[str, tuple[str, Any]]:
    """Return pictures by name, each with the section that it stands in; None for no one's."""
    found: dict[str, tuple[str, Any]] = {}
    for shown in report.heat_maps:
        if report.each in (shown.rows, shown.columns):
            found[f"{shown.shows}.svg"] = heat_svg(cells_of(sweep, shown, swept)), None
            continue
        for value in sweep.sides[report.each]:
            here = _part(swept, report.each, value)
            named = sweep.model_copy(update={"name": str(value)})
            if _is_drawn(here, shown):
                name = f"{_word(value)}-{shown.shows}-{shown.columns}.svg"
                found[name] = heat_svg(cells_of(named, shown, here)), value
    return found


def _part(swept: Swept, field: str, value: object) -> Swept:
    kept = [
        (point, result)
        for point, result in zip(swept.points, swept.results, strict=True)
        if point[field] == value
    ]
    return Swept(tuple(point for point, _ in kept), tuple(result for _, result in kept), 0)


def _is_drawn(swept: Swept, shown: HeatMap) -> bool:
    return any(has_value(record, shown.shows) for record in records(swept))


def _word(value: object) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in str(value)).lower()


def _links(names: Iterable[str], folder: str) -> list[str]:
    return [line for name in names
            for line in (f"![{name.removesuffix('.svg')}]({folder}/{name})", "")]  # fmt: skip


def _points(sweep: SweepSpec, report: SweepReport, found: Sequence[Record]) -> Iterator[str]:
    """Yield how many points ended how, and why some have no result."""
    varied = " x ".join(f"{len(values)} {name}" for name, values in sweep.sides.items())
    yield f"{len(found)} points: {varied}."
    yield ""
    statuses = list(dict.fromkeys(record["status"] for record in found))
    rows = []
    for value, here in by_value(found, report.each):
        ended = [sum(record["status"] == status for record in here) for status in statuses]
        rows.append((value, *ended))
    yield from table((report.each, *statuses), rows)
    why = reasons(found)
    if why:
        yield ""
        yield "Empty cells:"
        yield ""
        yield from table(("why", "points"), why.items())


def _best(sweep: SweepSpec, report: SweepReport, here: Sequence[Record]) -> Iterator[str]:
    """Yield the best design by each result, and what it gets of the others."""
    sides = [name for name in sweep.sides if name != report.each]
    rows = []
    for name in report.shows:
        best = best_of(here, name)
        if best is not None:
            got = (best[other] for other in report.shows)
            rows.append((name, *(best[side] for side in sides), best["plan"], *got))
    yield from table(("most", *sides, "plan", *report.shows), rows)


def _compared(sweep: SweepSpec, report: SweepReport, found: Sequence[Record]) -> Iterator[str]:
    """Yield what one group of chips has over another."""
    compared = report.compare
    if compared is None:
        return
    first, second = compared.groups
    sides = [name for name in sweep.sides if name not in (compared.field, report.each)]
    yield f"## {first[:1].upper()}{first[1:]} over {second}"
    yield ""
    for name, members in compared.groups.items():
        yield f"* {name}: {', '.join(map(str, members))}"
    yield ""
    yield "Best: the best point of one group over the best of the other. Mean: geometric, over"
    yield f"designs of equal {', '.join(sides)}."
    yield ""
    rows = []
    for value, here in by_value(found, report.each):
        for name in report.shows:
            one = gain(here, name, compared, sides)
            if one.best is not None:
                rows.append((value, name, one.best, one.mean, one.num_designs))
    yield from table((report.each, "result", "best", "mean", "designs"), rows)


def _beside(sweep: SweepSpec, names: tuple[str, str], found: Sequence[Record]) -> Iterator[str]:
    """Yield ours over other rules, and how both order points that differ in one field."""
    sides = list(sweep.sides)
    yield f"## {names[0]} beside {names[1]}"
    yield ""
    yield "Ours over the other:"
    yield ""
    groups = [(f"{side} {value}", here) for side in sides for value, here in by_value(found, side)]
    rows = [
        (label, one.least, one.middle, one.most, one.num_points)
        for label, here in [*groups, ("all", found)]
        if (one := ratios(here, names)) is not None
    ]
    yield from table(("points", "least", "median", "most", "number"), rows)
    yield ""
    yield "Pairs of points that differ in one field, as far as ours tells them apart: the share"
    yield "that the other puts in the same order, and the share that it cannot tell apart."
    yield ""
    ordered = [
        (side, pairs.num_pairs, pairs.alike, pairs.ties)
        for side in sides
        if (pairs := orders(found, names, side, sides)) is not None
    ]
    yield from table(("field", "pairs", "alike", "ties"), ordered)
