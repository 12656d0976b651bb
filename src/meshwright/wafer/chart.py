"""The map of a wafer as a chart: devices true to scale, arrows of link loads, faults."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.topology.network import Network
from meshwright.view import charts
from meshwright.view.parts import Chart
from meshwright.view.svg import svg_of
from meshwright.wafer.picture import (
    MOST_GROUPS,
    WaferMap,
    group_letter,
    load_in_words,
    place_of,
    wafer_text,
)

PITCH, GAP = 112.0, 44.0
"""Distance of neighbours along the narrower side, and room for links between them [px]."""
IO_HALF = 9.0
"""Half of the side of an IO die or a switch [px]."""
MARGIN = 38.0
"""Around the grid: room for links that close a ring [px]."""
LINE = 13.0
"""Distance of lines of a label [px]."""
NARROWEST, WIDEST = 1.6, 11.0
"""Width of an arrow of an idle link and of a full one [px]."""
HEAD = 2.5
"""Width of the head of an arrow beyond its shaft on either side [px]."""
APART = 8.5
"""Distance of a link from the middle of its wire [px]."""
CLEARANCE = 2.0
"""Clearance between an arrow and the boxes that it joins [px]."""
NOMINAL_PITCH_M = 0.5
"""Devices farther apart than this are at places without a meaning."""
HEAT = ("#d9b95c", "#f08c3c", "#cf3a2b", "#8c1030")
"""Colours of a link, from nearly idle to full."""
GREY, DIE = "#8a92a0", "#7a8391"
TRIANGLE = "M0,-1L0,1L2,0Z"
ENTRY = 120.0
"""Width of an entry of the legend [px]."""
TEXTS: dict[str, charts.Spec] = {
    "number": {"fontSize": 16, "fontWeight": 600},
    "rank": {"fontSize": 10, "lineBreak": "\n", "baseline": "top"},
    "letter": {"fontSize": 12, "fontWeight": 700, "align": "left"},
    "speed": {"fontSize": 10, "align": "right"},
}
"""Words on a device, by their field."""
AS_IS = {"type": "quantitative", "scale": None}
"""Channel with values that are lengths or angles of the drawing."""


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre and half of its sides [px]."""

    x: float
    y: float
    half_width: float
    half_height: float

    @property
    def sides(self) -> dict[str, float]:
        """Its edges as the channels of a chart."""
        return {
            "x": self.x - self.half_width, "x2": self.x + self.half_width,
            "y": self.y - self.half_height, "y2": self.y + self.half_height,
        }  # fmt: skip

    def reach(self, along: tuple[float, float]) -> float:
        """Return the distance of the edge from the centre in a direction [px]."""
        if self.half_width == 0:
            return 0.0
        sides = ((self.half_width, along[0]), (self.half_height, along[1]))
        return min(half / abs(part) for half, part in sides if abs(part) > 1e-9)


@dataclass(frozen=True)
class Canvas:
    """Boxes of all nodes; the corner of the outermost ones is at (0, 0) [px]."""

    boxes: tuple[Box, ...]
    width: float
    height: float
    pixels_per_m: float
    pitches_m: tuple[float, ...]
    """Distance of neighbours along a row and along a column; 0 where there is one only [m]."""
    seams: tuple[float, ...]
    """Middle of the gaps between columns that are wider than between neighbours [px]."""


def make_canvas(network: Network) -> Canvas:
    """Return the boxes of the nodes of a grid, drawn true to scale.

    Devices fill their pitch but for the room of the links; IO dies are small squares.
    """
    steps = [np.diff(np.unique(coordinates)) for coordinates in place_of(network).T]
    pitches = [float(each.min()) if len(each) else 0.0 for each in steps]
    known = [one for one in pitches if one > 0] or [1.0]
    scale = PITCH / min(known)
    half = [(scale * (one or known[0]) - GAP) / 2 for one in pitches]
    halves: FloatArray = np.full((network.num_nodes, 2), IO_HALF)
    halves[: network.num_devices] = half
    centres = network.position_m * scale
    corner = (centres - halves).min(axis=0)
    width, height = ((centres + halves).max(axis=0) - corner).tolist()
    columns = np.unique(place_of(network)[:, 0])
    wide = np.flatnonzero(np.diff(columns) > 1.01 * pitches[0])
    seams = (columns[wide] + columns[wide + 1]) / 2 * scale - corner[0]
    boxes = tuple(Box(*row) for row in np.hstack([centres - corner, halves]).tolist())
    return Canvas(boxes, width, height, scale, tuple(pitches), tuple(seams.tolist()))


