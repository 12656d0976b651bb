"""The legend of a wafer picture: heat scale, length, groups, marks, caption."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from html import escape

from meshwright.report.chart import HEAT_STEPS, group_class, heat_step, page
from meshwright.wafer.picture import (
    Arrow,
    Box,
    Canvas,
    WaferMap,
    arrows_of,
    cross,
    group_letter,
    half_width,
    make_canvas,
    rectangle,
)

STEP_WIDTH = 30.0
"""Length of one step of the heat scale [px]."""
ROW = 22.0
"""Height of a line of the legend [px]."""
SAMPLE_WIDTH = 40.0
"""Room of a sample, and between two entries [px]."""
LISTED_GROUPS = 24
"""Groups that are listed; letters on the devices name the others."""
LETTER_WIDTH = 6.3
"""Mean width of a letter of the caption [px]."""
NOMINAL_PITCH_M = 0.5
"""Devices farther apart than this are at places without a meaning."""

Section = tuple[list[str], float]
"""What is drawn from (0, 0) downwards, and its height [px]."""


def legend(picture: WaferMap, canvas: Canvas, width: float) -> Section:
    """Return the legend of a picture of a width, from its upper left corner."""
    sections = [
        _heat_scale(picture.load_note, _length_bar(canvas, width)),
        _entries(_group_entries(picture), width),
        _entries(_mark_entries(picture), width),
        _caption(picture.caption, width),
    ]
    parts: list[str] = []
    y = 0.0
    for drawn, height in sections:
        parts += [f'<g transform="translate(0 {y:.1f})">', *drawn, "</g>"]
        y += height
    return parts, y + ROW / 2


def _note(x: float, y: float, words: str, anchor: str = "start", kind: str = "note") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def _heat_scale(load_note: str, beside: Iterable[str]) -> Section:
    """Return an arrow for each step of the scale with its bounds, and what a full link carries."""
    parts = [_note(0, 12, f"link load: {load_note}")]
    for step in range(HEAT_STEPS + 1):
        share = step / HEAT_STEPS
        x = step * STEP_WIDTH
        shape = Arrow(x, 30, x + STEP_WIDTH - 3, 30).outline(share)
        parts.append(f'<polygon class="link h{heat_step(share)}" points="{shape}"/>')
        if step % 2 == 0:
            parts.append(_note(x + STEP_WIDTH / 2 - 2, 52, f"{share:.0%}", "middle", "note quiet"))
    return [*parts, *beside], 72.0


def _length_bar(canvas: Canvas, width: float) -> Iterator[str]:
    """Yield a bar of a round length about as long as a device, where places are known."""
    pitch_m = canvas.pitch_m
    if pitch_m > NOMINAL_PITCH_M:
        return
    unit_m = 10.0 ** math.floor(math.log10(pitch_m))
    length_m = max(m * unit_m for m in (1.0, 2.0, 5.0) if m * unit_m <= pitch_m)
    end, start = width, width - length_m * canvas.pixels_per_m
    yield f'<path class="axis" d="M{start:.1f} 25V35M{start:.1f} 30H{end:.1f}M{end:.1f} 25V35"/>'
    yield _note(end, 52, f"{length_m * 1e3:g} mm", "end", "note quiet")


def _entries(entries: list[tuple[str, str]], width: float) -> Section:
    """Return samples with their names in rows."""
    longest = max((len(name) for _, name in entries), default=0)
    entry_width = SAMPLE_WIDTH + LETTER_WIDTH * longest
    columns = max(int(width // entry_width), 1)
    parts = []
    for index, (sample, name) in enumerate(entries):
        row, column = divmod(index, columns)
        x, y = column * entry_width, row * ROW
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{sample}{_note(24, 12, name)}</g>')
    return parts, math.ceil(len(entries) / columns) * ROW


SAMPLE = Box(9.0, 8.0, 9.0, 8.0)


def _group_entries(picture: WaferMap) -> list[tuple[str, str]]:
    """Return the colour and letter of each group."""
    return [
        (
            rectangle(SAMPLE, f"die {group_class(index)}", 3.0)
            + _note(9, 12.5, group_letter(index), "middle", "letter"),
            name,
        )
        for index, name in enumerate(picture.group_names[:LISTED_GROUPS])
    ]


def _mark_entries(picture: WaferMap) -> list[tuple[str, str]]:
    """Return the marks that occur: spare, slow and dead devices, dead wires, IO dies."""
    network = picture.network
    speed = network.speed_factor
    marks = (
        (rectangle(SAMPLE, "die none", 3.0), "no work", ((picture.group < 0) & (speed > 0)).any()),
        (
            rectangle(SAMPLE, "die none", 3.0) + rectangle(SAMPLE, "die hatched", 3.0),
            "part of its cores",
            ((speed > 0) & (speed < 1)).any(),
        ),
        (rectangle(SAMPLE, "die dead", 3.0) + cross(SAMPLE), "dead device", (speed <= 0).any()),
        (cross(Box(9.0, 8.0, 5.0, 5.0)), "dead wire", bool(picture.dead_wires)),
        (
            rectangle(Box(9.0, 8.0, 6.0, 6.0), "io", 2.0),
            "IO die",
            network.num_nodes > network.num_devices,
        ),
    )
    return [(sample, name) for sample, name, occurs in marks if occurs]


def _caption(caption: str, width: float) -> Section:
    """Return the caption, wrapped."""
    lines = textwrap.wrap(caption, int(width / LETTER_WIDTH))
    parts = [_note(0, 16 + 17 * i, line, kind="note quiet") for i, line in enumerate(lines)]
    return parts, 8.0 + 17.0 * len(lines)


MARGIN = 38.0
"""Around the grid: room for links that close a ring [px]."""
HEAD = 40.0
"""Height of the title [px]."""
LEAST_WIDTH = 620.0
"""Width that the legend needs [px]."""
SEAM_ABOVE = -8.0
"""Upper end of the line of a seam [px]."""
LINE = 13.0
"""Distance of lines of a label [px]."""


_HATCH = (
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern>'
)


def wafer_svg(picture: WaferMap) -> str:
    """Return the picture of a wafer: groups, ranks, link loads, faults and their legend."""
    canvas = make_canvas(picture.network)
    width = max(canvas.width + 2 * MARGIN, LEAST_WIDTH)
    left, top = (width - canvas.width) / 2, HEAD + MARGIN
    foot, foot_height = legend(picture, canvas, width - 2 * MARGIN)
    height = top + canvas.height + MARGIN + foot_height
    parts = [
        f'<text class="title" x="{MARGIN:.0f}" y="{HEAD - 8:.0f}">{escape(picture.title)}</text>',
        f'<g transform="translate({left:.1f} {top:.1f})">',
        *_seams(canvas),
        *_links(picture, canvas),
        *_dead_wires(picture, canvas),
        *_nodes(picture, canvas),
        "</g>",
        f'<g transform="translate({MARGIN:.1f} {top + canvas.height + MARGIN:.1f})">',
        *foot,
        "</g>",
    ]
    return page(width, height, picture.title, parts, definitions=_HATCH)


def _links(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield the arrows of all links, the hottest last, so that they are on top."""
    shares = picture.load_share.tolist()
    network = picture.network
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    for link in sorted(range(len(ends)), key=lambda link: (shares[link], link)):
        source, target = ends[link]
        share = shares[link]
        arrows = list(arrows_of(source, target, canvas))
        outlines = "".join(f'<polygon points="{arrow.outline(share)}"/>' for arrow in arrows)
        says = f"<title>{source} to {target}: {share:.0%}</title>"
        yield f'<g class="link h{heat_step(share)}">{says}{outlines}</g>'
        yield from (_percent(arrow, share) for arrow in arrows if share > 0)


