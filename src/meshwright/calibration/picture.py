"""The validation as pictures: predicted against measured throughput, and errors by source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshwright.calibration.errors import by_group
from meshwright.calibration.prediction import Prediction
from meshwright.catalog.calibration import ErrorRecord, GroupRecord
from meshwright.report.chart import (
    COLOURS,
    DASHED,
    GREY,
    INK,
    Axis,
    below,
    beside,
    line,
    picture,
    text,
)

ACROSS = 4
"""Panels beside each other."""
PANEL, TALL, LEFT, TOP, RIGHT, BOTTOM = 190.0, 104.0, 76.0, 72.0, 24.0, 84.0
BETWEEN, ABOVE = 22.0, 34.0
"""From one panel to the next: beside each other, and one below another [px]."""
ROOM = 1.15
"""Factor that is left free beyond the smallest and the largest value."""
BAND = 1.2
"""Dashed lines lie at this factor from the measured value."""
RATIOS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Ticks of predicted over measured."""


def scatter_svg(predictions: Sequence[Prediction]) -> str:
    """Return predicted over measured throughput by measured one of a chip, a panel each source."""
    points = [entry for entry in predictions if entry.log_error is not None]
    rows = by_group(points)
    measured = [per_chip(entry)[1] for entry in points] or [1.0, 10.0]
    most = ROOM * max([2.0, *(math.exp(abs(entry.log_error or 0.0)) for entry in points)])
    ends = (min(measured) / ROOM, max(measured) * ROOM)
    parts = []
    for number, (name, entries) in enumerate(rows.items()):
        down, right = divmod(number, ACROSS)
        left, top = LEFT + (PANEL + BETWEEN) * right, TOP + (TALL + ABOVE) * down
        across = Axis(*ends, left, left + PANEL)
        up = Axis(1.0 / most, most, top + TALL, top)
        is_lowest = number + ACROSS >= len(rows)
        parts += [
            *_frame(across, up, is_lowest=is_lowest, is_first=right == 0),
            text(left, top - 7, f"{name} ({len(entries)})"),
            *_points(entries, across, up),
        ]
    columns, down = min(ACROSS, len(rows)), -(-len(rows) // ACROSS)
    width, height = (PANEL + BETWEEN) * columns - BETWEEN, (TALL + ABOVE) * down - ABOVE
    foot = TOP + height + 42
    parts += [
        text(LEFT + width / 2, foot, "measured, tokens/s of a chip", anchor="middle"),
        text(22, TOP + height / 2, "predicted / measured", anchor="middle", turned=True),
        text(LEFT, foot + 24, f"dashed: a factor of {BAND:g} off; in brackets: rows"),
    ]
    title = f"Predicted against measured: {len(points)} rows of {len(rows)} sources"
    return picture(LEFT + width + RIGHT, TOP + height + BOTTOM, title, parts)


def _frame(across: Axis, up: Axis, *, is_lowest: bool, is_first: bool) -> Iterator[str]:
    """Yield the grid of a panel, its outer names, and where predictions are right or a band off."""
    named = [(value, name * is_lowest) for value, name in across.ticks()]
    yield from below(across, up.last, up.first, named)
    ratios = ((value, f"{value:g}" * is_first) for value in RATIOS if up.low < value < up.high)
    yield from beside(up, across.first, across.last, list(ratios))
    for factor in (1.0 / BAND, 1.0, BAND):
        y = up.place(factor)
        yield line(across.first, y, across.last, y, GREY, "" if factor == 1.0 else DASHED)
    yield (
        f'<rect x="{across.first}" y="{up.last}" width="{PANEL}" height="{TALL}" fill="none" '
        f'stroke="{INK}"/>'
    )


def _points(entries: Sequence[Prediction], across: Axis, up: Axis) -> Iterator[str]:
    """Yield a point for each row, which says its name."""
    yield f'<g fill="{COLOURS[0]}" fill-opacity="0.5">'
    for entry in entries:
        ratio = math.exp(entry.log_error or 0.0)
        place = f'cx="{across.place(per_chip(entry)[1]):.1f}" cy="{up.place(ratio):.1f}"'
        yield f'<circle {place} r="2.5"><title>{entry.row.id}</title></circle>'
    yield "</g>"


def per_chip(entry: Prediction) -> tuple[float, float]:
    """Return predicted and measured throughput for each chip [tokens/s]."""
    assert entry.job is not None
    chips = entry.job.problem.system.num_devices
    return (entry.predicted_tokens_per_s or 0.0) / chips, (entry.measured_tokens_per_s or 0) / chips


WIDTH, BARS_LEFT, BARS_TOP, ROW, BARS_RIGHT = 480.0, 170.0, 84.0, 40.0, 40.0
NEAT = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1.0, 2.0, 5.0))
"""Values of |ln(predicted / measured)| at which the axis has ticks, and may end."""
LOOKS = (("fitted", "its rows in the fit", COLOURS[0], -7.0),
         ("left_out", "source left out", COLOURS[1], 7.0))  # fmt: skip
