"""Errors by source: with its rows in the fit, and without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.calibration.pictures.axes import COLOURS, INK, Axis, below, line, picture, text
from meshwright.catalog.calibration import ErrorRecord, GroupRecord

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
