"""Parts with numbers as parts with words and Vega-Lite: what HTML and the explorer draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshwright.base.errors import UnknownNameError
from meshwright.view import charts
from meshwright.view.parts import Chart, Folded, Page, Part, Plot, Section, Table, Whole
from meshwright.view.values import named, shown, written
from meshwright.view.words import words

LEAST_SHARE = 0.005
"""Least share of a part that a sentence names."""
SCALES = {
    "bytes": (("GiB", 2.0**30), ("MiB", 2.0**20)),
    "s": (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)),
    "%": (("%", 0.01),),
    "+%": (("%", 0.01),),
    "J": (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0)),
}
"""Units of axes, the largest first, and their size in the unit of the values."""


def drawn_page(page: Page) -> Page:
    """Return a page whose parts are words, Vega-Lite and pictures."""
    tiles = [replace(tile, note=tile.note.replace("\n", "; "), part=None)
             for tile in (*page.tiles, *page.page_tiles)]  # fmt: skip
    sections = [drawn_section(one) for one in page.sections]
    return replace(page, tiles=tiles, page_tiles=(), sections=sections)


def drawn_section(section: Section) -> Section:
    """Return a section whose parts are words, Vega-Lite and pictures."""
    return replace(section, parts=[drawn(part) for part in section.parts])


def drawn(part: Part) -> Part:
    """Return a part in words, Vega-Lite and pictures."""
    if isinstance(part, Whole):
        return _whole(part)
    if isinstance(part, Plot):
        return _plot(part)
    if isinstance(part, Table):
        return written(part)
    if isinstance(part, Folded):
        return replace(part, parts=[drawn(inner) for inner in part.parts])
    return part


def chart_of(page: Page, name: str) -> Chart:
    """Return a chart of a page by its title, or the first chart of a section by its key.

    Raises
    ------
    UnknownNameError
        The page has no such chart.
    """
    found: dict[str, Chart] = {}
    for section in map(drawn_section, page.sections):
        for part in section.parts:
            if isinstance(part, Chart):
                found.setdefault(section.key, part)
                found[part.title] = part
    if name not in found:
        raise UnknownNameError("chart of this answer", name, found)
    return found[name]


def ranked(parts: Mapping[str, float]) -> dict[str, float]:
    """Return parts by their names in words, the largest first; parts of 0 are left out."""
    told = {words(name): part for name, part in parts.items() if part}
    return dict(sorted(told.items(), key=lambda item: -item[1]))


def largest(parts: Mapping[str, float], whole: float, most: int = 3) -> str:
    """Return the largest parts with their shares of a whole; none below half a percent."""
    shares = {name: part / whole for name, part in ranked(parts).items()}
    told = [f"{name} {share:.0%}" for name, share in shares.items() if share >= LEAST_SHARE]
    return ", ".join(told[:most])


def told(part: Whole) -> str:
    """Return the content of a whole in a sentence."""
    if part.says:
        return part.says
    used = sum(part.parts.values())
    whole = part.whole or used
    if part.capacity is None:
        return f"{shown(whole, part.unit)}: {largest(part.parts, whole)}" if whole else "nothing"
    first = [f"{name} {shown(size, part.unit)}" for name, size in ranked(part.parts).items()]
    return (
        f"{shown(used, part.unit)} of {shown(part.capacity, part.unit)} "
        f"({used / part.capacity:.0%}); largest: {', '.join(first[:3])}"
    )


def _whole(part: Whole) -> Chart:
    parts = ranked(part.parts)
    whole = part.capacity or part.whole or sum(parts.values())
    of = " of the capacity" if part.capacity else ""
    rows = [(name, amount, amount / whole) for name, amount in parts.items()]
    table = Table(("part", f"amount [{part.unit}]", f"share{of} [%]"), rows)
    if part.capacity:
        columns = [f"{name} [{part.unit}]" for name in parts]
        data = Table(("", *columns), [("device", *parts.values())])
        plot = Plot(part.title, told(part), "stacked", data, part.capacity, "capacity")
        return replace(_plot(plot), table=written(table))
    label, scale = _scale(part.unit, parts.values())
    spec = charts.bars(
        list(parts), [amount / scale for amount in parts.values()],
        [f"{shown(amount, part.unit)}, {share:.1%}" for _, amount, share in rows],
        f"{_quantity(part.unit)}{label}",
    )  # fmt: skip
    return Chart(part.title, told(part), spec, written(table))


def _quantity(unit: str) -> str:
    """Return the quantity of a unit, as the name of an axis."""
    return {"s": "time", "bytes": "memory", "J": "energy", "#": "count"}.get(unit, "amount")


def _scale(unit: str, amounts: Any) -> tuple[str, float]:
    """Return the unit of an axis in brackets, and its size in the unit of the values."""
    most = max((abs(amount) for amount in amounts if amount is not None), default=0.0)
    for name, size in SCALES.get(unit, ()):
        if most >= size or (name, size) == SCALES[unit][-1]:
            return f" [{name}]", size
    return ("" if unit in ("#", ">", "") else f" [{unit}]"), 1.0


def _plot(plot: Plot) -> Chart:
    """Return a plot as a chart, its numbers in the units of the axes."""
    names, units = zip(*map(named, plot.data.head), strict=True)
    columns = [list(column) for column in zip(*plot.data.rows, strict=True)]
    spec = FORMS[plot.form](plot, names, units, columns)
    return Chart(plot.title, plot.says, spec, written(plot.data))


Columns = Sequence[Sequence[Any]]


def _axis(unit: str, *columns: Sequence[Any], limit: float | None = None) -> tuple[str, float]:
    return _scale(unit, [value for column in (*columns, [limit]) for value in column])


def _bars(plot: Plot, names: Sequence[str], units: Sequence[str], columns: Columns) -> charts.Spec:
    label, size = _axis(units[1], columns[1], limit=plot.limit)
    return charts.bars(
        columns[0], [amount / size for amount in columns[1]],
        [shown(amount, units[1]) for amount in columns[1]], names[1] + label,
        limit=_limit(plot, size), limit_name=plot.limit_name + label,
    )  # fmt: skip


def _stacked(
    plot: Plot, names: Sequence[str], units: Sequence[str], columns: Columns
) -> charts.Spec:
    label, size = _axis(units[1], *columns[1:], limit=plot.limit)
    parts = {name: [(amount or 0.0) / size for amount in column]
             for name, column in zip(names[1:], columns[1:], strict=True)}  # fmt: skip
    return charts.stacked(
        columns[0], {name: parts[name] for name in parts if any(parts[name])} or parts,
        _quantity(units[1]) + label, row_title=names[0],
        limit=_limit(plot, size), limit_name=plot.limit_name + label,
    )  # fmt: skip


def _points(
    plot: Plot, names: Sequence[str], units: Sequence[str], columns: Columns
) -> charts.Spec:
    (x_label, x_size), (y_label, y_size) = (
        _axis(units[2], columns[2], limit=plot.limit), _axis(units[3], columns[3])
    )  # fmt: skip
    return charts.points(
        columns[0], [x / x_size for x in columns[2]], [y / y_size for y in columns[3]], columns[1],
        names[2] + x_label, names[3] + y_label, limit=_limit(plot, x_size),
        limit_name=plot.limit_name + x_label, is_brushed=plot.is_brushed,
    )  # fmt: skip


def _lines(plot: Plot, names: Sequence[str], units: Sequence[str], columns: Columns) -> charts.Spec:
    (x_label, x_size), (y_label, y_size) = (
        _axis(units[1], columns[1]), _axis(units[2], columns[2], limit=plot.limit)
    )  # fmt: skip
    return charts.lines(
        columns[0], [x / x_size for x in columns[1]], [y / y_size for y in columns[2]],
        names[1] + x_label, names[2] + y_label, series_title=names[0], limit=_limit(plot, y_size),
    )  # fmt: skip


def _spans(plot: Plot, names: Sequence[str], units: Sequence[str], columns: Columns) -> charts.Spec:
    label, size = _axis(units[1], *columns[1:])
    low, middle, high = ([value / size for value in column] for column in columns[1:])
    return charts.spans(columns[0], low, middle, high, _quantity(units[1]) + label)


def _limit(plot: Plot, size: float) -> float | None:
    return None if plot.limit is None else plot.limit / size


FORMS: Mapping[str, Callable[[Plot, Sequence[str], Sequence[str], Columns], charts.Spec]] = {
    "bars": _bars, "stacked": _stacked, "points": _points, "lines": _lines, "spans": _spans,
}  # fmt: skip
