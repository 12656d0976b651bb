"""The members of families: every way to shard, offload and replicate, priced in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.cost.step import StepTime
from meshwright.pricing.stages import PipelinePrice
from meshwright.pricing.steps import fits_memory, step_times, take_rows
from meshwright.search.counts import Counts
from meshwright.search.families import Families, SearchSpace
from meshwright.search.links import LinkTable
from meshwright.strategy.strategy import Offload, StrategyColumns, Structure, take


@dataclass(frozen=True)
class Block:
    """Members that fit, priced; ``structure`` holds the choices on which members differ."""

    structure: Structure
    strategy: StrategyColumns
    family_rows: IntArray
    price: PipelinePrice
    time: StepTime
    memory_bytes: FloatArray


@dataclass(frozen=True)
class _Expansion:
    """Families with their replicas divided into shards, and where their collectives stand."""

    strategy: StrategyColumns
    family_rows: IntArray
    price: PipelinePrice
    link_rows: IntArray

    def __len__(self) -> int:
        return len(self.family_rows)

    def take(self, rows: IntArray) -> _Expansion:
        """Return some of the rows."""
        return _Expansion(
            take(self.strategy, rows),
            self.family_rows[rows],
            take_rows(self.price, rows),
            self.link_rows[rows],
        )


def members(
    space: SearchSpace, families: Families, links: LinkTable, rows: IntArray, counts: Counts
) -> Iterator[Block]:
    """Yield the members of the named families that fit, priced, and count the others.

    Offload is priced only where the same plan does not fit without it: it never makes a step
    faster, so elsewhere its members are dominated, and counted so.
    """
    whole = _whole(families, links, rows)
    shards = _divided(families, links, rows)
    for stage, reshard in space.zero_choices:
        expansion = whole if stage == 0 else shards
        structure = Structure(
            zero_stage=stage,
            reshard_after_forward=reshard,
            overlap_data_parallel=space.overlaps_data_parallel,
        )
        if len(expansion):
            yield from _with_offloads(space, structure, expansion, links, counts)


def _with_offloads(
    space: SearchSpace, structure: Structure, expansion: _Expansion, links: LinkTable,
    counts: Counts,
) -> Iterator[Block]:  # fmt: skip
    """Yield what fits as it is, then what fits with each kind of offload but not without."""
    for number, offload in enumerate(space.offloads):
        chosen = replace(structure, offload=offload)
        memory, fits = fits_memory(space.problem, chosen, expansion.strategy, expansion.price)
        fitting = np.flatnonzero(fits)
        counts.priced += len(fitting)
        counts.does_not_fit += len(expansion) - len(fitting)
        if len(fitting):
            yield _block(space, chosen, expansion.take(fitting), memory[fitting], links)
        if number == 0 and offload is Offload.NONE:
            counts.dominated += len(fitting) * (len(space.offloads) - 1)
            if len(fitting):
                expansion = expansion.take(np.flatnonzero(~fits))
        if not len(expansion):
            return


def _block(
    space: SearchSpace, structure: Structure, expansion: _Expansion, memory_bytes: FloatArray,
    links: LinkTable,
) -> Block:  # fmt: skip
    """Return priced members."""
    time = step_times(
        space.problem, structure, expansion.strategy, expansion.price,
        links.take(expansion.link_rows, structure.zero_stage),
    )  # fmt: skip
    return Block(
        structure, expansion.strategy, expansion.family_rows, expansion.price, time, memory_bytes
    )


def _whole(families: Families, links: LinkTable, rows: IntArray) -> _Expansion:
    """Return the families with all replicas whole: without ZeRO there is no other way."""
    strategy = take(families.strategy, rows)
    ones = np.ones(len(rows))
    strategy = replace(strategy, dp_replicate=strategy.dp, dp_shard=ones)
    return _Expansion(strategy, rows, take_rows(families.price, rows), links.whole_row[rows])


def _divided(families: Families, links: LinkTable, rows: IntArray) -> _Expansion:
    """Return the families with every division of their replicas that shards something."""
    counts = links.num_divisions[rows]
    index = np.repeat(np.arange(len(rows)), counts)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    family_rows = rows[index]
    link_rows = links.first_division[family_rows] + offset
    shard = links.dp_shard[link_rows]
    strategy = take(families.strategy, family_rows)
    strategy = replace(strategy, dp_shard=shard, dp_replicate=strategy.dp / shard)
    return _Expansion(strategy, family_rows, take_rows(families.price, family_rows), link_rows)
