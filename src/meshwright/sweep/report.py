"""A sweep as text, CSV, heat maps and a document: best points, groups compared, ours and others."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import fmean, median
from typing import Any

from typing_extensions import TypedDict

from meshwright.base.units import format_seconds, format_si
from meshwright.spec.sweep import Compared, HeatMap, Objective, SweepReport, SweepSpec
from meshwright.sweep.choice import (
    Choice,
    ChoiceRecord,
    Record,
    choice_record,
    choices,
    has_value,
    text_of,
)
from meshwright.sweep.quantities import QUANTITIES, field_of
from meshwright.sweep.run import Swept
from meshwright.view.heat_map import HeatCells, heat_lines, heat_svg
from meshwright.view.markdown import markdown_table
from meshwright.view.screen import wrapped

WAITING = "not asked yet"


def records(swept: Swept) -> list[dict[str, Any]]:
    """Return each point with its result."""
    return [
        {**point, **(result if result is not None else {"status": WAITING})}
        for point, result in zip(swept.points, swept.results, strict=True)
    ]


class SweepRecord(TypedDict):
    """A sweep for programs: one question over all combinations of the varied fields."""

    name: str
    ask: str
    is_complete: bool
    num_points: int
    num_new: int
    """Number of points asked this time, not read from a file."""
    points: Sequence[Mapping[str, Any]]
    """Varied fields and results of each point, by name; ``status`` says whether there is a
    result."""
    chosen: Sequence[ChoiceRecord]


def sweep_record(sweep: SweepSpec, swept: Swept, chosen: Sequence[Choice]) -> SweepRecord:
    """Return a sweep for programs."""
    return {
        "name": sweep.name,
        "ask": sweep.ask,
        "is_complete": swept.is_complete,
        "num_points": len(swept.points),
        "num_new": swept.num_new,
        "points": records(swept),
        "chosen": [choice_record(choice) for choice in chosen],
    }


def sweep_csv(swept: Swept) -> str:
    """Return all points and results with a head line."""
    rows = records(swept)
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cells_of(sweep: SweepSpec, shown: HeatMap, swept: Swept) -> HeatCells:
    """Return the best value of each cell, with the other fields that gave it.

    Rows and columns without any value, and without a point that does not fit, are left out.
    """
    others = [name for name in sweep.sides if name not in (shown.rows, shown.columns)]
    every: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for cell, value, note in _values(shown, swept, others):
        every.setdefault(cell, []).append((value, note))
    best = {cell: _shown_of(found, shown) for cell, found in every.items()}
    values = {cell: value for cell, (value, _) in best.items()}
    quantity, told = QUANTITIES[shown.shows], f"{TOLD[shown.better]} of each cell"
    if shown.is_relative:
        values, told = _shares(values, shown), f"{told}, as a share of the best of its column"
    misfits = _misfits(shown, swept) - values.keys()
    rows, columns = (
        tuple(name for name in map(str, sweep.sides[field])
              if any(cell[at] == name for cell in (*values, *misfits)))
        for at, field in enumerate(shown.both)
    )  # fmt: skip
    what, (down, across) = quantity.words, map(field_of, shown.both)
    return HeatCells(
        title=f"{what[:1].upper()}{what[1:]} by {down.words} and {across.words}",
        subtitle=f"{sweep.name}: {told}",
        row_field=down.title,
        column_field=across.title,
        rows=rows,
        columns=columns,
        values=values,
        notes={cell: note for cell, (_, note) in best.items()},
        misfits=frozenset(misfits),
        unit="of the best of a column" if shown.is_relative else quantity.unit,
        quantity=what,
    )


TOLD = {"highest": "highest", "lowest": "lowest", "mean": "mean", "p10": "what nine of ten reach"}
"""Words for the value that a cell shows."""


def _misfits(shown: HeatMap, swept: Swept) -> set[tuple[str, str]]:
    """Return the cells without any point that fits."""
    ends: dict[tuple[str, str], set[str]] = {}
    for row in records(swept):
        ends.setdefault((str(row[shown.rows]), str(row[shown.columns])), set()).add(row["status"])
    return {cell for cell, found in ends.items() if found == {"nothing fits"}}


def _shown_of(found: Sequence[tuple[float, str]], shown: HeatMap) -> tuple[float, str]:
    """Return the value that a cell shows, and its origin."""
    if shown.better in ("highest", "lowest"):
        sign = 1.0 if shown.better == "highest" else -1.0
        return max(found, key=lambda one: sign * one[0])
    values = sorted(value for value, _ in found)
    note = f"{len(values)} points, {values[0]:.6g} to {values[-1]:.6g}"
    return (fmean(values) if shown.better == "mean" else values[len(values) // 10]), note


def _shares(
    values: Mapping[tuple[str, str], float], shown: HeatMap
) -> dict[tuple[str, str], float]:
    """Return values over the best of their column; below 1 for all others."""
    columns: dict[str, list[float]] = {}
    for (_, column), value in values.items():
        columns.setdefault(column, []).append(value)
    if shown.better != "lowest":
        return {cell: value / max(columns[cell[1]]) for cell, value in values.items()}
    return {cell: min(columns[cell[1]]) / value for cell, value in values.items()}


def _values(
    shown: HeatMap, swept: Swept, others: list[str]
) -> Iterator[tuple[tuple[str, str], float, str]]:
    """Yield the cell of each point with a value, the value, and the other fields."""
    for row in records(swept):
        counts = shown.better in ("mean", "p10") and row["status"] == "nothing fits"
        value = 0.0 if counts else row.get(shown.shows)
        if isinstance(value, int | float):
            note = ", ".join(f"{name} {row[name]}" for name in others)
            yield (str(row[shown.rows]), str(row[shown.columns])), float(value), note


def counts_of(swept: Swept) -> Mapping[str, int]:
    """Return the number of points of each status."""
    found: dict[str, int] = {}
    for row in records(swept):
        found[row["status"]] = found.get(row["status"], 0) + 1
    return found


def sweep_lines(sweep: SweepSpec, swept: Swept) -> Iterator[str]:
    """Yield the result in lines: the count of each status, and the heat map or all points."""
    ends = ", ".join(f"{number} {status}" for status, number in counts_of(swept).items())
    num_reused = sum(result is not None for result in swept.results) - swept.num_new
    reused = f" and {num_reused} reused" if num_reused else ""
    yield f"{sweep.name}: {len(swept.points)} points, {swept.num_new} of them new{reused}: {ends}"
    yield ""
    if sweep.heat_map is not None:
        yield from heat_lines(cells_of(sweep, sweep.heat_map, swept))
        return
    for row in records(swept):
        head = " ".join(str(row[name]) for name in sweep.sides)
        told = row.get("plan", row.get("reason", row["status"]))
        time_s = f"{format_seconds(row['step_time_s'])}  " if "step_time_s" in row else ""
        yield from wrapped(f"{head}  ", f"{time_s}{told}")


CLOSE = 1e-3
"""Largest relative difference of values that are equal in an order."""


def of(records: Sequence[Record], field: str, value: object) -> list[Record]:
    """Return the records with one value of a field."""
    return [record for record in records if record[field] == value]


def best_of(records: Sequence[Record], name: str) -> Record | None:
    """Return the point with the best value, the first of equals; None where none has one."""
    found = [record for record in records if has_value(record, name)]
    if not found:
        return None
    best = min if QUANTITIES[name].is_less_better else max
    return best(found, key=lambda record: float(record[name]))


def reasons(records: Sequence[Record]) -> Mapping[str, int]:
    """Return the reasons why points have no result, the most frequent first."""
    told = Counter(str(one["reason"]) for one in records if one["status"] != "found"
                   and "reason" in one)  # fmt: skip
    return dict(told.most_common())


@dataclass(frozen=True)
class Gain:
    """Ratio of two groups, over all designs that differ in the chip alone."""

    best: float | None
    """The best member of one over the best of the other, each with its best design."""
    mean: float | None
    """Geometric mean over designs of the geometric means of the groups."""
    num_designs: int


def gain(records: Sequence[Record], name: str, compared: Compared, sides: Sequence[str]) -> Gain:
    """Return the ratio of the first group to the second in a result.

    Parameters
    ----------
    sides
        Fields that vary beside the compared one: points that agree in them are one design.
    """
    first, second = (
        [one for one in records if one[compared.field] in names and has_value(one, name)]
        for names in compared.groups.values()
    )
    tops = [float(best[name]) if (best := best_of(group, name)) else 0.0
            for group in (first, second)]  # fmt: skip
    logs = [_mean_logs(group, name, sides) for group in (first, second)]
    common = logs[0].keys() & logs[1].keys()
    ratios = [logs[0][design] - logs[1][design] for design in common]
    return Gain(
        best=tops[0] / tops[1] if tops[0] and tops[1] else None,
        mean=exp(fmean(ratios)) if ratios else None,
        num_designs=len(common),
    )


def _mean_logs(
    records: Sequence[Record], name: str, sides: Sequence[str]
) -> dict[tuple[Any, ...], float]:
    """Return the mean logarithm of a result for each design; results of 0 have none."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for one in records:
        if one[name] > 0:
            found.setdefault(tuple(one[side] for side in sides), []).append(log(float(one[name])))
    return {design: fmean(values) for design, values in found.items()}


