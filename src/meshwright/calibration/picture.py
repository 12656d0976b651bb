"""The validation as pictures: predicted against measured throughput, and errors by source."""

from __future__ import annotations

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

SIDE, LEFT, TOP, RIGHT, BOTTOM = 520.0, 76.0, 44.0, 220.0, 60.0
ROOM = 1.15
"""Factor that is left free beyond the smallest and the largest value."""
BAND = 1.2
"""Dashed lines lie at this factor from the measured value."""


def scatter_svg(predictions: Sequence[Prediction]) -> str:
    """Return predicted against measured throughput of each chip."""
    points = [entry for entry in predictions if entry.log_error is not None]
    rows = by_group(points)
    values = [value for entry in points for value in per_chip(entry)] or [1.0, 10.0]
    low, high = min(values) / ROOM, max(values) * ROOM
    across, up = Axis(low, high, LEFT, LEFT + SIDE), Axis(low, high, TOP + SIDE, TOP)
    named = list(across.ticks())
    parts = [
        *below(across, TOP, TOP + SIDE, named),
        *beside(up, LEFT, LEFT + SIDE, named),
        *_diagonals(across, up),
        f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="{INK}"/>',
        text(LEFT + SIDE / 2, TOP + SIDE + 42, "measured, tokens/s of a chip", anchor="middle"),
        text(22, TOP + SIDE / 2, "predicted, tokens/s of a chip", anchor="middle", turned=True),
        *_points(rows, across, up),
        *_legend(rows),
    ]
    title = f"Predicted against measured: {len(points)} rows of {len(rows)} sources"
    return picture(LEFT + SIDE + RIGHT, TOP + SIDE + BOTTOM, title, parts)


def _diagonals(across: Axis, up: Axis) -> Iterator[str]:
    """Yield where predictions are right, and where they are a band off."""
    low, high = across.low, across.high
    for factor in (1 / BAND, 1.0, BAND):
        first, last = max(low, low / factor), min(high, high / factor)
        from_y, to_y = up.place(first * factor), up.place(last * factor)
        more = "" if factor == 1.0 else DASHED
        yield line(across.place(first), from_y, across.place(last), to_y, GREY, more)


def _points(rows: Mapping[str, Sequence[Prediction]], across: Axis, up: Axis) -> Iterator[str]:
    """Yield a point for each row, which says its name."""
    for number, entries in enumerate(rows.values()):
        colour = COLOURS[number % len(COLOURS)]
        yield f'<g fill="{colour}" fill-opacity="0.6">'
        for entry in entries:
            predicted, measured = per_chip(entry)
            place = f'cx="{across.place(measured):.1f}" cy="{up.place(predicted):.1f}"'
            yield f'<circle {place} r="3"><title>{entry.row.id}</title></circle>'
        yield "</g>"


def _legend(rows: Mapping[str, Sequence[Prediction]]) -> Iterator[str]:
    """Yield the colour, name and number of rows of each source, then what the lines mean."""
    x = LEFT + SIDE + 22
    yield text(x, TOP + 12, "source (rows)")
    for number, (name, entries) in enumerate(rows.items(), start=1):
        y = TOP + 14 + 20 * number
        colour = COLOURS[(number - 1) % len(COLOURS)]
        yield f'<circle cx="{x + 5:.1f}" cy="{y - 4:.1f}" r="5" fill="{colour}"/>'
        yield text(x + 18, y, f"{name} ({len(entries)})")
    y = TOP + 44 + 20 * len(rows)
    yield line(x, y - 4, x + 24, y - 4, GREY)
    yield text(x + 32, y, "equal")
    yield line(x, y + 16, x + 24, y + 16, GREY, DASHED)
    yield text(x + 32, y + 20, f"a factor of {BAND:g} off")


def per_chip(entry: Prediction) -> tuple[float, float]:
    """Return predicted and measured throughput for each chip [tokens/s]."""
    assert entry.job is not None
    chips = entry.job.problem.system.num_devices
    return (entry.predicted_tokens_per_s or 0.0) / chips, (entry.measured_tokens_per_s or 0) / chips


WIDTH, BARS_LEFT, BARS_TOP, ROW, BARS_RIGHT = 480.0, 170.0, 84.0, 40.0, 40.0
SMALLEST, LARGEST = 0.01, 1.0
"""Ends of the axis, |ln(predicted / measured)|; beyond them lie points at the ends."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LOOKS = (("fitted", "its rows in the fit", COLOURS[0], -7.0),
         ("left_out", "source left out", COLOURS[1], 7.0))  # fmt: skip
"""Which errors, what they are called, their colour, and how far from the middle of a row [px]."""


def sources_svg(groups: Mapping[str, GroupRecord]) -> str:
    """Return median and 90th percentile of the errors of each source."""
    bottom = BARS_TOP + ROW * len(groups)
    axis = Axis(SMALLEST, LARGEST, BARS_LEFT, BARS_LEFT + WIDTH)
    parts = [
        *below(axis, BARS_TOP, bottom, [(value, f"{value:.0%}") for value in TICKS]),
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
