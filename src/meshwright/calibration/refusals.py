"""Why a measurement is not predicted: a closed list."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reasons for which a row is left out."""

    TASK = "task-not-priced"
    """No training step: inference, single layers."""
    MEASURED = "nothing-to-compare"
    """Neither a time, a throughput, a memory nor a label that a prediction can be held against."""
    DIMS = "model-dims-not-stated"
    SEQUENCE = "sequence-length-not-stated"
    LENGTHS = "input-or-output-length-not-stated"
    BATCH = "batch-not-stated"
    CHIP = "chip-unknown"
    COUNT = "chip-count-not-stated"
    SYSTEM = "system-not-built"
    """The chips form no system: no such slice, or no room."""
    DEGREES = "degrees-do-not-multiply"
    PRECISION = "precision-unknown"
    """Or one that the chip has no rate for."""
    PLAN = "plan-not-priced"
    """The plan breaks a rule of the axes."""


class RefusedError(Exception):
    """One row is refused, for a reason, with what was found."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")