@dataclass(frozen=True)
class Ratios:
    """Ratio of a result of this product to the result of other rules."""

    least: float
    middle: float
    most: float
    num_points: int


def ratios(records: Sequence[Record], names: tuple[str, str]) -> Ratios | None:
    """Return the first result over the second; None where no point has both."""
    found = [ours / other for ours, other in _pairs(records, names)]
    return Ratios(min(found), median(found), max(found), len(found)) if found else None


@dataclass(frozen=True)
class Orders:
    """Agreement of two results on points that differ in one field alone."""

    num_pairs: int
    """Number of pairs that our result tells apart."""
    alike: float
    """Share of the pairs that the other result puts in the same order [1]."""
    ties: float
    """Share of the pairs that the other result cannot tell apart [1]."""


def orders(
    records: Sequence[Record], names: tuple[str, str], side: str, sides: Sequence[str]
) -> Orders | None:
    """Return the agreement of two results on pairs equal in all sides but one; None: no pair."""
    alike: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        alike.setdefault(tuple(one[name] for name in sides if name != side), []).append(one)
    told = [
        (order, _order(first[1], second[1]))
        for group in alike.values()
        for first, second in combinations(_pairs(group, names), 2)
        if (order := _order(first[0], second[0]))
    ]
    if not told:
        return None
    same = fmean(ours == other for ours, other in told)
    return Orders(len(told), same, fmean(not other for _, other in told))


