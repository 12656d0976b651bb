"""A value over two fields, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.units import format_si
from meshwright.view import charts
from meshwright.view.svg import svg_of

CELL, LEAST = 96, 360
"""Width of a cell, and of a picture at least [px]."""
SMALL, PREFIXES = 1e-3, ((1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
NOTHING, MISFIT = "-", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class HeatCells:
    """Cells of a heat map; one without a value has no point that fits, or not this number."""

    title: str
    row_field: str
    column_field: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[str, str], float]
    notes: Mapping[tuple[str, str], str]
    """Further values of the point of a cell, in words."""
    subtitle: str = ""
    misfits: frozenset[tuple[str, str]] = frozenset()
    """Cells without a point that fits."""
    unit: str = ""
    """Unit of all values."""
    quantity: str = ""
    """Quantity of the values, in words."""

    @property
    def measure(self) -> str:
        """Quantity and unit."""
        return f"{self.quantity} [{self.unit}]" if self.unit else self.quantity

    @property
    def scale(self) -> str:
        """Range of the colours: the least value, the largest, and whether steps are by ratio."""
        if not self.values:
            return "nothing fits"
        low, high = min(self.values.values()), max(self.values.values())
        ends = " to ".join(self._short(value) for value in (low, high))
        by_ratio = ", colours by ratio" if charts.is_wide(self.values.values()) else ""
        return f"{ends} {self.unit}".rstrip() + by_ratio

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


def heat_spec(cells: HeatCells) -> charts.Spec:
    """Return the cells as a chart: dark for much, a cross where nothing fits."""
    places = list(cells.values)
    return charts.heat(
        [row for row, _ in places], [column for _, column in places], list(cells.values.values()),
        [cells.text(*place) for place in places], [cells.notes.get(place, "") for place in places],
        cells.rows, cells.columns, cells.row_field, cells.column_field, cells.measure,
        misfits=sorted(cells.misfits),
    )  # fmt: skip


def heat_svg(cells: HeatCells) -> str:
    """Return the cells as a picture; refused cells and cells without the number are empty."""
    width = max(CELL * len(cells.columns), LEAST)
    return svg_of(heat_spec(cells), cells.title, f"{cells.subtitle}. {cells.scale}", width=width)
