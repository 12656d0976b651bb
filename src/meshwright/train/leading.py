"""The leading plan: among plans that the model cannot tell apart, the simplest that starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

from meshwright.base.errors import InfeasibleError
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Found, Progress
from meshwright.search.leading import complexity, in_order_of_preference
from meshwright.sharding.strategy import stack
from meshwright.train.answer import Candidate
from meshwright.train.families import AllFamilies
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.placer import Leaders, Placed, Placer
from meshwright.train.price import candidate
from meshwright.train.question import launched_by, launches_with, starts
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

Starts = Callable[[Found], bool]
NUM_TRIED = 64
"""Number of fastest candidates that are tried; one of them has to start where any does."""
NUM_SIMULATED = 5
"""Leading candidates on a grid that are simulated."""


def lead(
    space: SearchSpace, placer: Placer, *, top: int = 1, simplest: bool = True,
    num_simulated: int = NUM_SIMULATED, progress: Progress | None = None,
    among: AllFamilies | None = None,
) -> tuple[Leaders, tuple[str, ...]]:  # fmt: skip
    """Return the recommended plans of a space, best first, and the notes on them.

    The only place that decides which plan leads; every verb with a best plan calls it.
    Within the error of plans against each other (``PLAN_ERROR`` of the fastest) the simplest plan
    comes first, by :func:`~meshwright.search.exhaustive.complexity`, of those that use no fewer
    devices than the fastest; faster plans follow. Without a requested framework, plans that
    some framework starts come before those that start nowhere.

    Parameters
    ----------
    top, num_simulated, progress, among
        As for :meth:`~meshwright.train.price.Placer.best`.
    simplest
        Whether simplicity and headroom count; else the fastest plan that starts leads.
    """
    leaders = placer.best(
        space, top=top, progress=progress, among=among, num_simulated=num_simulated
    )
    if not (leaders.placed and leaders.coverage.is_complete):
        return leaders, ()
    if not simplest and leaders.fastest is not None:
        leaders = _led_by(leaders.fastest, leaders)
    if leaders.best.placement is not None:
        return _lead_placed(space, leaders, placer, num_simulated)
    best, starts = leaders.best, _starting(space, leaders)
    limit_s = leaders.result.found[0].time_s * (1.0 + PLAN_ERROR)
    first, best_starts = None, starts(leaders.placed[0].found)
    if simplest:
        first = _simplest(space, leaders, limit_s, starts)
    if first is None and not best_starts:
        first = _fastest_that_starts(space, leaders, starts)
    if first is None:
        return leaders, ()
    placed = Placed(first, candidate(space.problem, first.strategy, first.plan_options))
    return _led_by(placed, leaders), () if best_starts else _named(space, placed, best)


def _lead_placed(
    space: SearchSpace, leaders: Leaders, placer: Placer, num_simulated: int
) -> tuple[Leaders, tuple[str, ...]]:
    """Return placed leaders and notes: a plan that some framework starts comes first.

    One example is a torus of TPUs, where no framework has tensor streams. On chips without any
    framework, such as a wafer, the order stays.
    """
    problem, best, first = space.problem, leaders.best, None
    if problem.workload.software.launches is not None or best.launches_with:
        return leaders, ()
    limit_s = math.inf
    for _, work in launched_by(problem):
        asked = placer.space(replace(problem, workload=work), space.choices)
        try:
            found = placer.best(asked, top=1, num_simulated=num_simulated)
        except InfeasibleError:
            continue
        if found.placed and found.best.estimate.step_time_s <= limit_s:
            first, limit_s = found.placed[0], found.best.estimate.step_time_s
    if first is None:
        return leaders, ()
    first = replace(first, candidate=_as_asked(problem, first.candidate))
    return _led_by(first, leaders), _named(space, first, best)


def _as_asked(problem: Problem, plan: Candidate) -> Candidate:
    """Return a plan priced for a framework, with the interval of a question without one."""
    price, plain = plan.estimate, candidate(problem, plan.strategy, plan.plan_options).estimate
    if plain.interval_s is None:
        return plan
    fastest, slowest = (end / plain.step_time_s for end in plain.interval_s)
    interval_s = fastest * price.step_time_s, slowest * price.step_time_s
    return replace(plan, estimate=replace(price, interval_s=interval_s))


def _led_by(first: Placed, leaders: Leaders) -> Leaders:
    """Return the leaders with ``first`` moved to the front."""
    others = [entry for entry in leaders.placed if entry.candidate.text != first.candidate.text]
    return replace(leaders, placed=(first, *others)[: len(leaders.placed)])


def _named(space: SearchSpace, first: Placed, fastest: Candidate) -> tuple[str, ...]:
    """Return the note on a faster plan that starts nowhere."""
    ahead = 1.0 - fastest.estimate.step_time_s / first.candidate.estimate.step_time_s
    if first.candidate.text == fastest.text or ahead <= 0.0:
        return ()
    asked = space.problem.workload.software.framework
    why = f"no file of {asked} starts it" if asked else "no framework starts it"
    return (f"ideal {fastest.text}: {ahead:.1%} faster, {why}",)


def _simplest(space: SearchSpace, leaders: Leaders, limit_s: float, starts: Starts) -> Found | None:
    """Return the simplest plan that starts, where it is simpler than the leader so far."""
    now, families = leaders.placed[0].found, leaders.result.families
    least = leaders.result.found[0].strategy.num_devices
    most = _complexity(now) if starts(now) else math.inf
    known = search(space, within_s=limit_s, simpler_than=most, among=families)
    if not known.is_complete:
        return None
    for _, entries in groupby(known.found, _complexity):
        enough = [found for found in entries if found.strategy.num_devices >= least]
        for found in in_order_of_preference(enough):
            if starts(found):
                return found
    return None


def _complexity(found: Found) -> int:
    return int(complexity(stack([found.strategy]), found.plan_options)[0])


def _starting(space: SearchSpace, leaders: Leaders) -> Starts:
    """Return the test whether the requested framework, or else any framework, starts a plan.

    Where the files of the requested framework cannot express even the question, any plan passes.
    """
    problem, software = space.problem, space.problem.workload.software
    if software.launches is None:
        return lambda found: bool(launches_with(problem, found.strategy, found.plan_options))
    name = software.framework.partition("==")[0]

    def is_written(found: Found) -> bool:
        return starts(problem, name, found.strategy, found.plan_options)

    if any(map(is_written, leaders.result.found[:NUM_TRIED])):
        return is_written
    return lambda found: True


def _fastest_that_starts(space: SearchSpace, leaders: Leaders, starts: Starts) -> Found | None:
    """Return the best plan that the requested framework, or else any framework, starts."""
    if space.problem.workload.software.launches is not None:
        return next(filter(starts, leaders.result.found), None)
    first, limit_s = None, None
    for _, work in launched_by(space.problem):
        asked = replace(space.problem, workload=work)
        try:
            result = search(SearchSpace(asked, space.choices), within_s=limit_s)
        except InfeasibleError:
            continue
        for found in in_order_of_preference(result.found)[:1]:
            first, limit_s = found, found.time_s
    return first
