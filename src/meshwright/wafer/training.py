"""The verbs of training on any system: on a grid, candidates are placed and share links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from meshwright.base.errors import InfeasibleError
from meshwright.cost.problem import Mapper, Problem
from meshwright.search.exhaustive import Found, Progress, in_order_of_preference
from meshwright.train import compare as comparing
from meshwright.train import estimate as estimating
from meshwright.train import explain as explaining
from meshwright.train import plan as planning
from meshwright.train.answer import Candidate, OperatorPlan
from meshwright.train.estimate import Placed, Placer
from meshwright.wafer.operators.answer import check_operators, operator_plan
from meshwright.wafer.placing import Placing, has_placement, place_or_none, placed_candidate, routed
from meshwright.wafer.price import physical_network


class GridPlacer(Placer):
    """Lays candidates on a grid of devices and prices them on the links that they share."""

    def has_placement(self, problem: Problem) -> bool:
        """Tell whether ranks of a system can be placed: on grids, and not too many of them."""
        return has_placement(problem)

    def placed(self, problem: Problem, found: Sequence[Found]) -> list[Placed]:
        """Return candidates with contention, preferred ones first; off grids in closed form.

        The messages of the first one are routed around shared links, where that helps.
        Where some fit no blocks, those that do are preferred: the others have no known routes. On a
        grid with faults they are left out.

        Raises
        ------
        InfeasibleError
            On a grid with faults, where no candidate fits.
        """
        if not has_placement(problem):
            return super().placed(problem, found)
        physical = physical_network(problem)
        placings = [
            (one, place_or_none(problem, one.structure, one.strategy, physical)) for one in found
        ]
        contended = [
            (replace(one, time_s=placing.time_s), placing)
            for one, placing in placings
            if placing is not None
        ]
        placing_of = {id(one): placing for one, placing in contended}
        placed: list[Placed] = []
        for one in in_order_of_preference(
            sorted((c for c, _ in contended), key=attrgetter("time_s"))
        ):
            placing = placing_of[id(one)]
            if not placed:
                placing = routed(problem, one.structure, one.strategy, placing, physical)
            entry = placed_candidate(problem, one.structure, one.strategy, placing, physical)
            placed.append(Placed(replace(one, time_s=placing.time_s), entry))
        if problem.whole_grids:
            if not placed:
                used = sorted({f"{one.strategy.num_devices:.0f}" for one in found})
                grids = ", ".join("x".join(map(str, sides[::-1])) for sides in problem.whole_grids)
                raise InfeasibleError(
                    f"no blocks of {' or '.join(used)} devices fit what works of "
                    f"{problem.system.name}: whole grids of working, connected devices are at most "
                    f"{grids or 'none'}"
                )
            return placed
        others = [one for one, placing in placings if placing is None]
        return placed + super().placed(problem, others)

    def fastest(self, problem: Problem, found: Sequence[Found]) -> tuple[Candidate, float]:
        """Return the fastest candidate where the mapper puts it, and a bound of all of them [s].

        Candidates are placed in order of their closed form, until the next one is no faster without
        contention than the best one is with it. Only TMap routes messages around shared links.

        Parameters
        ----------
        found
            In order of time.

        Raises
        ------
        InfeasibleError
            Where none of them fits blocks of the grid.
        """
        if not has_placement(problem):
            return super().fastest(problem, found)
        physical = physical_network(problem)
        best: tuple[Found, Placing] | None = None
        bound_s = float("inf")
        for at in found:
            if best is not None and at.time_s >= best[1].time_s:
                bound_s = min(bound_s, at.time_s)
                break
            placing = place_or_none(problem, at.structure, at.strategy, physical)
            if placing is not None:
                bound_s = min(bound_s, placing.lower_bound_s)
                if best is None or placing.time_s < best[1].time_s:
                    best = at, placing
        else:
            bound_s = min(bound_s, found[-1].time_s)  # what was not found is no faster alone
        if best is None:
            raise InfeasibleError(f"no placement by {problem.mapper} fits {problem.system.name}")
        at, placing = best
        if problem.mapper is Mapper.TMAP:
            placing = routed(problem, at.structure, at.strategy, placing, physical)
        entry = placed_candidate(problem, at.structure, at.strategy, placing, physical)
        return entry, min(bound_s, placing.time_s)

    def check_operators(self, problem: Problem) -> None:
        """Refuse a problem whose operators cannot have strategies of their own."""
        check_operators(problem)

    def operator_plan(
        self, problem: Problem, *,
        allowed: Mapping[str, Sequence[object]] | None = None, progress: Progress | None = None,
    ) -> OperatorPlan | None:  # fmt: skip
        """Return the best plan with a strategy for each operator; None where nothing fits."""
        return operator_plan(problem, allowed=allowed, progress=progress)


GRIDS = GridPlacer()
plan = partial(planning.plan, placer=GRIDS)
replan = partial(planning.replan, placer=GRIDS)
estimate = partial(estimating.estimate, placer=GRIDS)
compare = partial(comparing.compare, placer=GRIDS)
explain = partial(explaining.explain, placer=GRIDS)
