"""Baselines: the recipes of other systems, each searched and placed with the same effort as ours.

A recipe is the space of another system, as a part of our own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.base.errors import InfeasibleError
from meshwright.base.registry import Registry, version
from meshwright.catalog.calibration import DEFAULT
from meshwright.cost.problem import Mapper, Problem
from meshwright.search.exhaustive import Progress
from meshwright.sharding.space import Choices
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import BestOfRecipe, Candidate, Comparison
from meshwright.train.leading import CLOSED_FORM, Placer, lead, nothing_fits
from meshwright.train.measured.factors import Factors
from meshwright.train.question import check_fixed, make_problem, switched_on

Fixed = Mapping[str, tuple[object, ...]]
"""Allowed values of a degree or of a structural choice, by name; other names are free."""

TEMP = "TEMP (Wang et al. 2025, arXiv 2512.14256), section VIII-A"
BLIND: tuple[Mapper, ...] = (Mapper.SMAP, Mapper.GMAP)
ONE: tuple[object, ...] = (1,)
STREAMS = tuple(range(2, 1025))
"""Degrees of an axis that streams tensors."""
ONE_TENSOR: tuple[object, ...] = ("auto", "weights", "inputs")
"""Values of the streamed tensor where only one tensor streams."""


@dataclass(frozen=True)
class Recipe:
    """One way to train: its fixed choices, and its placer on a grid."""

    title: str
    source: str
    fixed: Fixed
    mappers: tuple[Mapper, ...] = (Mapper.TMAP,)
    needs_grid: bool = False
    """Whether it streams tensors between neighbours; left out on systems without a grid."""


_DATA_ONLY: Fixed = {"tatp": ONE, "tp": ONE, "cp": ONE, "pp": ONE, "zero_stage": (3,)}
recipes: Registry[Recipe] = Registry("recipe")
"""Registry of the recipes, ours first."""
recipes.fill({
    "meshwright": Recipe("all choices are searched", "this project", {}),
    "temp": Recipe(
        "tensor streams with dp, tp and cp on one wafer, no pipeline",
        f"dp, sp, tp and tatp of {TEMP}, with our placement and routes",
        {"pp": ONE, "streamed": ONE_TENSOR},
        (Mapper.TMAP, Mapper.SMAP),
        needs_grid=True,
    ),
    "megatron-1": Recipe(
        "tp, dp and pp; activations between blocks are replicated over tp",
        f"Shoeybi et al. 2019, arXiv 1909.08053; baseline of {TEMP}, with ZeRO-1 over replicas",
        {"tatp": ONE, "cp": ONE, "sequence_parallel": (False,), "zero_stage": (0, 1)},
        BLIND,
    ),
    "megatron-3": Recipe(
        "tp with sequence parallelism, cp, dp and pp",
        f"Korthikanti et al. 2022, arXiv 2205.05198; baseline of {TEMP}, with ZeRO-1",
        {"tatp": ONE, "zero_stage": (0, 1)},
        BLIND,
    ),
    "fsdp": Recipe(
        "weights sharded over all devices and gathered before they are needed",
        f"Zhao et al. 2023, arXiv 2304.11277; baseline of {TEMP}; without prefetch",
        {**_DATA_ONLY, "overlap_data_parallel": (False,)},
        BLIND,
    ),
    "fsdp-prefetch": Recipe(
        "fsdp that gathers the next layer during the computation of this one",
        "Zhao et al. 2023, arXiv 2304.11277, section 3.3",
        _DATA_ONLY,
    ),
    "zero3-tp": Recipe(
        "weights sharded over dp, tp inside",
        "Rajbhandari et al. 2020, arXiv 1910.02054, with tensor parallelism",
        {"tatp": ONE, "pp": ONE, "zero_stage": (3,)},
    ),
    "folded-ring": Recipe(
        "tensor streams on a ring folded onto a line: two hops a round",
        "the predecessor of TATP; not among the paper's baselines",
        {"tatp": STREAMS, "stream_form": ("folded_ring",), "streamed": ONE_TENSOR},
        needs_grid=True,
    ),
    "cycle-ring": Recipe(
        "tensor streams on cycles of neighbours: one hop a round, half of the bytes",
        "not among the paper's baselines; 2x4 and 4x4 blocks have cycles",
        {"tatp": STREAMS, "stream_form": ("cycle",), "streamed": ONE_TENSOR},
        needs_grid=True,
    ),
    "line-stream": Recipe(
        "tensor streams on a line in both directions",
        "TATP of TEMP (Wang et al. 2025, arXiv 2512.14256), section V, as it is published",
        {"tatp": STREAMS, "stream_form": ("stream",), "streamed": ONE_TENSOR},
        needs_grid=True,
    ),
    "product-stream": Recipe(
        "2-D stream: inputs travel along the rows of a block, weights along its columns",
        "stationary-output SUMMA (van de Geijn and Watts 1997) with sends between neighbours; "
        "not among the baselines of TEMP",
        {"tp": STREAMS, "tatp": STREAMS, "streamed": ("both",)},
        needs_grid=True,
    ),
}, "recipes")  # fmt: skip


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
    prefers_simple: bool = True,
    placer: Placer = CLOSED_FORM,
    progress: Progress | None = None,
    command: str = "",
) -> Comparison:
    """Return the best plan of each recipe; ours comes first: unless named, with nothing fixed.

    After an interrupt: the recipes searched so far.

    Parameters
    ----------
    against
        Names of recipes; all of them if not given.
    ours
        The recipe that comes first, and with which the others are compared.
    allowed
        Fixed choices of all of them, as in :func:`plan`.
    factors, prefers_simple, placer
        As in :func:`plan`.
    command
        Command that made the answer.

    Raises
    ------
    SpecError, UnknownNameError
        Bad input.
    """
    problem = make_problem(model, system, switched_on(workload), calibration, factors)
    check_fixed(problem, allowed or {})
    if against is None:
        against = [n for n in recipes if problem.has_grid or not recipes[n].needs_grid]
    names = (ours, *against)
    is_placed = placer.has_placement(problem)
    # One name is enough where there is nothing to place.
    runs = [
        (name, mapper)
        for name in dict.fromkeys(names)
        for mapper in (recipes[name].mappers if is_placed else (Mapper.TMAP,))
    ]
    entries: list[BestOfRecipe] = []
    try:
        for name, mapper in runs:
            mapped = replace(problem, mapper=mapper)
            entries.append(_entry(mapped, placer, name, allowed or {}, progress, prefers_simple))
    except KeyboardInterrupt:
        if not entries:
            raise
    first = entries[0].best
    compared = tuple(_beside(entry, first) for entry in entries)
    return Comparison(problem.model, problem.system, problem.workload, compared, command, version())


def _beside(entry: BestOfRecipe, ours: Candidate | None) -> BestOfRecipe:
    """Return an entry with its step time over that of ours, where both have a plan."""
    if entry.best is None or ours is None:
        return entry
    times = entry.best.estimate.step_time_s / ours.estimate.step_time_s
    return replace(entry, speedup_of_ours=times)


def _choices(recipe: Recipe, allowed: Mapping[str, Sequence[object]]) -> Choices:
    """Return the values of each choice that both the recipe and the user allow."""
    both = {name: tuple(values) for name, values in allowed.items()}
    for name, values in recipe.fixed.items():
        both[name] = tuple(v for v in both.get(name, values) if v in values)
    return Choices(both)


def _entry(
    problem: Problem, placer: Placer, name: str, allowed: Mapping[str, Sequence[object]],
    progress: Progress | None, simplest: bool,
) -> BestOfRecipe:  # fmt: skip
    """Return the best plan of a recipe under one mapper."""
    start_s = time.perf_counter()
    recipe = recipes[name]
    best: Candidate | None = None
    bound_s: float | None = None
    why_none = ""
    try:
        best, bound_s = _best(problem, placer, _choices(recipe, allowed), progress, simplest)
    except InfeasibleError as error:
        why_none = str(error)
    return BestOfRecipe(
        recipe=name,
        title=recipe.title,
        source=recipe.source,
        mapper=str(problem.mapper) if placer.has_placement(problem) else None,
        best=best,
        lower_bound_s=bound_s,
        why_none=why_none,
        search_s=time.perf_counter() - start_s,
    )


def _best(
    problem: Problem, placer: Placer, choices: Choices, progress: Progress | None, simplest: bool
) -> tuple[Candidate, float]:
    """Return the plan of a space that leads, and a bound of the time of all of them [s].

    Raises
    ------
    InfeasibleError
        Where it has none.
    """
    space = placer.space(problem, choices)
    leaders, _ = lead(space, placer, simplest=simplest, progress=progress)
    if not leaders.placed:
        raise InfeasibleError(nothing_fits(problem, leaders.result))
    return leaders.best, leaders.coverage.lower_bound_s
