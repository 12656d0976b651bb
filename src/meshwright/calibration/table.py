"""The published measurements of this package: one table, its repeated parts named once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.calibration.rows import Row, rows_of

_TRAINING_TABLE = Path(__file__).parent / "data" / "training.json"


@cache
def published_rows() -> tuple[Row, ...]:
    """Return all training measurements of the table.

    A row holds its id, group and task, then indices into the lists of sources, models, hardware
    and plans, then what only it has.
    """
    table = json.loads(_TRAINING_TABLE.read_text(encoding="utf-8"))
    return tuple(rows_of([_training_row(entry, table) for entry in table["rows"]], _TRAINING_TABLE.name))


def _training_row(entry: list[Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its parts in place."""
    name, group, task, source, model, hardware, plan, own = entry
    return {
        "id": name,
        "group": group,
        "task": task,
        "source": table["sources"][source],
        "model": table["models"][model],
        "hardware": table["hardware"][hardware],
        "parallelism": table["plans"][plan],
        **own,
    }
