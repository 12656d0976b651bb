"""A value over two fields: as lines of text, and as a picture of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log

from meshwright.base.units import format_si
from meshwright.report.chart import HEAT_STEPS, label, page, rectangle
from meshwright.report.screen import screen_width

CELL_WIDTH, CELL_HEIGHT, LETTER, TITLE_LETTER = 96, 34, 7, 11
TOP, SWATCH = 98, 14
WIDE = 10.0
"""Largest over least value, from which colours stand for ratios."""
SMALL, PREFIXES = 1e-3, ((1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
NOTHING, MISFIT = "-", "\N{MULTIPLICATION SIGN}"
MARKS = {MISFIT: "nothing fits", NOTHING: "refused, or without such a number"}
"""What the marks of cells without a value say."""
MUCH = 6
"""Step from which a cell is dark on white paper, and pale on black."""
_TEXT = (
    "text.much{fill:#fff}text.little{fill:#222}"
    "@media (prefers-color-scheme: dark){text.much{fill:#222}text.little{fill:#fff}}"
)


@dataclass(frozen=True)
class HeatCells:
    """The cells of a heat map; one without a value fits nothing, or has none of these numbers."""

    title: str
    row_field: str
    column_field: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], float]
    notes: Mapping[tuple[str, str], str]
    """What else the value of a cell stands for."""
    subtitle: str = ""
    misfits: frozenset[tuple[str, str]] = frozenset()
    """Cells of which no point fits."""
    unit: str = ""
    """Of all values."""

    @property
    def scale(self) -> str:
        """What the colours stand for: the least value, the largest, and the steps between."""
        if not self.values:
            return "nothing fits"
        low, high = min(self.values.values()), max(self.values.values())
        ends = " to ".join(self._short(value) for value in (low, high))
        kind = "ratios" if low > 0.0 and high > WIDE * low else "differences"
        return f"{ends} {self.unit}".rstrip() + f", steps of equal {kind}"

    def text(self, row: str, column: str) -> str:
        """Return the value of a cell in four characters or so; a cross where nothing fits."""
        value = self.values.get((row, column))
        if value is None:
            return MISFIT if (row, column) in self.misfits else NOTHING
        return self._short(value)

    def _short(self, value: float) -> str:
        """Return a value with a prefix: below 1 only in a map with values below ``SMALL``."""
        least = min((one for one in self.values.values() if one > 0.0), default=1.0)
        if not (least < SMALL and 0.0 < value < 1.0):
            return format_si(value, "").strip()
        factor, prefix = next((found for found in PREFIXES if value >= found[0]), PREFIXES[-1])
        return f"{value / factor:.3g} {prefix}"

    def step(self, row: str, column: str) -> int:
        """Return the step of the colour of a cell: 1 for the least value, 0 for none.

        Steps are equal ratios where the values span more than ``WIDE``, else equal differences.
        """
        if (row, column) not in self.values:
            return 0
        low, high = min(self.values.values()), max(self.values.values())
        value = self.values[row, column]
        if low > 0.0 and high > WIDE * low:
            low, high, value = log(low), log(high), log(value)
        share = (value - low) / (high - low) if high > low else 1.0
        return 1 + round(share * (HEAT_STEPS - 1))


def heat_lines(cells: HeatCells) -> Iterator[str]:
    """Yield the cells as a table; columns beyond the width of a page follow below."""
    first = max(len(cells.row_field), *map(len, cells.rows))
    width = max(6, *(len(column) for column in cells.columns)) + 2
    each = max((screen_width() - first) // width, 1)
    yield cells.title + (f" ({cells.subtitle})" if cells.subtitle else "")
    for start in range(0, len(cells.columns), each):
        columns = cells.columns[start : start + each]
        yield f"{cells.row_field:<{first}}" + "".join(f"{name:>{width}}" for name in columns)
        for row in cells.rows:
            texts = "".join(f"{cells.text(row, column):>{width}}" for column in columns)
            yield f"{row:<{first}}{texts}"


def heat_svg(cells: HeatCells) -> str:
    """Return the cells as a picture: dark for much; titles say what a cell stands for."""
    left = 24 + LETTER * max(len(cells.row_field), *map(len, cells.rows))
    width = max(CELL_WIDTH, 16 + LETTER * max(map(len, cells.columns)))
    parts = [label(16, 24, cells.title, "title"), label(16, 44, cells.subtitle, "note quiet"),
             label(left, TOP - 28, cells.column_field, "note quiet"),
             label(16, TOP - 10, cells.row_field, "note quiet")]  # fmt: skip
    middles = [left + width * (number + 0.5) for number in range(len(cells.columns))]
    for middle, column in zip(middles, cells.columns, strict=True):
        parts.append(label(middle, TOP - 10, column, "note", "middle"))
    for number, row in enumerate(cells.rows):
        top = TOP + CELL_HEIGHT * number
        parts.append(label(16, top + 21, row, "note"))
        for middle, column in zip(middles, cells.columns, strict=True):
            step, value = cells.step(row, column), cells.text(row, column)
            note = cells.notes.get((row, column), MARKS.get(value, ""))
            tip = f"{row}, {column}: {value}" + (f" ({note})" if note else "")
            x = middle - width / 2 + 1
            parts.append(rectangle(x, top + 1, width - 2, CELL_HEIGHT - 2, f"h{step}", tip))
            amount = "note much" if step >= MUCH else "note little"
            parts.append(label(middle, top + 21, value, amount, "middle"))
    below = TOP + CELL_HEIGHT * len(cells.rows) + 12
    parts += (
        rectangle(16 + SWATCH * step, below, SWATCH, SWATCH, f"h{step + 1}", "")
        for step in range(HEAT_STEPS if cells.values else 0)
    )
    parts.append(label(24 + SWATCH * HEAT_STEPS, below + 12, cells.scale, "note"))
    marked = {cells.text(row, column) for row in cells.rows for column in cells.columns}
    told = "   ".join(f"{mark}  {words}" for mark, words in MARKS.items() if mark in marked)
    parts += [label(16, below + 36, told, "note")] if told else []
    words = max(len(cells.subtitle), len(cells.scale) + SWATCH * HEAT_STEPS // LETTER)
    whole = max(left + width * len(cells.columns), 24 + LETTER * words,
                24 + TITLE_LETTER * len(cells.title)) + 24  # fmt: skip
    height = below + SWATCH + (40 if told else 16)
    return page(whole, height, cells.title, parts, style=_TEXT)
