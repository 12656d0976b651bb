"""What both pictures share: axes with ticks, words, and the colour of each source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

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