class Arrow(NamedTuple):
    """An arrow from one point to another [px]."""

    x: float
    y: float
    x2: float
    y2: float

    @property
    def length(self) -> float:
        """Distance from the tail to the tip [px]."""
        return math.hypot(self.x2 - self.x, self.y2 - self.y)

    @property
    def direction(self) -> tuple[float, float]:
        """Unit vector along the arrow."""
        return (self.x2 - self.x) / self.length, (self.y2 - self.y) / self.length


def arrows_of(source: int, target: int, canvas: Canvas) -> Iterator[Arrow]:
    """Yield the arrow of a link, on the right-hand side of its wire.

    A link that would cross other boxes, as one that closes a ring, is drawn as two short arrows
    that leave the grid at one end and enter it at the other.
    """
    here, there = canvas.boxes[source], canvas.boxes[target]
    wire = Arrow(here.x, here.y, there.x, there.y)
    along, length = wire.direction, wire.length
    others = [box for node, box in enumerate(canvas.boxes) if node not in (source, target)]
    is_long = length - here.reach(along) - there.reach(along) > 2 * GAP
    if not (is_long and any(_crosses(box, here, along, length) for box in others)):
        yield _between(here, there, along)
        return
    back = (-along[0], -along[1])
    for box, away, enters in ((here, back, False), (there, along, True)):
        reach = box.reach(away) + 0.8 * GAP
        outside = Box(box.x + away[0] * reach, box.y + away[1] * reach, 0.0, 0.0)
        yield _between(outside, box, back) if enters else _between(box, outside, back)


def _crosses(box: Box, start: Box, along: tuple[float, float], length: float) -> bool:
    """Tell whether a line of a length from the middle of a box runs through another one."""
    ahead = (box.x - start.x) * along[0] + (box.y - start.y) * along[1]
    aside = (box.y - start.y) * along[0] - (box.x - start.x) * along[1]
    return 0 < ahead < length and abs(aside) < min(box.half_width, box.half_height)


def _between(here: Box, there: Box, along: tuple[float, float]) -> Arrow:
    """Return the arrow from edge to edge of two boxes, moved to the right of its direction."""
    start, stop = here.reach(along) + CLEARANCE, there.reach(along) + CLEARANCE
    side_x, side_y = -along[1] * APART, along[0] * APART
    return Arrow(
        here.x + along[0] * start + side_x,
        here.y + along[1] * start + side_y,
        there.x - along[0] * stop + side_x,
        there.y - along[1] * stop + side_y,
    )


def map_spec(picture: WaferMap) -> charts.Spec:
    """Return the map as a chart: groups, ranks, link loads, faults."""
    canvas = make_canvas(picture.network)
    layers = [
        *_seams(canvas), *_devices(picture, canvas), *_links(picture, canvas),
        *_marks(picture, canvas),
    ]  # fmt: skip
    # Layers of the same rows share them.
    known = {id(layer["data"]): layer["data"] for layer in layers}
    names = {key: f"rows {number}" for number, key in enumerate(known)}
    for layer in layers:
        layer["data"] = {"name": names[id(layer["data"])]}
    return {
        "datasets": {names[key]: rows for key, rows in known.items()},
        "$schema": charts.SCHEMA, "width": round(canvas.width + 2 * MARGIN),
        "height": round(canvas.height + 2 * MARGIN), "view": {"stroke": None}, "layer": layers,
        "resolve": {"scale": {"color": "independent"}},
    }  # fmt: skip


def map_chart(picture: WaferMap) -> Chart:
    """Return the map as a part of a page."""
    return Chart("Devices, groups and load of links", words_of(picture), map_spec(picture),
                 text="\n".join(wafer_text(picture)))  # fmt: skip


def map_svg(picture: WaferMap) -> str:
    """Return the map as one SVG file."""
    spec = map_spec(picture)
    return svg_of(spec, picture.title, words_of(picture), width=spec["width"])


