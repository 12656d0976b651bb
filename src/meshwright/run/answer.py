"""The report of a run as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from meshwright.base.records import Brief, Rows, Shown, scalars


class Call(NamedTuple):
    """Key of a collective: calls with the same key are added up."""

    kind: str
    axis: str
    phase: str
    site: str = ""


@dataclass(frozen=True)
class Sent(Brief):
    """Collectives of one kind over one axis in one phase of a step, executed and derived.

    A real run has the sums over all processes, a dry run those of one rank.
    """

    kind: str
    axis: str
    phase: str
    calls: int
    sent_bytes: float
    """Bytes of the full tensors: after a gather, before a reduction [bytes]."""
    derived_bytes: float
    """Bytes derived from the shardings of the plan; 0: no such collective is derived [bytes]."""

    @property
    def is_equal(self) -> bool:
        """Whether both are equal, to the last byte."""
        return abs(self.sent_bytes - self.derived_bytes) < 0.5


def rows_of(
    calls: Mapping[Call, int], sent: Mapping[Call, float], derived: Mapping[Call, float]
) -> tuple[Sent, ...]:
    """Return a row for each key of a collective, with its executed and derived bytes."""
    keys = sorted(sent.keys() | derived.keys(), key=lambda key: (key.axis, key.phase, key.kind))
    return tuple(
        Sent(str(key.kind), key.axis, str(key.phase), calls.get(key, 0),
             float(sent.get(key, 0.0)), float(derived.get(key, 0.0)))
        for key in keys
    )  # fmt: skip


@dataclass(frozen=True)
class PartTime(Brief):
    """Predicted time of a part of a step, with its interval, and the measured time."""

    DERIVED: ClassVar[Mapping[str, str]] = {"is_within": "is_within"}
    part: str
    predicted_s: float
    low_s: float
    high_s: float
    """End of the 80 % interval of the step, scaled to the part [s]."""
    measured_s: float
    """Median over the steps after the first, on the first process [s]."""

    @property
    def is_within(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True)
class Recorded(Brief):
    """A collective of the first process, in the order of the first step."""

    phase: str
    site: str
    """Operator that needs the collective, and the side: ``attention.qkv: input``."""
    kind: str
    axis: str
    calls: int
    sent_bytes: float
    """Bytes of the full tensors of all calls [bytes]."""


@dataclass(frozen=True, order=True)
class RecordedSend(Brief):
    """A send in the first pass of a tensor stream, in the group of the first process."""

    direction: str
    round: int
    source: int
    destination: int
    item: int
    num_bytes: int


@dataclass(frozen=True)
class Executed(Shown):
    """A plan run for real on a few processes."""

    DERIVED: ClassVar[Mapping[str, str]] = {
        "is_right": "is_right",
        "step_time_s": "step_time_s",
    }
    plan: str
    """The plan string as run."""
    model: str
    scale: str
    dtype: str
    device: str
    num_processes: int
    sequence_length: int
    global_batch_size: int
    losses: tuple[float, ...]
    """Mean loss of each step."""
    time_parts_s: Mapping[str, float]
    """Median times of the parts of a step after the first, on the first process [s]."""
    communication_s: float
    """Time in these parts that layers wait for collectives and streams [s]."""
    sent: tuple[Sent, ...]
    num_stream_passes: int
    """Passes of tensor streams on all processes; each send was compared."""
    wrong_passes: int
    """Passes whose sends differ from those of the form."""
    kept_bytes: float
    """Most activations kept for backward passes, as the mean over the processes [bytes]."""
    derived_kept_bytes: float
    """Kept activations as derived from operators and schedule of the plan [bytes]."""
    peak_bytes: float
    """Peak of all tensors on the fullest process, before the optimizer step [bytes]."""
    allocated_bytes: float | None = None
    """Peak of the CUDA allocator on the fullest process; None on CPUs [bytes]."""
    is_checked: bool = False
    loss_error: float | None = None
    """Largest relative difference between a loss and that of the dense model."""
    gradient_error: float | None = None
    """Largest difference of a gradient from the dense one, relative to its largest entry."""
    worst_weight: str = ""
    """Weight with the largest difference of gradients."""
    tolerance: float | None = None
    predicted_s: tuple[float, float, float] | None = None
    """Predicted time of a step with its 80 % interval; None unless run at full size [s]."""
    parts: tuple[PartTime, ...] = ()
    """Predicted and measured times of the parts; empty unless run at full size."""
    walk: tuple[Recorded, ...] = ()
    rounds: tuple[RecordedSend, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def step_time_s(self) -> float:
        """Median time of a step after the first [s]."""
        return sum(self.time_parts_s.values())

    @property
    def is_right(self) -> bool:
        """Whether sends are equal, and losses and gradients if they were checked."""
        if self.wrong_passes or not all(entry.is_equal for entry in self.sent):
            return False
        if self.loss_error is None or self.gradient_error is None or self.tolerance is None:
            return True
        # Not ``max``, which drops a NaN.
        return self.loss_error <= self.tolerance and self.gradient_error <= self.tolerance

    def rows(self) -> Rows:
        """Return the collectives of a step."""
        return [scalars(entry) for entry in self.sent]

    def brief(self) -> str:
        """Return the verdict and the losses."""
        losses = " ".join(f"{loss:.6g}" for loss in self.losses)
        verdict = "ran"
        if self.is_checked:
            verdict = "equal to the dense model" if self.is_right else "DIFFERS from the dense one"
        return f"{self.plan}\n{verdict} on {self.num_processes} processes; losses {losses}"
