"""What a sweep found, as records, as a table of text values, and as the cells of a heat map."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.base.units import format_seconds
from meshwright.report.heat_map import HeatCells, heat_lines
from meshwright.report.screen import wrapped
from meshwright.spec.sweep import HeatMap, SweepSpec
from meshwright.sweep.run import Swept

WAITING = "not asked yet"


def records(swept: Swept) -> list[dict[str, Any]]:
    """Return each point with its result."""
    return [
        {**point, **(result if result is not None else {"status": WAITING})}
        for point, result in zip(swept.points, swept.results, strict=True)
    ]


def sweep_data(sweep: SweepSpec, swept: Swept) -> dict[str, Any]:
    """Return a sweep for programs."""
    return {
        "name": sweep.name,
        "ask": sweep.ask,
        "is_complete": swept.is_complete,
        "num_points": len(swept.points),
        "num_new": swept.num_new,
        "points": records(swept),
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
    """Return the best value of each cell, and which further fields gave it."""
    others = [name for name in sweep.sides if name not in (shown.rows, shown.columns)]
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for cell, value, note in _values(shown, swept, others):
        is_better = cell not in best or (
            value > best[cell][0] if shown.better == "highest" else value < best[cell][0]
        )
        if is_better:
            best[cell] = value, note
    values = {cell: value for cell, (value, _) in best.items()}
    told = f"{shown.better} of each cell"
    if shown.is_relative:
        values, told = _shares(values, shown), f"{told}, as a share of the best of its column"
    return HeatCells(
        title=f"{sweep.name}: {shown.shows} ({told})",
        row_field=shown.rows,
        column_field=shown.columns,
        rows=tuple(map(str, sweep.sides[shown.rows])),
        columns=tuple(map(str, sweep.sides[shown.columns])),
        values=values,
        notes={cell: note for cell, (_, note) in best.items()},
    )


def _shares(
    values: Mapping[tuple[str, str], float], shown: HeatMap
) -> dict[tuple[str, str], float]:
    """Return values over the best of their column; below 1 for all others."""
    columns: dict[str, list[float]] = {}
    for (_, column), value in values.items():
        columns.setdefault(column, []).append(value)
    if shown.better == "highest":
        return {cell: value / max(columns[cell[1]]) for cell, value in values.items()}
    return {cell: min(columns[cell[1]]) / value for cell, value in values.items()}


def _values(
    shown: HeatMap, swept: Swept, others: list[str]
) -> Iterator[tuple[tuple[str, str], float, str]]:
    """Yield the cell of each point that has a value, the value, and the other fields."""
    for row in records(swept):
        value = row.get(shown.shows)
        if isinstance(value, int | float):
            note = ", ".join(f"{name} {row[name]}" for name in others)
            yield (str(row[shown.rows]), str(row[shown.columns])), float(value), note


def counts_of(swept: Swept) -> Mapping[str, int]:
    """Return how many points ended how."""
    found: dict[str, int] = {}
    for row in records(swept):
        found[row["status"]] = found.get(row["status"], 0) + 1
    return found


def sweep_lines(sweep: SweepSpec, swept: Swept) -> Iterator[str]:
    """Yield what was found: how many points ended how, and the heat map or all points."""
    ends = ", ".join(f"{number} {status}" for status, number in counts_of(swept).items())
    yield f"{sweep.name}: {len(swept.points)} points, {swept.num_new} of them new: {ends}"
    yield ""
    if sweep.heat_map is not None:
        yield from heat_lines(cells_of(sweep, sweep.heat_map, swept))
        return
    for row in records(swept):
        head = " ".join(str(row[name]) for name in sweep.sides)
        told = row.get("plan", row.get("reason", row["status"]))
        time_s = f"{format_seconds(row['step_time_s'])}  " if "step_time_s" in row else ""
        yield from wrapped(f"{head}  ", f"{time_s}{told}")
