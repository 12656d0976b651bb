"""Stages of chips with an array of multiply-adds: kernels are fused, tiles flow through them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from meshwright.base.errors import InfeasibleError
from meshwright.dataflow.fusing import tiles_of
from meshwright.dataflow.fusion.bound import bound_s
from meshwright.dataflow.fusion.choosing import Candidate, best_of
from meshwright.dataflow.fusion.machine import CoreGrid, grid_of
from meshwright.dataflow.fusion.problem import Share, fusion_problem
from meshwright.dataflow.work import StagePrice, StageTime, StageWork
from meshwright.spec.chip import ChipSpec


def fused_stage_time(chip: ChipSpec) -> StageTime | None:
    """Return the price of a stage by fusion; None for a chip that states no array.

    The bound holds for all ways to split the kernels: each of them takes its least cores, DRAM
    and setup over its ways.
    """
    if chip.array_rows is None:
        return None
    grid = grid_of(chip)
    bounds: dict[tuple[int, int, int, int], float] = {}

    def price(work: StageWork) -> StagePrice | None:
        key = (id(work.graph), work.tp, work.layers, work.num_passes)
        if key not in bounds:
            bounds[key] = work.layers * _least_s(work, grid)
        split: dict[str, Any] = {"splits": work.sharding.dims, "network_s": work.network_s}
        problems = [
            fusion_problem(work.graph, grid, _share(work, tile, **split))
            for tile in tiles_of(work.graph)
        ]
        useful = [one for one in problems if work.layers * bound_s(one) < work.most_s]
        if not useful:
            return StagePrice(inf, bounds[key])
        try:
            choice = best_of(map(Candidate, useful))
        except InfeasibleError:
            return None
        return StagePrice(work.layers * choice.fusion.time_s, bounds[key])

    return price


def _least_s(work: StageWork, grid: CoreGrid) -> float:
    """Return seconds of one repetition that no way to split its kernels undercuts."""
    return min(
        bound_s(fusion_problem(work.graph, grid, _share(work, tile, open_splits=_ways(work))))
        for tile in tiles_of(work.graph)
    )


def _ways(work: StageWork) -> Mapping[str, tuple[str | None, ...]]:
    """Return the dims over which each kernel may be split."""
    dims = [tuple(dict.fromkeys(way.dim for way in ways)) for ways in work.network.splits]
    return dict(zip((kernel.name for kernel in work.graph.kernels), dims, strict=True))


def _share(work: StageWork, tile: int, **split: Any) -> Share:
    return Share(
        tp=work.tp,
        tile=tile,
        repeats=float(work.layers),
        micro_batches=_micro_batches(work.num_passes),
        **split,
    )


def _micro_batches(num_passes: int) -> tuple[int, ...]:
    """Return powers of two up to all passes, and all passes."""
    return tuple(sorted({*(1 << n for n in range(num_passes.bit_length())), num_passes}))
