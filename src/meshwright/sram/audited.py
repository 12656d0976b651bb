"""A cut into stages as facts for the laws of :mod:`meshwright.audit`."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from meshwright.audit.graphs import PartitionFacts, StageFacts
from meshwright.audit.laws import gathered
from meshwright.sram.answer import PartitionPlan
from meshwright.sram.question import PartitionProblem

NO_RATES = SimpleNamespace(latency_s=None, time_parts_s={}, tokens_per_s=None)
"""Rates of layers that do not fit, or whose times were not asked for."""


def facts_of(problem: PartitionProblem, plan: PartitionPlan) -> Iterator[PartitionFacts]:
    """Yield the facts of the cut of a model."""
    chips = (problem.system.chip, *problem.system.other_chips.values())
    yield gathered(
        PartitionFacts, problem, plan, plan.rates or NO_RATES,
        answer=f"{len(plan.stages)} stages in {plan.level}",
        stages=tuple(
            gathered(StageFacts, stage, weights_bytes=stage.load_parts_bytes["weights"])
            for stage in plan.stages
        ),
        claims_to_fit=plan.fits,
        peak_flops_per_s=max(rate for chip in chips for rate in chip.matmul_flops_per_s.values()),
    )  # fmt: skip
