"""The members of families: every way to shard, offload and replicate, priced in full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.pricing.layers import Collectives
from meshwright.pricing.network import AxisNetwork
from meshwright.pricing.stages import PipelinePrice
from meshwright.pricing.steps import StepPrice, SyncLinks, price_step, sync_links, take_rows
from meshwright.search.families import Families, SearchSpace, shard_degrees
from meshwright.strategy.strategy import Offload, StrategyColumns, Structure, take


@dataclass(frozen=True)
class Block:
    """Members of some families under one structure, priced."""

    structure: Structure
    strategy: StrategyColumns
    family_rows: IntArray
    step: StepPrice
    fits: BoolArray


@dataclass(frozen=True)
class _Expansion:
    """Families with their replicas divided into shards, and the collectives that follow."""

    strategy: StrategyColumns
    rows: IntArray
    price: PipelinePrice
    links: SyncLinks


def members(space: SearchSpace, families: Families, rows: IntArray) -> Iterator[tuple[Block, int]]:
    """Yield priced members of the named families, and how many more each block dominates.

    Offload is priced only where the same plan does not fit without it: it never makes a step
    faster, so elsewhere its members are dominated, and counted so.
    """
    whole = _expanded(space, families, rows, sharded=False)
    shards = _expanded(space, families, rows, sharded=True)
    for stage, reshard in space.zero_choices:
        expansion = whole if stage == 0 else shards
        if not len(expansion.rows):
            continue
        structure = replace(families.structure, zero_stage=stage, reshard_after_forward=reshard)
        yield from _with_offloads(space, structure, expansion)


def _with_offloads(
    space: SearchSpace, structure: Structure, expansion: _Expansion
) -> Iterator[tuple[Block, int]]:
    first, *others = space.offloads
    block = _block(space, replace(structure, offload=first), expansion)
    dominated = 0
    if others and first is Offload.NONE:
        unfit = np.flatnonzero(~block.fits)
        dominated = (len(block.fits) - len(unfit)) * len(others)
        expansion = _Expansion(
            take(expansion.strategy, unfit),
            expansion.rows[unfit],
            take_rows(expansion.price, unfit),
            take_rows(expansion.links, unfit),
        )
    yield block, dominated
    for offload in others if len(expansion.rows) else ():
        yield _block(space, replace(structure, offload=offload), expansion), 0


def _block(space: SearchSpace, structure: Structure, expansion: _Expansion) -> Block:
    """Return the priced members of an expansion under one structure."""
    problem = space.problem
    step = price_step(problem, structure, expansion.strategy, expansion.price, expansion.links)
    capacity = problem.system.chip.main_memory.capacity_bytes
    fits = step.memory_bytes <= capacity
    if problem.system.host is not None:
        fits &= step.host_bytes <= problem.system.host.capacity_bytes
    return Block(structure, expansion.strategy, expansion.rows, step, fits)


def _expanded(
    space: SearchSpace, families: Families, rows: IntArray, *, sharded: bool
) -> _Expansion:
    """Return the families with every division of their replicas; without ZeRO there is one."""
    strategy = take(families.strategy, rows)
    dp = strategy.dp
    if not sharded:
        index = np.arange(len(rows))
        shard = np.ones(len(rows))
    else:
        index, shard = _divisions(space, dp)
        useful = shard * strategy.cp[index] > 1
        index, shard = index[useful], shard[useful]
    expanded = replace(take(strategy, index), dp_shard=shard, dp_replicate=dp[index] / shard)
    family_rows = rows[index]
    price = take_rows(families.price, family_rows)
    return _Expansion(expanded, family_rows, price, _links(space, families.structure, expanded))


def _divisions(space: SearchSpace, dp: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return (row, degree of dp_shard) for every divisor of every row's replicas."""
    values, inverse = np.unique(dp.astype(np.int64), return_inverse=True)
    tables = [np.array(shard_degrees(space, value), dtype=float) for value in values.tolist()]
    counts = np.array([len(table) for table in tables])[inverse]
    index = np.repeat(np.arange(len(dp)), counts)
    starts = np.concatenate([[0], np.cumsum([len(table) for table in tables])[:-1]])
    offset = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = np.concatenate(tables) if tables else np.empty(0)
    return index, flat[np.repeat(starts[inverse], counts) + offset]


def _links(space: SearchSpace, structure: Structure, strategy: StrategyColumns) -> SyncLinks:
    """Return the data-parallel collectives, found once for rows of equal grids."""
    code = np.zeros(len(strategy.tp), dtype=np.int64)
    for name in ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate", "ep", "etp"):
        values, inverse = np.unique(getattr(strategy, name), return_inverse=True)
        code = code * len(values) + inverse.reshape(-1)
    _, first, groups = np.unique(code, return_index=True, return_inverse=True)
    problem = space.problem
    network = AxisNetwork(
        problem.system.levels, problem.efficiencies, structure.axis_order, take(strategy, first)
    )
    links = sync_links(problem, Collectives(network, problem.calibration.collective_launch_s))
    return take_rows(links, groups.reshape(-1))