"""Which errors, what they are called, their colour, and how far from the middle of a row [px]."""


def sources_svg(groups: Mapping[str, GroupRecord]) -> str:
    """Return median and 90th percentile of the errors of each source."""
    bottom = BARS_TOP + ROW * len(groups)
    ticks = _ticks(groups)
    axis = Axis(ticks[0], ticks[-1], BARS_LEFT, BARS_LEFT + WIDTH)
    parts = [
        *below(axis, BARS_TOP, bottom, [(value, f"{100.0 * value:g}%") for value in ticks]),
        line(BARS_LEFT, bottom, BARS_LEFT + WIDTH, bottom, INK),
        text(BARS_LEFT + WIDTH / 2, bottom + 42, "|ln(predicted / measured)|, logarithmic scale",
             anchor="middle"),
        *_bars_legend(),
    ]  # fmt: skip
    for number, (name, record) in enumerate(groups.items()):
        y = BARS_TOP + ROW * (number + 0.5)
        shown = f"{name} (1)" if record.alone else name
        parts.append(text(BARS_LEFT - 12, y + 4, shown, anchor="end"))
        for which, _, colour, away in LOOKS:
            parts += _errors(getattr(record, which), axis, y + away, colour)
    foot = bottom + 66
    if any(record.alone for record in groups.values()):
        parts.append(text(16, foot, "(1) no other source has rows of its chips"))
    return picture(BARS_LEFT + WIDTH + BARS_RIGHT, foot + 16, "Errors of each source", parts)


def _ticks(groups: Mapping[str, GroupRecord]) -> list[float]:
    """Return neat values from the last one below all errors to the first one above."""
    drawn = [getattr(record, which) for record in groups.values() for which, *_ in LOOKS]
    values = [value for errors in drawn for value in (errors.median, errors.p90) if value]
    first = max([value for value in NEAT if value <= min(values, default=0.01)], default=NEAT[0])
    last = min([value for value in NEAT if value > max(values, default=0.5)], default=NEAT[-1])
    return [value for value in NEAT if first <= value <= last]


def _errors(errors: ErrorRecord, axis: Axis, y: float, colour: str) -> Iterator[str]:
    """Yield a full point at the median, a line to the 90th percentile, and a ring there."""
    if errors.median is None or errors.p90 is None:
        return
    median, p90 = axis.place(errors.median), axis.place(errors.p90)
    yield line(median, y, p90, y, colour, ' stroke-width="2"')
    yield f'<circle cx="{median:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    yield (
        f'<circle cx="{p90:.1f}" cy="{y:.1f}" r="4" fill="#fff" stroke="{colour}" '
        'stroke-width="2"/>'
    )


def _bars_legend() -> Iterator[str]:
    """Yield what colours and marks mean."""
    for number, (_, words, colour, _) in enumerate(LOOKS):
        x = BARS_LEFT + 150 * number
        yield f'<circle cx="{x + 5:.1f}" cy="50" r="5" fill="{colour}"/>'
        yield text(x + 16, 54, words)
    x = BARS_LEFT + 150 * len(LOOKS)
    yield f'<circle cx="{x + 5:.1f}" cy="50" r="5" fill="{INK}"/>'
    yield text(x + 16, 54, "median")
    yield f'<circle cx="{x + 85:.1f}" cy="50" r="4" fill="#fff" stroke="{INK}" stroke-width="2"/>'
    yield text(x + 96, 54, "90th percentile")
