"""Which of several plans leads: ties, headroom, demands on a framework; and Pareto fronts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.search.exhaustive import TIE, Found
from meshwright.sharding.strategy import (
    AXES,
    PlanOptions,
    ScheduleKind,
    StrategyColumns,
    plan_string,
)


def num_axes_in_use(found: Found) -> int:
    """Return the number of axes with several devices; virtual stages count as one more."""
    axes = [name for name in AXES if getattr(found.strategy, name) > 1]
    return len(axes) + int(found.strategy.num_virtual_stages > 1)


ORDINARY_SCHEDULES = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED)


def complexity(strategy: StrategyColumns, plan_options: PlanOptions) -> IntArray:
    """Return the demands of plans on a framework: axes in use and unusual choices, a count [1].

    Every framework offers data parallelism alone.
    """
    return axes_in_use(strategy) + num_unusual(plan_options)


def axes_in_use(strategy: StrategyColumns) -> IntArray:
    """Return the number of axes beside data parallelism with more than one device [1].

    Virtual stages and split experts count as axes do, replicas of shards as one more.
    """
    of_model = ("tp", "tatp", "cp", "pp", "num_virtual_stages", "ep")
    axes = [getattr(strategy, name) for name in of_model]
    axes.append(np.minimum(strategy.dp_shard, strategy.dp_replicate))
    in_use = [degree > 1 for degree in np.broadcast_arrays(*axes)]
    return np.asarray(np.sum(in_use, axis=0), dtype=np.int64)


def num_unusual(plan_options: PlanOptions) -> int:
    """Return the number of unusual choices [1].

    They are pipeline schedules beyond the ordinary, offload, a vocabulary over all stages,
    communication of experts behind another micro-batch, and another order of the axes.
    """
    unusual = (
        plan_options.schedule not in ORDINARY_SCHEDULES,
        plan_options.uses_host,
        plan_options.vocabulary_parallel,
        plan_options.overlap_expert_parallel,
        plan_options.axis_order != AXES,
    )
    return sum(unusual)


def _preference(found: Found) -> tuple[bool, float, int, float]:
    """Return the sort key of ties: no offload, memory in GiB, number of axes, time."""
    offloads = found.plan_options.uses_host
    return offloads, found.memory_bytes // 2**30, num_axes_in_use(found), found.time_s


def in_order_of_preference(found: Sequence[Found]) -> list[Found]:
    """Return candidates, preferred ones first: within a tie of the fastest, headroom decides.

    Ties (1 % of time) that need no host memory come first; then less memory in steps of a GiB,
    then fewer axes, then time decides. The others follow in order of time.
    """
    if not found:
        return []
    limit_s = found[0].time_s * (1.0 + TIE)
    ties = [f for f in found if f.time_s <= limit_s]
    ties.sort(key=_preference)
    return ties + [f for f in found if f.time_s > limit_s]


def distinct(found: Sequence[Found]) -> list[Found]:
    """Return candidates without those that share their text with one before."""
    seen: set[str] = set()
    kept = []
    for entry in found:
        text = plan_string(entry.strategy, entry.plan_options)
        if text not in seen:
            seen.add(text)
            kept.append(entry)
    return kept


def dominated_by(values: FloatArray, others: FloatArray) -> BoolArray:
    """Return which rows some other row equals or beats in every objective."""
    mask = np.zeros(len(values), dtype=bool)
    left = np.arange(len(values))
    for other in others:
        beaten = (values[left] >= other).all(axis=1)
        mask[left[beaten]] = True
        left = left[~beaten]
        if not len(left):
            break
    return mask


def front_of(values: FloatArray) -> list[int]:
    """Return the rows that no other row equals or beats, in order of the first objective."""
    kept: list[int] = []
    order = np.lexsort(values.T[::-1])
    left = list(order)
    while left:
        first, rest = left[0], np.array(left[1:], dtype=np.int64)
        kept.append(int(first))
        beaten = dominated_by(values[rest], values[first : first + 1])
        left = list(rest[~beaten])
    return kept
