"""The report of a sweep: heat maps, the best points, and the status of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.base.units import format_si
from meshwright.spec.sweep import Better, HeatMap, SweepSpec
from meshwright.sweep.answer import SweepAnswer
from meshwright.sweep.choice import Choice, Record, choices, has_value, text_of, with_unit
from meshwright.sweep.front import BEATEN
from meshwright.sweep.quantities import QUANTITIES, field_of
from meshwright.sweep.questions import QUESTIONS
from meshwright.sweep.results import (
    best_of,
    by_value,
    cells_of,
    counts_of,
    gain,
    orders,
    part_of,
    ratios,
    reasons,
)
from meshwright.sweep.run import Swept
from meshwright.view import charts
from meshwright.view.heat_map import heat_spec
from meshwright.view.parts import Chart, Folded, Page, Part, Plot, Section, Table, Text, Tile
from meshwright.view.registry import view
from meshwright.view.words import counted

MOST_ROWS, MOST_SHOWN = 1000, 10
"""Most points in a table, and on the first screen."""


@view(SweepAnswer)
def sweep_page(answer: SweepAnswer) -> Page:
    """Return the page of a sweep."""
    sweep, swept = answer.asked, answer.swept
    found = swept.records
    every = [*answer.chosen, *_chosen(sweep, found)]
    maps = list(_map_parts(sweep, swept))
    sections = (
        Section("map", "How does it vary?", maps),
        Section(
            "best",
            "Which points are best?",
            [*_front_parts(answer), *_best_parts(sweep, found, every)],
        ),
        Section("groups", "Which group is better?", list(_group_parts(sweep, found))),
        Section("beside", "Do other rules agree?", list(_beside_parts(sweep, found))),
        Section("counts", "What became of the points?", list(_count_parts(sweep, swept, found))),
        Section("points", "All points", list(_point_parts(sweep, found))),
        Section("says", "What it says", [Text(text.strip()) for text in _remarks(sweep)]),
    )
    varied = " x ".join(f"{len(values)} {name}" for name, values in sweep.sides.items())
    fixed = ", ".join(f"{name} {value}" for name, value in sweep.fixed.items())
    return Page(
        title=f"Sweep: {sweep.name}",
        subtitle=f"{counted(len(found), 'point')}: {varied}" + (f"; {fixed}" if fixed else ""),
        tiles=list(_tiles(sweep, swept, found, every, maps)),
        sections=[section for section in sections if section.parts],
        warnings=answer.warnings,
        command=answer.command,
        version=answer.version,
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
    sweep: SweepSpec, swept: Swept, found: Sequence[Record], every: Sequence[Choice],
    maps: Sequence[Part],
) -> Iterator[Tile]:  # fmt: skip
    counts = counts_of(swept)
    ended = ", ".join(f"{number:,} {status}" for status, number in counts.items())
    num_reused = sum(result not in (None, BEATEN) for result in swept.results) - swept.num_new
    reused = f" and {num_reused:,} reused" if num_reused else ""
    yield Tile("How many points have a plan?", ended,
               f"{len(found):,} points, {swept.num_new:,} of them new{reused}", "counts",
               label="points")  # fmt: skip
    for name in _shown(sweep, found)[:4]:
        best = best_of(found, name)
        if best is not None:
            quantity = QUANTITIES[name]
            yield Tile(f"Which point has the {quantity.best} {quantity.words}?",
                       _with_unit(name, best), _point(sweep, best), "best",
                       label="" if every else "best")  # fmt: skip
    for choice in every[:4]:
        asked = text_of(choice.objective) + (f", {choice.group}" if choice.group else "")
        shown = [_point(sweep, one) + (f" ({one['plan']})" if one.get("plan") else "")
                 for one in choice.best]  # fmt: skip
        ties = f", {len(shown)} tie" if len(shown) > 1 else ""
        within = (f"{asked}: {choice.num_within} of {counted(choice.num_found, 'point')} within "
                  f"the limits{ties}")  # fmt: skip
        yield Tile(f"Which point has the {asked}?", "; ".join(shown) or "no point", within,
                   "best", "" if choice.best else "bad", label="best")  # fmt: skip
    why = reasons(found)
    if why:
        reason, number = next(iter(why.items()))
        yield Tile("Why have the others none?", f"{reason} ({number:,})", "", "counts",
                   label="lacking")  # fmt: skip
    drawn = [(part, part.table) for part in maps
             if isinstance(part, Chart) and part.table is not None]  # fmt: skip
    if sweep.heat_map is not None and drawn:
        chart, table = drawn[0]
        yield Tile("How does it vary?", chart.title, chart.says, "map", label="map",
                   part=replace(table, caption=chart.title))  # fmt: skip
    elif found:
        first = _points_table(sweep, found[:MOST_SHOWN], _shown(sweep, found))
        yield Tile("What is each point?", counted(len(found), "point"), section="points",
                   label="each", part=first)  # fmt: skip


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
        names = _shown(sweep, swept.records)
        yield from _varied(sweep, swept, names[0]) if names else ()
    for shown in maps:
        yield from _map(sweep, shown, swept)


def _varied(sweep: SweepSpec, swept: Swept, name: str) -> Iterator[Chart]:
    """Yield a chart of a result over the two sides with most values, or over the only one."""
    sides = sorted(sweep.sides, key=lambda side: -len(sweep.sides[side]))
    if len(sides) == 1:
        yield from _bars(sides[0], name, swept.records)
        return
    better: Better = "lowest" if QUANTITIES[name].is_less_better else "highest"
    shown = HeatMap(rows=sides[0], columns=sides[1], shows=name, better=better)
    yield from _map(sweep, shown, swept)


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


def _front_parts(answer: SweepAnswer) -> Iterator[Part]:
    """Yield the front, where one was asked for."""
    if answer.front:
        table = _points_table(answer.asked, answer.front)
        yield replace(table, caption="The front: no point beats one of these, asked or not")


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
    groups = [("", found)] if report is None else list(by_value(found, report.each))
    rows = []
    for group, here in groups:
        for name in names:
            best = best_of(here, name)
            if best is not None:
                which = f"{QUANTITIES[name].best} {QUANTITIES[name].words}"
                rows.append((str(group), which, *(str(best[side]) for side in sweep.sides),
                             str(best.get("plan", "")),
                             *(_amount(best, other) for other in names)))  # fmt: skip
    if rows:
        head = ("", "best by", *sweep.sides, "plan", *(f"{name}>" for name in names))
        yield Table(head, rows, "The best point by each result, with its other results")


def _group_parts(sweep: SweepSpec, found: Sequence[Record]) -> Iterator[Part]:
    """Yield the gain of one group of chips over another, in each section of the report."""
    report = sweep.report
    if report is None or report.compare is None:
        return
    compared = report.compare
    first, second = compared.groups
    sides = [name for name in sweep.sides if name not in (compared.field, report.each)]
    for name, members in compared.groups.items():
        yield Text(f"{name}: {', '.join(map(str, members))}")
    rows = [
        (str(value), name, one.best, one.mean, one.num_designs)
        for value, here in by_value(found, report.each)
        for name in report.shows
        if (one := gain(here, name, compared, sides)).best is not None
    ]
    designs = f"designs of equal {', '.join(sides)}" if sides else "designs"
    yield Table(
        (report.each, "result", "best [x]", "mean [x]", "designs [#]"), rows,
        f"{first[:1].upper()}{first[1:]} over {second}: the best point of one group over the best "
        f"of the other, and the geometric mean over {designs}",
    )  # fmt: skip


def _beside_parts(sweep: SweepSpec, found: Sequence[Record]) -> Iterator[Part]:
    """Yield our result over other rules, and the agreement on pairs that differ in one field."""
    if sweep.report is None or sweep.report.beside is None:
        return
    names, sides = sweep.report.beside, list(sweep.sides)
    groups = [(f"{side} {value}", here) for side in sides for value, here in by_value(found, side)]
    yield Table(
        ("points", "least [x]", "median [x]", "most [x]", "number [#]"),
        [(label, one.least, one.middle, one.most, one.num_points)
         for label, here in [*groups, ("all", found)]
         if (one := ratios(here, names)) is not None],
        f"{names[0]} over {names[1]}",
    )  # fmt: skip
    yield Table(
        ("field", "pairs [#]", "alike [%]", "ties [%]"),
        [(side, pairs.num_pairs, pairs.alike, pairs.ties) for side in sides
         if (pairs := orders(found, names, side, sides)) is not None],
        "Pairs of points that differ in one field, as far as ours tells them apart: the share that "
        "the other puts in the same order, and the share that it cannot tell apart",
    )  # fmt: skip


def _with_unit(name: str, record: Record) -> str:
    return with_unit(name, float(record[name])).removeprefix(name).strip()


def _amount(record: Record, name: str) -> str:
    return format_si(float(record[name]), "").strip() if has_value(record, name) else ""


def _count_parts(sweep: SweepSpec, swept: Swept, found: Sequence[Record]) -> Iterator[Part]:
    yield _counts("How the points ended", counts_of(swept))
    if sweep.report is not None:
        statuses = list(counts_of(swept))
        yield Table(
            (sweep.report.each, *(f"{status} [#]" for status in statuses)),
            [(str(value), *(sum(one["status"] == status for one in here) for status in statuses))
             for value, here in by_value(found, sweep.report.each)],
        )  # fmt: skip
    if why := reasons(found):
        yield _counts("Why points have no result", why)


def _counts(title: str, counts: Mapping[str, int]) -> Plot:
    """Return the number of points of each kind."""
    says = "; ".join(f"{name}: {number:,}" for name, number in counts.items())
    return Plot(title, says, "bars", Table(("", "points [#]"), list(counts.items())))


def _point_parts(sweep: SweepSpec, found: Sequence[Record]) -> Iterator[Part]:
    summary = "Every point with its results"
    if len(found) > MOST_ROWS:
        summary = f"The first {MOST_ROWS:,} of {len(found):,} points; --csv writes all"
    yield Folded(summary, [_points_table(sweep, found[:MOST_ROWS])])


def _points_table(
    sweep: SweepSpec, found: Sequence[Record], names: Sequence[str] = ()
) -> Table:  # fmt: skip
    """Return points with results; without names, with all results that any point has."""
    names = names or [name for name in QUESTIONS[sweep.ask].values
                      if any(has_value(record, name) for record in found)]  # fmt: skip
    rows = [
        (*(str(record[side]) for side in sweep.sides), str(record["status"]),
         *(_amount(record, name) for name in names),
         str(record.get("plan", record.get("reason", ""))))
        for record in found
    ]  # fmt: skip
    head = (*sweep.sides, "", *(f"{name}>" for name in names), "plan, or why there is none")
    return Table(head, rows)
