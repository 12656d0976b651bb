"""The members of families: every way to shard, offload and replicate, priced in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, take_rows
from meshwright.cost.energy import throttled
from meshwright.cost.memory import ShardDegrees, StageState, fits_memory, shard_degrees
from meshwright.cost.pipeline import PipelinePrice, StepTime
from meshwright.cost.step import step_times
from meshwright.search.counts import Counts
from meshwright.sharding.strategy import (
    Offload,
    PlanOptions,
    StrategyColumns,
    make_strategy,
    stack,
    take,
)
from meshwright.train.families import Families
from meshwright.train.links import LinkTable
from meshwright.train.space import SearchSpace


@dataclass(frozen=True)
class Block:
    """Members that fit, priced; ``structure`` holds the choices on which members differ."""

    families: Families
    structure: PlanOptions
    family_rows: IntArray
    dp_shard: FloatArray
    price: PipelinePrice
    """What all members of a family share; states of single stages and mean work are left out."""
    time: StepTime
    memory_bytes: FloatArray

    @cached_property
    def price_with_mean(self) -> PipelinePrice:
        """The same with the mean work of a device, collected when it is asked for."""
        return replace(self.price, mean=take_rows(self.families.price.mean, self.family_rows))

    @cached_property
    def strategy(self) -> StrategyColumns:
        """The degrees of the members, collected when they are asked for."""
        strategy = take(self.families.strategy, self.family_rows)
        replicas = strategy.dp / self.dp_shard
        return replace(strategy, dp_shard=self.dp_shard, dp_replicate=replicas)


@dataclass(frozen=True)
class _Part:
    """Some of the families, collected side by side, so that members find them in the cache."""

    families: Families
    links: LinkTable
    rows: IntArray
    price: PipelinePrice


@dataclass(frozen=True)
class _Expansion:
    """Families of a part with their replicas divided into shards."""

    part_rows: IntArray
    link_rows: IntArray
    dp_shard: FloatArray
    shards: ShardDegrees
    states: tuple[StageState, ...]

    def __len__(self) -> int:
        return len(self.part_rows)


def members(
    space: SearchSpace, families: Families, links: LinkTable, rows: IntArray, counts: Counts
) -> Iterator[Block]:
    """Yield the members of the named families that fit, priced, and count the others.

    Offload is priced only where the same plan does not fit without it: it never makes a step
    faster, so elsewhere its members are dominated, and counted so.
    """
    part = _Part(families, links, rows, take_rows(families.price, rows))
    whole, shards = _whole(space, part), _divided(space, part)
    for stage, reshard in space.zero_choices:
        expansion = whole if stage == 0 else shards
        structure = PlanOptions(
            zero_stage=stage,
            reshard_after_forward=reshard,
            overlap_data_parallel=space.overlaps_data_parallel,
        )
        if len(expansion):
            yield from _with_offloads(space, part, structure, expansion, counts)


def _with_offloads(
    space: SearchSpace, part: _Part, structure: PlanOptions, expansion: _Expansion, counts: Counts
) -> Iterator[Block]:
    """Yield what fits as it is, then what fits with each kind of offload but not without."""
    for number, offload in enumerate(space.offloads):
        chosen = replace(structure, offload=offload)
        memory, fits = fits_memory(space.problem, chosen, expansion.shards, expansion.states)
        fitting = np.flatnonzero(fits)
        counts.priced += len(fitting)
        counts.does_not_fit += len(expansion) - len(fitting)
        if len(fitting):
            yield _block(space, part, chosen, expansion, fitting, memory)
        if number == 0 and offload is Offload.NONE:
            counts.dominated += len(fitting) * (len(space.offloads) - 1)
            if len(fitting) and len(space.offloads) > 1:
                expansion = take_rows(expansion, np.flatnonzero(~fits))
        if not len(expansion):
            return


def _block(
    space: SearchSpace, part: _Part, structure: PlanOptions, expansion: _Expansion,
    rows: IntArray, memory_bytes: FloatArray,
) -> Block:  # fmt: skip
    """Return some rows of an expansion, priced."""
    part_rows = expansion.part_rows[rows]
    price = take_rows(replace(part.price, states=(), mean=None), part_rows)
    time = step_times(
        space.problem, structure, take_rows(expansion.shards, rows), price,
        part.links.take(expansion.link_rows[rows], structure.zero_stage),
    )  # fmt: skip
    block = Block(
        part.families, structure, part.rows[part_rows], expansion.dp_shard[rows], price, time,
        memory_bytes[rows],
    )  # fmt: skip
    if not space.problem.system.is_power_capped:
        return block
    slower = throttled(space.problem, structure, block.strategy, block.price_with_mean, block.time)
    return replace(block, time=slower)


def _whole(space: SearchSpace, part: _Part) -> _Expansion:
    """Return the families with all replicas whole: without ZeRO there is no other way."""
    number = len(part.rows)
    link_rows = part.links.whole_row[part.rows]
    return _expansion(space, part, np.arange(number), link_rows, np.ones(number))


def _divided(space: SearchSpace, part: _Part) -> _Expansion:
    """Return the families with every division of their replicas that shards something."""
    counts = part.links.num_divisions[part.rows]
    index = np.repeat(np.arange(len(part.rows)), counts)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    link_rows = part.links.first_division[part.rows][index] + offset
    return _expansion(space, part, index, link_rows, part.links.dp_shard[link_rows])


def _expansion(
    space: SearchSpace, part: _Part, index: IntArray, link_rows: IntArray, dp_shard: FloatArray
) -> _Expansion:
    """Return families of a part, each with one division of its replicas."""
    names = ("cp", "tp", "ep", "etp") if space.problem.num_experts else ("cp",)
    whole = part.families.strategy
    needed = {name: getattr(whole, name)[part.rows][index] for name in names}
    strategy = replace(stack([make_strategy()]), dp_shard=dp_shard, **needed)
    states = take_rows(part.price.states, index)
    return _Expansion(index, link_rows, dp_shard, shard_degrees(space.problem, strategy), states)
