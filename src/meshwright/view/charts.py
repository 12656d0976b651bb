"""Charts of reports and notebooks as Vega-Lite: data with its marks, nothing about HTML.

Colours are those of Okabe and Ito (2008), which readers with colour-blindness tell apart; text and
grid take the colours of the page. Every axis has a title with its unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#9a8c00", "#7f7f7f",
    "#5b4a9e", "#8c564b", "#2a9d8f", "#b5838d",
)  # fmt: skip
MARK = COLOURS[0]
ACCENT = COLOURS[5]
TICKS = 8
"""Number of ticks of an axis, about."""
ROW = 22
"""Height of a row of bars [px]."""
LABEL = 360
"""Width of the name of a row, at most [px]."""
WIDE = 10.0
"""Largest over least value, from which an axis of points is logarithmic."""
SMALL = 0.02
"""Axes that end nearer to 0 have numbers with prefixes."""
RATIOS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Ticks of ratios."""
UPRIGHT, CROSS = "M0,-1L0,1", "M-1,-1L1,1M-1,1L1,-1"
"""Shapes of marks: a stroke, and a cross for points that do not fit."""
ROOM = 1.2
"""Length of an axis over its longest bar, with room for words."""


MOST_LETTERS = 170
"""Letters inside bars over the width of a chart, at most."""
MIDDLE = 128
"""Lightness of 255 below which a colour is dark."""
ON_PALE, ON_DARK = "#10141b", "#fdfefe"
"""Words on a pale and on a dark cell, in any colours of the page."""
DARK = 0.65
"""Share of a scale from which cells are dark."""


def chart(**parts: Any) -> Spec:
    """Return a chart as wide as the page."""
    fit = {"type": "fit-x", "contains": "padding"}
    return {"$schema": SCHEMA, "width": "container", "autosize": fit, **parts}


def columns(**values: Sequence[Any]) -> Spec:
    """Return data from columns of equal length."""
    rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return {"values": rows}


def axis(field: str, title: str, **more: Any) -> Spec:
    """Return a channel of numbers."""
    ticks = {"axis": {"tickCount": TICKS, "labelFlush": True}}
    return {"field": field, "type": "quantitative", "title": title, **ticks, **more}


def tip(field: str, title: str) -> Spec:
    """Return a number for the tooltip."""
    return {"field": field, "type": "quantitative", "title": title, "format": ".4~g"}


def named(field: str, title: str) -> Spec:
    """Return a name for the tooltip."""
    return {"field": field, "type": "nominal", "title": title or None}


def names(field: str, title: str = "", **more: Any) -> Spec:
    """Return a channel of names, in the order of the data."""
    return named(field, title) | {"sort": None, **more}


def kind_of(name: str, *, where: str = "") -> list[Spec]:
    """Return transforms that give all entries one kind, and keep those that pass a test."""
    one = {"calculate": json.dumps(name), "as": "kind"}
    return [{"filter": where}, one] if where else [one]


def bars(
    labels: Sequence[str], amounts: Sequence[float], shown: Sequence[str], title: str, *,
    colour: str = MARK, limit: float | None = None, limit_name: str = "limit",
) -> Spec:  # fmt: skip
    """Return horizontal bars, each with its amount in words, and a line at a limit.

    Parameters
    ----------
    title
        Title of the axis, with its unit.
    """
    longest = max((*amounts, limit or 0.0), default=0.0)
    room = {"domainMax": ROOM * longest or 1.0, "nice": False}
    base = {"y": names("label", axis={"labelLimit": LABEL}),
            "x": axis("amount", title, scale=room, axis=_numbers(amounts, longest))}  # fmt: skip
    text = {"type": "text", "align": "left", "dx": 4}
    return chart(
        data=columns(label=labels, amount=amounts, shown=shown),
        height={"step": ROW},
        layer=[
            {"mark": {"type": "bar", "color": colour}, "encoding": base},
            {"mark": text, "encoding": base | {"text": {"field": "shown"}}},
            *_limit("x", limit, limit_name),
        ],
        encoding={"tooltip": [named("label", "part"), named("shown", "amount")]},
    )


