"""The space of serving: every split of the devices, every batch, and what rules refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.search.exhaustive import Counts
from meshwright.serve.problem import ServingProblem, group_counts
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, Grid, degree_columns, device_counts
from meshwright.sharding.strategy import (
    AXES,
    DEGREES,
    ContextKind,
    PlanOptions,
    StrategyColumns,
    StrategyOf,
    take,
)

PIPELINE_INSIDE = ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate")
CONTEXT_OUTSIDE = ("tp", "tatp", "pp", "cp", "dp_shard", "dp_replicate")
"""Replicas of a dense model never speak to each other, so they are outermost."""
_DEGREES = ("tp", "cp", "dp", "pp", "ep", "etp")


@dataclass(frozen=True)
class ServingSpace:
    """What is to be served, and the choices that the user left open."""

    problem: ServingProblem
    choices: Choices


def batch_ladder(most: int) -> list[int]:
    """Return the numbers of sequences that are tried: all up to 16, then eight in each octave."""
    sizes = list(range(1, min(most, 16) + 1))
    step = 2
    while sizes[-1] + step <= most:
        sizes.append(sizes[-1] + step)
        if sizes[-1] == 16 * step:
            step *= 2
    return sizes


def device_numbers(space: ServingSpace) -> tuple[int, ...]:
    """Return the numbers of devices to use: all, smoother ones just below, and halves of all."""
    system = space.problem.system
    numbers = list(device_counts(system.num_alive, system.domain_size))
    half = system.num_alive
    while half % 2 == 0:
        half //= 2
        numbers.append(half)
    return space.choices.of("num_devices", tuple(dict.fromkeys(numbers)))


def degree_table(space: ServingSpace) -> StrategyColumns | None:
    """Return every way to split the devices, one sequence in each pass; None: there is none."""
    blocks = [columns for columns in _degree_blocks(space) if len(columns.tp)]
    if not blocks:
        return None
    return type(blocks[0])(
        **{name: np.concatenate([vars(b)[name] for b in blocks]) for name in vars(blocks[0])}
    )


def _degree_blocks(space: ServingSpace) -> Iterator[StrategyColumns]:
    problem, allowed = space.problem, space.choices.allowed
    fixed = {name: allowed[name] for name in _DEGREES if name in allowed}
    if problem.is_decode:
        fixed.setdefault("cp", (1,))
    fixed["num_virtual_stages"] = fixed["micro_batch_size"] = (1,)
    for number in device_numbers(space):
        columns = degree_columns(
            Grid(
                num_devices=number,
                num_layers=problem.model.num_layers,
                global_batch_size=1,
                uses_tatp=False,
                num_experts=problem.num_experts,
                choices=Choices(fixed),
            )
        )
        yield replace(columns, dp_replicate=columns.dp_shard, dp_shard=columns.dp_replicate)


@dataclass(frozen=True)
class Candidates:
    """Ways to serve, not yet priced; one row each."""

    strategy: StrategyColumns
    num_groups: FloatArray
    split_of: IntArray
    """The split of the devices: a row of the table of degrees."""

    def __len__(self) -> int:
        return len(self.split_of)

    def take(self, rows: IntArray) -> Candidates:
        """Return some of the rows."""
        return Candidates(take(self.strategy, rows), self.num_groups[rows], self.split_of[rows])


def with_batches(space: ServingSpace, degrees: StrategyColumns) -> Candidates:
    """Return each row with every batch that is tried."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    rows: list[int] = []
    batches: list[tuple[int, int]] = []
    shares = zip(degrees.dp.tolist(), degrees.pp.tolist(), strict=True)
    for index, (dp, pp) in enumerate(shares):
        key = (int(dp), int(pp))
        if key not in pairs:
            pairs[key] = _batches(space, *key)
        rows += [index] * len(pairs[key])
        batches += pairs[key]
    table = np.array(batches, dtype=float).reshape(-1, 2)
    split_of = np.array(rows, dtype=np.int64)
    strategy = replace(take(degrees, split_of), micro_batch_size=table[:, 1].copy())
    return Candidates(strategy, table[:, 0].copy(), split_of)


def _batches(space: ServingSpace, dp: int, pp: int) -> list[tuple[int, int]]:
    """Return (groups, sequences of a group) of one replica, up to its share of the batch.

    In prefill prompts follow each other through all stages, so there are as many groups.
    """
    share = max(space.problem.workload.batch_size // dp, 1)
    ladder, is_decode = batch_ladder(share), space.problem.is_decode
    found = []
    for groups in group_counts(min(pp, share)) if is_decode else [pp]:
        most = -(-share // groups) if is_decode else share
        sizes = sorted({size for size in ladder if size <= most} | {most})
        found += [(groups, s) for s in space.choices.of("micro_batch_size", sizes)]
    return found


def layouts(
    space: ServingSpace, columns: StrategyColumns
) -> Iterator[tuple[PlanOptions, BoolArray]]:
    """Yield the structures, each with the rows for which it is not another one's double."""
    keeps, problem = space.choices.keeps, space.problem
    for order in _orders(problem):
        for kind in ContextKind:
            for sequence_parallel in (False, True):
                structure = PlanOptions(
                    sequence_parallel=sequence_parallel, context_kind=kind, axis_order=order,
                    zero_stage=0,
                    overlap_tensor_parallel=problem.workload.software.async_tensor_parallel,
                )  # fmt: skip
                allowed = keeps("sequence_parallel", sequence_parallel)
                if allowed and keeps("context_kind", kind):
                    yield structure, _own_rows(problem, structure, columns)


def _orders(problem: ServingProblem) -> tuple[tuple[str, ...], ...]:
    """Return the orders of the axes: experts need tp, cp and dp side by side."""
    if problem.num_experts:
        return (AXES,)
    one_level = len(problem.system.levels) <= 1
    return (PIPELINE_INSIDE,) if one_level else (PIPELINE_INSIDE, CONTEXT_OUTSIDE)


def _own_rows(
    problem: ServingProblem, structure: PlanOptions, columns: StrategyColumns
) -> BoolArray:
    """Return the rows for which a structure is a choice of its own.

    Splitting the tokens of a decode step over tp changes nothing worth a choice, and is left out.
    """
    rows = np.ones(len(columns.tp), dtype=bool)
    if structure.sequence_parallel:
        rows &= (columns.tp > 1) & (not problem.is_decode)
    if structure.context_kind is ContextKind.ULYSSES:
        rows &= columns.cp > 1
    if structure.axis_order == CONTEXT_OUTSIDE:
        rows &= (columns.cp > 1) & (columns.pp > 1)
    return rows


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
