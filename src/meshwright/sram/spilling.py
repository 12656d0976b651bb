"""Layers that are read from a far memory, but for those that have room in the near one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.sram.contiguous.resident import most_worth
from meshwright.sram.ground import Ground
from meshwright.sram.rates import rates
from meshwright.sram.setting import Setting
from meshwright.sram.solve import Solution, grounds_of


def spilled(near: Setting, far: Setting, solution: Solution) -> tuple[float, Solution]:
    """Return a cut of the far memory whose stages hold what they can in the near one.

    On each stage the layers stay whose place saves most seconds in sum: an exact knapsack. The
    room of the near memory is lessened by the largest transient of the stage.

    Returns
    -------
    tuple
        The share of the seconds of all layers that is saved, and the cut with its new price.
    """
    (ground,) = grounds_of(near, [solution.num_groups])
    far_s, near_s = solution.ground.row.layer_s, ground.row.layer_s
    saved_s = np.maximum(far_s - near_s, 0.0)
    stages, total_saved_s = [], 0.0
    runs = [run for run in pairwise([0, *solution.stops]) if run[0] < run[1]]
    for (first, stop), seconds in zip(runs, solution.stage_seconds, strict=True):
        worth_s = _kept_worth_s(ground, saved_s, first, stop)
        total_saved_s += worth_s
        stages.append(replace(seconds, work_s=seconds.work_s - worth_s))
    parts = {"layers_s": sum(stage.work_s for stage in stages)}
    yielded = rates(
        far.workload, far.calibration, stages, parts, num_groups=solution.num_groups,
        group_devices=far.tensor_degree, replicas=solution.replicas,
    )  # fmt: skip
    return total_saved_s / float(far_s.sum()), replace(solution, rates=yielded)


def _kept_worth_s(ground: Ground, saved_s: FloatArray, first: int, stop: int) -> float:
    """Return the seconds that a stage saves by what it keeps in the near memory [s]."""
    loads = ground.row.loads
    sizes = (loads.resident_bytes + loads.kept_bytes)[first:stop]
    room = ground.rooms.capacity_bytes[0] - float(loads.transient_bytes[first:stop].max())
    worth_s, _ = most_worth(sizes.tolist(), saved_s[first:stop].tolist(), room)
    return worth_s