def _percent(arrow: Arrow, share: float) -> str:
    """Return the load of a link in percent, on the outer side of its arrow."""
    x, y = (arrow.from_x + arrow.to_x) / 2, (arrow.from_y + arrow.to_y) / 2
    along_x, along_y = arrow.direction
    away = half_width(share) + 2.0
    is_upright = abs(along_y) > abs(along_x)
    anchor = ("start" if along_y < 0 else "end") if is_upright else "middle"
    drop = 3.0 if is_upright else (7.0 if along_x > 0 else 0.0)
    words = f"{100 * share:.0f}" if share >= 0.005 else "<1"
    return _text("load", x - along_y * away, y + along_x * away + drop, words, anchor)


def _seams(canvas: Canvas) -> Iterator[str]:
    """Yield a dashed line between wafers."""
    for x in canvas.seams:
        line = f"M{x:.1f} {SEAM_ABOVE:.1f}V{canvas.height:.1f}"
        yield f'<path class="seam" d="{line}"/>'
        yield _text("note quiet", x, SEAM_ABOVE - 6, "seam", "middle")


def _dead_wires(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield a cross between the devices of each dead wire."""
    for first, second in picture.dead_wires:
        here, there = canvas.boxes[first], canvas.boxes[second]
        x, y = (here.x + there.x) / 2, (here.y + there.y) / 2
        yield (f"<g><title>{first} and {second}: dead wire</title>{cross(Box(x, y, 8.0, 8.0))}</g>")


def _nodes(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield all devices, then IO dies and switches."""
    num_devices = picture.network.num_devices
    for device, box in enumerate(canvas.boxes[:num_devices]):
        yield "".join(_device(picture, device, box))
    for node, box in enumerate(canvas.boxes[num_devices:], start=num_devices):
        yield f"<g><title>IO die {node}</title>{rectangle(box, 'io', 2.0)}</g>"


def _device(picture: WaferMap, device: int, box: Box) -> Iterator[str]:
    """Yield one device: its colour, number, group and rank, and what is wrong with it."""
    speed = float(picture.network.speed_factor[device])
    colour = group_class(int(picture.group[device]))
    yield f"<g><title>{escape(_told(picture, device))}</title>"
    yield rectangle(box, f"die {'dead' if speed <= 0 else colour}", 7.0)
    if speed <= 0:
        yield cross(Box(box.x, box.y, box.half_width - 5, box.half_height - 5))
    elif speed < 1:
        yield rectangle(box, "die hatched", 7.0)
    yield from _words(picture, device, box, speed)
    yield "</g>"


def _told(picture: WaferMap, device: int) -> str:
    """Return what a pointer over a device tells."""
    speed, group = float(picture.network.speed_factor[device]), int(picture.group[device])
    works = "dead" if speed <= 0 else f"{speed:.0%} of full speed"
    member = picture.group_names[group] if group >= 0 else "no work"
    words = [f"device {device}", works, member, *picture.labels[device].splitlines()]
    return ", ".join(words)


def _words(picture: WaferMap, device: int, box: Box, speed: float) -> Iterator[str]:
    """Yield the number in the middle, the rank under it, group and speed in the corners."""
    lines = picture.labels[device].splitlines() if speed > 0 else []
    top = box.y - LINE * len(lines) / 2
    left, right = box.x - box.half_width + 6, box.x + box.half_width - 6
    corner = box.y - box.half_height + 15
    kind = "number" if speed > 0 else "number struck"
    yield _text(kind, box.x, top + 6, str(device), "middle")
    for index, line in enumerate(lines, start=1):
        yield _text("label", box.x, top + 8 + LINE * index, line, "middle")
    if speed > 0 and picture.group[device] >= 0:
        yield _text("letter", left, corner, group_letter(int(picture.group[device])), "start")
    if 0 < speed < 1:
        yield _text("label", right, corner, f"{speed:.0%}", "end")


def _text(kind: str, x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'
