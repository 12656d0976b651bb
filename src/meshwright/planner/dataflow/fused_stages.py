"""Stages of chips with an array of multiply-adds: kernels are fused, tiles flow through them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

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

    The bound is the work at the peak of the chip: other ways to split kernels may fuse better.
    """
    if chip.array_rows is None:
        return None
    grid = grid_of(chip)

    def price(work: StageWork) -> StagePrice | None:
        flops, network_s = work.graph.flops / work.graph.repeats, work.network_s
        least_s = work.layers * flops / (work.tp * grid.flops_per_s)
        problems = [
            fusion_problem(work.graph, grid, _share(work, network_s, tile))
            for tile in tiles_of(work.graph)
        ]
        useful = [one for one in problems if work.layers * bound_s(one) < work.most_s]
        if not useful:
            return StagePrice(inf, least_s)
        try:
            choice = best_of(map(Candidate, useful))
        except InfeasibleError:
            return None
        return StagePrice(work.layers * choice.fusion.time_s, least_s)

    return price


def _share(work: StageWork, network_s: Mapping[str, float], tile: int) -> Share:
    return Share(
        tp=work.tp,
        splits=work.sharding.dims,
        network_s=network_s,
        tile=tile,
        repeats=float(work.layers),
        micro_batches=_micro_batches(work.num_passes),
    )


def _micro_batches(num_passes: int) -> tuple[int, ...]:
    """Return powers of two up to all passes, and all passes."""
    return tuple(sorted({*(1 << n for n in range(num_passes.bit_length())), num_passes}))