def _pairs(records: Sequence[Record], names: tuple[str, str]) -> list[tuple[float, float]]:
    return [
        (float(one[names[0]]), float(one[names[1]]))
        for one in records
        if has_value(one, names[0]) and has_value(one, names[1])
    ]


def _order(first: float, second: float) -> int:
    """Return 1 where the first is larger, -1 where it is smaller, 0 where they are equal."""
    if abs(first - second) <= CLOSE * max(abs(first), abs(second)):
        return 0
    return 1 if first > second else -1


def by_value(records: Sequence[Record], field: str) -> Iterator[tuple[Any, list[Record]]]:
    """Yield the values of a field in the order of the points, each with its records."""
    for value in dict.fromkeys(record[field] for record in records):
        yield value, of(records, field, value)


Pictures = dict[str, str]
"""SVG of each picture, by the name of its file."""


def document(
    sweep: SweepSpec, report: SweepReport, swept: Swept, folder: str, command: str
) -> tuple[str, Pictures]:
    """Return the Markdown of a sweep and its pictures.

    Parameters
    ----------
    folder
        Folder of the pictures in the links of the document.
    command
        Command that writes the document.
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
    for objective in report.choose:
        lines += [*_chosen(sweep, objective, found), ""]
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
    """Return pictures by name, each with its section; None: it belongs to no section."""
    found: dict[str, tuple[str, Any]] = {}
    for shown in report.heat_maps:
        if report.each in (shown.rows, shown.columns):
            found[f"{shown.shows}.svg"] = heat_svg(cells_of(sweep, shown, swept)), None
            continue
        for value in sweep.sides[report.each]:
            here = part_of(swept, report.each, value)
            named = sweep.model_copy(update={"name": str(value)})
            if _is_drawn(here, shown):
                name = f"{_word(value)}-{shown.shows}-{shown.columns}.svg"
                found[name] = heat_svg(cells_of(named, shown, here)), value
    return found


def part_of(swept: Swept, field: str, value: object) -> Swept:
    """Return the points with one value of a field."""
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
    """Yield the number of points of each status, and the reasons for missing results."""
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
        yield "Cells without a value:"
        yield ""
        yield from table(("why", "points"), why.items())


def _best(sweep: SweepSpec, report: SweepReport, here: Sequence[Record]) -> Iterator[str]:
    """Yield the best design by each result, with its other results."""
    sides = [name for name in sweep.sides if name != report.each]
    rows = []
    for name in report.shows:
        best = best_of(here, name)
        if best is not None:
            got = (best[other] for other in report.shows)
            rows.append((name, *(best[side] for side in sides), best["plan"], *got))
    yield from table(("best by", *sides, "plan", *report.shows), rows)


def _chosen(sweep: SweepSpec, objective: Objective, found: Sequence[Record]) -> Iterator[str]:
    """Yield the best points under limits, ties in a row."""
    text = text_of(objective)
    yield f"## {text[:1].upper()}{text[1:]}"
    yield ""
    every = list(choices(objective, sweep, found))
    yield from table(
        (*sweep.sides, "plan", *objective.names),
        [
            (
                *(one[name] for name in (*sweep.sides, "plan")),
                *(one[name] for name in objective.names),
            )
            for choice in every
            for one in choice.best
        ],
    )
    yield ""
    within = ", ".join(f"{c.group} {c.num_within} of {c.num_found}" for c in every)
    yield f"Points within the limits: {within}."


def _compared(sweep: SweepSpec, report: SweepReport, found: Sequence[Record]) -> Iterator[str]:
    """Yield the gain of one group of chips over another."""
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
    yield f"designs of equal {', '.join(sides)}." if sides else "designs."
    yield ""
    rows = []
    for value, here in by_value(found, report.each):
        for name in report.shows:
            one = gain(here, name, compared, sides)
            if one.best is not None:
                rows.append((value, name, one.best, one.mean, one.num_designs))
    yield from table((report.each, "result", "best", "mean", "designs"), rows)


def _beside(sweep: SweepSpec, names: tuple[str, str], found: Sequence[Record]) -> Iterator[str]:
    """Yield our result over other rules, and the agreement on pairs that differ in one field."""
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
