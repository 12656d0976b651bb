"""The answer of a sweep: its question, the result of each point, and the best ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base.records import Rows, Shown
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.choice import Choice
from meshwright.sweep.results import records
from meshwright.sweep.run import Point, Result, Swept


@dataclass(frozen=True)
class SweepAnswer(Shown):
    """One question over all combinations of the varied fields."""

    WRITTEN: ClassVar[Mapping[str, str]] = {
        "name": "name", "ask": "ask", "is_complete": "is_complete", "num_points": "num_points",
        "num_new": "num_new", "points": "records", "chosen": "chosen",
    }  # fmt: skip
    asked: SweepSpec
    swept: Swept
    chosen: tuple[Choice, ...] = ()
    """The best points under limits that the user adds to those of the file."""
    version: str = ""
    command: str = ""

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self.asked.name

    @property
    def ask(self) -> str:
        """Question of each point."""
        return self.asked.ask

    @property
    def num_points(self) -> int:
        """Number of points."""
        return len(self.points)

    @property
    def records(self) -> Sequence[Mapping[str, Any]]:
        """Varied fields and results of each point, by name; ``status`` is how it ended."""
        return records(self.swept)

    @property
    def points(self) -> tuple[Point, ...]:
        """Fields of each point."""
        return self.swept.points

    @property
    def results(self) -> tuple[Result | None, ...]:
        """Result of each point; None where an interrupt came first."""
        return self.swept.results

    @property
    def num_new(self) -> int:
        """Number of points without a result in the file."""
        return self.swept.num_new

    @property
    def is_complete(self) -> bool:
        """Whether every point has its result."""
        return self.swept.is_complete

    def rows(self) -> Rows:
        """Return the points with their results."""
        return records(self.swept)
