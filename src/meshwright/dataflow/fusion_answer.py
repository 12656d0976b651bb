"""Fused partitions as an answer: the question, the best of all tiles, and both as data.

Data are in SI units; seconds and bytes are those of one sequence and one chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshwright.dataflow.fusion.choosing import Choice
from meshwright.dataflow.fusion.machine import CoreGrid
from meshwright.dataflow.fusion.result import Partition
from meshwright.graph.dataflow.graph import DataflowGraph


@dataclass(frozen=True)
class Target:
    """A chip, and one direction of the links between such chips."""

    name: str
    grid: CoreGrid
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class FusionQuestion:
    """What is fused, and where."""

    graph: DataflowGraph
    target: Target
    tp: int = 1
    """Chips over which kernels are split."""
    pp: int = 1
    """Stages over which repetitions are spread."""
    tile: int | None = None
    """None: the best power of two."""
    micro_batch: int | None = None
    """None: the best."""
    rules: str = "own"
    runs_by_kernel: bool = False

    @property
    def repeats(self) -> int:
        """Of the graph on one chip."""
        return -(-self.graph.repeats // self.pp)


@dataclass(frozen=True)
class FusionAnswer:
    """The best partitions of a question."""

    question: FusionQuestion
    tile: int
    splits: Mapping[str, str | None]
    """The dim over which each kernel is split."""
    sharding_gap: float
    choice: Choice

    @property
    def gap(self) -> float:
        """How far all that was tried may be from the best [1]."""
        return self.choice.weighted_s / self.choice.bound_s - 1.0

    @property
    def sequences_per_s(self) -> float:
        """What the group of chips does in steady state, with full pipelines."""
        return 1.0 / (self.choice.fusion.time_s * self.question.repeats)

    @property
    def compute_share(self) -> float:
        """Work of the graph over what the chips could do in that time [1]."""
        asked = self.question
        chips = asked.tp * asked.pp
        return asked.graph.flops * self.sequences_per_s / (chips * asked.target.grid.flops_per_s)


def fusion_to_data(answer: FusionAnswer) -> dict[str, Any]:
    """Return an answer as data."""
    asked, fusion = answer.question, answer.choice.fusion
    return {
        "graph": asked.graph.name,
        "chip": asked.target.name,
        "rules": asked.rules,
        "fidelity": fusion.fidelity,
        "is_calibrated": False,
        "kernel_by_kernel": asked.runs_by_kernel,
        "tp": asked.tp,
        "pp": asked.pp,
        "tile": answer.tile,
        "repeats": answer.question.repeats,
        "micro_batch": fusion.micro_batch,
        "time_s": fusion.time_s,
        "parts_s": dict(fusion.parts_s),
        "bound_s": answer.choice.bound_s / asked.repeats,
        "gap": answer.gap,
        "sharding_gap": answer.sharding_gap,
        "sequences_per_s": answer.sequences_per_s,
        "compute_share": answer.compute_share,
        "sram_capacity_bytes": asked.target.grid.sram_bytes,
        "held_bytes": fusion.held_bytes,
        "splits": dict(answer.splits),
        "counts": {
            **asdict(fusion.counts),
            "tiles_fused": answer.choice.num_fused,
            "tiles_pruned": answer.choice.num_pruned,
            "tiles_refused": len(answer.choice.refused),
        },
        "partitions": [_partition_record(part) for part in fusion.partitions],
    }


def _partition_record(part: Partition) -> dict[str, Any]:
    return {
        "kernels": [
            {"name": name, "cores": cores}
            for name, cores in zip(part.kernels, part.cores, strict=True)
        ],
        "limit": part.limit,
        "time_s": part.time_s,
        "compute_s": part.compute_s,
        "dram_s": part.dram_s,
        "network_s": part.network_s,
        "fill_s": part.fill_s,
        "setup_s": part.setup_s,
        "sram_bytes": part.sram_bytes,
        "held_bytes": part.held_bytes,
        "moved_bytes": part.moved_bytes,
        "weight_parts": part.weight_parts,
    }
