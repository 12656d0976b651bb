"""Laws of a step of a loop: its parts, the memory of its phases, its work and its money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.audit.laws import Inequality, Laws, equal
from meshwright.audit.machine import peak_flops_per_s, rent_is_paid
from meshwright.audit.work import ModelFacts
from meshwright.spec.workload import Training

LAWS: Laws[LoopFacts] = Laws()


@dataclass(frozen=True)
class LoopFacts(ModelFacts):
    """A step of a loop of reinforcement learning."""

    laws: ClassVar[Laws[LoopFacts]] = LAWS

    workload: Training
    step_time_s: float
    time_parts_s: Mapping[str, float]
    rollout_s: float
    lower_bound_s: float
    answer_tokens_per_s: float
    num_samples: int
    answer_tokens: float
    """Mean tokens of an answer."""
    train_devices: int
    rollout_devices: int
    are_apart: bool
    phases: Mapping[str, tuple[float, Mapping[str, float]]]
    """Memory of each phase, whole and by part [bytes]."""
    memory_capacity_bytes: float
    cost_usd: float | None

    @property
    def num_devices(self) -> int:
        """Devices of both roles."""
        return self.train_devices + self.rollout_devices * self.are_apart


law = LAWS.law
LAWS.add_sum("parts_are_the_step", "step", "time_parts_s", "step_time_s", "s")


@law("the parts of the memory of each phase sum to its total")
def parts_are_the_memory(facts: LoopFacts) -> Inequality:
    apart = {
        name: abs(whole - sum(parts.values())) for name, (whole, parts) in facts.phases.items()
    }
    worst = max(apart, key=lambda name: apart[name])
    return equal(sum(facts.phases[worst][1].values()), facts.phases[worst][0], "B")


@law("no part of the memory of a phase is negative")
def memory_is_positive(facts: LoopFacts) -> Inequality:
    return Inequality(0.0, min(min(parts.values()) for _, parts in facts.phases.values()), "B")


@law("every phase fits a device")
def phases_fit(facts: LoopFacts) -> Inequality:
    return Inequality(
        max(whole for whole, _ in facts.phases.values()), facts.memory_capacity_bytes, "B"
    )


@law("answers take the FLOPs of their tokens at the peak of the devices that roll out")
def answers_are_done(facts: LoopFacts) -> Inequality:
    types = facts.workload.precision
    token_s = facts.work.layer_flops / peak_flops_per_s(facts.system, types.activation)
    tokens = facts.num_samples * facts.answer_tokens
    return Inequality(tokens * token_s, facts.rollout_s * facts.rollout_devices, "s")


@law("answers of a step over its time are the rate of answers")
def answers_are_counted(facts: LoopFacts) -> Inequality:
    made = facts.num_samples * facts.answer_tokens
    return equal(facts.answer_tokens_per_s * facts.step_time_s, made, "1")


@law("no step is faster than the bound of all")
def bound_holds(facts: LoopFacts) -> Inequality:
    return Inequality(facts.lower_bound_s, facts.step_time_s, "s")


@law("the cost equals devices times rent times time")
def money_is_rent(facts: LoopFacts) -> Inequality | None:
    device_s = facts.num_devices * facts.step_time_s
    return rent_is_paid(facts.system, facts.cost_usd, device_s)
