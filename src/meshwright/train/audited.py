"""What a plan says of itself, as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.laws import require_lawful
from meshwright.audit.training import TrainingFacts
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate, Plan


def facts_of(plan: Plan) -> Iterator[TrainingFacts]:
    """Yield the facts of each candidate of a plan, the best one first.

    What a search finds is said to fit.
    """
    for candidate in (plan.best, *plan.runners_up):
        is_found = candidate.estimate.fits or plan.coverage is not None
        yield candidate_facts(
            plan.model, plan.system, plan.workload, candidate, claims_to_fit=is_found
        )


def candidate_facts(
    model: ModelSpec, system: SystemSpec, workload: Training, candidate: Candidate,
    *, claims_to_fit: bool,
) -> TrainingFacts:  # fmt: skip
    """Return the facts of one candidate."""
    price = candidate.estimate
    return TrainingFacts(
        answer=candidate.text,
        model=model,
        system=system,
        workload=workload,
        degrees=vars(candidate.strategy),
        choices=vars(candidate.structure),
        is_placed=candidate.placement is not None,
        step_time_s=price.step_time_s,
        time_parts_s=price.time_parts_s,
        interval_s=price.interval_s,
        num_devices_used=price.num_devices_used,
        num_hosted=0
        if candidate.placement is None
        else len(candidate.placement.devices) - len(set(candidate.placement.devices)),
        num_micro_batches=price.num_micro_batches,
        tokens_per_s=price.tokens_per_s,
        mfu=price.mfu_causal,
        hfu=price.hfu,
        fullest_stage=price.fullest_stage,
        memory_bytes=price.memory_bytes,
        memory_parts_bytes=price.memory_parts_bytes,
        host_bytes_per_device=price.host_bytes_per_device,
        claims_to_fit=claims_to_fit,
        energy_j=price.energy_j,
        energy_parts_j=price.energy_parts_j,
        cost_usd=price.cost_usd,
    )


def lawful(plan: Plan) -> Plan:
    """Return a plan that breaks no law.

    Raises
    ------
    UnlawfulError
        With each law that it breaks.
    """
    require_lawful(facts_of(plan))
    return plan
