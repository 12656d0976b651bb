"""The answer of a sweep: its question, the result of each point, and the best ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base.records import Rows, Shown
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.choice import Choice
from meshwright.sweep.run import Swept
from meshwright.view.words import counted


@dataclass(frozen=True)
class SweepAnswer(Shown):
    """One question over all combinations of the varied fields."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "name": "asked.name", "ask": "asked.ask", "is_complete": "swept.is_complete",
        "num_points": "swept.num_points", "num_new": "swept.num_new", "points": "records",
        "chosen": "chosen", "front": "front", "warnings": "warnings",
    }  # fmt: skip
    asked: SweepSpec
    swept: Swept
    chosen: tuple[Choice, ...] = ()
    """The best points under limits that the user adds to those of the file."""
    version: str = ""
    command: str = ""
    warnings: tuple[str, ...] = ()
    """Workers that were left out, by name, and the way to go on where points are not asked yet."""
    front: tuple[Mapping[str, Any], ...] = ()
    """Points that no other one beats in the results and fields that were asked for."""

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """Varied fields and results of each point, by name; ``status`` is how it ended."""
        return self.swept.records

    def rows(self) -> Rows:
        """Return the points with their results."""
        return list(self.swept.records)


def way_on(swept: Swept, place: object, thing: str = "point", things: str = "") -> tuple[str, ...]:
    """Return the number of points that are left, and the way to ask them; empty: none is left."""
    if swept.is_complete:
        return ()
    left = sum(result is None for result in swept.results)
    on = (f"the same command goes on, as {place} holds the others" if place is not None
          else "with --out FILE.db the same command would go on")  # fmt: skip
    return (f"{left:,} of {counted(swept.num_points, thing, things)} not asked yet: {on}",)
