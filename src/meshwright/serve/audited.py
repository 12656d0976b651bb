"""What an answer of serving says of itself, as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from meshwright.audit.laws import Facts, require_lawful
from meshwright.audit.serving import DeploymentFacts, ServingFacts
from meshwright.serve.answer import Deployment, DisaggregatedPlan, ServingCandidate, ServingPlan
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Decode, Prefill

Answer = TypeVar("Answer", ServingPlan, DisaggregatedPlan)


def facts_of(plan: ServingPlan | DisaggregatedPlan) -> Iterator[Facts]:
    """Yield the facts of each candidate of a plan, the best one first."""
    for candidate in (plan.best, *plan.runners_up):
        if isinstance(candidate, Deployment):
            facts = _of_deployment(plan.system, plan.model, plan.workload, candidate)
            yield from (facts, facts.prefill, facts.decode)
        else:
            yield _of_candidate(plan.model, plan.system, plan.workload, candidate)


def _of_candidate(
    model: ModelSpec, system: SystemSpec, workload: Prefill | Decode, candidate: ServingCandidate
) -> ServingFacts:
    """Return the facts of one way of serving."""
    price, chip = candidate.estimate, system.chip
    memory = chip.main_memory.energy_j_per_byte
    return ServingFacts(
        answer=candidate.text,
        model=model,
        system=system,
        workload=workload,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.structure),
        num_groups=price.num_groups,
        latency_s=price.latency_s,
        time_parts_s=price.time_parts_s,
        first_token_s=price.first_token_s,
        tokens_per_s=price.tokens_per_s,
        tokens_per_s_per_user=price.tokens_per_s_per_user,
        sequences_in_flight=price.sequences_in_flight,
        most_sequences=price.most_sequences,
        num_devices_used=price.num_devices_used,
        fullest_stage=price.fullest_stage,
        memory_bytes=price.memory_bytes,
        memory_parts_bytes=price.memory_parts_bytes,
        memory_capacity_bytes=price.memory_capacity_bytes,
        energy_j_per_million_tokens=price.energy_j_per_million_tokens,
        energy_is_of_operations=None not in (chip.energy_j_per_flop, memory),
        cost_usd_per_million_tokens=price.cost_usd_per_million_tokens,
    )


def _of_deployment(
    system: SystemSpec, model: ModelSpec, work: Prefill | Decode, found: Deployment
) -> DeploymentFacts:
    """Return the facts of workers of two kinds: those of prefill see prompts alone."""
    assert isinstance(work, Decode)
    prompts = Prefill(
        batch_size=work.batch_size, prompt_length=work.prompt_length or 1,
        precision=work.precision, software=work.software,
    )  # fmt: skip
    return DeploymentFacts(
        answer=found.text,
        system=system,
        workload=work,
        prefill=_of_candidate(model, system, prompts, found.prefill.worker),
        decode=_of_candidate(model, system, work, found.decode.worker),
        num_prefill=found.prefill.number,
        num_decode=found.decode.number,
        requests_per_s=found.requests_per_s,
        tokens_per_s=found.tokens_per_s,
        latency_s=found.latency_s,
        sequences_in_flight=found.sequences_in_flight,
        first_token_s=found.first_token_s,
        first_token_parts_s=found.first_token_parts_s,
        num_devices_used=found.num_devices_used,
        cost_usd_per_million_tokens=found.cost_usd_per_million_tokens,
    )


def lawful(plan: Answer) -> Answer:
    """Return a plan that breaks no law.

    Raises
    ------
    UnlawfulError
        With each law that it breaks.
    """
    require_lawful(facts_of(plan))
    return plan
