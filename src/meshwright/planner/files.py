"""Plans from files, and launch files from plans."""

from __future__ import annotations

from pathlib import Path

from meshwright import exporters, plans


def load_plan(path: str | Path) -> plans.Plan:
    """Return the plan of a file."""
    return plans.load(Path(path))


def export(plan: plans.Plan, target: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write launch files for a target, whole or not at all; return what was written."""
    return exporters.write(plan, target, Path(folder), force=force)
