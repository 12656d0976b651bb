"""The published measurements of serving: one table, its repeated parts named once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.calibration.rows import Row, rows_of

_SERVING_TABLE = Path(__file__).parent / "data" / "inference.json"


@cache
def published_inference_rows() -> tuple[Row, ...]:
    """Return all measurements of the table.

    A row holds its id and group, then indices into the lists of sources, models, hardware and
    settings, then batch, lengths of prompt and answer, and what was measured.
    """
    table = json.loads(_SERVING_TABLE.read_text(encoding="utf-8"))
    return tuple(rows_of([_serving_row(entry, table) for entry in table["rows"]], _SERVING_TABLE.name))


def _serving_row(entry: list[Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its parts in place."""
    name, group, source, model, hardware, setting, batch, prompt, answer, measured = entry
    return {
        "id": name,
        "group": group,
        "source": table["sources"][source],
        "model": table["models"][model],
        "hardware": table["hardware"][hardware],
        "batch": batch,
        "input_len": prompt,
        "output_len": answer,
        "measured": measured,
        **table["settings"][setting],
    }
