"""Plan a large model on a real cluster or wafer: the best strategy, its price, and the proof.

The public names are imported when they are first used, so that ``import meshwright`` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.base.errors import MeshwrightError as MeshwrightError
    from meshwright.catalog.models import load_model as load_model
    from meshwright.catalog.systems import load_system as load_system
    from meshwright.planner import check as check
    from meshwright.planner import estimate as estimate
    from meshwright.planner import explain as explain
    from meshwright.planner import export as export
    from meshwright.planner import front as front
    from meshwright.planner import load_plan as load_plan
    from meshwright.planner import plan as plan
    from meshwright.planner import replan as replan
    from meshwright.planner import training as training
    from meshwright.plans import Plan as Plan
    from meshwright.plans import save as save_plan
    from meshwright.strategy.strategy import Structure as Structure
    from meshwright.strategy.strategy import make_strategy as make_strategy

_HOME = {
    "MeshwrightError": "base.errors",
    "load_model": "catalog.models", "load_system": "catalog.systems",
    "export": "planner", "check": "planner", "estimate": "planner", "explain": "planner",
    "front": "planner", "load_plan": "planner", "plan": "planner", "replan": "planner",
    "training": "planner", "Plan": "plans", "save_plan": "plans", "Structure": "strategy.strategy",
    "make_strategy": "strategy.strategy",
}  # fmt: skip
_CALLED = {"save_plan": "save"}

__all__ = [
    "MeshwrightError", "Plan", "Structure", "check", "estimate", "explain", "export", "front",
    "load_model", "load_plan", "load_system", "make_strategy", "plan", "replan", "save_plan",
    "training",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.{_HOME[name]}"), _CALLED.get(name, name))


def __dir__() -> list[str]:
    return __all__
