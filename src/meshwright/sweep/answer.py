"""The answer of a sweep: its question, the result of each point, and the best ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.records import Rows, Shown
from meshwright.spec.sweep import SweepSpec
from meshwright.sweep.choice import Choice
from meshwright.sweep.report import counts_of, records
from meshwright.sweep.run import Point, Result, Swept
from meshwright.view.notebook import figure

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page


@dataclass(frozen=True)
class SweepAnswer(Shown):
    """One question over all combinations of the varied fields."""

    asked: SweepSpec
    swept: Swept
    chosen: tuple[Choice, ...] = ()
    """The best points under limits that the user adds to those of the file."""
    version: str = ""
    command: str = ""

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

    def page(self) -> Page:
        """Return the report as data."""
        from meshwright.sweep.page import sweep_page

        return sweep_page(
            self.asked, self.swept, self.chosen, version=self.version, command=self.command
        )

    def brief(self) -> str:
        """Return the number of points, and the count of each status."""
        varied = " x ".join(f"{len(values)} {name}" for name, values in self.asked.sides.items())
        ended = ", ".join(f"{number:,} {how}" for how, number in counts_of(self.swept).items())
        return f"{self.asked.name}: {len(self.points):,} points: {varied}\n{ended}"

    def rows(self) -> Rows:
        """Return the points with their results."""
        return records(self.swept)

    def plot_map(self, shows: str = "") -> AltairChart:
        """Draw a result over the varied fields: colours over two fields, bars over one.

        Parameters
        ----------
        shows
            Name of a result, such as ``step_time_s``; empty: the first map of the report.
        """
        from meshwright.sweep.page import map_of

        return figure(map_of(self.asked, self.swept, shows), "no point has a result")
