"""The facade: each verb joins the public pieces into one call and returns plain data.

Verbs are imported when they are first used, so that pricing one strategy imports no search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.planner.comparing import compare as compare
    from meshwright.planner.estimating import estimate as estimate
    from meshwright.planner.explaining import explain as explain
    from meshwright.planner.explaining import what_would_change as what_would_change
    from meshwright.planner.explaining import what_would_fit as what_would_fit
    from meshwright.planner.files import export as export
    from meshwright.planner.files import load_plan as load_plan
    from meshwright.planner.grids.drawing import draw as draw
    from meshwright.planner.grids.simulating import simulate as simulate
    from meshwright.planner.legality import check as check
    from meshwright.planner.measured.diagnosing import diagnose as diagnose
    from meshwright.planner.measured.learning import learn as learn
    from meshwright.planner.partitioning.partition import partition as partition
    from meshwright.planner.partitioning.partition import partition_measured as partition_measured
    from meshwright.planner.planning import front as front
    from meshwright.planner.planning import plan as plan
    from meshwright.planner.question import training as training
    from meshwright.planner.replanning import replan as replan
    from meshwright.planner.serving.serve import serve as serve
    from meshwright.planner.simulating import load_flows as load_flows
    from meshwright.planner.simulating import simulate_flows as simulate_flows

_HOME = {
    "compare": "comparing", "diagnose": "measured.diagnosing",
    "learn": "measured.learning",
    "estimate": "estimating", "explain": "explaining", "what_would_change": "explaining",
    "what_would_fit": "explaining", "export": "files", "load_plan": "files", "check": "legality",
    "front": "planning", "plan": "planning", "training": "question", "replan": "replanning",
    "serve": "serving.serve", "load_flows": "simulating", "simulate_flows": "simulating",
    "partition": "partitioning.partition", "partition_measured": "partitioning.partition",
    "draw": "grids.drawing", "simulate": "grids.simulating",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'meshwright.planner' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.planner.{_HOME[name]}"), name)
