"""A value over two fields: as lines of text, and as a picture of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from xml.sax.saxutils import escape

from meshwright.base.units import format_si
from meshwright.report.chart import HEAT_STEPS, style_sheet
from meshwright.report.screen import screen_width

CELL_WIDTH, CELL_HEIGHT, LETTER = 96, 34, 7
TOP = 62
WIDE = 10.0
"""Largest over least value, from which colours stand for ratios."""
NOTHING = "-"
MUCH = 6
"""Step from which a cell is dark on white paper, and pale on black."""
_TEXT = (
    "text.much{fill:#fff}text.little{fill:#222}"
    "@media (prefers-color-scheme: dark){text.much{fill:#222}text.little{fill:#fff}}"
)


@dataclass(frozen=True)
class HeatCells:
    """The cells of a heat map; those without a value hold nothing that fits."""

    title: str
    row_field: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], float]
    notes: Mapping[tuple[str, str], str]
    """What else the value of a cell stands for."""

    def text(self, row: str, column: str) -> str:
        """Return the value of a cell in four characters or so."""
        value = self.values.get((row, column))
        return NOTHING if value is None else format_si(value, "").strip()

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
    yield cells.title
    for start in range(0, len(cells.columns), each):
        columns = cells.columns[start : start + each]
        yield f"{cells.row_field:<{first}}" + "".join(f"{name:>{width}}" for name in columns)
        for row in cells.rows:
            texts = "".join(f"{cells.text(row, column):>{width}}" for column in columns)
            yield f"{row:<{first}}{texts}"


def heat_svg(cells: HeatCells) -> str:
    """Return the cells as a picture: dark for much; titles say what a cell stands for."""
    left = 24 + LETTER * max(len(cells.row_field), *map(len, cells.rows))
    cell_width = max(CELL_WIDTH, 16 + LETTER * max(map(len, cells.columns)))
    width = max(left + cell_width * len(cells.columns), 24 + LETTER * len(cells.title)) + 24
    height = TOP + CELL_HEIGHT * len(cells.rows) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
        f"<style>{style_sheet()}{_TEXT}</style>",
        f'<text class="ink" x="16" y="20">{escape(cells.title)}</text>',
        f'<text class="ink" x="16" y="{TOP - 10}">{escape(cells.row_field)}</text>',
    ]
    for number, column in enumerate(cells.columns):
        middle = left + cell_width * (number + 0.5)
        parts.append(
            f'<text class="ink" x="{middle:.0f}" y="{TOP - 10}" text-anchor="middle">'
            f"{escape(column)}</text>"
        )
    for number, row in enumerate(cells.rows):
        top = TOP + CELL_HEIGHT * number
        parts.append(f'<text class="ink" x="16" y="{top + 21}">{escape(row)}</text>')
        parts += [
            _cell(cells, row, column, left + cell_width * place, top, cell_width)
            for place, column in enumerate(cells.columns)
        ]
    return "\n".join([*parts, "</svg>", ""])


def _cell(cells: HeatCells, row: str, column: str, x: float, y: float, width: float) -> str:
    """Return one cell with its value and what it stands for."""
    step = cells.step(row, column)
    note = cells.notes.get((row, column), "nothing fits")
    title = escape(f"{row}, {column}: {cells.text(row, column)}" + (f" ({note})" if note else ""))
    amount = "much" if step >= MUCH else "little"
    return (
        f'<g><title>{title}</title><rect class="h{step}" x="{x + 1:.0f}" y="{y + 1}" '
        f'width="{width - 2:.0f}" height="{CELL_HEIGHT - 2}" rx="3"/>'
        f'<text x="{x + width / 2:.0f}" y="{y + 21}" text-anchor="middle" class="{amount}">'
        f"{escape(cells.text(row, column))}</text></g>"
    )
