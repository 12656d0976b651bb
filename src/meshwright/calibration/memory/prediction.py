"""What a row keeps in the memory of a device, counted as its source counts it, and if it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from meshwright.calibration.questions import Question
from meshwright.cost.memory import MEMORY_PARTS, MemoryUse, fullest
from meshwright.cost.price import Priced, price_one
from meshwright.cost.stages import num_communicators
from meshwright.sharding.strategy import Recompute

ANALYTIC = "memory"
"""Task of rows that state what a formula of their source says; they need not have run."""


class Counting(StrEnum):
    """What a source counts as memory."""

    DEVICE = "device"
    """All that the driver tells: allocator, runtime and communication library."""
    ALLOCATOR = "allocator"
    """The most that the allocator of the framework reserved."""
    TENSORS = "tensors"
    """Parameters, gradients, optimizer state and kept activations alone."""


@dataclass(frozen=True)
class RowMemory:
    """The memory of the fullest device of a row."""

    use: MemoryUse
    counting: Counting
    num_communicators: float
    measured_bytes: float | None
    fits: bool | None
    """None: the row is no witness."""

    @property
    def predicted_bytes(self) -> float:
        """What the source would have counted [bytes]."""
        use = self.use
        counted = {
            Counting.DEVICE: used_bytes(use),
            Counting.ALLOCATOR: use.allocator_bytes,
            Counting.TENSORS: use.weights_bytes
            + use.gradients_bytes
            + use.optimizer_bytes
            + use.activations_bytes,
        }
        return float(counted[self.counting])

    @property
    def log_error(self) -> float | None:
        """ln(predicted / measured)."""
        if not self.measured_bytes:
            return None
        return float(np.log(self.predicted_bytes / self.measured_bytes))


def row_memory(question: Question, priced: Priced) -> RowMemory:
    """Return the memory of a row that was priced.

    A row fits when what it uses is within what the chip has: the margin of plans is a guard of the
    search. Where nothing is said of recomputation, whoever ran the plan chose as much as it took,
    so a row fits if full recomputation makes it fit.
    """
    row, use = question.row, _fullest(priced)
    stated = row.measured.memory_bytes_per_chip
    counting = Counting.DEVICE if question.framework.counts_runtime else Counting.ALLOCATOR
    state, kept = row.measured.param_opt_bytes, row.measured.activation_bytes
    if stated is None and state is not None and kept is not None:
        counting, stated = Counting.TENSORS, state + kept
    return RowMemory(
        use=use,
        counting=counting,
        num_communicators=float(num_communicators(question.strategy)),
        measured_bytes=stated,
        fits=None if row.task == ANALYTIC else _fits(question, use),
    )


def used_bytes(use: MemoryUse) -> float:
    """Return what is used, without the margin that plans leave free [bytes]."""
    return float(use.total_bytes - use.margin_bytes)


def _fits(question: Question, use: MemoryUse) -> bool:
    """Return whether a row fits, with full recomputation where it may be."""
    capacity = question.problem.system.chip.main_memory.capacity_bytes
    if used_bytes(use) <= capacity or question.row.recompute is not None:
        return used_bytes(use) <= capacity
    leaner = replace(question.structure, recompute=Recompute.FULL)
    again = price_one(question.problem, leaner, question.strategy)
    return used_bytes(_fullest(again)) <= capacity


def _fullest(priced: Priced) -> MemoryUse:
    """Return the memory of the fullest device as plain numbers."""
    use, _ = fullest(priced.step.memory)
    return MemoryUse(**{name: _number(getattr(use, name)) for name in MEMORY_PARTS})


def _number(column: Any) -> float:
    """Return the number of a column of one row."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])
