"""Reasons for a plan: its limits, the effect of better hardware, nearby plans with less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Counts
from meshwright.sharding.space import Choices, divisors
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, Strategy
from meshwright.train.answer import Candidate, Explanation, Plan
from meshwright.train.families import AllFamilies
from meshwright.train.leading import CLOSED_FORM, Leaders, Placer, lead
from meshwright.train.price import candidates, compared
from meshwright.train.question import check_problem
from meshwright.train.search import priced_families
from meshwright.train.space import SearchSpace


def what_would_fit(plan: Plan) -> list[Candidate]:
    """Return plans that fit in place of one: up to three single changes, or else the best plan.

    Recomputation comes first, since it changes neither the devices nor the work on them; then the
    fastest. Where no single change is enough, the whole space is searched; empty: nothing fits.
    """
    problem = plan.problem
    legal = [
        variant
        for variant in leaner(plan.best.strategy, plan.best.plan_options)
        if not check_problem(problem, *variant)
    ]
    found = [entry for entry in candidates(problem, legal) if entry.estimate.fits]
    if not found:
        leaders, _ = lead(SearchSpace(problem, Choices()), CLOSED_FORM)
        return [entry.candidate for entry in leaders.placed]
    same = plan.best.plan_options.recompute
    return sorted(
        found, key=lambda entry: (entry.plan_options.recompute is same, entry.estimate.step_time_s)
    )[:3]


def explain(plan: Plan, placer: Placer = CLOSED_FORM, *, searches: bool = True) -> Explanation:
    """Return the reasons for a plan: its limits, the plans it beats, and impossible features.

    Parameters
    ----------
    searches
        Whether the best plan with each feature that this one lacks is searched; else the plans
        that it already holds are compared.

    Raises
    ------
    SpecError
        The plan of a file is illegal for its own model and system.
    """
    problem, price = plan.problem, plan.best.estimate
    faults = check_problem(problem, plan.best.strategy, plan.best.plan_options)
    if faults:
        raise SpecError(faults, origin=plan.best.text)
    whys = [compared(f"plan {n} of the ranking", plan.best, candidate)
            for n, candidate in enumerate(plan.runners_up, 2)]  # fmt: skip
    shares = {name: t / price.step_time_s for name, t in price.time_parts_s.items()}
    if not searches:
        return Explanation(plan, shares, (*whys, *plan.why_not), {})
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
    return Explanation(plan, shares, tuple(whys), impossible)


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