def stacked(
    rows: Sequence[str], parts: Mapping[str, Sequence[float]], title: str, *,
    row_title: str, limit: float | None = None, limit_name: str = "capacity",
) -> Spec:  # fmt: skip
    """Return one stacked bar per row, and a line at a limit.

    Parameters
    ----------
    parts
        Amounts of each part, by row.
    """
    triples = [
        (row, part, amount)
        for part, amounts in parts.items()
        for row, amount in zip(rows, amounts, strict=True)
    ]
    row, part, amount = zip(*triples, strict=True)
    longest = max(map(sum, zip(*parts.values(), strict=True)))
    order = {name: number for number, name in enumerate(parts)}
    data = columns(row=row, part=part, amount=amount, order=[order[name] for name in part])
    segments = {
        "mark": "bar",
        "encoding": {
            "y": names("row", row_title, axis={"labelLimit": LABEL}),
            "x": axis("amount", title, axis=_numbers(amount, longest)),
            "color": names("part", "part", scale={"domain": list(parts), "range": _range(parts)}),
            "order": {"field": "order"},
            "tooltip": [named("row", row_title), named("part", "part"),
                        tip("amount", title)],
        },
    }  # fmt: skip
    return chart(data=data, height={"step": ROW}, layer=[segments, *_limit("x", limit, limit_name)])


def _numbers(amounts: Sequence[float], longest: float) -> Spec:
    """Return the number format of an axis: small numbers with a prefix (20m), counts whole."""
    ticks: Spec = {"tickCount": TICKS, "labelFlush": True}
    if 0.0 < longest < SMALL:
        return ticks | {"format": "~s"}
    return ticks | ({"tickMinStep": 1} if all(amount % 1 == 0 for amount in amounts) else {})


def _limit(channel: str, limit: float | None, name: str) -> list[Spec]:
    """Return a dashed line at a limit, with its name."""
    if limit is None:
        return []
    rule = {"type": "rule", "strokeDash": [5, 4], "color": ACCENT, "strokeWidth": 2}
    tip = {"value": f"{name}: {limit:.4g}"}
    return [{"data": {"values": [{}]}, "mark": rule,
             "encoding": {channel: {"datum": limit}, "tooltip": tip}}]  # fmt: skip


def lines(
    series: Sequence[str], xs: Sequence[float], ys: Sequence[float], x_title: str, y_title: str, *,
    series_title: str, limit: float | None = None, is_stepped: bool = False,
) -> Spec:  # fmt: skip
    """Return one line per series; stepped where a value holds until the next one."""
    mark: Spec = {"type": "line", "strokeWidth": 1.5}
    if is_stepped:
        mark["interpolate"] = "step-after"
    drawn = {
        "mark": mark,
        "encoding": {
            "x": axis("x", x_title, scale={"nice": False}),
            "y": axis("y", y_title),
            "color": names("series", series_title, scale={"range": list(COLOURS)}),
        },
    }
    data = columns(series=series, x=xs, y=ys)
    return chart(data=data, height=220, layer=[drawn, *_limit("y", limit, "capacity")])


def points(
    labels: Sequence[str], xs: Sequence[float], ys: Sequence[float], kinds: Sequence[str],
    x_title: str, y_title: str, *, limit: float | None = None, limit_name: str = "limit",
    is_brushed: bool = False,
) -> Spec:  # fmt: skip
    """Return points by kind, in colour and in shape, the first ones on top; a line at a limit of x.

    An axis is logarithmic where its values span more than ``WIDE``. With ``is_brushed`` an area
    that a reader draws selects points.
    """
    kind_names = list(dict.fromkeys(kinds))
    drawn: Spec = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.9},
        "encoding": {
            "x": axis("x", x_title, scale=_scale(xs)),
            "y": axis("y", y_title, scale=_scale(ys)),
            "color": names("kind", "", scale={"domain": kind_names, "range": _range(kind_names)}),
            "shape": names("kind", "", scale={"domain": kind_names}),
            "tooltip": [named("label", "plan"), tip("x", x_title), tip("y", y_title)],
        },
    }
    if is_brushed:
        drawn["params"] = [{"name": "brush", "select": "interval"}]
        chosen = {"condition": {"param": "brush", "value": 0.9}, "value": 0.25}
        drawn["encoding"] |= {"opacity": chosen}
    data = columns(label=labels[::-1], x=xs[::-1], y=ys[::-1], kind=kinds[::-1])
    return chart(data=data, height=260, layer=[drawn, *_limit("x", limit, limit_name)])


