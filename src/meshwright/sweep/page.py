"""The report of a sweep: heat maps, the best points, and the status of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.base.errors import UnknownNameError
from meshwright.base.units import format_si
from meshwright.spec.sweep import Better, HeatMap, SweepSpec
from meshwright.sweep.choice import Choice, Record, choices, has_value, text_of, with_unit
from meshwright.sweep.quantities import QUANTITIES, field_of
from meshwright.sweep.questions import QUESTIONS
from meshwright.sweep.report import (
    best_of,
    cells_of,
    counts_of,
    of,
    part_of,
    reasons,
    records,
)
from meshwright.sweep.run import Swept
from meshwright.view import charts
from meshwright.view.heat_map import heat_spec
from meshwright.view.parts import Chart, Folded, Page, Part, Section, Table, Text, Tile
from meshwright.view.pieces import count_chart
from meshwright.view.words import counted

MOST_ROWS = 1000
"""Most points in a table."""


def sweep_page(
    sweep: SweepSpec, swept: Swept, chosen: Sequence[Choice] = (), *, version: str = "",
    command: str = "",
) -> Page:  # fmt: skip
    """Return the report of a sweep.

    Parameters
    ----------
    chosen
        The best points under limits that the user adds to those of the file.
    """
    found = records(swept)
    every = [*chosen, *_chosen(sweep, found)]
    sections = (
        Section("map", "How does it vary?", list(_map_parts(sweep, swept))),
        Section("best", "Which points are best?", list(_best_parts(sweep, found, every))),
        Section("counts", "What became of the points?", list(_count_parts(swept, found))),
        Section("points", "All points", list(_point_parts(sweep, found))),
        Section("says", "What it says", [Text(text.strip()) for text in _remarks(sweep)]),
    )
    varied = " x ".join(f"{len(values)} {name}" for name, values in sweep.sides.items())
    fixed = ", ".join(f"{name} {value}" for name, value in sweep.fixed.items())
    return Page(
        title=f"Sweep: {sweep.name}",
        subtitle=f"{counted(len(found), 'point')}: {varied}" + (f"; {fixed}" if fixed else ""),
        tiles=list(_tiles(sweep, swept, found, every)),
        sections=[section for section in sections if section.parts],
        warnings=() if swept.is_complete else ("interrupted: some points are not asked yet",),
        command=command,
        version=version,
    )


def _remarks(sweep: SweepSpec) -> list[str]:
    told = [] if sweep.report is None else list(sweep.report.remarks)
    return [*([sweep.about] if sweep.about else []), *told]


def _chosen(sweep: SweepSpec, found: Sequence[Record]) -> Iterator[Choice]:
    """Yield the best points of the objectives in the file."""
    for objective in () if sweep.report is None else sweep.report.choose:
        yield from choices(objective, sweep, found)


def _shown(sweep: SweepSpec, found: Sequence[Record]) -> list[str]:
    """Return the main results: those of the file, else the first that points have."""
    named = [] if sweep.heat_map is None else [sweep.heat_map.shows]
    if sweep.report is not None:
        named += [*sweep.report.shows, *(shown.shows for shown in sweep.report.heat_maps)]
    known = [name for name in QUESTIONS[sweep.ask].values
             if any(has_value(record, name) for record in found)]  # fmt: skip
    return [name for name in dict.fromkeys(named) if name in known] or known[:1]


def _point(sweep: SweepSpec, record: Record) -> str:
    return ", ".join(f"{name} {record[name]}" for name in sweep.sides)


def _tiles(
    sweep: SweepSpec, swept: Swept, found: Sequence[Record], every: Sequence[Choice]
) -> Iterator[Tile]:
    counts = counts_of(swept)
    have = counts.get("found", 0)
    others = ", ".join(f"{number:,} {status}" for status, number in counts.items()
                       if status != "found")  # fmt: skip
    yield Tile("How many points have a plan?", f"{have:,} of {len(found):,}", others, "counts")
    for name in _shown(sweep, found)[:4]:
        best = best_of(found, name)
        if best is not None:
            quantity = QUANTITIES[name]
            yield Tile(f"Which point has the {quantity.best} {quantity.words}?",
                       _with_unit(name, best), _point(sweep, best), "best")  # fmt: skip
    for choice in every[:4]:
        asked = text_of(choice.objective) + (f", {choice.group}" if choice.group else "")
        answer = "no point" if not choice.best else _point(sweep, choice.best[0])
        yield Tile(f"Which point has the {asked}?", answer,
                   f"{choice.num_within} of {choice.num_found} points within the limits", "best",
                   "" if choice.best else "bad")  # fmt: skip
    why = reasons(found)
    if why:
        reason, number = next(iter(why.items()))
        yield Tile("Why have the others none?", reason, f"{number:,} points", "counts")


def _map_parts(sweep: SweepSpec, swept: Swept) -> Iterator[Part]:
    """Yield the heat maps of the file; without any, the first result over the first two sides."""
    maps = [] if sweep.heat_map is None else [sweep.heat_map]
    report = sweep.report
    of_report = () if report is None else report.heat_maps
    for shown in of_report:
        if report is None or report.each in shown.both:
            maps.append(shown)
            continue
        for value in sweep.sides[report.each]:
            part = part_of(swept, report.each, value)
            yield from _map(sweep.model_copy(update={"name": str(value)}), shown, part)
    if sweep.heat_map is None and not of_report:
        names = _shown(sweep, records(swept))
        yield from _varied(sweep, swept, names[0]) if names else ()
    for shown in maps:
        yield from _map(sweep, shown, swept)


def _varied(sweep: SweepSpec, swept: Swept, name: str) -> Iterator[Chart]:
    """Yield a chart of a result over the two sides with most values, or over the only one."""
    sides = sorted(sweep.sides, key=lambda side: -len(sweep.sides[side]))
    if len(sides) == 1:
        yield from _bars(sides[0], name, records(swept))
        return
    better: Better = "lowest" if QUANTITIES[name].is_less_better else "highest"
    shown = HeatMap(rows=sides[0], columns=sides[1], shows=name, better=better)
    yield from _map(sweep, shown, swept)


def map_of(sweep: SweepSpec, swept: Swept, shows: str = "") -> Chart | None:
    """Return the chart of a result over the varied fields; None: no point has one.

    Raises
    ------
    UnknownNameError
        The question has no such result.
    """
    if shows and shows not in QUESTIONS[sweep.ask].values:
        raise UnknownNameError("result", shows, QUESTIONS[sweep.ask].values)
    if shows:
        return next(_varied(sweep, swept, shows), None)
    return next((part for part in _map_parts(sweep, swept) if isinstance(part, Chart)), None)


def _map(sweep: SweepSpec, shown: HeatMap, swept: Swept) -> Iterator[Chart]:
    """Yield a heat map, where any cell of it has a value."""
    cells = cells_of(sweep, shown, swept)
    if not cells.values:
        return
    places, amounts = list(cells.values), list(cells.values.values())
    low, high = min(amounts), max(amounts)
    least, most = places[amounts.index(low)], places[amounts.index(high)]
    yield Chart(
        f"{cells.title} ({sweep.name})",
        f"{cells.subtitle[:1].upper()}{cells.subtitle[1:]}. Least: {cells.row_field} {least[0]}, "
        f"{cells.column_field} {least[1]}, {cells.text(*least)}; most: {cells.row_field} "
        f"{most[0]}, {cells.column_field} {most[1]}, {cells.text(*most)}; {cells.scale}",
        heat_spec(cells),
        Table((cells.row_field, *(f"{column}>" for column in cells.columns)),
              [(row, *(cells.text(row, column) for column in cells.columns))
               for row in cells.rows]),
    )  # fmt: skip


def _bars(field: str, name: str, found: Sequence[Record]) -> Iterator[Chart]:
    """Yield a bar for each point where one field alone varies, and any point has a value."""
    have = [record for record in found if has_value(record, name)]
    if not have:
        return
    shown = [_with_unit(name, record) for record in have]
    labels = [f"{field} {record[field]}" for record in have]
    what = QUANTITIES[name].words
    yield Chart(
        f"{what[:1].upper()}{what[1:]} by {field_of(field).words}",
        "; ".join(f"{label}: {text}" for label, text in zip(labels, shown, strict=True)),
        charts.bars(
            labels, [float(record[name]) for record in have], shown, QUANTITIES[name].title
        ),
    )


def _best_parts(
    sweep: SweepSpec, found: Sequence[Record], every: Sequence[Choice]
) -> Iterator[Part]:
    for choice in every:
        objective, where = choice.objective, f"{choice.group}: " if choice.group else ""
        rows = [(*(str(record[side]) for side in sweep.sides), str(record.get("plan", "")),
                 *(_amount(record, name) for name in objective.names))
                for record in choice.best]  # fmt: skip
        head = (*sweep.sides, "plan", *(f"{name}>" for name in objective.names))
        yield Table(head, rows, f"{where}{text_of(objective)}: {choice.num_within} of "
                    f"{choice.num_found} within the limits")  # fmt: skip
    names, report = _shown(sweep, found), sweep.report
    groups = [("", found)] if report is None else [
        (str(value), of(found, report.each, value)) for value in sweep.sides[report.each]
    ]  # fmt: skip
    rows = []
    for group, here in groups:
        for name in names:
            best = best_of(here, name)
            if best is not None:
                which = f"{QUANTITIES[name].best} {QUANTITIES[name].words}"
                rows.append((group, which, *(str(best[side]) for side in sweep.sides),
                             str(best.get("plan", "")),
                             *(_amount(best, other) for other in names)))  # fmt: skip
    if rows:
        head = ("", "best by", *sweep.sides, "plan", *(f"{name}>" for name in names))
        yield Table(head, rows, "The best point by each result, and what it has of the others")


def _with_unit(name: str, record: Record) -> str:
    return with_unit(name, float(record[name])).removeprefix(name).strip()


def _amount(record: Record, name: str) -> str:
    return format_si(float(record[name]), "").strip() if has_value(record, name) else ""


def _count_parts(swept: Swept, found: Sequence[Record]) -> Iterator[Part]:
    yield count_chart("How the points ended", counts_of(swept), "points")
    if why := reasons(found):
        yield count_chart("Why points have no result", why, "points")


def _point_parts(sweep: SweepSpec, found: Sequence[Record]) -> Iterator[Part]:
    names = [name for name in QUESTIONS[sweep.ask].values
             if any(has_value(record, name) for record in found)]  # fmt: skip
    rows = [
        (*(str(record[side]) for side in sweep.sides), str(record["status"]),
         *(_amount(record, name) for name in names),
         str(record.get("plan", record.get("reason", ""))))
        for record in found[:MOST_ROWS]
    ]  # fmt: skip
    head = (*sweep.sides, "", *(f"{name}>" for name in names), "plan, or why there is none")
    summary = "Every point with its results"
    if len(found) > MOST_ROWS:
        summary = f"The first {MOST_ROWS:,} of {len(found):,} points; --csv writes all"
    yield Folded(summary, [Table(head, rows)])
