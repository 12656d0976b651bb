"""A measured step beside its prediction: computation, exposed communication, the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.cost.parts import TimePart
from meshwright.frameworks.profile import COMMUNICATION, COMPUTATION, Profile, Work
from meshwright.train.answer import Plan
from meshwright.train.words import question_line


@dataclass(frozen=True)
class Share(Brief):
    """One part of a step: measured, and predicted."""

    name: str
    measured_s: float
    predicted_s: float
    measured_parts_s: dict[str, float]
    predicted_parts_s: dict[str, float]


@dataclass(frozen=True)
class ProfiledStep(Shown):
    """A measured trace beside the price of its plan."""

    question: str
    plan: str
    step_s: float
    predicted_step_s: float
    num_steps: int
    """Number of steps; 0: the trace names no step and is taken as one."""
    on_device: bool
    """Whether kernels of a device count, or the operators of a CPU."""
    parts: tuple[Share, ...]
    """Parts of the step; each side sums to its step."""
    hidden_s: Mapping[str, float]
    """Communication hidden behind computation, by kind [s]."""

    def rows(self) -> Rows:
        """Return the parts of the step."""
        return [scalars(part) for part in self.parts]


_OF_HOST = (TimePart.LAUNCH, TimePart.BUBBLE, TimePart.JITTER, TimePart.THROTTLE)
_PREDICTED: tuple[tuple[str, tuple[Work, ...], tuple[TimePart, ...]], ...] = (
    ("computation", tuple(w for w in COMPUTATION if w is not Work.OPTIMIZER),
     (TimePart.COMPUTE, TimePart.MAIN_MEMORY, TimePart.RECOMPUTE, TimePart.OVERLAP_SLOWDOWN)),
    ("optimizer", (Work.OPTIMIZER,), (TimePart.OPTIMIZER,)),
    ("communication that shows", COMMUNICATION,
     tuple(part for part in TimePart if part.axis is not None)),
    ("copies", (Work.COPIES,), (TimePart.OFFLOAD,)),
    ("host, and waiting", (), _OF_HOST),
)  # fmt: skip


def profiled_step(profile: Profile, plan: Plan) -> ProfiledStep:
    """Return a measured step beside the price of its plan."""
    predicted = plan.best.estimate.time_parts_s
    parts = []
    for name, kinds, priced in _PREDICTED:
        measured = {str(k): profile.parts_s[k] for k in kinds if k in profile.parts_s}
        if not kinds:
            measured = {"nothing under way": profile.idle_s}
        ours = {str(p): predicted[p] for p in priced if predicted.get(p)}
        parts.append(Share(name, sum(measured.values()), sum(ours.values()), measured, ours))
    return ProfiledStep(
        question=question_line(plan),
        plan=plan.best.text,
        step_s=profile.step_s,
        predicted_step_s=plan.best.estimate.step_time_s,
        num_steps=profile.num_steps,
        on_device=profile.on_device,
        parts=tuple(parts),
        hidden_s={str(kind): seconds for kind, seconds in profile.hidden_s.items()},
    )
