"""Which plan leads: among plans that the model cannot tell apart, the simplest that starts."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from meshwright.base.errors import InfeasibleError
from meshwright.search.exhaustive import Found, complexity, in_order_of_preference
from meshwright.sharding.strategy import stack
from meshwright.train.answer import Candidate
from meshwright.train.estimate import Leaders, Placed, candidate
from meshwright.train.measured.factors import PLAN_ERROR
from meshwright.train.question import launched_by
from meshwright.train.search import search
from meshwright.train.space import SearchSpace


def leading(
    space: SearchSpace, leaders: Leaders, *, simplest: bool = True
) -> tuple[Leaders, tuple[str, ...]]:
    """Return the leaders in the order in which they are recommended, and what is to be said of it.

    Within the error of plans against each other (``PLAN_ERROR`` of the fastest) the simplest plan
    comes first, by :func:`~meshwright.search.exhaustive.complexity`; what is faster follows. Where
    no framework is asked for, a plan that some framework starts comes before those that start
    nowhere. Ranks that are placed keep their order: no framework starts them.

    Parameters
    ----------
    simplest
        Whether simplicity counts; else only whether a plan starts.
    """
    best = leaders.best
    if best.placement is not None or not leaders.coverage.is_complete:
        return leaders, ()
    limit_s = leaders.result.found[0].time_s * (1.0 + PLAN_ERROR)
    first = _simplest(space, leaders, limit_s) if simplest else None
    if first is None and not _starts(space, best):
        first = _fastest_that_starts(space, best.estimate.step_time_s * (1.0 + PLAN_ERROR))
    if first is None:
        return leaders, ()
    placed = Placed(first, candidate(space.problem, first.strategy, first.structure))
    text = placed.candidate.text
    others = [entry for entry in leaders.placed if entry.candidate.text != text]
    leaders = replace(leaders, placed=(placed, *others)[: len(leaders.placed)])
    ahead = placed.candidate.estimate.step_time_s / best.estimate.step_time_s - 1.0
    if text == best.text or ahead <= 0.0 or _starts(space, best):
        return leaders, ()
    return leaders, (f"{ahead:.1%} faster, but no framework of the catalog starts it: {best.text}",)


def _simplest(space: SearchSpace, leaders: Leaders, limit_s: float) -> Found | None:
    """Return the simplest plan that starts, where it is simpler than what leads so far."""
    now = leaders.placed[0].found
    families = leaders.result.families
    known = search(space, within_s=limit_s, simplest=True, among=families)
    if not known.is_complete:
        return None
    most = _complexity(now) if _starts(space, leaders.best) else None
    for level, entries in groupby(known.found, _complexity):
        if most is not None and level >= most:
            return None
        for found in in_order_of_preference(list(entries)):
            if _starts(space, candidate(space.problem, found.strategy, found.structure)):
                return found
    return None


def _complexity(found: Found) -> int:
    return int(complexity(stack([found.strategy]), found.structure)[0])


def _starts(space: SearchSpace, plan: Candidate) -> bool:
    """Tell whether what is asked for, or else some framework, starts a plan."""
    return space.problem.workload.software.launches is not None or bool(plan.launches_with)


def _fastest_that_starts(space: SearchSpace, limit_s: float) -> Found | None:
    """Return the best plan within a time that some framework starts."""
    first = None
    for _, work in launched_by(space.problem):
        asked = replace(space.problem, workload=work)
        try:
            result = search(SearchSpace(asked, space.choices), within_s=limit_s)
        except InfeasibleError:
            continue
        for found in in_order_of_preference(result.found)[:1]:
            first, limit_s = found, found.time_s
    return first
