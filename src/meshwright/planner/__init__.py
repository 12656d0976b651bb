"""The facade: each verb joins the public pieces into one call and returns plain data."""

from __future__ import annotations

from pathlib import Path

from meshwright import exporters, plans
from meshwright.planner.explaining import explain as explain
from meshwright.planner.explaining import what_would_change as what_would_change
from meshwright.planner.explaining import what_would_fit as what_would_fit
from meshwright.planner.legality import check as check
from meshwright.planner.planning import estimate as estimate
from meshwright.planner.planning import front as front
from meshwright.planner.planning import plan as plan
from meshwright.planner.question import training as training
from meshwright.planner.replanning import replan as replan
from meshwright.planner.serving import serve as serve


def load_plan(path: str | Path) -> plans.Plan:
    """Return the plan of a file."""
    return plans.load(Path(path))


def export(plan: plans.Plan, target: str, folder: str | Path, *, force: bool = False) -> list[Path]:
    """Write launch files for a target, whole or not at all; return what was written."""
    return exporters.write(plan, target, Path(folder), force=force)
