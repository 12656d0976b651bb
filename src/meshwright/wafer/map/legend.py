"""The legend of a wafer picture: heat scale, length, groups, marks, caption."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from html import escape

from meshwright.report.chart import HEAT_STEPS, group_class, heat_step
from meshwright.wafer.map.arrows import Arrow
from meshwright.wafer.map.picture import Box, Canvas, WaferMap, cross, group_letter, rectangle

STEP_WIDTH = 30.0
"""Length of one step of the heat scale [px]."""
ROW = 22.0
"""Height of a line of the legend [px]."""
SAMPLE_WIDTH = 40.0
"""Room of a sample, and between two entries [px]."""
MOST_GROUPS = 24
"""Groups that are listed; letters on the devices name the others."""
LETTER_WIDTH = 6.3
"""Mean width of a letter of the caption [px]."""
NOMINAL_PITCH_M = 0.5
"""Devices farther apart than this stand at places without a meaning."""

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
        for index, name in enumerate(picture.group_names[:MOST_GROUPS])
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
