"""How the table of a study is drawn: stated as data, turned into a Vega-Lite chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import Any, Literal

from meshwright.base.units import format_si
from meshwright.view import charts
from meshwright.view.charts import ACCENT, COLOURS, CROSS, MARK, ROW, Spec, names
from meshwright.view.svg import INK, svg_of
from meshwright_papers.studies.columns import RATIO, SAVED, SHARE, unit_of, words_of

Mark = Literal["bars", "stack", "dots", "lines", "pairs"]
"""Bars start at zero; parts are stacked; dots are for ratios and for values over decades; lines run
over a numeric axis; pairs set the second column of numbers over the first."""


@dataclass(frozen=True)
class Drawing:
    """Which columns a chart shows, and how."""

    title: str
    """Question or content of the chart."""
    subtitle: str
    """Subject and setting."""
    mark: Mark
    values: tuple[str, ...]
    """Columns of numbers, of one unit; colours tell them apart where there is more than one."""
    along: str
    """Column of the other axis."""
    colour: str = ""
    """Column with entries in different colours."""
    panels: str = ""
    """Column with a panel for each of its entries."""
    across: int = 3
    """Panels beside each other."""
    apart: Literal["", "x", "y"] = ""
    """Axis that is separate for each panel."""
    is_offset: bool = True
    """Whether colours of one row lie one below another."""
    measure: str = ""
    """Measure that several columns of numbers share."""
    over: str = ""
    """Column by which numbers are divided."""
    published: str = ""
    """Column of published numbers, drawn beside ours."""
    limit: tuple[float, str] | None = None
    """Position of a line, in the unit of the numbers, and its name."""
    fits: Mapping[str, str] = field(default_factory=dict)
    """Column of flags of each column of numbers: false where the number does not fit."""
    misfit: str = "does not fit"
    """Meaning of a cell without a number."""


MARKS: Mapping[Mark, Spec] = {
    "bars": {"type": "bar", "color": MARK},
    "stack": {"type": "bar"},
    "dots": {"type": "point", "filled": True, "opacity": 1, "size": 50, "color": MARK},
    "lines": {"type": "line", "color": MARK, "point": {"size": 40}},
}
SIDE = {1: 430, 2: 235, 3: 175}
"""Width of a panel by the number beside each other [px]."""
TALL, BAR_ROW, DOT_ROW = 180, 13, 9
"""Height of a panel of lines, and of each of several bars or dots in a row [px]."""
THICK, SLIGHT = 5.0, 1.5
"""Width of the first line and of the last, so that none hides another [px]."""
WIDE = 8.0
"""Largest over least number, from which dots and lines are on a logarithmic axis."""
LARGE = 1e4
"""Numbers from which an axis has prefixes, such as 20k."""
MANY = 16
"""Most bars with their numbers beside them."""
LEGEND = 110
"""Letters of the names in a line of a legend, at most."""
EDGE = 8
"""Distance from the end of an axis to the crosses of rows without a number [px]."""
DIGITS = (
    (1.5, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)),
    (4.0, (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)),
    (20.0, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)), (300.0, (1.0, 2.0, 5.0)),
)  # fmt: skip
"""First digits of the ticks of a logarithmic axis, by its last over its first number at most."""
SAID = ("case", "configuration", "figure", "form", "hbm", "kind", "machine", "memory", "model",
        "network", "reading", "run", "setting", "switching", "system", "wafer")  # fmt: skip
"""Columns with entries that explain themselves, so that their axis needs no title."""

Entry = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """The axis of the numbers of a table."""

    title: str
    factor: float
    """Factor from the numbers of the table to the drawn ones."""
    form: str
    """Format of the numbers of its ticks, in the language of D3."""
    scale: Spec
    ticks: list[float] | None
    """None: as Vega-Lite chooses them."""
    is_ratio: bool

    @property
    def channel(self) -> Spec:
        """Title, ticks and scale, as Vega-Lite has them."""
        axis = {"format": self.form, **({"values": self.ticks} if self.ticks else {"tickCount": 5})}
        return {"type": "quantitative", "title": self.title, "axis": axis, "scale": self.scale}

    def text(self, value: float) -> str:
        """Return a number as it stands beside a bar."""
        return f"{value:.1%}" if self.form.endswith("%") else format_si(value, "").strip()


def drawing_svg(columns: Sequence[str], rows: Sequence[Sequence[Any]], how: Drawing) -> str:
    """Return a table as SVG; empty where it holds no numbers."""
    spec = drawing_spec(columns, rows, how)
    return svg_of(spec, how.title, how.subtitle, width=SIDE[1]) if spec else ""


def drawing_spec(columns: Sequence[str], rows: Sequence[Sequence[Any]], how: Drawing) -> Spec:
    """Return the chart of a table; empty where it holds no numbers."""
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    entries = [entry for record in records for entry in _entries(record, how)]
    if all(entry["value"] is None for entry in entries):
        return {}
    if how.mark == "pairs":
        return _pairs(records, how)
    measure = _measure(entries, how)
    for entry in entries:
        for key in ("value", "published"):
            if entry.get(key) is not None:
                entry[key] *= measure.factor
    panels = list(dict.fromkeys(entry["panel"] for entry in entries))
    across = min(how.across, len(panels))
    panel = _panel(entries, how, measure, SIDE[across])
    if not how.panels:
        return {"data": {"values": entries}, **panel}
    facet = names("panel", header={"title": None}) | {"sort": panels}
    apart = {"resolve": {"scale": {how.apart: "independent"}}} if how.apart else {}
    return {"data": {"values": entries}, "facet": facet, "columns": across, "spec": panel, **apart}


def _entries(record: Mapping[str, Any], how: Drawing) -> Iterator[Entry]:
    """Yield the drawn entries of a row: one for each column of numbers."""
    base = _number(record, how.over) if how.over else 1.0
    for order, name in enumerate(how.values):
        value = _number(record, name)
        value = None if value is None or not base else value / base
        misfits = value is None or record.get(how.fits.get(name, "")) in ("no", False)
        yield {
            "along": record[how.along],
            "panel": str(record[how.panels]) if how.panels else "",
            "series": str(record[how.colour]) if how.colour else words_of(name),
            "order": order,
            "value": value,
            **({"misfit": how.misfit} if misfits else {}),
            **({"published": _number(record, how.published)} if how.published else {}),
        }


def _number(record: Mapping[str, Any], name: str) -> float | None:
    """Return the number drawn for a column; None where it has no number."""
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return 1.0 - value / 100.0 if unit_of(name) == SAVED else float(value)


def _measure(entries: Sequence[Entry], how: Drawing) -> Measure:
    """Return the axis that shows all numbers apart; one of ratios shows where both are equal."""
    unit = unit_of(how.values[0])
    is_ratio = bool(how.over) or unit in (RATIO, SAVED)
    known = [entry[key] for entry in entries for key in ("value", "published")
             if entry.get(key) is not None]  # fmt: skip
    known += [1.0] if is_ratio else []
    low, high = min(known), max(known)
    title = how.measure or words_of(how.values[0])
    factor, form = 1.0, ",~f" if high < LARGE else "~s"
    if unit == SHARE:
        form = ".0%" if high >= 0.1 else ".1%"
    elif not is_ratio and unit:
        factor, unit = (1e3, "ms") if unit == "s" and high < 1.0 else (1.0, unit)
        title = f"{title} [{unit}]"
    low, high = factor * low, factor * high
    is_wide = high > WIDE * low and how.mark in ("dots", "lines") and not how.apart
    if low > 0.0 and (is_ratio or is_wide):
        room = 1.03 * (high / low) ** 0.05
        has_misfits = any(entry["value"] is None for entry in entries)
        ends = [low / room, high * room ** (3 if has_misfits else 1)]
        scale = {"type": "log", "domain": ends, "nice": False}
        return Measure(title, factor, form, scale, _ticks(*ends), is_ratio)
    scale = {"zero": how.mark != "dots"}
    if how.mark == "bars":
        scale |= {"domainMax": high * charts.ROOM}
    return Measure(title, factor, form, scale, None, is_ratio)


def _ticks(low: float, high: float) -> list[float]:
    """Return neat numbers of a logarithmic axis."""
    digits = next((found for most, found in DIGITS if high <= most * low), (1.0,))
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    every = (float(f"{digit * 10.0**power:.6g}") for power in powers for digit in digits)
    return [value for value in every if low <= value <= high]


def _panel(entries: Sequence[Entry], how: Drawing, measure: Measure, width: int) -> Spec:
    """Return one panel: marks, missing numbers, published numbers, and lines."""
    value, along = ("y", "x") if how.mark == "lines" else ("x", "y")
    series = list(dict.fromkeys(entry["series"] for entry in entries))
    place: Spec = {along: _along(entries, how)}
    look: Spec = {}
    height: Any = TALL if how.mark == "lines" else {"step": ROW}
    if len(series) > 1:
        look["color"] = _colours(series, "" if how.colour in ("", *SAID) else how.colour)
        if how.mark == "lines":
            steps = [THICK - (THICK - SLIGHT) * n / (len(series) - 1) for n in range(len(series))]
            widths = {"domain": series, "range": steps}
            look["strokeWidth"] = names("series", scale=widths, legend=None)
        elif how.mark != "stack" and how.is_offset:
            place["yOffset"] = names("series", scale={"domain": series})
            height = {"step": DOT_ROW if how.mark == "dots" else BAR_ROW, "for": "offset"}
    if how.mark == "stack":
        look["order"] = {"field": "order"}
    number = {"field": "value", **measure.channel}
    layers = [*_lines(how, measure, value),
              {"mark": MARKS[how.mark], "encoding": {**place, **look, value: number}}]  # fmt: skip
    if how.mark == "bars" and len(entries) <= MANY:
        layers.append(_numbers(entries, how, measure, {**place, value: number}))
    layers += _others(entries, how, place, {value: number}, width)
    return {"width": width, "height": height, "layer": layers}


def _along(entries: Sequence[Entry], how: Drawing) -> Spec:
    """Return the axis of names, or that of numbers over which lines run."""
    values = list(dict.fromkeys(entry["along"] for entry in entries))
    title = words_of(how.along)
    if how.mark != "lines":
        order = sorted(values) if all(isinstance(value, int) for value in values) else values
        axis = {"grid": how.mark == "dots"}
        return names("along", "" if how.along in SAID else title, axis=axis) | {"sort": order}
    form = ".0%" if unit_of(how.along) == SHARE else ",~f"
    is_wide = 0.0 < WIDE * min(values) <= max(values)
    scale: Spec = {"type": "log", "base": 2, "nice": False} if is_wide else {}
    ticks = {"format": form, "values": sorted(values)}
    return charts.axis("along", title, scale=scale, axis=ticks)


def _colours(series: Sequence[str], title: str) -> Spec:
    """Return colours that tell series apart, with a legend that has a title where one is needed."""
    shades = [COLOURS[number % len(COLOURS)] for number in range(len(series))]
    legend = {"title": words_of(title) if title else None,
              "columns": max(LEGEND // max(map(len, series)), 1)}  # fmt: skip
    return names("series", scale={"domain": list(series), "range": shades}, legend=legend)


def _numbers(entries: Sequence[Entry], how: Drawing, measure: Measure, place: Spec) -> Spec:
    """Return the numbers beside bars, beyond the crosses of those that do not fit."""
    for entry in entries:
        entry["shown"] = "" if entry["value"] is None else measure.text(entry["value"])
    return {"mark": {"type": "text", "align": "left", "dx": EDGE if how.fits else EDGE // 2},
            "encoding": {**place, "text": {"field": "shown"}}}  # fmt: skip


def _lines(how: Drawing, measure: Measure, channel: str) -> Iterator[Spec]:
    """Yield lines where both are equal, and at a limit, each with its name above."""
    lines = [(1.0, "equal", INK)] if measure.is_ratio else []
    lines += [(*how.limit, ACCENT)] if how.limit else []
    is_level = channel == "y"
    for at, name, colour in lines:
        place = {channel: {"datum": at, **measure.channel}}
        data: Spec = {"values": [{}]}
        rule = {"type": "rule", "color": colour, "strokeDash": [4, 3]}
        beyond = {"x": {"value": "width"}} if is_level else {"y": {"value": -3}}
        look = {"align": "right", "dy": -6} if is_level else {"baseline": "bottom"}
        yield {"data": data, "mark": rule, "encoding": place}
        yield {"data": data, "mark": {"type": "text", "color": colour, **look},
               "encoding": {**place, **beyond, "text": {"value": name}}}  # fmt: skip


def _others(
    entries: Sequence[Entry], how: Drawing, place: Spec, number: Spec, width: int
) -> Iterator[Spec]:
    """Yield hollow marks for published numbers, and crosses for rows that do not fit.

    A cross is at its number, or at the end of the axis where there is none.
    """
    misfits = [entry for entry in entries if "misfit" in entry]
    shapes = {**({"published": "diamond"} if how.published else {}),
              **({how.misfit: CROSS} if misfits else {})}  # fmt: skip
    scale = {"domain": list(shapes), "range": list(shapes.values())}
    legend = {"title": None, "symbolStrokeColor": INK}
    mark = {"type": "point", "filled": False, "opacity": 1, "size": 50, "stroke": INK}
    (channel,) = number
    end = EDGE if how.mark in ("bars", "stack", "lines") else width - EDGE

    def layer(which: str, at: Spec, name: str) -> Spec:
        shape = names("kind", scale=scale, legend=legend)
        return {"transform": charts.kind_of(name, where=which), "mark": mark,
                "encoding": {**place, channel: at, "shape": shape}}  # fmt: skip

    if how.published:
        yield layer("isValid(datum.published)", number[channel] | {"field": "published"},
                    "published")  # fmt: skip
    if any(entry["value"] is not None for entry in misfits):
        yield layer("isValid(datum.misfit) && isValid(datum.value)", number[channel], how.misfit)
    if any(entry["value"] is None for entry in misfits):
        yield layer("!isValid(datum.value)", {"value": end}, how.misfit)


def _pairs(records: Sequence[Mapping[str, Any]], how: Drawing) -> Spec:
    """Return one column of numbers over another, with a line where both are equal."""
    xs, ys = ([record[name] for record in records] for name in how.values)
    titles = [f"{words_of(name)} [{unit_of(name)}]" for name in how.values]
    labels = [str(record[how.along]) for record in records]
    spec = charts.agreement(labels, xs, ys, [""] * len(labels), *titles)
    _, drawn = spec["layer"]
    for channel in ("color", "shape"):
        del drawn["encoding"][channel]
    drawn["mark"]["color"] = MARK
    return spec | {"height": SIDE[1]}
