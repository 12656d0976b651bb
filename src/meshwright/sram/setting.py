"""What is to be cut into stages, on which devices, and which level of their memory holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.cost.problem import Problem
from meshwright.serve.problem import ServingProblem
from meshwright.sharding.strategy import Strategy, make_strategy
from meshwright.spec.calibration import CalibrationOf
from meshwright.spec.chip import ChipSpec, MemoryLevel
from meshwright.spec.model import ModelSpec
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import Training, Workload

CACHES = ("l2", "infinity-cache")
"""Levels that hardware fills, so that software holds only a part of them resident."""
CACHE_FRACTION = 0.75
"""Of a cache: three quarters, as the guide of CUDA sets aside for persisting accesses at most.
Assumed for all caches, range 0.5 to 0.75.

Source: CUDA C++ Programming Guide, L2 cache set-aside for persisting accesses, its example.
"""
EXTERNAL = ("hbm", "ddr")
"""Levels beyond the chip: allocated by a runtime that needs a margin and buffers."""


@dataclass(frozen=True)
class Setting:
    """A model under a workload, on devices that hold it in one level of their memory."""

    model: ModelSpec
    system: SystemSpec
    workload: Workload
    calibration: CalibrationOf[float]
    level: int = 0
    """Index into the memories of the chip, near to far."""
    tensor_degree: int = 1
    """Devices that split each layer between them: a stage is held by a group of so many."""
    expert_degree: int = 1
    """Of them, over how many whole experts are spread; the others split each expert."""
    capacity_bytes: float | None = None
    """Room of a device that the user states instead."""

    @cached_property
    def problem(self) -> Problem | ServingProblem:
        """The question as if the level were the last one: it is read at its bandwidth."""
        chip, work = self.system.chip, self.workload
        held = chip.model_copy(update={"memories": chip.memories[: self.level + 1]})
        system = self.system.model_copy(update={"chip": held})
        if isinstance(work, Training):
            return Problem(self.model, system, work, self.calibration)
        return ServingProblem(self.model, system, work, self.calibration)

    @property
    def memory(self) -> MemoryLevel:
        """The level that holds the layers."""
        return self.system.chip.memories[self.level]

    @property
    def room_bytes(self) -> float:
        """What one device has room for [bytes]."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        return room_bytes(self.memory, self.calibration)

    def strategy(self, group_size: int) -> Strategy:
        """Return the degrees inside one stage."""
        tp, ep = self.tensor_degree, self.expert_degree
        etp = tp // ep if self.problem.num_experts else 1
        return make_strategy(tp=tp, ep=ep, etp=etp, micro_batch_size=group_size)

    def on_chip(self, chip: ChipSpec) -> Setting:
        """Return the same on another type of chip, at its level of the same place."""
        level = min(self.level, len(chip.memories) - 1)
        system = self.system.model_copy(update={"chip": chip, "other_chips": {}})
        return replace(self, system=system, level=level)


def room_bytes(memory: MemoryLevel, calibration: CalibrationOf[float]) -> float:
    """Return what a level of memory has room for [bytes].

    On-chip memory that software manages is allocated before the run: all of it. A cache holds
    ``CACHE_FRACTION`` of itself. External memory loses a margin and the buffers of a runtime.
    """
    if memory.name in CACHES:
        return CACHE_FRACTION * memory.capacity_bytes
    if memory.name in EXTERNAL:
        kept = (1.0 - calibration.memory_margin_fraction) * memory.capacity_bytes
        return max(kept - calibration.communication_buffer_bytes, 0.0)
    return memory.capacity_bytes


def level_of(chip: ChipSpec, name: str) -> int:
    """Return the index of a level of memory by its name.

    Raises
    ------
    SpecError
        When the chip has no such level.
    """
    names = [memory.name for memory in chip.memories]
    if name not in names:
        raise SpecError(Fault("level", f"{chip.name} has no {name!r}", nearest(name, names)))
    return names.index(name)
