"""Memory and collectives of a dry run, beside those of the formulas, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.base.records import Brief, Rows, Shown
from meshwright.base.units import format_bytes
from meshwright.run.answer import Sent


@dataclass(frozen=True)
class CategoryMemory(Brief):
    """Memory of one category on a rank."""

    category: str
    at_peak_bytes: float
    """Memory of the category at the peak of all categories together [bytes]."""
    most_bytes: float
    """Largest memory of the category at any moment [bytes]."""
    predicted_bytes: float
    """Where all categories together are largest, by formula [bytes]."""
    predicted_most_bytes: float
    """The most at any moment, by formula [bytes]."""


@dataclass(frozen=True)
class RanStage(Brief):
    """One rank of a pipeline stage."""

    DERIVED: ClassVar[Mapping[str, str]] = {
        "peak_bytes": "peak_bytes", "predicted_bytes": "predicted_bytes",
    }  # fmt: skip
    stage: int
    rank: int
    layers: tuple[int, ...]
    peak_phase: str
    held: tuple[CategoryMemory, ...]
    host_bytes: float
    """Most tensors in host memory [bytes]."""
    sent: tuple[Sent, ...]
    flops: Mapping[str, float]
    """FLOPs by phase; attention scores count in full [FLOP]."""
    seconds: float
    """Wall time of the dry run [s]."""

    @property
    def peak_bytes(self) -> float:
        """The most memory of all tensors together [bytes]."""
        return sum(part.at_peak_bytes for part in self.held)

    @property
    def predicted_bytes(self) -> float:
        """Memory of all categories by formula [bytes]."""
        return sum(part.predicted_bytes for part in self.held)


@dataclass(frozen=True)
class DryRun(Shown):
    """A whole step of a plan on fake ranks and fake tensors, one rank of each stage."""

    DERIVED: ClassVar[Mapping[str, str]] = {"peak_bytes": "peak_bytes", "fits": "fits"}
    plan: str
    model: str
    framework: str
    program: str
    """Program that ran, with its version."""
    num_ranks: int
    capacity_bytes: float
    """Memory of a device [bytes]."""
    stages: tuple[RanStage, ...]
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> float:
        """The most memory of tensors on any rank [bytes]."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether the tensors alone fit into a device."""
        return self.peak_bytes <= self.capacity_bytes

    @property
    def is_right(self) -> bool:
        """Whether the plan has started and its tensors fit."""
        return self.fits

    def rows(self) -> Rows:
        """Return the memory of each rank by category."""
        return [
            {"stage": stage.stage, "rank": stage.rank, "category": part.category,
             "at_peak_bytes": part.at_peak_bytes, "most_bytes": part.most_bytes,
             "predicted_bytes": part.predicted_bytes,
             "predicted_most_bytes": part.predicted_most_bytes}
            for stage in self.stages for part in stage.held
        ]  # fmt: skip

    def brief(self) -> str:
        """Return the verdict and the peak."""
        return (
            f"{self.plan}\nstarted in a dry run of {self.program}; tensors of the fullest rank "
            f"{format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)}"
        )
