"""A measured step beside its prediction: computation, exposed communication, the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import TypedDict

from meshwright.base.units import format_seconds
from meshwright.cost.parts import TimePart
from meshwright.frameworks.profile import COMMUNICATION, COMPUTATION, Profile, Work
from meshwright.train.answer import Plan
from meshwright.train.report import question_line
from meshwright.view.words import counted, words


@dataclass(frozen=True)
class Share:
    """One part of a step: measured, and predicted."""

    name: str
    measured_s: float
    predicted_s: float
    measured_parts_s: dict[str, float]
    predicted_parts_s: dict[str, float]


_OF_HOST = (TimePart.LAUNCH, TimePart.BUBBLE, TimePart.JITTER, TimePart.THROTTLE)
_PREDICTED: tuple[tuple[str, tuple[Work, ...], tuple[TimePart, ...]], ...] = (
    ("computation", tuple(w for w in COMPUTATION if w is not Work.OPTIMIZER),
     (TimePart.COMPUTE, TimePart.RECOMPUTE, TimePart.OVERLAP_SLOWDOWN)),
    ("optimizer", (Work.OPTIMIZER,), (TimePart.OPTIMIZER,)),
    ("communication that shows", COMMUNICATION,
     tuple(part for part in TimePart if part.axis is not None)),
    ("copies", (Work.COPIES,), (TimePart.OFFLOAD,)),
    ("host, and waiting", (), _OF_HOST),
)  # fmt: skip


def shares(profile: Profile, plan: Plan) -> list[Share]:
    """Return the parts of a step, measured and predicted; each side sums to its step."""
    predicted = plan.best.estimate.time_parts_s
    found = []
    for name, kinds, parts in _PREDICTED:
        measured = {str(k): profile.parts_s[k] for k in kinds if k in profile.parts_s}
        if not kinds:
            measured = {"nothing under way": profile.idle_s}
        ours = {str(p): predicted[p] for p in parts if predicted.get(p)}
        found.append(Share(name, sum(measured.values()), sum(ours.values()), measured, ours))
    return found


def profile_lines(profile: Profile, plan: Plan) -> Iterator[str]:
    """Yield a measured step beside its prediction."""
    price = plan.best.estimate
    yield question_line(plan)
    yield f"plan  {plan.best.text}"
    steps = counted(profile.num_steps, "step") if profile.num_steps else "no step named: as one"
    what = "kernels of the device" if profile.on_device else "operators of the CPU"
    ratio = profile.step_s / price.step_time_s - 1.0
    yield (
        f"measured {format_seconds(profile.step_s)} a step ({steps}, {what}), predicted "
        f"{format_seconds(price.step_time_s)} ({ratio:+.1%})"
    )
    yield ""
    yield f"  {'':<30}{'measured':>12}{'predicted':>12}{'difference':>12}"
    for share in shares(profile, plan):
        lost = share.measured_s - share.predicted_s
        yield (
            f"  {share.name:<30}{format_seconds(share.measured_s):>12}"
            f"{format_seconds(share.predicted_s):>12}{lost / profile.step_s:>+12.1%}"
        )
        for name, seconds in share.measured_parts_s.items():
            if len(share.measured_parts_s) > 1:
                yield f"    {words(name):<28}{format_seconds(seconds):>12}"
        for name, seconds in share.predicted_parts_s.items():
            if len(share.predicted_parts_s) > 1:
                yield f"    {words(name):<40}{format_seconds(seconds):>12}"
    hidden = {kind: seconds for kind, seconds in profile.hidden_s.items() if seconds > 0}
    if hidden:
        named = ", ".join(f"{words(kind)} {format_seconds(s)}" for kind, s in hidden.items())
        yield f"  hidden behind computation: {named}"


class ProfileRecord(TypedDict):
    """A measured trace beside the price of its plan."""

    plan: str
    step_s: float
    predicted_step_s: float
    num_steps: int
    on_device: bool
    parts: Sequence[Share]
    hidden_s: Mapping[str, float]
    """Communication hidden behind computation, by kind [s]."""


def profile_record(profile: Profile, plan: Plan) -> ProfileRecord:
    """Return a measured step beside its prediction as data."""
    return {
        "plan": plan.best.text,
        "step_s": profile.step_s,
        "predicted_step_s": plan.best.estimate.step_time_s,
        "num_steps": profile.num_steps,
        "on_device": profile.on_device,
        "parts": shares(profile, plan),
        "hidden_s": {str(kind): seconds for kind, seconds in profile.hidden_s.items()},
    }
