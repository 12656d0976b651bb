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
    from meshwright.frameworks.writing import export as export
    from meshwright.sharding.strategy import PlanOptions as PlanOptions
    from meshwright.sharding.strategy import make_strategy as make_strategy
    from meshwright.train import plan_file
    from meshwright.train.answer import Plan as Plan
    from meshwright.train.estimate import estimate as estimate
    from meshwright.train.explain import explain as explain
    from meshwright.train.legality import check as check
    from meshwright.train.plan import front as front
    from meshwright.train.plan import plan as plan
    from meshwright.train.plan import replan as replan
    from meshwright.train.plan_file import save as save_plan
    from meshwright.train.question import training as training

    load_plan = plan_file.load

_HOME = {
    "MeshwrightError": "base.errors", "Plan": "train.answer", "PlanOptions": "sharding.strategy",
    "check": "train.legality", "estimate": "train.estimate", "explain": "train.explain",
    "export": "frameworks.writing", "front": "train.plan", "load_model": "catalog.models",
    "load_plan": "train.plan_file", "load_system": "catalog.systems",
    "make_strategy": "sharding.strategy", "plan": "train.plan", "replan": "train.plan",
    "save_plan": "train.plan_file", "training": "train.question",
}  # fmt: skip
_CALLED = {"load_plan": "load", "save_plan": "save"}

__all__ = [
    "MeshwrightError", "Plan", "PlanOptions", "check", "estimate", "explain", "export", "front",
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
