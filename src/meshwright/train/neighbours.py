"""Plans near a given one: leaner in memory by one change, or with a feature that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.cost.problem import Problem
from meshwright.sharding.space import divisors
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, Strategy

Variant = tuple[Strategy, PlanOptions]


def leaner(strategy: Strategy, structure: PlanOptions) -> Iterator[Variant]:
    """Yield plans that differ by one change and need less memory, on as many devices."""
    steps = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    for recompute in steps[steps.index(structure.recompute) + 1 :]:
        yield strategy, replace(structure, recompute=recompute)
    has_shards = strategy.dp_shard * strategy.cp > 1
    for stage in range(structure.zero_stage + 1, 4 if has_shards else 0):
        yield strategy, replace(structure, zero_stage=stage)
    for offload in (Offload.OPTIMIZER, Offload.ACTIVATIONS, Offload.ALL):
        yield strategy, replace(structure, offload=offload)
    if strategy.micro_batch_size > 1:
        yield replace(strategy, micro_batch_size=1.0), structure
    yield from _split_further(strategy, structure)


def _split_further(strategy: Strategy, structure: PlanOptions) -> Iterator[Variant]:
    """Yield plans in which tp, pp or cp takes devices from the shards of dp."""
    for axis in ("tp", "pp", "cp"):
        for factor in (2.0, 4.0, 8.0):
            if strategy.dp_shard % factor:
                continue
            degrees = {axis: getattr(strategy, axis) * factor}
            split = replace(strategy, dp_shard=strategy.dp_shard / factor, **degrees)
            stage = structure.zero_stage if split.dp_shard * split.cp > 1 else 0
            yield split, replace(structure, sequence_parallel=split.tp > 1, zero_stage=stage)


def missing_features(
    problem: Problem, strategy: Strategy, structure: PlanOptions
) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """Yield what a plan lacks: how to call it, and the choice that asks for it with its values."""
    degrees = tuple(divisors(problem.system.num_alive))[1:]
    names = {
        "tp": "tensor parallelism", "pp": "pipeline stages", "cp": "context parallelism",
        "dp": "data parallelism",
    }  # fmt: skip
    if problem.has_grid:
        names["tatp"] = "tensor streams (tatp)"
    if problem.num_experts:
        names["ep"] = "expert parallelism"
    for axis, words in names.items():
        if getattr(strategy, axis) == 1 and degrees:
            yield words, axis, degrees
    if structure.recompute is Recompute.NONE:
        yield "full recomputation", "recompute", (Recompute.FULL,)
    if structure.zero_stage < 3:
        yield "fully sharded weights (ZeRO-3)", "zero_stage", (3,)
    if structure.offload is not Offload.NONE:
        yield "keeping all on the devices", "offload", (Offload.NONE,)
