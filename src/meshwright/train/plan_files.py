"""Plans from files."""

from __future__ import annotations

from pathlib import Path

from meshwright.train import files
from meshwright.train.answer import Plan


def load_plan(path: str | Path) -> Plan:
    """Return the plan of a file."""
    return files.load(Path(path))
