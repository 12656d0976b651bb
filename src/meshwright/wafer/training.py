"""The verbs of training on any system: on a grid, candidates are placed and share links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter

import numpy as np

from meshwright.base.arrays import number_at
from meshwright.base.cluster import every_answer
from meshwright.base.errors import InfeasibleError, UnsupportedError
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import TIE, Found, Progress
from meshwright.search.leading import in_order_of_preference
from meshwright.sharding.strategy import AXES, PlanOptions, Strategy
from meshwright.topology.network import Network
from meshwright.train import compare as comparing
from meshwright.train import explain as explaining
from meshwright.train import plan as planning
from meshwright.train import price as pricing
from meshwright.train.answer import Candidate, Plan
from meshwright.train.families import AllFamilies
from meshwright.train.leading import Leaders, Placed, Placer
from meshwright.train.search import SearchResult, fewer_devices, search
from meshwright.train.space import SearchSpace
from meshwright.train.timeline import StepTimeline, plan_timeline, step_timeline
from meshwright.wafer.answer import SimulatedPlan
from meshwright.wafer.operators.answer import check_operators, operator_plan
from meshwright.wafer.operators.simulation import simulate_operators
from meshwright.wafer.price import physical_network
from meshwright.wafer.search import (
    Laid,
    PlacementSearch,
    Placing,
    has_placement,
    place,
    placed_candidate,
    price_as_placed,
    routed,
)
from meshwright.wafer.simulation import not_played, simulate, simulated_step_s


class GridPlacer(Placer):
    """Lays candidates on a grid of devices and prices them on the links that they share."""

    has_placement = staticmethod(has_placement)
    check_operators = staticmethod(check_operators)
    operator_plan = staticmethod(operator_plan)

    def best(
        self, space: SearchSpace, *, top: int = 1, progress: Progress | None = None,
        among: AllFamilies | None = None, num_simulated: int = 0,
    ) -> Leaders:  # fmt: skip
        """Return the best candidates with contention, proven; off grids in closed form.

        Candidates are placed until no other one can be faster, whichever way its axes are nested.

        Raises
        ------
        InfeasibleError
            Where no candidate that fits the memory fits blocks of the grid.
        """
        if not space.is_open:
            return super().best(space, top=top, progress=progress, among=among)
        problem = space.problem
        result = search(space, top=NUM_BOUNDED, progress=progress, among=among)
        physical = physical_network(problem)
        # Which one leads is decided among as many, however many are asked for.
        num_leading = max(top, num_simulated)
        placing = PlacementSearch(
            problem, physical, num_leading, offloads=space.offloads, progress=progress
        )
        if not result.is_complete:
            return self._interrupted(problem, result, placing, top, physical)
        known = {_identity(one) for one in result.found}
        try:
            is_proven, num_bounded = placing.run(result.found, result.beyond_s), NUM_BOUNDED
        except KeyboardInterrupt:  # before any was placed
            anew = PlacementSearch(problem, physical, offloads=space.offloads)
            part = replace(result, is_complete=False)
            return self._interrupted(problem, part, anew, top, physical)
        is_complete, is_covered = placing.is_complete, among is not None
        while is_complete and not (is_proven and is_covered):
            limit_s = placing.limit_s
            if is_proven:
                found = result = fewer_devices(space, result, limit_s, top=NUM_BOUNDED)
                is_covered, num_bounded = True, NUM_BOUNDED
            else:
                num_bounded *= 8
                within_s = None if np.isinf(limit_s) else limit_s
                found = search(space, top=num_bounded, among=result.families, within_s=within_s)
            left = [one for one in found.found if _identity(one) not in known]
            known |= {_identity(one) for one in left}
            is_proven = placing.run(left, found.beyond_s) or (is_proven and not left)
            is_complete = found.is_complete and placing.is_complete
        if result.found and not placing.fastest:
            raise InfeasibleError(_no_blocks(problem, result.found))
        num_simulated = num_simulated if is_complete else 0
        leaders = _leaders(problem, result, placing, num_leading, physical, num_simulated)
        return replace(leaders, placed=leaders.placed[:top])

    def _interrupted(
        self, problem: Problem, result: SearchResult, placing: PlacementSearch, top: int,
        physical: Network,
    ) -> Leaders:  # fmt: skip
        """Return the best so far of a search that Ctrl-C ended: few are placed, none simulated."""
        placing.progress = None
        for first in range(0, len(result.found), NUM_INTERRUPTED):
            placing.run(result.found[first : first + NUM_INTERRUPTED], result.beyond_s)
            if placing.fastest:
                return _leaders(problem, result, placing, top, physical, 0)
        raise KeyboardInterrupt

    def price(self, problem: Problem, strategy: Strategy, plan_options: PlanOptions) -> Candidate:
        """Return one strategy with its final price; in closed form where it fits no blocks.

        Raises
        ------
        InfeasibleError
            On a grid with faults, where it fits no blocks.
        """
        if not has_placement(problem):
            return super().price(problem, strategy, plan_options)
        physical = physical_network(problem)
        placing = place(problem, plan_options, strategy, physical)
        if placing is None:
            if problem.whole_grids:
                found = Found(strategy, plan_options, 0.0, 0.0)
                raise InfeasibleError(_no_blocks(problem, [found]))
            return super().price(problem, strategy, plan_options)
        (placing,) = routed(problem, [placing], physical)
        return placed_candidate(problem, placing, physical)


NUM_BOUNDED = 256
"""Candidates to search first, by their bounds."""
NUM_INTERRUPTED = 4
"""Candidates that are placed at a time after an interrupt of the search, until one fits."""
MOST_SIMULATED = 12
"""Candidates that are simulated at most, where their prices are below the least simulated step."""
NUM_OTHERS = 8
"""Candidates that are named behind the leading ones."""


def _identity(found: Found) -> tuple[Strategy, PlanOptions]:
    return found.strategy, replace(found.plan_options, axis_order=AXES)


def _leaders(
    problem: Problem, result: SearchResult, placing: PlacementSearch, top: int, physical: Network,
    num_simulated: int,
) -> Leaders:  # fmt: skip
    """Return the answer of a search: the fastest candidates, and the next ones in closed form.

    The messages of each are routed around shared links, where that helps, before they are ranked.
    Those that are simulated are put in order by that. Where none of them takes what it is priced
    at, those behind them are simulated too, as long as their price is below the least step that
    was simulated.
    """
    space = result.families.space
    cluster, alone = space.cluster, space.of_worker.problem
    final: list[Found] = []
    placings: dict[int, Placing] = {}
    waiting = placing.fastest

    def routed_as(some: Sequence[Laid]) -> list[Found]:
        found = []
        runs = -(-len(some) // max(cluster.num_workers, 1))
        asked = [
            (alone, [laid.placing for laid in some[first : first + runs]], physical)
            for first in range(0, len(some), runs)
        ]
        ways = chain.from_iterable(every_answer(cluster, _routed, asked))
        for laid, way in zip(some, ways, strict=True):
            size = number_at(way.price.contended.step.memory_bytes)
            found.append(laid.laid_as(problem, way.price.nesting, way.time_s, size))
            placings[id(found[-1])] = way
        return found

    while waiting:
        least_s = min((one.time_s for one in final), default=np.inf)
        if len(final) >= top and waiting[0].time_s > least_s * (1.0 + TIE):
            break
        number = max(top - len(final), 1)
        final += routed_as(waiting[:number])
        waiting = waiting[number:]

    def placed_at(one: Found) -> Placed:
        return Placed(one, placed_candidate(problem, placings[id(one)], physical))

    def simulated_at(entries: Sequence[Placed]) -> Iterator[Placed]:
        asked = [(alone, one.found.plan_options, placings[id(one.found)], physical)
                 for one in entries]  # fmt: skip
        times_s = every_answer(cluster, _simulated_s, asked)
        for entry, simulated_s in zip(entries, times_s, strict=True):
            yield replace(entry, candidate=replace(entry.candidate, simulated_s=simulated_s))

    final.sort(key=attrgetter("time_s"))
    in_order = in_order_of_preference(final)[:top]
    placed = [placed_at(one) for one in in_order]
    fastest = None
    if final:
        same = [entry for entry in placed if entry.found is final[0]]
        fastest = (same or [placed_at(final[0])])[0]
    played: list[Placed] = []
    more: list[Placed] = []
    with suppress(KeyboardInterrupt):  # the plan is known, and stays
        played.extend(simulated_at(placed[:num_simulated]))
        for laid in waiting[: MOST_SIMULATED - len(played)] if played else ():
            least_s = min(entry.candidate.simulated_s or 0.0 for entry in [*played, *more])
            if laid.time_s >= least_s:
                break
            (one,) = routed_as([laid])
            more.extend(simulated_at([placed_at(one)]))
            in_order.append(one)
    fastest = next((one for one in played if fastest and one.found is fastest.found), fastest)
    placed = [*_in_simulated_order([*played, *more]), *placed[len(played) :]]
    known = {_identity(one) for one in in_order}
    left = [laid for laid in placing.laid if _identity(laid.found) not in known]
    others = tuple(
        laid.laid_as(problem, laid.choices[0], float(laid.bound_s[0]), laid.memory_bytes)
        for laid in sorted(left, key=lambda laid: float(laid.bound_s[0]))[:NUM_OTHERS]
    )
    counts, best_s = result.coverage, min((one.time_s for one in final), default=np.inf)
    num_bounded = counts.num_priced - len(placing.laid) - placing.num_too_large
    covered = replace(
        counts,
        num_priced=len(placing.laid),
        num_over_memory=counts.num_over_memory + placing.num_too_large,
        num_beyond_bound=counts.num_beyond_bound + num_bounded,
        is_complete=result.is_complete and placing.is_complete,
        lower_bound_s=min(best_s, placing.lower_bound_s),
        gap=best_s / min(best_s, placing.lower_bound_s) - 1.0,
        elapsed_s=counts.elapsed_s + placing.elapsed_s,
    )
    return Leaders(result, tuple(placed), others, covered, fastest)


def _routed(asked: tuple[Problem, Sequence[Placing], Network]) -> list[Placing]:
    """Return placements with their messages routed around shared links, where that helps."""
    return routed(*asked)


def _simulated_s(asked: tuple[Problem, PlanOptions, Placing, Network]) -> float | None:
    """Return the time of the simulated step of a placement [s]; None: it cannot be simulated."""
    problem, plan_options, placing, physical = asked
    if not_played(plan_options):
        return None
    return simulated_step_s(problem, placing.price, physical)


def _in_simulated_order(placed: Sequence[Placed]) -> list[Placed]:
    """Return candidates in order of preference by their simulated times, where all have one."""
    times_s = [entry.candidate.simulated_s for entry in placed]
    found = [
        replace(entry.found, time_s=time_s)
        for entry, time_s in zip(placed, times_s, strict=True)
        if time_s is not None
    ]
    if len(found) < len(placed):
        return list(placed)
    entries = {id(one): entry for one, entry in zip(found, placed, strict=True)}
    in_order = in_order_of_preference(sorted(found, key=attrgetter("time_s")))
    return [entries[id(one)] for one in in_order]


def _no_blocks(problem: Problem, found: Sequence[Found]) -> str:
    """Return why no candidate has a place."""
    used = " or ".join(sorted({f"{one.strategy.num_devices:.0f}" for one in found}))
    if not problem.whole_grids:
        return f"no placement by {problem.mapper} fits {problem.system.name}"
    grids = ", ".join("x".join(map(str, sides[::-1])) for sides in problem.whole_grids)
    return (
        f"no blocks of {used} devices fit the working part of {problem.system.name}: grids of "
        f"working, connected devices are at most {grids}"
    )


def timeline(plan: Plan) -> StepTimeline:
    """Return the tasks of each pipeline stage of the best candidate over time, and its memory.

    Raises
    ------
    UnsupportedError
        The placement that the plan states does not fit its system.
    """
    if plan.best.placement is None:
        return plan_timeline(plan)
    problem = plan.problem
    price = price_as_placed(problem, plan.best, physical_network(problem))
    if price is None:
        raise UnsupportedError("the placement of the plan does not fit the devices of its system")
    slowdown, own = (
        {axis: np.array([times]) for axis, times in each.items()}
        for each in (price.contention.slowdown, price.contention.own_slowdown)
    )
    network = replace(price.groups(problem), slowdown=slowdown, own_slowdown=own)
    at_pace = problem.at_pace(price.work.pace, price.work.most_work, price.work.states)
    return step_timeline(plan, at_pace, price.contended, network, fidelity="contended")


def played(plan: Plan) -> SimulatedPlan:
    """Return the simulated step of a plan, also with its strategy for each operator.

    Raises
    ------
    UnsupportedError
        The plan has no placement, or parts that are not simulated.
    """
    found = simulate(plan)
    if plan.operators is None or not plan.operators.assignment:
        return found
    step = simulate_operators(plan.problem, plan.operators, found.network)
    return replace(found, operators=step)


GRIDS = GridPlacer()
plan = partial(planning.plan, placer=GRIDS)
replan = partial(planning.replan, placer=GRIDS)
estimate = partial(pricing.estimate, price=GRIDS.price)
compare = partial(comparing.compare, placer=GRIDS)
explain = partial(explaining.explain, placer=GRIDS)
