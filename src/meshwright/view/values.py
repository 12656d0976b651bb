"""Values under their units, as every medium writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from meshwright.base.units import format_bytes, format_seconds, format_si
from meshwright.view.parts import Cell, Table

NAMED = re.compile(r"(.*?)(?: ?\[(.+)\]|(>))?$", re.DOTALL)
"""Name of a column and its unit; ``>`` marks a column of words that are aligned to the right."""
TOLD: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "bytes": format_bytes,
    "%": lambda value: f"{value:.1%}",
    "+%": lambda value: f"{value:+.1%}",
    "x": lambda value: f"{value:.2f}x",
    "#": lambda value: f"{value:,.0f}",
    **{unit: partial(format_si, unit=unit) for unit in ("FLOP", "FLOP/s", "W", "J")},
}
"""Units that a value carries itself, so that the name of its column has none."""


def shown(value: Cell, unit: str = "") -> str:
    """Return a value in words: ``shown(0.41, "s") == "410 ms"``; unknown values are empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if unit in TOLD:
        return TOLD[unit](value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.4g}"


def named(name: str) -> tuple[str, str]:
    """Return a name and its unit: ``named("time [s]") == ("time", "s")``."""
    found = NAMED.fullmatch(name)
    assert found is not None
    return found[1], found[2] or found[3] or ""


def written(table: Table) -> Table:
    """Return a table of words alone; ``>`` at the end of a name marks a column of numbers."""
    columns = [named(name) for name in table.head]
    head = [
        name + (f" [{unit}]" if unit not in (*TOLD, ">", "") else "") + (">" if unit else "")
        for name, unit in columns
    ]
    units = [unit for _, unit in columns]
    rows = [[shown(cell, unit) for cell, unit in zip(row, units, strict=True)]
            for row in table.rows]  # fmt: skip
    return Table(head, rows, table.caption)
