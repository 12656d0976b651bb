"""What others would do: each recipe searched and placed as hard as ours, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.problem import Mapper, Problem
from meshwright.sharding.space import Choices
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate
from meshwright.train.answers import candidate, distinct, nothing_fits
from meshwright.train.comparison import Comparison, Entry
from meshwright.train.exhaustive import Progress, search
from meshwright.train.fixed import check_fixed
from meshwright.train.measured.factors import Factors
from meshwright.train.question import make_problem
from meshwright.train.recipes import Recipe, recipes
from meshwright.train.space import SearchSpace
from meshwright.wafer.answer import fastest_placed, has_placement

NUM_PLACED = 24
"""Candidates of a recipe that are placed at most, fastest closed form first."""


def compare(
    model: ModelSpec | str,
    system: SystemSpec | str,
    workload: Training,
    *,
    against: Sequence[str] | None = None,
    ours: str = "meshwright",
    allowed: Mapping[str, Sequence[object]] | None = None,
    calibration: str = DEFAULT,
    factors: Factors | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Return the best plan of each recipe; ours comes first: unless named, with nothing fixed.

    After an interrupt, those that were searched until then.

    Parameters
    ----------
    against
        Names of recipes; all of them if not given.
    ours
        The recipe that comes first, and with which the others are compared.
    allowed
        What is fixed for all of them, as in :func:`plan`.
    factors
        As in :func:`plan`.

    Raises
    ------
    SpecError, UnknownNameError
        Bad input.
    """
    problem = make_problem(model, system, workload, calibration, factors)
    check_fixed(problem, allowed or {})
    names = (ours, *(_applicable(problem) if against is None else against))
    asked = [
        (name, mapper)
        for name in dict.fromkeys(names)
        for mapper in _mappers(problem, recipes[name])
    ]
    entries: list[Entry] = []
    try:
        for name, mapper in asked:
            entries.append(_entry(replace(problem, mapper=mapper), name, allowed or {}, progress))
    except KeyboardInterrupt:
        if not entries:
            raise
    return Comparison(problem.model, problem.system, problem.workload, tuple(entries))


def _applicable(problem: Problem) -> list[str]:
    """Return the recipes that a system can run."""
    return [name for name in recipes if problem.has_grid or not recipes[name].needs_grid]


def _mappers(problem: Problem, recipe: Recipe) -> tuple[Mapper, ...]:
    """Return who places a recipe; one name is enough where there is nothing to place."""
    return recipe.mappers if has_placement(problem) else (Mapper.TMAP,)


def _choices(recipe: Recipe, allowed: Mapping[str, Sequence[object]]) -> Choices:
    """Return what both the recipe and the user allow."""
    both = {name: tuple(values) for name, values in allowed.items()}
    for name, values in recipe.fixed.items():
        both[name] = tuple(v for v in both.get(name, values) if v in values)
    return Choices(both)


def _entry(
    problem: Problem, name: str, allowed: Mapping[str, Sequence[object]], progress: Progress | None
) -> Entry:
    """Return the best plan of a recipe under one mapper."""
    start_s = time.perf_counter()
    recipe = recipes[name]
    best: Candidate | None = None
    bound_s: float | None = None
    why_none = ""
    try:
        best, bound_s = _best(problem, _choices(recipe, allowed), progress)
    except InfeasibleError as error:
        why_none = str(error)
    return Entry(
        recipe=name,
        title=recipe.title,
        source=recipe.source,
        mapper=str(problem.mapper) if has_placement(problem) else None,
        best=best,
        lower_bound_s=bound_s,
        why_none=why_none,
        search_s=time.perf_counter() - start_s,
    )


def _best(problem: Problem, choices: Choices, progress: Progress | None) -> tuple[Candidate, float]:
    """Return the fastest plan of a space, and a bound of the time of all of them [s].

    Raises
    ------
    InfeasibleError
        Where it has none.
    """
    result = search(SearchSpace(problem, choices), top=NUM_PLACED, progress=progress)
    found = distinct(result.found)
    if not found:
        raise InfeasibleError(nothing_fits(problem, result))
    if has_placement(problem):
        return fastest_placed(problem, found)
    return candidate(problem, found[0].strategy, found[0].structure), found[0].time_s
