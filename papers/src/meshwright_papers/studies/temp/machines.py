"""The wafer of the evaluation with what the paper leaves open set to a stated value."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.spec.chip import ChipSpec
from meshwright.spec.system import SystemSpec
from meshwright_papers.studies.temp.cases import NO_HBM_FACTOR, wafer

TB = 1e12
NEVER_SLOW = NO_HBM_FACTOR * TB
"""Rate of a memory that never matters [bytes/s]."""


@dataclass(frozen=True)
class Machine:
    """Rates that Table I states in more than one way, or not at all; ours where None."""

    link_bytes_per_s: float | None = None
    """One direction of one die-to-die link."""
    hbm_bytes_per_s: float | None = None
    message_half_bytes: float | None = None
    """Message size that reaches half of the bandwidth of a link."""

    @property
    def text(self) -> str:
        """What is set, in words."""
        link, hbm, half = self.link_bytes_per_s, self.hbm_bytes_per_s, self.message_half_bytes
        memory = "HBM never slow" if hbm == NEVER_SLOW else f"HBM {(hbm or 0.0) / TB:g} TB/s"
        parts = (
            (hbm, memory),
            (link, f"D2D {(link or 0.0) / TB:g} TB/s"),
            (half, f"messages {(half or 0.0) / 1e6:g} MB"),
        )
        return ", ".join(words for value, words in parts if value is not None) or "as elsewhere"

    def system(self) -> SystemSpec:
        """Return the wafer of 4x8 dies with these rates."""
        system = wafer()
        asked = {
            "bandwidth_bytes_per_s": self.link_bytes_per_s,
            "message_half_bytes": self.message_half_bytes,
        }
        changed = {name: value for name, value in asked.items() if value is not None}
        levels = tuple(level.model_copy(update=changed) for level in system.levels)
        chip = with_memory_rate(system.chip, self.hbm_bytes_per_s)
        return system.model_copy(update={"levels": levels, "chip": chip})


def with_memory_rate(chip: ChipSpec, bytes_per_s: float | None) -> ChipSpec:
    """Return a chip whose main memory has another rate; the same one where that is None."""
    if bytes_per_s is None:
        return chip
    main = chip.main_memory
    memories = tuple(
        memory.model_copy(update={"bandwidth_bytes_per_s": bytes_per_s})
        if memory == main
        else memory
        for memory in chip.memories
    )
    return chip.model_copy(update={"memories": memories})


AS_ELSEWHERE = Machine()
