"""Certainty of a price of serving: the interval that holds 80 % of measured values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.cost.problem import Distances, ProblemOf, distances_of, traits_of
from meshwright.spec.calibration import Spread
from meshwright.spec.workload import Workload

FIRST_TOKEN = "first_token"
"""Trait of a time to the first token under load, which waits and hosts make less certain."""


@dataclass(frozen=True)
class Certainty:
    """Spread of measured rows about their prices, and the chips that were measured."""

    spread: Spread
    families: frozenset[str]
    """Families of the chips that have measured rows."""

    def ends(self, problem: ProblemOf[Workload], *, is_first_token: bool = False) -> Distances:
        """Return the distances of the ends of the interval of a time from it, in logarithms."""
        traits = traits_of(problem, is_seen=problem.system.chip.family in self.families)
        return distances_of(self.spread, traits | {FIRST_TOKEN: float(is_first_token)})


def interval_of(time: float, ends: Distances | None) -> tuple[float, float] | None:
    """Return the interval of a time, in its unit, shortest first; None: not known."""
    if ends is None:
        return None
    return time * math.exp(-ends.faster), time * math.exp(ends.slower)


def rates_of(rate: float, ends: Distances | None) -> tuple[float, float] | None:
    """Return the interval of a rate, in its unit, lowest first, from the ends of its time."""
    found = interval_of(1.0, ends)
    return None if found is None else (rate / found[1], rate / found[0])


def surely(limit_s: float | None, ends: Distances | None) -> float | None:
    """Return the longest predicted time with a slow end within a limit [s].

    Of a limit of 50 ms with a slow end 25 % above the prediction: 40 ms.
    """
    if limit_s is None or ends is None:
        return limit_s
    return limit_s / math.exp(ends.slower)
