"""The verbs: each one joins the public pieces into one call and returns plain data.

Verbs are imported when they are first used, so that pricing one strategy imports no search.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.frameworks.writing import export as export
    from meshwright.serve.serve import serve as serve
    from meshwright.sram.partition import partition as partition
    from meshwright.sram.partition import partition_measured as partition_measured
    from meshwright.train import plan_file
    from meshwright.train.compare import compare as compare
    from meshwright.train.estimate import estimate as estimate
    from meshwright.train.explain import explain as explain
    from meshwright.train.explain import what_would_change as what_would_change
    from meshwright.train.explain import what_would_fit as what_would_fit
    from meshwright.train.legality import check as check
    from meshwright.train.measured.diagnose import diagnose as diagnose
    from meshwright.train.measured.trials import learn as learn
    from meshwright.train.plan import front as front
    from meshwright.train.plan import plan as plan
    from meshwright.train.plan import replan as replan
    from meshwright.train.question import training as training
    from meshwright.wafer.map.drawing import draw as draw
    from meshwright.wafer.simulation import load_flows as load_flows
    from meshwright.wafer.simulation import simulate as simulate
    from meshwright.wafer.simulation import simulate_flows as simulate_flows

    load_plan = plan_file.load

_HOME = {
    "check": "train.legality", "compare": "train.compare", "diagnose": "train.measured.diagnose",
    "draw": "wafer.map.drawing", "estimate": "train.estimate", "explain": "train.explain",
    "export": "frameworks.writing", "front": "train.plan", "learn": "train.measured.trials",
    "load_flows": "wafer.simulation", "load_plan": "train.plan_file", "partition": "sram.partition",
    "partition_measured": "sram.partition", "plan": "train.plan", "replan": "train.plan",
    "serve": "serve.serve", "simulate": "wafer.simulation", "simulate_flows": "wafer.simulation",
    "training": "train.question", "what_would_change": "train.explain",
    "what_would_fit": "train.explain",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'meshwright.api' has no attribute {name!r}")
    called = {"load_plan": "load"}.get(name, name)
    return getattr(import_module(f"meshwright.{_HOME[name]}"), called)
