"""The best plans of several recipes on one question, side by side, and their shape as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate
from meshwright.train.files import candidate_data


@dataclass(frozen=True)
class Entry:
    """The best plan of one recipe, or why it has none."""

    recipe: str
    title: str
    source: str
    mapper: str | None
    """Who placed it; None where there is nothing to place."""
    best: Candidate | None
    lower_bound_s: float | None
    """No candidate of the recipe is faster [s]: without contention, or where it was placed."""
    why_none: str
    search_s: float
    """Wall-clock time of search and placement [s]."""

    def speedup_of(self, ours: Entry) -> float | None:
        """Return the step time of this entry over that of ours; None where either has none."""
        if self.best is None or ours.best is None:
            return None
        return self.best.estimate.step_time_s / ours.best.estimate.step_time_s


@dataclass(frozen=True)
class Comparison:
    """Recipes on one question; ours comes first."""

    model: ModelSpec
    system: SystemSpec
    workload: Training
    entries: tuple[Entry, ...]

    @property
    def ours(self) -> Entry:
        """The plan for which everything is free."""
        return self.entries[0]


def comparison_data(found: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data."""
    return {
        "model": found.model.name,
        "system": found.system.name,
        "entries": [entry_data(entry, found.ours) for entry in found.entries],
    }


def entry_data(entry: Entry, ours: Entry) -> dict[str, Any]:
    """Return one recipe as plain data."""
    return {
        "recipe": entry.recipe,
        "title": entry.title,
        "source": entry.source,
        "mapper": entry.mapper,
        "best": None if entry.best is None else candidate_data(entry.best),
        "lower_bound_s": entry.lower_bound_s,
        "speedup_of_ours": entry.speedup_of(ours),
        "why_none": entry.why_none,
        "search_s": entry.search_s,
    }
