"""Facts of a plan, for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.laws import gathered
from meshwright.audit.training import TrainingFacts
from meshwright.cost.problem import Problem
from meshwright.train.answer import Candidate, Plan


def facts_of(plan: Plan) -> Iterator[TrainingFacts]:
    """Yield the facts of each candidate of a plan, the best one first.

    A plan that a search found claims to fit.
    """
    for found in (plan.best, *plan.runners_up):
        fits = found.estimate.fits or plan.coverage is not None
        yield candidate_facts(plan, found, claims_to_fit=fits)


def candidate_facts(
    question: Plan | Problem, candidate: Candidate, *, claims_to_fit: bool
) -> TrainingFacts:
    """Return the facts of one candidate."""
    price, placement = candidate.estimate, candidate.placement
    devices = () if placement is None else placement.devices
    return gathered(
        TrainingFacts, price, question,
        answer=candidate.text,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.plan_options),
        is_placed=placement is not None,
        num_hosted=len(devices) - len(set(devices)),
        mfu=price.mfu_causal,
        claims_to_fit=claims_to_fit,
    )  # fmt: skip
