"""What both pictures share: axes with ticks, words, and the colour of each source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from meshwright.calibration.errors import by_group
from meshwright.calibration.prediction import Prediction
from meshwright.catalog.calibration import ErrorRecord, GroupRecord

COLOURS = (
    "#1b6ca8", "#d1495b", "#3d8b5f", "#c98a0c", "#6a4c93", "#2e4057", "#7d8794", "#b05f17",
    "#0f8b8d", "#a8327d",
)  # fmt: skip
INK, GREY, GRID = "#222", "#888", "#ddd"
TICK = 5.0
"""Length of a tick [px]."""
NEAT = (1.0, 2.0, 5.0)
"""First digits of ticks."""
SHORT = 50.0
"""Largest over smallest value of an axis on which all ticks are named."""
DASHED = ' stroke-dasharray="5 4"'


@dataclass(frozen=True)
class Axis:
    """From values to pixels along one direction, on a logarithmic scale."""

    low: float
    high: float
    first: float
    """Place of ``low`` [px]."""
    last: float
    """Place of ``high`` [px]."""

    def place(self, value: float) -> float:
        """Return where a value lies [px]; values beyond the ends lie at the ends."""
        at = min(max(value, self.low), self.high)
        share = math.log(at / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield neat values between the ends, with their names; powers of ten alone have one."""
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            for digit in NEAT:
                value = digit * 10.0**power
                if self.low <= value <= self.high:
                    yield value, f"{value:,.6g}" if digit == 1.0 or self.is_short else ""

    @property
    def is_short(self) -> bool:
        """Whether there is room to name all ticks."""
        return self.high / self.low < SHORT


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return a picture around its parts."""
    size = f"{width:.0f} {height:.0f}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="12" role="img">'
    )
    paper = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>'
    lines = [head, f"<title>{escape(title)}</title>", paper, text(16, 24, title, size=15), *parts]
    return "\n".join([*lines, "</svg>"]) + "\n"


def text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, fill: str = INK,
    turned: bool = False,
) -> str:  # fmt: skip
    """Return words at a place; ``turned``: they read upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{fill}"{turn}>{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    """Return a straight line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{more}/>'


def below(axis: Axis, top: float, bottom: float, values: Sequence[tuple[float, str]]) -> list[str]:
    """Return ticks and grid lines of an axis that runs to the right, named below."""
    found = []
    for value, name in values:
        x = axis.place(value)
        found += [line(x, top, x, bottom + TICK, GRID), text(x, bottom + 19, name, anchor="middle")]
    return found


def beside(axis: Axis, left: float, right: float, values: Sequence[tuple[float, str]]) -> list[str]:
    """Return ticks and grid lines of an axis that runs upwards, named on the left."""
    found = []
    for value, name in values:
        y = axis.place(value)
        found += [line(left - TICK, y, right, y, GRID), text(left - 9, y + 4, name, anchor="end")]
    return found


SIDE, LEFT, TOP, RIGHT, BOTTOM = 520.0, 76.0, 44.0, 220.0, 60.0
ROOM = 1.15
"""Factor that is left free beyond the smallest and the largest value."""
BAND = 1.2
"""Dashed lines lie at this factor from the measured value."""


def scatter_svg(predictions: Sequence[Prediction]) -> str:
    """Return predicted against measured throughput of each chip."""
    points = [entry for entry in predictions if entry.log_error is not None]
    rows = by_group(points)
    values = [value for entry in points for value in _per_chip(entry)] or [1.0, 10.0]
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
            predicted, measured = _per_chip(entry)
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


def _per_chip(entry: Prediction) -> tuple[float, float]:
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
