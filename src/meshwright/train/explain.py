"""Reasons for a plan: its limits, the effect of better hardware, nearby plans with less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.base.records import Rows, Shown, scalars
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Counts
from meshwright.sharding.space import Choices, divisors
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, Strategy
from meshwright.train.answer import (
    Candidate,
    Plan,
    WhyNot,
)
from meshwright.train.families import AllFamilies
from meshwright.train.leading import lead
from meshwright.train.placer import CLOSED_FORM, Leaders, Placer
from meshwright.train.price import candidates, compared
from meshwright.train.question import check_problem, problem_of
from meshwright.train.robustness import Change, changes
from meshwright.train.search import priced_families
from meshwright.train.space import SearchSpace

if TYPE_CHECKING:
    from meshwright.view.notebook import AltairChart
    from meshwright.view.parts import Page


def what_would_change(plan: Plan) -> list[Change]:
    """Return the step times of the same plan on better systems."""
    return changes(problem_of(plan), plan.best.strategy, plan.best.plan_options)


def what_would_fit(plan: Plan) -> list[Candidate]:
    """Return plans that fit in place of one: up to three single changes, or else the best plan.

    Recomputation comes first, since it changes neither the devices nor the work on them; then the
    fastest. Where no single change is enough, the whole space is searched; empty: nothing fits.
    """
    problem = problem_of(plan)
    together: dict[PlanOptions, list[Strategy]] = {}
    for strategy, plan_options in leaner(plan.best.strategy, plan.best.plan_options):
        if not check_problem(problem, strategy, plan_options):
            together.setdefault(plan_options, []).append(strategy)
    found = [
        entry
        for plan_options, strategies in together.items()
        for entry in candidates(problem, strategies, plan_options)
        if entry.estimate.fits
    ]
    if not found:
        leaders, _ = lead(SearchSpace(problem, Choices()), CLOSED_FORM)
        return [entry.candidate for entry in leaders.placed]
    same = plan.best.plan_options.recompute
    return sorted(
        found, key=lambda entry: (entry.plan_options.recompute is same, entry.estimate.step_time_s)
    )[:3]


def explain(plan: Plan, placer: Placer = CLOSED_FORM) -> Explanation:
    """Return the reasons for a plan: its limits, the plans it beats, and impossible features.

    Raises
    ------
    SpecError
        The plan of a file is illegal for its own model and system.
    """
    problem, price = problem_of(plan), plan.best.estimate
    faults = check_problem(problem, plan.best.strategy, plan.best.plan_options)
    if faults:
        raise SpecError(faults, origin=plan.best.text)
    whys = [compared(f"the runner-up {n}", plan.best, c) for n, c in enumerate(plan.runners_up, 2)]
    impossible: dict[str, str] = {}
    every = _every_family(placer.space(problem, Choices()))
    for name, choice, values in missing_features(
        problem, plan.best.strategy, plan.best.plan_options
    ):
        try:
            leaders = _best_with(placer, placer.space(problem, Choices({choice: values})), every)
        except InfeasibleError as error:
            impossible[name] = str(error)
            continue
        if leaders.placed:
            whys.append(compared(name, plan.best, leaders.best))
        else:
            impossible[name] = leaders.result.counts.summary
    shares = {name: t / price.step_time_s for name, t in price.time_parts_s.items()}
    return Explanation(plan, shares, what_would_change(plan), whys, impossible)


def _every_family(space: SearchSpace) -> AllFamilies | None:
    """Return the families of all plans, priced once for all questions; None: all are refused."""
    try:
        return priced_families(space, Counts())
    except InfeasibleError:
        return None


def _best_with(placer: Placer, space: SearchSpace, every: AllFamilies | None) -> Leaders:
    """Return the best plan of a narrower space; where there is none, count all refusals."""
    if every is not None:
        leaders = placer.best(space, among=every)
        if leaders.placed:
            return leaders
    return placer.best(space)


Variant = tuple[Strategy, PlanOptions]


def leaner(strategy: Strategy, plan_options: PlanOptions) -> Iterator[Variant]:
    """Yield plans that differ by one change and need less memory, on the same number of devices."""
    steps = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    for recompute in steps[steps.index(plan_options.recompute) + 1 :]:
        yield strategy, replace(plan_options, recompute=recompute)
    has_shards = strategy.dp_shard * strategy.cp > 1
    for stage in range(plan_options.zero_stage + 1, 4 if has_shards else 0):
        yield strategy, replace(plan_options, zero_stage=stage)
    for offload in (Offload.OPTIMIZER, Offload.STATE, Offload.ACTIVATIONS, Offload.ALL):
        yield strategy, replace(plan_options, offload=offload)
    if strategy.micro_batch_size > 1:
        yield replace(strategy, micro_batch_size=1.0), plan_options
    yield from _split_further(strategy, plan_options)


def _split_further(strategy: Strategy, plan_options: PlanOptions) -> Iterator[Variant]:
    """Yield plans in which tp, pp or cp takes devices from the shards of dp."""
    for axis in ("tp", "pp", "cp"):
        for factor in (2.0, 4.0, 8.0):
            if strategy.dp_shard % factor:
                continue
            degrees = {axis: getattr(strategy, axis) * factor}
            split = replace(strategy, dp_shard=strategy.dp_shard / factor, **degrees)
            stage = plan_options.zero_stage if split.dp_shard * split.cp > 1 else 0
            yield split, replace(plan_options, sequence_parallel=split.tp > 1, zero_stage=stage)


def missing_features(
    problem: Problem, strategy: Strategy, plan_options: PlanOptions
) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """Yield the features that a plan lacks: name, and the choice that asks for it, with values."""
    degrees = tuple(divisors(problem.system.num_alive))[1:]
    names = {
        "tp": "tensor parallelism", "pp": "pipeline stages", "cp": "context parallelism",
        "dp": "data parallelism",
    }  # fmt: skip
    if problem.has_grid:
        names["tatp"] = "tensor streams (tatp)"
    if problem.num_experts:
        names["ep"] = "expert parallelism"
    for axis, words in names.items():
        if getattr(strategy, axis) == 1 and degrees:
            yield words, axis, degrees
    if plan_options.recompute is Recompute.NONE:
        yield "full recomputation", "recompute", (Recompute.FULL,)
    if plan_options.zero_stage < 3:
        yield "fully sharded weights (ZeRO-3)", "zero_stage", (3,)
    if plan_options.offload is not Offload.NONE:
        yield "keeping all on the devices", "offload", (Offload.NONE,)


@dataclass(frozen=True)
class Explanation(Shown):
    """Explanation of a plan."""

    plan: Plan
    shares: Mapping[str, float]
    """Share of each part in the step."""
    changes: list[Change]
    why_not: list[WhyNot]
    """The best plan with each feature that this one lacks, and each runner-up."""
    not_possible: Mapping[str, str]
    """Features that no legal plan that fits has, with the reason."""

    def page(self) -> Page:
        """Return the report of the plan, with the best plans that have its missing features."""
        return self.plan.page(explanation=self)

    def brief(self) -> str:
        """Return the limits of the plan, and the change that gains most."""
        from meshwright.train.report import explanation_in_brief

        return explanation_in_brief(self)

    def rows(self) -> Rows:
        """Return the gains of single changes: the step time with twice of each resource."""
        return [scalars(change) for change in self.changes]

    def plot_gains(self) -> AltairChart:
        """Draw how much faster the same plan is with twice of each resource [%]."""
        return self.plan.plot_gains()
