"""The picture of a pipeline of stages as SVG: memory of each device, its time, its sends.

One file, nothing from outside, equal for equal input. Stages that are alike share a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.base.units import format_bytes, format_seconds
from meshwright.sram.alike import Alike, runs_of_alike
from meshwright.sram.answer import PartitionPlan
from meshwright.view.drawing import group_class, label, page, rectangle
from meshwright.view.words import words

MARGIN, HEAD, ROW, BAR = 24.0, 64.0, 40.0, 22.0
"""Margins: around everything; above the rows; from row to row; height of a bar [px]."""
NAMES, ROOM, GAP, TIME = 270.0, 420.0, 60.0, 240.0
"""Widths: names, the bar of a full device, a gap, the bar of the slowest stage [px]."""
LEGEND_ENTRY, LEGEND_HEIGHT = 150.0, 34.0
MOST_LETTERS = 38
"""Most letters for the names of layers."""
MOST_ROWS = 60
"""Rows that are drawn; further stages are counted only."""
_WORK, _SEND = "work", "send"


def partition_svg(plan: PartitionPlan) -> str:
    """Return the picture of a partition; without stages, its title says that nothing fits."""
    runs = runs_of_alike(plan.stages)
    shown, left = runs[:MOST_ROWS], len(runs) - MOST_ROWS
    parts = list(dict.fromkeys(name for stage in plan.stages for name in stage.parts_bytes))
    colours = {name: group_class(index) for index, name in enumerate((*parts, _WORK, _SEND))}
    width = 2 * MARGIN + NAMES + ROOM + GAP + TIME
    height = HEAD + ROW * (len(shown) + (left > 0)) + LEGEND_HEIGHT + MARGIN
    verdict = "" if plan.fits else " (does not fit)"
    title = f"{plan.source}{f' on {plan.system}' if plan.system else ''}{verdict}"
    slowest_s = max((stage.occupied_s for stage in plan.stages), default=0.0)
    lines = [
        label(MARGIN, 30, title, "title"),
        *_heads(plan, slowest_s),
    ]
    for number, run in enumerate(shown):
        top = HEAD + ROW * number
        lines += [f'<g transform="translate({MARGIN:.0f} {top:.0f})">',
                  *_row(run, plan.room_bytes, slowest_s, colours), "</g>"]  # fmt: skip
    if left > 0:
        count = len(plan.stages) - runs[MOST_ROWS].first
        lines.append(
            label(MARGIN, HEAD + ROW * len(shown) + 16, f"and {count} stages more", "note")
        )
    foot = height - MARGIN - LEGEND_HEIGHT / 2
    lines += _legend({words(n): c for n, c in colours.items()}, foot)
    return page(width, height, title, lines)


def _heads(plan: PartitionPlan, slowest_s: float) -> Iterator[str]:
    """Yield the headings of the two columns of bars."""
    room = f"{plan.level} memory of a device: {format_bytes(plan.room_bytes)}"
    yield label(MARGIN + NAMES, HEAD - 10, room, "note quiet")
    if slowest_s > 0:
        time = f"one group: {format_seconds(slowest_s)} on the slowest stage"
        yield label(MARGIN + NAMES + ROOM + GAP, HEAD - 10, time, "note quiet")


def _row(
    run: Alike, room_bytes: float, slowest_s: float, colours: Mapping[str, str]
) -> Iterator[str]:
    """Yield one row: names, the bar of the memory, the bar of the time, the arrow to the next."""
    stage = run.stages[0]
    devices = f", devices {run.devices}" if run.devices else ""
    yield label(0, 10, f"stage {run.numbers}{devices}", "label")
    yield label(0, 23, run.layers(MOST_LETTERS), "label quiet")
    wide = ROOM * stage.room_bytes / room_bytes
    yield _rectangle(NAMES, wide, "none", f"room {format_bytes(stage.room_bytes)}")
    x = NAMES
    for name, size in stage.parts_bytes.items():
        part = ROOM * size / room_bytes
        yield _rectangle(x, part, colours[name], f"{words(name)} {format_bytes(size)}")
        x += part
    yield label(NAMES + ROOM + 6, 15, f"{stage.filled_fraction:.0%}", "label")
    if slowest_s > 0:
        x = NAMES + ROOM + GAP
        for name, seconds in ((_WORK, stage.work_s), (_SEND, stage.send_s)):
            part = TIME * (seconds or 0.0) / slowest_s
            yield _rectangle(x, part, colours[name], f"{name} {format_seconds(seconds or 0.0)}")
            x += part
    if stage.sent_bytes:
        yield (f'<path class="axis" d="M{NAMES - 14:.0f} 8V30M{NAMES - 18:.0f} 25L{NAMES - 14:.0f} '
               f'31L{NAMES - 10:.0f} 25"/>')  # fmt: skip
        yield label(NAMES - 22, 35, format_bytes(stage.sent_bytes), "label quiet", "end")


def _legend(colours: Mapping[str, str], y: float) -> Iterator[str]:
    """Yield a sample of each colour with its name."""
    for index, (name, colour) in enumerate(colours.items()):
        x = MARGIN + LEGEND_ENTRY * index
        yield f'<g transform="translate({x:.0f} {y:.0f})">'
        yield rectangle(0.0, 0.0, 16.0, 12.0, f"die {colour}")
        yield label(22, 10, name, "note") + "</g>"


def _rectangle(x: float, width: float, colour: str, tip: str) -> str:
    return rectangle(x, 0.0, width, BAR, f"die {colour}", tip)