def agreement(
    labels: Sequence[str], measured: Sequence[float], predicted: Sequence[float],
    kinds: Sequence[str], x_title: str, y_title: str,
) -> Spec:  # fmt: skip
    """Return predicted over measured values on logarithmic axes, with a line where both agree.

    The first kind is on top, in the accent colour.
    """
    spec = points(labels, measured, predicted, kinds, x_title, y_title)
    both = [*measured, *predicted]
    ends = [min(both) / ROOM, max(both) * ROOM]
    scale = {"type": "log", "domain": ends, "nice": False}
    (drawn,) = spec["layer"]
    drawn["encoding"]["color"]["scale"]["range"] = [ACCENT, MARK, COLOURS[3]]
    drawn["mark"] |= {"size": 40, "opacity": 0.7}
    drawn["encoding"]["tooltip"][0]["title"] = "row"
    for channel in ("x", "y"):
        drawn["encoding"][channel]["scale"] = scale
    line = {
        "data": {"values": [{"x": end, "y": end} for end in ends]},
        "mark": {"type": "line", "color": COLOURS[7], "strokeWidth": 1.5},
        "encoding": {"x": axis("x", x_title, scale=scale), "y": axis("y", y_title, scale=scale)},
    }
    return spec | {"height": 440, "layer": [line, drawn]}


def heat(
    rows: Sequence[str], columns_: Sequence[str], amounts: Sequence[float], shown: Sequence[str],
    notes: Sequence[str], row_order: Sequence[str], column_order: Sequence[str],
    row_title: str, column_title: str, title: str, *,
    misfits: Sequence[tuple[str, str]] = (),
) -> Spec:  # fmt: skip
    """Return cells coloured by an amount, each with it in words; steps of ratios if wide.

    Parameters
    ----------
    notes
        Further text of a cell, in its tooltip.
    title
        Title of the amounts.
    misfits
        Row and column of cells without a point that fits: a cross.
    """
    low, high, by_ratio = min(amounts, default=0.0), max(amounts, default=0.0), is_wide(amounts)
    dark = low ** (1 - DARK) * high**DARK if by_ratio else (1 - DARK) * low + DARK * high
    base = {
        "y": names("row", row_title) | {"sort": list(row_order), "axis": {"labelLimit": LABEL}},
        "x": names("column", column_title) | {"sort": list(column_order),
                                              "axis": {"labelAngle": 0, "orient": "top"}},
    }  # fmt: skip
    colour = {"field": "amount", "type": "quantitative", "title": title,
              "legend": {"titleLimit": LABEL},
              "scale": {"scheme": "blues", "type": "log" if by_ratio else "linear"}}  # fmt: skip
    ink = {"condition": {"test": f"datum.amount > {dark!r}", "value": ON_DARK},
           "value": ON_PALE}  # fmt: skip
    crosses = {
        "data": {"values": [{"row": row, "column": column} for row, column in misfits]},
        "transform": kind_of("nothing fits"),
        "mark": {"type": "point", "size": 60, "color": COLOURS[7]},
        "encoding": base | {"shape": names("kind", scale={"range": [CROSS]}),
                            "tooltip": {"value": "nothing fits"}},
    }  # fmt: skip
    return chart(
        data=columns(row=rows, column=columns_, amount=amounts, shown=shown, note=notes),
        height={"step": 34},
        encoding={"tooltip": [named("row", row_title), named("column", column_title),
                              named("shown", title), named("note", "from")]},
        layer=[
            {"mark": {"type": "rect", "stroke": "#ffffff"}, "encoding": base | {"color": colour}},
            {"mark": "text", "encoding": base | {"text": {"field": "shown"}, "color": ink}},
            *([crosses] if misfits else []),
        ],
    )  # fmt: skip


def is_wide(values: Iterable[float]) -> bool:
    """Return whether values span so much that they are shown by their ratios."""
    known = list(values)
    return bool(known) and 0.0 < WIDE * min(known) < max(known)


def _scale(values: Sequence[float]) -> Spec:
    """Return a scale that shows values apart: logarithmic where they span much."""
    return {"type": "log"} if is_wide(values) else {"zero": False}


def spans(
    labels: Sequence[str], lows: Sequence[float], middles: Sequence[float],
    highs: Sequence[float], title: str,
) -> Spec:  # fmt: skip
    """Return a span and its middle for each name: an interval and the expected value."""
    y = names("label", axis={"labelLimit": LABEL})
    x = axis("low", title, scale={"zero": False})
    tips = [named("label", "plan"), *(tip(end, end) for end in ("low", "middle", "high"))]
    return chart(
        data=columns(label=labels, low=lows, middle=middles, high=highs),
        height={"step": ROW},
        encoding={"y": y, "tooltip": tips},
        layer=[
            {"mark": {"type": "bar", "color": MARK, "opacity": 0.5, "height": 10},
             "encoding": {"x": x, "x2": {"field": "high"}}},
            {"mark": {"type": "tick", "color": MARK, "thickness": 3, "height": 16},
             "encoding": {"x": axis("middle", title)}},
        ],
    )  # fmt: skip


