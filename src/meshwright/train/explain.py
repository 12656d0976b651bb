"""Why a plan is what it is, and what would change or fit."""

from __future__ import annotations

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.sharding.space import Choices
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.train.answer import Candidate, Plan
from meshwright.train.answers import candidates, compared
from meshwright.train.exhaustive import search
from meshwright.train.legality import check_problem
from meshwright.train.neighbours import leaner, missing_features
from meshwright.train.question import problem_of
from meshwright.train.report_detail import Explanation
from meshwright.train.sensitivity import Change, changes
from meshwright.train.space import SearchSpace
from meshwright.wafer.candidates import best_placed


def what_would_change(plan: Plan) -> list[Change]:
    """Return how the step time of the same plan changes on a better system."""
    return changes(problem_of(plan), plan.best.strategy, plan.best.structure)


def what_would_fit(plan: Plan) -> list[Candidate]:
    """Return the smallest single changes of a plan that fit, nearest first: at most three."""
    problem = problem_of(plan)
    together: dict[PlanOptions, list[Strategy]] = {}
    for strategy, structure in leaner(plan.best.strategy, plan.best.structure):
        if not check_problem(problem, strategy, structure):
            together.setdefault(structure, []).append(strategy)
    found = [
        entry
        for structure, strategies in together.items()
        for entry in candidates(problem, strategies, structure)
        if entry.estimate.fits
    ]
    return sorted(found, key=lambda entry: entry.estimate.step_time_s)[:3]


def explain(plan: Plan) -> Explanation:
    """Return why this plan: what limits it, what beats what, and what is not possible.

    Raises
    ------
    SpecError
        The plan, as a file has it, is not legal for its own model and system.
    """
    problem, price = problem_of(plan), plan.best.estimate
    faults = check_problem(problem, plan.best.strategy, plan.best.structure)
    if faults:
        raise SpecError(faults, origin=plan.best.text)
    whys = [compared(f"the runner-up {n}", plan.best, c) for n, c in enumerate(plan.runners_up, 2)]
    impossible: dict[str, str] = {}
    for name, choice, values in missing_features(problem, plan.best.strategy, plan.best.structure):
        try:
            result = search(SearchSpace(problem, Choices({choice: values})), top=1)
        except InfeasibleError as error:
            impossible[name] = str(error)
            continue
        if result.found:
            first = result.found[0]
            other = best_placed(problem, first.strategy, first.structure)
            whys.append(compared(name, plan.best, other))
        else:
            impossible[name] = result.counts.summary
    shares = {name: t / price.step_time_s for name, t in price.time_parts_s.items()}
    return Explanation(shares, what_would_change(plan), whys, impossible)
