"""The answer to a question of a loop as data: the step, its parts, and the memory of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.base.records import Brief, Rows, Shown, scalars
from meshwright.base.units import format_bytes, format_seconds
from meshwright.catalog.answer_file import FORMAT
from meshwright.loop.question import Park, Sharing, Work
from meshwright.serve.answer import ServingCandidate
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training
from meshwright.train.answer import Candidate


@dataclass(frozen=True)
class PhaseMemory(Brief):
    """Memory of the fullest device in one phase; the parts sum to ``memory_bytes``."""

    phase: str
    memory_bytes: float
    memory_parts_bytes: Mapping[str, float]
    knob: str
    """Option of verl that first lowers it."""


@dataclass(frozen=True)
class LoopStep(Brief):
    """A plan of training beside an engine, and the time of their step."""

    DERIVED: ClassVar[Mapping[str, str]] = {"plan": "text"}
    training: Candidate
    """Plan of an update; its price is that of one mini-batch."""
    rollout: ServingCandidate
    """Split of the engine, with the most answers in flight."""
    train_devices: int
    rollout_devices: int
    park: Park
    """State of training in host memory while other phases run."""
    memory_share: float
    """Share of a device that the engine fills while it rolls out [1]."""
    step_time_s: float
    time_parts_s: Mapping[str, float]
    """Time of each part on average over all devices; they sum to ``step_time_s`` [s]."""
    rollout_s: float
    """Time from the first prompt to the end of the last answer [s]."""
    tokens_per_s: float
    """Tokens of all samples over the step, prompts included [tokens/s]."""
    answer_tokens_per_s: float
    memory: tuple[PhaseMemory, ...]
    """Memory of each phase, in their order."""
    interval_s: tuple[float, float] | None
    """Step with all parts at the fast and at the slow ends of their 80 % intervals; None: not
    known [s]."""
    energy_j: float | None
    cost_usd: float | None

    @property
    def text(self) -> str:
        """Both plans in the field's words."""
        return f"train {self.training.text}; roll out {self.rollout.text}"

    @property
    def fullest(self) -> PhaseMemory:
        """The phase with the most memory."""
        return max(self.memory, key=lambda phase: phase.memory_bytes)

    def brief(self) -> str:
        """Return both plans, the time of the step and the fullest phase."""
        full = self.fullest
        return (
            f"{self.text}\n{format_seconds(self.step_time_s)} a step, {self.tokens_per_s:,.0f} "
            f"tokens/s; fullest in {full.phase}, {format_bytes(full.memory_bytes)}"
        )


@dataclass(frozen=True)
class LoopPlan(Shown):
    """The fastest step of a loop found for a question, with the question and the proof."""

    model: ModelSpec
    system: SystemSpec
    work: Work
    sharing: Sharing
    workload: Training
    """An update: one mini-batch, as sequences of training."""
    calibration: str
    engine: str
    """Server that rolls out."""
    best: LoopStep
    others: tuple[LoopStep, ...]
    """Best steps of other engines, or of other numbers of devices."""
    memory_capacity_bytes: float
    reshard_bytes: float
    """Bytes that each device receives when weights pass to the engine [bytes]."""
    longest_answer: float
    """Expected tokens of the longest answer of a step."""
    cut_share: float
    """Share of the answers that are cut off [1]."""
    lower_bound_s: float
    """No combination of a plan of training and an engine takes less, in the splits of the devices
    that were tried [s]."""
    num_combinations: int
    verl: Mapping[str, str]
    """Options of verl that start the best step, by name."""
    warnings: tuple[str, ...] = ()
    version: str = ""
    format: int = FORMAT
    command: str = ""

    @property
    def gap(self) -> float:
        """Largest distance of the step from the best possible one [1]."""
        return self.best.step_time_s / self.lower_bound_s - 1.0

    def rows(self) -> Rows:
        """Return the steps, the best one first."""
        return [
            {"plan": one.text, **scalars(one), **dict(one.time_parts_s)} for one in self.steps()
        ]

    def steps(self) -> Iterator[LoopStep]:
        """Yield the steps, the best one first."""
        yield self.best
        yield from self.others
