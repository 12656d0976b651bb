"""Placement as a step of a search: the candidates of the closed form get their final price.

Who places them is an argument of each verb, so this room knows no grids of devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.base.errors import UnsupportedError
from meshwright.cost.problem import Problem
from meshwright.search.best import Found
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.train.answer import Candidate, OperatorPlan
from meshwright.train.estimate import candidate

if TYPE_CHECKING:
    from meshwright.search.exhaustive import Progress


@dataclass(frozen=True)
class Placed:
    """A candidate as it was found, and with its final price."""

    found: Found
    candidate: Candidate


class Placer:
    """Places nothing: candidates keep their closed form. A subclass places ranks on devices."""

    def has_placement(self, problem: Problem) -> bool:
        """Tell whether the ranks of a system are placed."""
        return False

    def placed(self, problem: Problem, found: Sequence[Found]) -> list[Placed]:
        """Return candidates with their final price, preferred ones first.

        Raises
        ------
        InfeasibleError
            Where none of them can be placed.
        """
        return [Placed(f, candidate(problem, f.strategy, f.structure)) for f in found]

    def price(self, problem: Problem, strategy: Strategy, structure: PlanOptions) -> Candidate:
        """Return one strategy with its final price."""
        return self.placed(problem, [Found(strategy, structure, 0.0, 0.0)])[0].candidate

    def fastest(self, problem: Problem, found: Sequence[Found]) -> tuple[Candidate, float]:
        """Return the candidate with the least final time, and a bound of all of them [s].

        Parameters
        ----------
        found
            In order of their time in closed form.
        """
        return candidate(problem, found[0].strategy, found[0].structure), found[0].time_s

    def check_operators(self, problem: Problem) -> None:
        """Refuse a problem whose operators cannot have strategies of their own.

        Raises
        ------
        UnsupportedError
            Where they cannot.
        """
        raise UnsupportedError("a strategy for each operator needs a grid of devices")

    def operator_plan(
        self, problem: Problem, *,
        allowed: Mapping[str, Sequence[object]] | None = None, progress: Progress | None = None,
    ) -> OperatorPlan | None:  # fmt: skip
        """Return the best plan with a strategy for each operator; None where nothing fits."""
        return None


CLOSED_FORM = Placer()
