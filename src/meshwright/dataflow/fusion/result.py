"""What fusion answers: partitions in the order of time, seconds by cause, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshwright.dataflow.fusion.problem import FusionProblem


@dataclass(frozen=True)
class Partition:
    """Kernels that are on the chip together; seconds and bytes are those of one sequence."""

    kernels: tuple[str, ...]
    cores: tuple[int, ...]
    """Of each kernel."""
    compute_s: float
    dram_s: float
    network_s: float
    fill_s: float
    setup_s: float
    """Reading weights, and reading and writing sums, spread over the micro-batch."""
    sram_bytes: float
    held_bytes: float
    """Of the SRAM, before it is cut in parts: weights, and sums over all tiles."""
    moved_bytes: float
    """Between DRAM and chip, weights apart."""
    weight_parts: int
    """Parts in which the weights of a kernel that is alone pass through the SRAM."""

    @property
    def busy_s(self) -> float:
        """The slowest of computation, DRAM and network."""
        return max(self.compute_s, self.dram_s, self.network_s)

    @property
    def time_s(self) -> float:
        """Everything."""
        return self.busy_s + self.fill_s + self.setup_s

    @property
    def limit(self) -> str:
        """What sets the pace."""
        seconds = {"compute": self.compute_s, "dram": self.dram_s, "network": self.network_s}
        return max(seconds, key=lambda name: seconds[name])


@dataclass(frozen=True)
class SearchCounts:
    """How much was looked at."""

    num_ideals: int
    num_steps: int
    num_sets: int
    """Different partitions that were priced."""
    num_pairs: int
    """Pairs (seconds, bytes) kept on the way."""
    places: int | None = None
    """Fewer than so many places kernels left a fixed order; None: every order was looked at."""


@dataclass(frozen=True)
class Fusion:
    """The best partitions of a problem."""

    fidelity: ClassVar[str] = "closed_form"

    problem: FusionProblem
    partitions: tuple[Partition, ...]
    micro_batch: int
    """Sequences that pass through one partition before the next is loaded."""
    held_bytes: float
    """DRAM that tensors of one sequence take [bytes]."""
    time_s: float
    """Of one sequence in steady state [s]."""
    bound_s: float
    """No partitions are faster."""
    counts: SearchCounts

    @property
    def gap(self) -> float:
        """By how much of the bound the time exceeds it; 0 is a proof."""
        return self.time_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds by cause; they sum to the time."""
        found = {
            "compute_s": sum(part.compute_s for part in self.partitions),
            "exposed_dram_s": sum(max(p.dram_s - p.compute_s, 0.0) for p in self.partitions),
            "exposed_network_s": sum(
                p.busy_s - max(p.dram_s, p.compute_s) for p in self.partitions
            ),
            "fill_s": sum(part.fill_s for part in self.partitions),
            "setup_s": sum(part.setup_s for part in self.partitions),
        }
        return {**found, "exposed_send_s": max(self.problem.send_s - sum(found.values()), 0.0)}
