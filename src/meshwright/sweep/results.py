"""Results of a sweep: CSV, cells of heat maps, best points, groups compared, ours and others."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from statistics import fmean, median
from typing import Any

from meshwright.spec.sweep import Compared, HeatMap, SweepSpec
from meshwright.sweep.choice import Record, has_value
from meshwright.sweep.quantities import QUANTITIES, field_of
from meshwright.sweep.run import Swept
from meshwright.view.heat_map import HeatCells


def sweep_csv(swept: Swept) -> str:
    """Return all points and results with a head line."""
    rows = swept.records
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


TOLD = {"highest": "highest", "lowest": "lowest", "mean": "mean", "p10": "reached by nine of ten"}
"""Words for the value that a cell shows."""


def _misfits(shown: HeatMap, swept: Swept) -> set[tuple[str, str]]:
    """Return the cells without any point that fits."""
    ends: dict[tuple[str, str], set[str]] = {}
    for row in swept.records:
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
    for row in swept.records:
        counts = shown.better in ("mean", "p10") and row["status"] == "nothing fits"
        value = 0.0 if counts else row.get(shown.shows)
        if isinstance(value, int | float):
            note = ", ".join(f"{name} {row[name]}" for name in others)
            yield (str(row[shown.rows]), str(row[shown.columns])), float(value), note


def counts_of(swept: Swept) -> Mapping[str, int]:
    """Return the number of points of each status."""
    found: dict[str, int] = {}
    for row in swept.records:
        found[row["status"]] = found.get(row["status"], 0) + 1
    return found


CLOSE = 1e-3
"""Largest relative difference of values that are equal in an order."""


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
        yield value, [record for record in records if record[field] == value]


def part_of(swept: Swept, field: str, value: object) -> Swept:
    """Return the points with one value of a field."""
    kept = [
        (point, result)
        for point, result in zip(swept.points, swept.results, strict=True)
        if point[field] == value
    ]
    return Swept(tuple(point for point, _ in kept), tuple(result for _, result in kept), 0)
