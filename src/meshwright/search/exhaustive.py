"""The proven best of the whole space: every candidate is priced, refused, or bounded away.

Families are taken in the order of their lower bounds, so that a good plan is found at once and
most of the others need not be combined with all ways to shard them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.cost.memory import ShardDegrees, memory_use
from meshwright.search.best import Best
from meshwright.search.counts import Counts
from meshwright.search.families import Families, SearchSpace, families
from meshwright.search.members import Block, members
from meshwright.strategy.space import Grid, degree_columns, device_counts
from meshwright.strategy.strategy import (
    Offload,
    Strategy,
    StrategyColumns,
    Structure,
    row,
    take,
)

BLOCK_ROWS = 2_048
"""Families of one block: with all their members about the size of a cache."""
KEPT = 512
Progress = Callable[[Counts, Best], None]


@dataclass(frozen=True)
class Found:
    """One candidate among the best."""

    strategy: Strategy
    structure: Structure
    time_s: float
    memory_bytes: float


@dataclass(frozen=True)
class SearchResult:
    """The best candidates in order of time, and how the space was covered.

    ``lower_bound_s`` is a proven bound on the time of any candidate; it equals the time of the
    best one when the search ended, and lies below it when the search was interrupted.
    """

    found: tuple[Found, ...]
    counts: Counts
    lower_bound_s: float
    is_complete: bool
    elapsed_s: float


@dataclass
class _Entry:
    """A block of families waiting for its turn."""

    bound_s: float
    families: Families
    rows: IntArray


def search(
    space: SearchSpace,
    *,
    top: int = 5,
    prune: bool = True,
    progress: Progress | None = None,
    visit: Callable[[Block], None] | None = None,
) -> SearchResult:
    """Return the fastest candidates of a space, proven to be so.

    Parameters
    ----------
    top
        Candidates of which the order is proven; more are kept where they tie with the best.
    prune
        Leave out families whose bound lies beyond the best ones. Without it every legal candidate
        is priced: for benchmarks and fronts.
    progress
        Called after each block.
    visit
        Called with each priced block: for fronts and for materialising samples.
    """
    started = time.perf_counter()
    counts, best = Counts(), Best(KEPT, top)
    tables: list[Families] = []
    entries: list[_Entry] = []
    done, interrupted = 0, False
    try:
        for family in _all_families(space, counts):
            tables.append(family)
            entries += _entries(space, family, counts)
        entries.sort(key=lambda entry: entry.bound_s)
        numbers = {id(family): number for number, family in enumerate(tables)}
        for entry in entries:
            _price_entry(space, entry, numbers, best, counts, prune=prune, visit=visit)
            done += 1
            if progress is not None:
                progress(counts, best)
    except KeyboardInterrupt:
        interrupted = True
    bound_s = float(best.times_s[0]) if len(best.times_s) else float("inf")
    if interrupted:
        bound_s = min([bound_s, *(entry.bound_s for entry in entries[done:])])
    found = tuple(_found(tables, best, index) for index in range(len(best.times_s)))
    return SearchResult(found, counts, bound_s, not interrupted, time.perf_counter() - started)


def _all_families(space: SearchSpace, counts: Counts) -> Iterator[Families]:
    """Yield the families of every number of devices that is tried."""
    for columns in degree_tables(space):
        if len(columns.tp):
            yield from families(space, columns, counts)


def degree_tables(space: SearchSpace) -> Iterator[StrategyColumns]:
    """Yield the degrees to try, for each number of devices in use."""
    problem = space.problem
    alive = problem.system.num_alive
    numbers = device_counts(alive, problem.system.levels[0].size)
    for number in space.choices.of("num_devices", numbers):
        grid = Grid(
            num_devices=number,
            num_layers=problem.model.num_layers,
            global_batch_size=problem.workload.global_batch_size,
            uses_tatp=problem.has_grid,
            num_experts=problem.num_experts,
            choices=space.choices,
        )
        yield degree_columns(grid)


def _entries(space: SearchSpace, family: Families, counts: Counts) -> list[_Entry]:
    """Return the blocks of families that may fit, ascending by bound; count the others."""
    can_fit = _can_fit(space, family)
    counts.pruned_by_memory += int(family.num_members[~can_fit].sum())
    rows = np.flatnonzero(can_fit)
    rows = rows[np.argsort(family.bound_s[rows], kind="stable")]
    return [
        _Entry(float(family.bound_s[part[0]]), family, part)
        for part in np.array_split(rows, range(BLOCK_ROWS, len(rows), BLOCK_ROWS))
        if len(part)
    ]


def _can_fit(space: SearchSpace, family: Families) -> BoolArray:
    """Return the families whose leanest member fits: all state sharded, all that may offloaded."""
    problem, strategy = space.problem, family.strategy
    shards = ShardDegrees(
        dense=strategy.dp * strategy.cp,
        expert=strategy.dp * strategy.cp * strategy.tp / (strategy.ep * strategy.etp),
    )
    stage = max(stage for stage, _ in space.zero_choices)
    offload = Offload.ALL if len(space.offloads) > 1 else space.offloads[0]
    leanest = replace(family.structure, zero_stage=stage, offload=offload)
    capacity = problem.system.chip.main_memory.capacity_bytes
    fits = np.ones(len(strategy.tp), dtype=bool)
    for state in family.price.states:
        use = memory_use(
            state, shards, leanest, problem.workload.optimizer,
            capacity_bytes=capacity,
            margin_fraction=problem.calibration.memory_margin_fraction,
            buffer_bytes=problem.calibration.communication_buffer_bytes,
        )  # fmt: skip
        fits &= use.total_bytes <= capacity
    return fits


def _price_entry(
    space: SearchSpace, entry: _Entry, numbers: dict[int, int], best: Best, counts: Counts, *,
    prune: bool, visit: Callable[[Block], None] | None,
) -> None:  # fmt: skip
    """Price the members of one block of families, or leave out those beyond the bound."""
    family, rows = entry.families, entry.rows
    near = family.bound_s[rows] <= best.limit_s if prune else np.ones(len(rows), dtype=bool)
    counts.pruned_by_bound += int(family.num_members[rows[~near]].sum())
    rows = rows[near]
    if not len(rows):
        return
    for block, dominated in members(space, family, rows):
        counts.priced += len(block.fits)
        counts.does_not_fit += int((~block.fits).sum())
        counts.dominated += dominated
        if visit is not None:
            visit(block)
        fitting = np.flatnonzero(block.fits)
        if len(fitting):
            best.fold(
                block.step.time.total_s[fitting],
                block.step.memory_bytes[fitting],
                _identities(numbers[id(family)], block, fitting),
            )


def _identities(number: int, block: Block, rows: IntArray) -> IntArray:
    """Return whole numbers that name members: family table, row, shards, ZeRO, offload."""
    structure = block.structure
    zero = structure.zero_stage * 2 + int(structure.reshard_after_forward)
    offload = list(Offload).index(structure.offload)
    shards = block.strategy.dp_shard[rows].astype(np.int64)
    fixed = np.ones(len(rows), dtype=np.int64)
    return np.stack(
        [fixed * number, block.family_rows[rows], shards, fixed * zero, fixed * offload], axis=1
    )


def _found(tables: list[Families], best: Best, index: int) -> Found:
    """Return one of the best candidates by its identity."""
    number, family_row, shards, zero, offload = best.identities[index].tolist()
    family = tables[number]
    whole = row(take(family.strategy, np.array([family_row])), 0)
    strategy = replace(whole, dp_shard=float(shards), dp_replicate=whole.dp / shards)
    structure = replace(
        family.structure,
        zero_stage=zero // 2,
        reshard_after_forward=bool(zero % 2),
        offload=list(Offload)[offload],
    )
    return Found(strategy, structure, float(best.times_s[index]), float(best.memory_bytes[index]))