def strips(
    rows: Sequence[str], ratios: Sequence[float], kinds: Sequence[str], row_order: Sequence[str],
    title: str,
) -> Spec:  # fmt: skip
    """Return a row of thin marks for each name, above it a bar over the middle half and a median.

    Parameters
    ----------
    ratios
        Values, drawn on a logarithmic axis with a line at 1.
    row_order
        The names from top to bottom, each once.
    """
    ends = [min(*ratios, 1.0) / ROOM, max(*ratios, 1.0) * ROOM]
    x = axis("ratio", title, scale={"type": "log", "domain": ends, "nice": False})
    x["axis"] = {"values": [tick for tick in RATIOS if ends[0] <= tick <= ends[1]]}
    kind_names = list(dict.fromkeys(kinds))
    y = names("row", axis={"labelLimit": LABEL}) | {"sort": list(row_order)}
    colour = names("kind", scale={"domain": kind_names, "range": _range(kind_names)})
    thin = {"type": "tick", "thickness": 1, "height": 14, "opacity": 0.45}
    half = {"type": "bar", "height": 5, "color": COLOURS[7]}
    middle = {"type": "tick", "thickness": 3, "height": 16, "color": ACCENT}
    line = {"type": "rule", "strokeDash": [5, 4], "color": COLOURS[7]}
    told = [named("row", "of"), tip("ratio", title)]
    whole = {"aggregate": "q1"}, {"field": "ratio", "aggregate": "q3"}
    at_one = {key: value for key, value in x.items() if key != "field"} | {"datum": 1.0}
    return chart(
        data=columns(row=rows, ratio=[float(f"{ratio:.4g}") for ratio in ratios], kind=kinds),
        height={"step": ROW},
        layer=[
            {"data": {"values": [{}]}, "mark": line, "encoding": {"x": at_one}},
            {"mark": thin, "encoding": {"y": y, "x": x, "color": colour, "tooltip": told}},
            {"mark": half, "encoding": {"y": y, "x": x | whole[0], "x2": whole[1]}},
            {"mark": middle, "encoding": {"y": y, "x": x | {"aggregate": "median"}}},
        ],
    )  # fmt: skip


def spreads(
    rows: Sequence[str], kinds: Sequence[str], firsts: Sequence[float], lasts: Sequence[float],
    ends: tuple[str, str], title: str,
) -> Spec:  # fmt: skip
    """Return a line in each row and kind, from a point to a stroke, on a logarithmic axis.

    Parameters
    ----------
    ends
        Names of the point and of the stroke.
    """
    kind_names = list(dict.fromkeys(kinds))
    x = axis("first", title, scale={"type": "log", "nice": False, "padding": 10})
    base = {"y": names("row", axis={"labelLimit": LABEL}),
            "yOffset": names("of", scale={"domain": kind_names}),
            "color": names("of", legend={"columns": 1},
                           scale={"domain": kind_names, "range": _range(kind_names)})}  # fmt: skip
    grey = {"symbolStrokeColor": COLOURS[7], "symbolFillColor": COLOURS[7]}
    shape = names("kind", legend={"title": None, "columns": 1, **grey},
                  scale={"domain": list(ends), "range": ["circle", UPRIGHT]})  # fmt: skip
    point = {"type": "point", "size": 50, "opacity": 1}
    return chart(
        data=columns(row=rows, of=kinds, first=firsts, last=lasts),
        height={"step": ROW // 2, "for": "offset"},
        encoding={"tooltip": [named("row", "of"), named("of", ""), tip("first", ends[0]),
                              tip("last", ends[1])]},
        layer=[
            {"mark": {"type": "rule", "strokeWidth": 2},
             "encoding": base | {"x": x, "x2": {"field": "last"}}},
            {"mark": point | {"filled": True}, "transform": kind_of(ends[0]),
             "encoding": base | {"x": x, "shape": shape}},
            {"mark": point, "transform": kind_of(ends[1]),
             "encoding": base | {"x": x | {"field": "last"}, "shape": shape}},
        ],
    )  # fmt: skip


def timeline(
    rows: Sequence[str], starts: Sequence[float], ends: Sequence[float], kinds: Sequence[str],
    labels: Sequence[str], colours: Mapping[str, str], x_title: str, row_title: str,
    label_title: str,
) -> Spec:  # fmt: skip
    """Return one row per stage with its tasks over time; drag to pan, scroll to zoom.

    Parameters
    ----------
    labels
        Words inside bars with room for them, and in the tooltip.
    colours
        Colour of each kind, in the order of the legend.
    """
    shown = [kind for kind in colours if kind in set(kinds)]
    base = {"y": names("row", row_title)}
    known = {"domain": shown, "range": [colours[kind] for kind in shown]}
    a_letter = (max(ends) - min(starts)) / MOST_LETTERS
    is_dark = f"indexof({json.dumps(_dark(known))}, datum.kind) >= 0"
    return chart(
        data=columns(row=rows, start=starts, end=ends, kind=kinds, label=labels),
        height={"step": ROW},
        params=[{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]},
                 "bind": "scales", "views": ["tasks"]}],
        layer=[
            {"name": "tasks", "mark": {"type": "bar", "clip": True},
             "encoding": base | {
                 "x": axis("start", x_title, scale={"nice": False, "zero": False},
                           axis=_numbers(ends, max(ends))),
                 "x2": {"field": "end"},
                 "color": names("kind", "", scale=known,
                                legend={"columns": 6, "labelLimit": LABEL}),
                 "tooltip": [named("row", row_title), named("kind", "task"),
                             named("label", label_title), tip("start", "from [s]"),
                             tip("end", "to [s]")]}},
            {"mark": {"type": "text", "fontSize": 9, "clip": True},
             "transform": [{"filter": "datum.label && datum.end - datum.start > "
                                     f"(length(datum.label) + 1) * {a_letter!r}"},
                           {"calculate": "(datum.start + datum.end) / 2", "as": "middle"}],
             "encoding": base | {
                 "x": axis("middle", x_title, scale={"nice": False, "zero": False}),
                 "text": {"field": "label"},
                 "color": {"condition": {"test": is_dark, "value": ON_DARK}, "value": ON_PALE}}},
        ],
    )  # fmt: skip


