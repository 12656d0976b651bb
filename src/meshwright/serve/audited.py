"""An answer of serving as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.audit.laws import Facts, gathered
from meshwright.audit.serving import DeploymentFacts, ServingFacts
from meshwright.serve.answer import Deployment, DisaggregatedPlan, ServingCandidate, ServingPlan
from meshwright.spec.workload import Prefill


def facts_of(plan: ServingPlan | DisaggregatedPlan) -> Iterator[Facts]:
    """Yield the facts of each candidate of a plan, the best one first."""
    if isinstance(plan, ServingPlan):
        yield from (_of_candidate(plan, found) for found in (plan.best, *plan.runners_up))
        return
    for found in (plan.best, *plan.runners_up):
        facts = _of_deployment(plan, found)
        yield from (facts, facts.prefill, facts.decode)


def _of_candidate(
    question: ServingPlan | DisaggregatedPlan, candidate: ServingCandidate, **stated: Any
) -> ServingFacts:
    """Return the facts of one way of serving."""
    chip = question.system.chip
    return gathered(
        ServingFacts, candidate.estimate, question,
        answer=candidate.text,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.plan_options),
        energy_is_of_operations=None
        not in (chip.energy_j_per_flop, chip.main_memory.energy_j_per_byte),
        **stated,
    )  # fmt: skip


def _of_deployment(plan: DisaggregatedPlan, found: Deployment) -> DeploymentFacts:
    """Return the facts of workers of two kinds: those of prefill see prompts alone."""
    work = plan.workload
    prompts = Prefill(
        batch_size=work.batch_size, prompt_length=work.prompt_length or 1,
        precision=work.precision, software=work.software,
    )  # fmt: skip
    return gathered(
        DeploymentFacts, found, plan,
        answer=found.text,
        prefill=_of_candidate(plan, found.prefill.worker, workload=prompts),
        decode=_of_candidate(plan, found.decode.worker),
        num_prefill=found.prefill.number,
        num_decode=found.decode.number,
    )  # fmt: skip
