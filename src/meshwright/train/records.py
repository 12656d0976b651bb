"""Records that ``--json`` prints for answers about training that are smaller than a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing_extensions import TypedDict

from meshwright.base.errors import Fault
from meshwright.train.answer import Candidate, Front, Plan, Trials, WhyNot
from meshwright.train.explain import Explanation
from meshwright.train.robustness import Change


class FrontRecord(TypedDict):
    """Plans that no other one beats in time, memory, energy and money at once."""

    front: Sequence[Candidate]
    left_out: Sequence[str]
    """Names of those of the four that are not known."""


def front_record(found: Front) -> FrontRecord:
    """Return a front as data."""
    return {"front": found.candidates, "left_out": found.left_out}


class FitRecord(TypedDict):
    """Memory of one strategy."""

    plan: str
    fits: bool
    memory_bytes: float
    """Memory of the fullest device [bytes]."""
    memory_capacity_bytes: float
    memory_parts_bytes: Mapping[str, float]
    fullest_stage: str
    host_bytes_per_device: float
    host_capacity_bytes_per_device: float | None
    would_fit: Sequence[Candidate]
    """The nearest strategies that fit, where this one does not."""


def fit_record(found: Plan, would_fit: Sequence[Candidate]) -> FitRecord:
    """Return the memory of the best strategy of a plan as data."""
    price = found.best.estimate
    return {
        "plan": found.best.text,
        "fits": price.fits,
        "memory_bytes": price.memory_bytes,
        "memory_capacity_bytes": price.memory_capacity_bytes,
        "memory_parts_bytes": price.memory_parts_bytes,
        "fullest_stage": price.fullest_stage,
        "host_bytes_per_device": price.host_bytes_per_device,
        "host_capacity_bytes_per_device": price.host_capacity_bytes_per_device,
        "would_fit": would_fit,
    }


class BrokenRule(TypedDict):
    """A rule that a strategy breaks."""

    rule: str
    message: str
    fix: str
    """Nearest legal change."""


class CheckRecord(TypedDict):
    """Whether a strategy is legal."""

    plan: str
    is_legal: bool
    faults: Sequence[BrokenRule]


def check_record(plan: str, faults: Sequence[Fault]) -> CheckRecord:
    """Return the rules that a strategy breaks as data."""
    rules: list[BrokenRule] = [
        {"rule": fault.path, "message": fault.message, "fix": fault.fix} for fault in faults
    ]
    return {"plan": plan, "is_legal": not faults, "faults": rules}


class ExplanationRecord(TypedDict):
    """The reasons for a plan."""

    plan: str
    limits: Mapping[str, float]
    """Share of each part in the step."""
    would_change: Sequence[Change]
    why_not: Sequence[WhyNot]
    not_possible: Mapping[str, str]
    """Features that no legal plan that fits has, with the reason."""
    trials: Trials | None
    """Trials under other constants: the plans to run, and how often each wins."""


def explanation_record(plan: Plan, found: Explanation) -> ExplanationRecord:
    """Return an explanation of a plan as data."""
    return {
        "plan": plan.best.text,
        "limits": found.shares,
        "would_change": found.changes,
        "why_not": found.why_not,
        "not_possible": found.not_possible,
        "trials": None if plan.robustness is None else plan.robustness.trials,
    }
