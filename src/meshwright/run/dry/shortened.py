"""Extrapolates a step of many micro-batches and equal layers from shorter steps.

Counts, bytes and memory are sums over layers and micro-batches. So each is linear in either number
at a given moment. Moments correspond by their distance from the beginning or the end of their task
(a pass of a chunk), and tasks by their distance from the beginning or the end of the step:

    held(l, m) = a + b l + c m + d l m

Two depths and two numbers of micro-batches determine it, and the peak is the largest of these
moments. What lies between two ends repeats layers or tasks, and holds no more than an end does.
A third depth is run as well; where a moment of it is not what the first two predict, all layers are
run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from math import lcm
from typing import Any

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.frameworks.launch import degrees, layers_of_chunks, micro_batches
from meshwright.run.moments import Moments, Ran, summed
from meshwright.sharding.strategy import ScheduleKind
from meshwright.train.answer import Plan

RunRank = Callable[[Plan, int], Ran]
Weighted = Sequence[tuple[int, Ran]]
"""Runs with their weights, which add up to one."""


@dataclass(frozen=True)
class Short:
    """Two numbers of layers or micro-batches that are run, and the larger one that follows."""

    few: int
    more: int
    whole: int

    @property
    def weights(self) -> Mapping[int, int]:
        """Weight of each run: the line through two points, at the whole number.

        With 4 and 6 layers run, 12 are 4 times the second less 3 times the first.
        """
        steps = (self.whole - self.few) // (self.more - self.few)
        return {self.few: 1 - steps, self.more: steps}


def run_shortened(plan: Plan, stage: int, run: RunRank) -> Ran:
    """Run a rank of a stage for a step, or extrapolate the step from shorter ones."""
    depth, length = short_depth(plan), short_length(plan)
    lengths = length.weights if length else {micro_batches(plan): 1}

    @cache
    def ran(layers: int, number: int) -> Ran:
        return run(cut(plan, depth.whole - layers if depth else 0, number), stage)

    if depth:
        few, more, number = depth.few, depth.more, min(lengths)
        bent = whole_of([
            (1, ran(few, number)), (-2, ran(more, number)), (1, ran(2 * more - few, number)),
        ])  # fmt: skip
        if bent is None or not is_nothing(bent):
            depth = None
    depths = depth.weights if depth else {0: 1}
    whole = whole_of([
        (times * as_often, ran(layers, number))
        for layers, times in depths.items() for number, as_often in lengths.items()
    ])  # fmt: skip
    return run(plan, stage) if whole is None else whole


def short_length(plan: Plan) -> Short | None:
    """Return the micro-batches of a pipeline that are run; None: all of them.

    Each half of the shorter step holds a whole period between filling and draining: two passes in
    1F1B, those of as many micro-batches as there are stages where these are interleaved.
    """
    stages, number = degrees(plan)["pp"], micro_batches(plan)
    is_interleaved = plan.best.plan_options.schedule is ScheduleKind.INTERLEAVED
    few, step = (4 * stages, stages) if is_interleaved else (stages + 4, 1)
    if stages == 1 or number <= 2 * few + step:
        return None
    return Short(few, few + step, number)


def short_depth(plan: Plan) -> Short | None:
    """Return the layers of the shortest chunk that are run; None: all of them.

    Layers are left out of the middle of each chunk, in whole periods of their kinds. Optimizers
    that deal whole weights to ranks (ZeRO 1) hold no multiple of a layer.
    """
    options, chunks = plan.best.plan_options, _kinds_of_chunks(plan)
    shortest = min(map(len, chunks))
    period = _period(chunks, lcm(2, max(1, int(options.recompute_run))))
    if options.zero_stage == 1 or options.recomputes_some or not period:
        return None
    few = _head(chunks, period) + 2 * period
    few += (shortest - few) % period
    if shortest <= 3 * few + 3 * period:  # the three depths together are as deep
        return None
    return Short(few, few + period, shortest)


def _kinds_of_chunks(plan: Plan) -> list[tuple[int, ...]]:
    """Return the kinds of the layers of each chunk of the model."""
    ends = list(accumulate(layers_of_chunks(plan), initial=0))
    return [plan.model.layer_pattern[start:stop] for start, stop in pairwise(ends)]


def _head(chunks: Sequence[Sequence[int]], period: int) -> int:
    """Return the layers before the first of which all chunks are periodic from there on."""
    return max(
        (at + 1 for kinds in chunks for at in range(len(kinds) - period)
         if kinds[at] != kinds[at + period]), default=0,
    )  # fmt: skip


def _period(chunks: Sequence[Sequence[int]], least: int) -> int:
    """Return a number of layers after which their kinds repeat; 0 where none is short."""
    found = [p for p in (least, 2 * least, 3 * least) if _head(chunks, p) <= 4]
    return found[0] if found else 0


def cut(plan: Plan, fewer_layers: int, num_micro_batches: int) -> Plan:
    """Return a plan with fewer layers in the middle of each chunk, and other micro-batches."""
    sizes = degrees(plan)
    batch = sizes["dp"] * sizes["micro_batch_size"] * num_micro_batches
    plan = replace(plan, workload=plan.workload.model_copy(update={"global_batch_size": batch}))
    if not fewer_layers:
        return plan
    chunks = _kinds_of_chunks(plan)
    left = [
        (*kinds[: (len(kinds) - fewer_layers) // 2], *kinds[(len(kinds) + fewer_layers) // 2 :])
        for kinds in chunks
    ]
    model = plan.model.model_copy(update={"layer_pattern": sum(left, ())})
    options = plan.best.plan_options
    if len(chunks) > 1:
        options = replace(options, stage_layers=tuple(map(len, left)))
    return replace(plan, model=model, best=replace(plan.best, plan_options=options))


def whole_of(runs: Weighted) -> Ran | None:
    """Return the weighted sum of runs; None if their moments differ."""
    if len(runs) == 1:
        return runs[0][1]
    places = _aligned([ran.moments for _, ran in runs])
    if places is None:
        return None
    parts = zip(runs, places, strict=True)
    held: Any = sum(times * ran.moments.held_bytes[at] for (times, ran), at in parts)
    first = runs[0][1]
    moments = Moments(held, first.moments.phases[places[0]], first.moments.tasks[places[0]])
    return Ran(first.rank, moments, summed((times, ran.counts) for times, ran in runs))


def is_nothing(ran: Ran) -> bool:
    """Return whether a sum of runs leaves no memory at any moment, no collectives, no FLOPs."""
    has_counts = any(any(counted.values()) for counted in ran.counts)
    return not has_counts and not ran.moments.held_bytes.any()


def _aligned(moments: Sequence[Moments]) -> list[IntArray] | None:
    """Return the numbers of the moments that all runs have, for each of them.

    None where tasks at the same place are of different phases.
    """
    ends = [np.append(np.flatnonzero(np.diff(m.tasks, prepend=-1)), len(m.tasks)) for m in moments]
    tasks = _from_both_ends([len(end) - 1 for end in ends])
    found: list[list[IntArray]] = [[] for _ in moments]
    for numbers in zip(*tasks, strict=True):
        spans = [(end[at], end[at + 1]) for end, at in zip(ends, numbers, strict=True)]
        inside = _from_both_ends([stop - start for start, stop in spans])
        for places, (start, _), at in zip(found, spans, inside, strict=True):
            places.append(start + at)
    places = [np.concatenate(parts) for parts in found]
    first, *others = (m.phases[at] for m, at in zip(moments, places, strict=True))
    return places if all(np.array_equal(first, other) for other in others) else None


def _from_both_ends(lengths: Sequence[int]) -> list[IntArray]:
    """Return places in lists of several lengths: the first half of the shortest, then the last."""
    shortest = min(lengths)
    one: IntArray = np.arange(shortest)
    return [np.where(one < shortest // 2, one, one + length - shortest) for length in lengths]
