"""The front of plans of which none is better in every respect: time, memory, energy, money."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.base.arrays import FloatArray, column
from meshwright.cost.energy import step_cost_usd, step_energy_parts_j, total_energy_j
from meshwright.cost.problem import Problem
from meshwright.search.exhaustive import Found, Progress
from meshwright.search.pareto import dominated_by, front_of
from meshwright.sharding.strategy import row
from meshwright.train.families import Block
from meshwright.train.search import search
from meshwright.train.space import SearchSpace

OBJECTIVES = ("step_time_s", "memory_bytes", "energy_j", "cost_usd")


@dataclass
class Front:
    """Candidates that nothing found so far beats in every respect."""

    problem: Problem
    values: FloatArray = field(default_factory=lambda: np.empty((0, len(OBJECTIVES))))
    """Shape (candidates, objectives); an objective that is not known is 0 for all."""
    found: list[Found] = field(default_factory=list)
    unknown: tuple[str, ...] = ()
    """Objectives left out, because a price or a power figure is missing."""

    def visit(self, block: Block) -> None:
        """Take a priced block into account."""
        parts_j = step_energy_parts_j(
            self.problem, block.structure, block.strategy, block.price_with_mean, block.time
        )
        step_s = block.time.total_s
        energy = total_energy_j(parts_j, step_s)
        cost = step_cost_usd(self.problem.system.chip, step_s, block.strategy.num_devices)
        columns = [step_s, block.memory_bytes, energy, cost]
        rows = len(block.memory_bytes)
        known = [np.broadcast_to(column, (rows,)) for column in columns]
        self.unknown = tuple(
            name for name, c in zip(OBJECTIVES, known, strict=True) if np.isnan(c).any()
        )
        values = np.stack([np.where(np.isnan(c), 0.0, c) for c in known], axis=1)
        fresh = np.flatnonzero(~dominated_by(values, self.values))
        fresh = fresh[front_of(values[fresh])]
        if not len(fresh):
            return
        keep = ~dominated_by(self.values, values[fresh])
        self.values = np.vstack([self.values[keep], values[fresh]])
        self.found = [f for f, kept in zip(self.found, keep.tolist(), strict=True) if kept]
        self.found += [_found(block, int(index)) for index in fresh]


def pareto_front(space: SearchSpace, *, progress: Progress | None = None) -> Front:
    """Return the front of the whole space; every candidate that fits is priced."""
    front = Front(space.problem)
    search(space, prune=False, progress=progress, visit=front.visit)
    order = np.lexsort(front.values.T[::-1])
    front.found = [front.found[index] for index in order]
    front.values = front.values[order]
    return front


def _found(block: Block, index: int) -> Found:
    table, family = block.families, int(block.family_rows[index])
    own = table.structures[int(table.structure_of[family])]
    structure = replace(
        own,
        zero_stage=block.structure.zero_stage,
        reshard_after_forward=block.structure.reshard_after_forward,
        offload=block.structure.offload,
    )
    time_s, memory = column(block.time.total_s)[index], block.memory_bytes[index]
    return Found(row(block.strategy, index), structure, float(time_s), float(memory))
