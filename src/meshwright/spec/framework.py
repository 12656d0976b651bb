"""A training framework: the plans it can start, its kernels, and its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from meshwright.spec.declaration import Declaration, Provenance, Source
from meshwright.spec.system import DType
from meshwright.spec.workload import Launches, SoftwareStack, ZeroStage


class Habits(Declaration):
    """Choices of jobs that state no other: kernels, optimizer, choices of the plan.

    The values of this class apply to a job without a named framework.
    """

    software: SoftwareStack = SoftwareStack()
    word: DType | None = None
    """Type of training where none is stated; None: the 16 bits of the chip."""
    native_attention: tuple[str, ...] | None = None
    """Families of chips that its attention kernels were written for; None: all."""
    optimizer: str | None = None
    """Preset where training is in bf16; None: that of the system."""
    fp16_optimizer: str | None = None
    """Preset where training is in fp16; None: the preset of bf16."""
    fp32_optimizer: str = "adam-fp32"
    """Preset where training is in fp32 or tf32: weights are their own master copy."""
    sums_whole_bf16_gradients: bool = False
    """Under ZeRO 1, where training is in bf16."""
    zero_stage: ZeroStage = 1
    sequence_parallel: bool = True
    """Sequence parallelism where tp is used."""
    recompute: Literal["none", "selective", "full"] = "none"
    overlaps_data_parallel: bool = True
    """Data-parallel collectives overlap computation."""
    drops_gathered_weights: bool = True
    """Full sharding gathers weights again for the backward pass."""
    drops_in_pipelines: bool = True
    """Full sharding gathers weights again under pipelines too; otherwise gathered weights stay
    until the last micro-batch."""
    splits_experts_over_tp: bool = False
    """The tensor degree inside of experts is tp unless it is stated (Megatron-LM's
    ``expert_tensor_parallel_size``); otherwise 1."""
    counts_runtime: bool = True
    """Memory that its users report is that of the device; otherwise that of its allocator."""

    def stack(self, *, family: str, precision: str) -> SoftwareStack:
        """Return its software on a family of chips, for training in a precision."""
        changes: dict[str, object] = {}
        if self.native_attention is not None and family not in self.native_attention:
            changes["attention_kernels"] = "portable"
        if self.sums_whole_bf16_gradients and precision == "bf16":
            changes["sums_whole_gradients"] = True
        return self.software.model_copy(update=changes)

    def optimizer_of(self, precision: str) -> str | None:
        """Return the preset where training is in a precision; None: that of the system."""
        if precision in ("fp32", "tf32"):
            return self.fp32_optimizer
        return (self.fp16_optimizer or self.optimizer) if precision == "fp16" else self.optimizer


UNNAMED = Habits()
"""Choices of a job without a named framework."""


class Framework(Habits):
    """One framework in one version: the plans it can start, and the habits of its users."""

    name: str
    title: str
    version: str = ""
    """Release of the framework with these options and defaults; empty: no release."""
    launches: Launches
    optimizer: str
    zero_stage: ZeroStage
    sequence_parallel: bool
    recompute: Literal["none", "selective", "full"]
    overlaps_data_parallel: bool
    why: str
    sources: Mapping[str, Source] = Field(default_factory=dict)
    provenance: Mapping[str, Provenance] = Field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """Name and version, as users name it."""
        return f"{self.name}=={self.version}" if self.version else self.name

    def stack(self, *, family: str, precision: str) -> SoftwareStack:
        """Return its software on a family of chips, for training in a precision."""
        stack = super().stack(family=family, precision=precision)
        named = {"framework": self.full_name, "launches": self.launches}
        return stack.model_copy(update=named)
