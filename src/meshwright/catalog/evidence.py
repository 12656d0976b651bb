"""The best utilization that anyone has reported for a chip: what lies above is outside evidence."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parent / "data" / "evidence" / "best_mfu.yaml"
_SAME_RATE = {"fp16": "bf16"}


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return table


def best_measured_mfu(chip: str, dtype: str) -> float | None:
    """Return the highest MFU reported for a chip and a type of its linear layers, or None."""
    rates = _table()["chips"].get(chip, {})
    value = rates.get(_SAME_RATE.get(dtype, dtype))
    return None if value is None else float(value)