def words_of(picture: WaferMap) -> str:
    """Return the meaning of loads and marks, as far as they occur, in a sentence."""
    speed, network = picture.network.speed_factor, picture.network
    pitches_m = [pitch for pitch in make_canvas(network).pitches_m if pitch > 0]
    marks = {
        "pale devices have part of their cores": ((speed > 0) & (speed < 1)).any(),
        "crossed out: dead": (speed <= 0).any() or bool(picture.dead_wires),
        "grey devices have no work": ((picture.group < 0) & (speed > 0)).any(),
        "dark squares are IO dies": network.num_nodes > network.num_devices,
    }
    told = [f"Links: {picture.caption}; {picture.load_note}"]
    if pitches_m and max(pitches_m) <= NOMINAL_PITCH_M:
        told.append(f"devices {' and '.join(f'{1e3 * one:.3g} mm' for one in pitches_m)} apart")
    return "; ".join([*told, *(name for name, occurs in marks.items() if occurs)])


def _layer(
    rows: Sequence[dict[str, Any]], mark: charts.Spec, canvas: Canvas, at: str = "",
    **encoding: Any,
) -> charts.Spec:  # fmt: skip
    """Return marks at places of the canvas; an encoding of one word names a field of the rows.

    Parameters
    ----------
    at
        Prefix of the fields with the places.
    encoding
        Further channels; of a text, rows without words are left out.
    """
    channels = {
        axis: {
            "field": f"{at}{axis}", "type": "quantitative", "axis": None,
            "scale": {"domain": [-MARGIN, size + MARGIN], "nice": False, "reverse": axis == "y"},
        }
        for axis, size in (("x", canvas.width), ("y", canvas.height))
    }  # fmt: skip
    for name, channel in encoding.items():
        channels[name] = {"field": channel} if isinstance(channel, str) else channel
    if rows and "says" in rows[0]:
        channels["tooltip"] = {"field": "says"}
    worded = [{"filter": f"datum.{encoding['text']}"}] if "text" in encoding else []
    return {"data": rows, "mark": mark, "encoding": channels, "transform": worded}


def _seams(canvas: Canvas) -> Iterator[charts.Spec]:
    rows = [{"x": x, "y": -6.0, "y2": canvas.height, "word": "seam"} for x in canvas.seams]
    if rows:
        dotted = {"type": "rule", "strokeDash": [2, 5], "color": DIE}
        yield _layer(rows, dotted, canvas, y2="y2")
        yield _layer(rows, {"type": "text", "dy": -8, "fontSize": 12}, canvas, text="word")


