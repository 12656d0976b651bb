"""Candidates of serving as columns, and the rules that refuse some of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.search.counts import Counts
from meshwright.serve.space import ServingSpace
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import DEGREES, PlanOptions, StrategyColumns, StrategyOf, take


@dataclass(frozen=True)
class ServingColumns:
    """Candidates that fit, one row each."""

    strategy: StrategyColumns
    split_of: IntArray
    """The split of the devices, whatever the batch."""
    structure_of: IntArray
    """Index into the structures of the result."""
    num_groups: FloatArray
    latency_s: FloatArray
    tokens_per_s: FloatArray
    tokens_per_s_per_user: FloatArray
    sequences_in_flight: FloatArray
    memory_bytes: FloatArray

    def __len__(self) -> int:
        return len(self.structure_of)

    def take(self, rows: IntArray | BoolArray) -> ServingColumns:
        """Return some of the rows."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        strategy = take(parts.pop("strategy"), rows)
        return ServingColumns(strategy, **{name: column[rows] for name, column in parts.items()})


def legal_rows(
    space: ServingSpace, structure: PlanOptions, columns: StrategyColumns, counts: Counts
) -> IntArray:
    """Return the rows that no rule refuses; others are counted under the first rule they break."""
    chip = space.problem.system.chip
    left = np.ones(len(columns.tp), dtype=bool)
    for refusal in all_refusals(
        space.problem.model, space.problem.workload, columns, structure,
        tile_rows=float(chip.tile_rows), tile_columns=float(chip.tile_columns),
    ):  # fmt: skip
        broken = left & refusal.mask
        if broken.any():
            counts.refused[refusal.name] += int(broken.sum())
            left &= ~refusal.mask
    return np.flatnonzero(left)


def joined_columns(parts: list[ServingColumns]) -> ServingColumns:
    """Return columns put after one another."""
    if not parts:
        nothing = np.zeros(0)
        none = StrategyOf(**dict.fromkeys(DEGREES, nothing))
        whole = np.zeros(0, dtype=np.int64)
        return ServingColumns(none, whole, whole, *[nothing] * 6)
    strategy = StrategyOf(
        **{n: np.concatenate([getattr(p.strategy, n) for p in parts]) for n in DEGREES}
    )
    names = [f.name for f in fields(ServingColumns) if f.name != "strategy"]
    return ServingColumns(
        strategy, **{n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
    )
