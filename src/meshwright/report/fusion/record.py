"""Fused partitions as data, in SI units: seconds and bytes are those of one sequence and chip."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.onchip.fusion.result import Partition
from meshwright.planner.dataflow.fusing import FusionAnswer


def fusion_record(answer: FusionAnswer) -> dict[str, Any]:
    """Return an answer as data."""
    asked, fusion = answer.question, answer.choice.fusion
    return {
        "graph": asked.graph.name,
        "chip": asked.target.name,
        "rules": asked.rules,
        "fidelity": fusion.fidelity,
        "kernel_by_kernel": asked.runs_by_kernel,
        "tp": asked.tp,
        "pp": asked.pp,
        "tile": answer.tile,
        "repeats": answer.question.repeats,
        "micro_batch": fusion.micro_batch,
        "time_s": fusion.time_s,
        "parts_s": dict(fusion.parts_s),
        "bound_s": answer.choice.bound_s,
        "gap": fusion.time_s / answer.choice.bound_s - 1.0,
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