def _devices(picture: WaferMap, canvas: Canvas) -> Iterator[charts.Spec]:
    """Yield the layers of the devices: their colour, number, group and rank, and their speed."""
    names = [f"{group_letter(at)} {name}" for at, name in enumerate(picture.group_names)]
    rows = []
    for device, box in enumerate(canvas.boxes[: picture.network.num_devices]):
        speed, group = float(picture.network.speed_factor[device]), int(picture.group[device])
        lines = picture.labels[device].splitlines()
        works = "dead" if speed <= 0 else f"{speed:.0%} of full speed"
        member = picture.group_names[group] if group >= 0 else "no work"
        says = ", ".join([f"device {device}", works, member, *lines])
        if speed <= 0:
            lines, group = [], -1
        top, corner = box.y - LINE * len(lines) / 2, box.y - box.half_height + 11
        rows.append({
            **box.sides, "number_x": box.x, "number_y": top, "number": str(device),
            "rank_x": box.x, "rank_y": top + 9.0, "rank": "\n".join(lines),
            "letter_x": box.x - box.half_width + 6, "letter_y": corner,
            "letter": group_letter(group) if group >= 0 else "",
            "speed_x": box.x + box.half_width - 6, "speed_y": corner,
            "speed": f"{speed:.0%}" if 0 < speed < 1 else "",
            "group": names[group] if group >= 0 else "-",
            "opacity": 0.0 if speed <= 0 else 0.4 if speed >= 1 else 0.15,
            "says": says,
        })  # fmt: skip
    fills = [charts.COLOURS[at % len(charts.COLOURS)] for at in range(len(names))]
    colour = {
        "field": "group", "title": None,
        "scale": {"domain": [*names, "-"], "range": [*fills, GREY]},
        "legend": {"values": names[:MOST_GROUPS], "columns": max(int(canvas.width // ENTRY), 1),
                   "symbolType": "square", "symbolOpacity": 0.5},
    }  # fmt: skip
    yield _layer(rows, {"type": "rect", "stroke": DIE, "cornerRadius": 6}, canvas, x2="x2",
                 y2="y2", color=colour, fillOpacity={"field": "opacity", **AS_IS})  # fmt: skip
    for field, mark in TEXTS.items():
        yield _layer(rows, {"type": "text", **mark}, canvas, f"{field}_", text=field)


def _links(picture: WaferMap, canvas: Canvas) -> Iterator[charts.Spec]:
    """Yield the layers of the arrows, the hottest on top, and of their loads in percent."""
    rows, shares = [], np.clip(picture.load_share, 0.0, 1.0).tolist()
    network = picture.network
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    for link in sorted(range(len(ends)), key=shares.__getitem__):
        share = shares[link]
        wide = NARROWEST + (WIDEST - NARROWEST) * share
        half, aside = wide / 2 + HEAD, wide / 2 + 7.0
        for arrow in arrows_of(*ends[link], canvas):
            along_x, along_y = arrow.direction
            rows.append({
                "x": arrow.x, "y": arrow.y, "wide": wide, "load": share,
                "neck_x": arrow.x2 - along_x * 2 * half, "neck_y": arrow.y2 - along_y * 2 * half,
                "size": 4 * half**2, "angle": math.degrees(math.atan2(along_y, along_x)),
                "text_x": (arrow.x + arrow.x2) / 2 - along_y * aside,
                "text_y": (arrow.y + arrow.y2) / 2 + along_x * aside,
                "percent": f"{100 * share:.0f}" if share >= 0.005 else "<1" if share else "",
                "says": f"{ends[link][0]} to {ends[link][1]}: {load_in_words(picture, link)}",
            })  # fmt: skip
    legend = {"format": ".0%", "gradientLength": 200, "values": [0, 0.25, 0.5, 0.75, 1],
              "orient": "bottom"}  # fmt: skip
    heat = {
        "condition": {"test": "datum.load == 0", "value": GREY}, "field": "load",
        "type": "quantitative", "title": "load of a link",
        "scale": {"domain": [0, 0.33, 0.67, 1], "range": list(HEAT)},
    }  # fmt: skip
    yield _layer(rows, {"type": "rule"}, canvas, x2="neck_x", y2="neck_y",
                 color=heat | {"legend": legend},
                 strokeWidth={"field": "wide", **AS_IS})  # fmt: skip
    head = {"type": "point", "shape": TRIANGLE, "filled": True, "opacity": 1}
    yield _layer(rows, head, canvas, "neck_", color=heat | {"legend": None},
                 size={"field": "size", **AS_IS}, angle={"field": "angle", **AS_IS})  # fmt: skip
    yield _layer(rows, {"type": "text", "fontSize": 9}, canvas, "text_", text="percent")


def _marks(picture: WaferMap, canvas: Canvas) -> Iterator[charts.Spec]:
    """Yield the layers of IO dies, and of crosses over dead devices and wires."""
    network, boxes = picture.network, canvas.boxes
    dies = [{**box.sides, "says": f"IO die {node}"}
            for node, box in enumerate(boxes) if node >= network.num_devices]  # fmt: skip
    if dies:
        yield _layer(dies, {"type": "rect", "color": DIE, "cornerRadius": 2}, canvas, x2="x2",
                     y2="y2")  # fmt: skip
    crosses = [
        {"x": boxes[device].x, "y": boxes[device].y, "size": boxes[device].half_width ** 2,
         "says": f"device {device}, dead"}
        for device in np.flatnonzero(network.speed_factor[: network.num_devices] <= 0).tolist()
    ]  # fmt: skip
    for first, second in picture.dead_wires:
        one, other = boxes[first], boxes[second]
        crosses.append({"x": (one.x + other.x) / 2, "y": (one.y + other.y) / 2, "size": 64.0,
                        "says": f"{first} and {second}: dead wire"})  # fmt: skip
    if crosses:
        size = {"field": "size", **AS_IS}
        yield _layer(crosses, {"type": "point", "shape": charts.CROSS, "color": charts.ACCENT,
                               "strokeWidth": 2, "opacity": 1}, canvas, size=size)  # fmt: skip
