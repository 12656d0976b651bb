"""What a cut into stages says of itself, as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.graphs import PartitionFacts, StageFacts
from meshwright.audit.laws import require_lawful
from meshwright.sram.answer import PartitionPlan
from meshwright.sram.problem import PartitionProblem


def facts_of(problem: PartitionProblem, plan: PartitionPlan) -> Iterator[PartitionFacts]:
    """Yield the facts of the cut of a model."""
    chips = (problem.system.chip, *problem.system.other_chips.values())
    rates = plan.rates
    yield PartitionFacts(
        answer=f"{len(plan.stages)} stages in {plan.level}",
        model=problem.model,
        system=problem.system,
        workload=problem.workload,
        stages=tuple(
            StageFacts(
                stage.load_parts_bytes["weights"], stage.held_bytes, stage.room_bytes, stage.work_s
            )
            for stage in plan.stages
        ),
        tensor_degree=plan.tensor_degree,
        expert_degree=plan.expert_degree,
        replicas=plan.replicas,
        num_devices_used=plan.num_devices_used,
        claims_to_fit=plan.fits,
        peak_flops_per_s=max(rate for chip in chips for rate in chip.matmul_flops_per_s.values()),
        latency_s=None if rates is None else rates.latency_s,
        time_parts_s={} if rates is None else rates.time_parts_s,
        tokens_per_s=None if rates is None else rates.tokens_per_s,
    )


def lawful(problem: PartitionProblem, plan: PartitionPlan) -> PartitionPlan:
    """Return a cut that breaks no law.

    Raises
    ------
    UnlawfulError
        With each law that it breaks.
    """
    require_lawful(facts_of(problem, plan))
    return plan
