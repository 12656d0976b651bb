"""Stages of chips with an array of multiply-adds: kernels are fused, tiles flow through them."""

from __future__ import annotations

from dataclasses import replace

from meshwright.base.errors import InfeasibleError
from meshwright.onchip.fusion.bound import bound_s
from meshwright.onchip.fusion.choosing import Candidate, best_of
from meshwright.onchip.fusion.machine import grid_of
from meshwright.onchip.fusion.problem import Share, fusion_problem
from meshwright.planner.dataflow.fusing import tiles_of
from meshwright.search.dataflow.work import StagePrice, StageTime, StageWork
from meshwright.spec.chip import ChipSpec


def fused_stage_time(chip: ChipSpec) -> StageTime | None:
    """Return the price of a stage by fusion; None for a chip that states no array.

    The bound holds for all ways to split the kernels: each of them takes its least cores, DRAM
    and setup over its ways.
    """
    if chip.array_rows is None:
        return None
    grid = grid_of(chip)

    def price(work: StageWork) -> StagePrice | None:
        try:
            choice = best_of(
                Candidate(fusion_problem(work.graph, grid, _share(work, tile)))
                for tile in tiles_of(work.graph)
            )
        except InfeasibleError:
            return None
        least_s = min(
            bound_s(fusion_problem(work.graph, grid, _least_share(work, tile)))
            for tile in tiles_of(work.graph)
        )
        return StagePrice(work.layers * choice.fusion.time_s, work.layers * least_s)

    return price


def _share(work: StageWork, tile: int) -> Share:
    return Share(
        tp=work.tp,
        splits=work.sharding.dims,
        network_s=work.network_s,
        tile=tile,
        repeats=float(work.layers),
        micro_batches=_micro_batches(work.num_passes),
    )


def _least_share(work: StageWork, tile: int) -> Share:
    """Return what a device does at least, however kernels are split; no network."""
    names = [kernel.name for kernel in work.graph.kernels]
    dims = [tuple(dict.fromkeys(s.dim for s in ways)) for ways in work.network.splits]
    open_splits = dict(zip(names, dims, strict=True))
    return replace(_share(work, tile), network_s={}, open_splits=open_splits)


def _micro_batches(num_passes: int) -> tuple[int, ...]:
    """Return powers of two up to all passes, and all passes."""
    return tuple(sorted({*(1 << n for n in range(num_passes.bit_length())), num_passes}))
