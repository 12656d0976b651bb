"""Data-parallel collectives for every grid and every division of replicas, found once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray, groups_of, joined, take_rows
from meshwright.cost.communication import Collectives, Transfer
from meshwright.cost.data_parallel import DataParallelLinks, SyncLinks, sync_links
from meshwright.sharding.strategy import StrategyColumns, take
from meshwright.train.families import Families
from meshwright.train.space import SearchSpace, experts_regroup, shard_degrees

_GRID = ("tp", "tatp", "cp", "pp", "dp_shard", "ep", "etp")


@dataclass(frozen=True)
class LinkTable:
    """Collectives by row; families know the rows of their divisions.

    Row ``whole_row`` of a family is the undivided one; its useful divisions stand at
    ``first_division`` and the ``num_divisions`` - 1 rows behind it.
    """

    links: SyncLinks
    dp_shard: FloatArray
    whole_row: IntArray
    first_division: IntArray
    num_divisions: IntArray

    def take(self, rows: IntArray, zero_stage: int) -> SyncLinks:
        """Return the collectives of some rows: those that a ZeRO stage uses."""
        experts = self.links.expert
        return SyncLinks(
            _needed(self.links.dense, rows, zero_stage),
            None if experts is None else _needed(experts, rows, zero_stage),
        )


def link_table(space: SearchSpace, families: Families) -> LinkTable:
    """Return the collectives of all members of the families."""
    orders = {structure.axis_order for structure in families.structures}
    parts: list[SyncLinks] = []
    shards: list[FloatArray] = []
    whole, first, number = (np.zeros(len(families), dtype=np.int64) for _ in range(3))
    start = 0
    for order in sorted(orders):
        of_order = [i for i, s in enumerate(families.structures) if s.axis_order == order]
        rows = np.flatnonzero(np.isin(families.structure_of, of_order))
        grids, grid_of = _unique_grids(take(families.strategy, rows))
        index, shard, lengths, divides_one = _divisions(space, grids)
        expanded = take(grids, index)
        expanded = replace(expanded, dp_shard=shard, dp_replicate=expanded.dp_shard / shard)
        network = space.problem.network(order, expanded)
        launch_s = space.problem.calibration.collective_launch_s
        parts.append(sync_links(space.problem, Collectives(network, launch_s, all_forms=True)))
        shards.append(shard)
        ends = np.cumsum(lengths)
        whole[rows] = (start + ends - lengths)[grid_of]
        first[rows] = whole[rows] + ~divides_one[grid_of]
        number[rows] = (lengths - ~divides_one)[grid_of]
        start += len(shard)
    return LinkTable(_thinned(joined(parts)), np.concatenate(shards), whole, first, number)


def _unique_grids(strategy: StrategyColumns) -> tuple[StrategyColumns, IntArray]:
    """Return the distinct grids of devices, and the grid of each row."""
    first, grid_of = groups_of(getattr(strategy, name) for name in _GRID)
    return take(strategy, first), grid_of


def _divisions(
    space: SearchSpace, grids: StrategyColumns
) -> tuple[IntArray, FloatArray, IntArray, Any]:
    """Return (grid, dp_shard) of every division, the number of each grid's, and whether 1 is one.

    The undivided one comes first, whether it is a division (of cp alone) or not.
    """
    degrees = [shard_degrees(space, int(dp)) for dp in grids.dp_shard.tolist()]
    lengths = np.array([len({1, *d}) for d in degrees], dtype=np.int64)
    index = np.repeat(np.arange(len(degrees)), lengths)
    shard = np.array([s for d in degrees for s in sorted({1, *d})], dtype=float)
    divided = take(grids, index)
    divided = replace(divided, dp_shard=shard, dp_replicate=divided.dp_shard / shard)
    regroups, is_one = experts_regroup(space, divided), shard == 1
    divides_one = regroups[is_one] & (grids.cp > 1) & space.choices.keeps("dp_shard", 1)
    kept = regroups | is_one
    lengths = np.bincount(index[kept], minlength=len(degrees))
    return index[kept], shard[kept], lengths, divides_one


def _needed(links: DataParallelLinks, rows: IntArray, zero_stage: int) -> DataParallelLinks:
    """Return the collectives of some rows; those that a ZeRO stage leaves unused stay whole."""
    used = ("all_reduce",) if zero_stage == 0 else (
        "reduce_scatter", "all_gather", "replicate_all_reduce", "degrees",
    )  # fmt: skip
    parts = {f.name: getattr(links, f.name) for f in fields(links)}
    return DataParallelLinks(
        **{n: take_rows(v, rows) if n in used else v for n, v in parts.items()}
    )


def _thinned(links: SyncLinks) -> SyncLinks:
    """Return the collectives without the algorithms that never win."""
    return SyncLinks(_thin(links.dense), None if links.expert is None else _thin(links.expert))


def _thin(links: DataParallelLinks) -> DataParallelLinks:
    parts = {f.name: getattr(links, f.name) for f in fields(links)}
    return DataParallelLinks(
        **{n: _winners(v) if isinstance(v, Transfer) else v for n, v in parts.items()}
    )


def _winners(transfer: Transfer) -> Transfer:
    """Return the forms of which no single other one is at least as fast in every row."""
    kept: list[tuple[Any, Any]] = []
    for number, form in enumerate(transfer.forms):
        rivals = [*kept, *transfer.forms[number + 1 :]]
        beaten = any(
            bool(np.all((r[0] <= form[0]) & ((r[1] <= form[1]) | np.isinf(form[0]))))
            for r in rivals
        )
        if not beaten:
            kept.append(form)
    return Transfer(tuple(kept))
