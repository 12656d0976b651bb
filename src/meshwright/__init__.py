"""Plan a large model on a real cluster or wafer: the best strategy, its price, and the proof.

>>> import meshwright as mw
>>> plan = mw.plan("llama3-70b", on="64xH100", seq="8k", global_batch=1024)

Every verb of the command line is a function of the same name with the same options. Names are
imported when they are first used, so that ``import meshwright`` is instant.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.api import calibrate as calibrate
    from meshwright.api import check as check
    from meshwright.api import compare as compare
    from meshwright.api import export as export
    from meshwright.api import fit as fit
    from meshwright.api import fuse as fuse
    from meshwright.api import load as load
    from meshwright.api import loop as loop
    from meshwright.api import measure as measure
    from meshwright.api import partition as partition
    from meshwright.api import place as place
    from meshwright.api import read as read
    from meshwright.api import route as route
    from meshwright.api import run as run
    from meshwright.api import simulate as simulate
    from meshwright.api import sweep as sweep
    from meshwright.api import timeline as timeline
    from meshwright.ask import verbs
    from meshwright.base.errors import MeshwrightError as MeshwrightError

    plan: verbs.PlanVerb
    estimate: verbs.EstimateVerb
    serve: verbs.ServeVerb
    map: verbs.MapVerb
    explain: verbs.ExplainVerb
    validate: verbs.ValidateVerb
    __version__: str

__all__ = [
    "MeshwrightError", "__version__", "calibrate", "check", "compare", "estimate", "explain",
    "export", "fit", "fuse", "load", "loop", "map", "measure", "partition", "place", "plan", "read",
    "route", "run", "serve", "simulate", "sweep", "timeline", "validate",
]  # fmt: skip


class _Package(ModuleType):
    """Keeps the verbs ``serve`` and ``sweep`` in front of the folders of the same names."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, as the import system does for a folder once it is imported."""
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        from meshwright.base.registry import version

        return version()
    if name == "MeshwrightError":
        from meshwright.base import errors

        return errors.MeshwrightError
    if name not in __all__:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    from meshwright import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