def boxes(
    lefts: Sequence[float], rights: Sequence[float], lows: Sequence[float],
    highs: Sequence[float], kinds: Sequence[str], labels: Sequence[str], notes: Sequence[str],
    x_title: str, y_title: str, height: int, note_title: str,
) -> Spec:  # fmt: skip
    """Return rectangles between numbers on both axes, each with words inside that have room.

    Parameters
    ----------
    kinds
        Colour of each rectangle, by name; a label says the name.
    notes
        Further words of each, in the tooltip.
    """
    kind_names, a_letter = list(dict.fromkeys(kinds)), (max(rights) - min(lefts)) / MOST_LETTERS
    scale = {"nice": False}
    low = axis("low", y_title, scale=scale)
    return chart(
        data=columns(left=lefts, right=rights, low=lows, high=highs, kind=kinds, label=labels,
                     note=notes),
        height=height,
        layer=[
            {"mark": {"type": "rect", "fillOpacity": 0.4, "stroke": COLOURS[7]},
             "encoding": {
                 "x": axis("left", x_title, scale=scale, axis=_numbers(rights, max(rights))),
                 "x2": {"field": "right"},
                 "y": low, "y2": {"field": "high"},
                 "color": names("kind", legend=None, scale={"domain": kind_names,
                                                            "range": _range(kind_names)}),
                 "tooltip": [named("label", "of"), named("note", note_title),
                             tip("left", "from"), tip("right", "to")]}},
            {"mark": {"type": "text", "fontSize": 10},
             "transform": [
                 {"filter": f"datum.right - datum.left > (length(datum.label) + 1) * {a_letter!r}"
                            f" && datum.high - datum.low > {10 * max(highs) / height!r}"},
                 {"calculate": "(datum.left + datum.right) / 2", "as": "x"},
                 {"calculate": "(datum.low + datum.high) / 2", "as": "y"}],
             "encoding": {"x": axis("x", x_title, scale=scale), "y": low | {"field": "y"},
                          "text": {"field": "label"}}},
        ],
    )  # fmt: skip


def _dark(scale: Spec) -> list[str]:
    """Return the names with a colour so dark that words on it are pale."""
    weights = (0.299, 0.587, 0.114)
    light = [
        sum(w * int(colour[at : at + 2], 16) for w, at in zip(weights, (1, 3, 5), strict=True))
        for colour in scale["range"]
    ]
    return [name for name, each in zip(scale["domain"], light, strict=True) if each < MIDDLE]


def _range(named: Mapping[str, Any] | Sequence[str]) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(named))]
