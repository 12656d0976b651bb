"""Plans of a configuration to be priced: legal, within memory, placed, drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.pipeline import micro_batches
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, Grid, degree_columns, divisors
from meshwright.sharding.strategy import (
    ContextKind,
    Recompute,
    ScheduleKind,
    Strategy,
    StrategyColumns,
    Structure,
    row,
    take,
)
from meshwright.wafer.choices import Choice, all_choices

ZERO_CHOICES = ((0, True), (1, True), (2, True), (3, True), (3, False))
SCHEDULES = (*ScheduleKind, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ONE_F_ONE_B)
"""One stage has no other schedule, so it is drawn as often as all others."""
NUM_STRUCTURES = 6
"""Structures that are drawn for a configuration."""
NUM_PRICED = 200
"""Legal strategies of a structure that are priced in closed form, from which rows are drawn."""
MOST_CHOICES = 512
MOST_MICRO_BATCHES, MOST_PASSES = 8, 16
"""Steps of more micro-batches, or of more passes of a micro-batch through chunks of a stage, are
left out: they take long to simulate, and repeat themselves."""


@dataclass(frozen=True)
class Drawn:
    """One plan to be priced."""

    structure: Structure
    strategy: Strategy
    choice: Choice


def draw_candidates(
    problem: Problem, rng: np.random.Generator, num: int, rejected: Counter[str]
) -> list[Drawn]:
    """Return drawn plans, at most so many: fewer where the space has no more.

    Fast strategies are drawn more often: with a chance in proportion to their speed in closed
    form. Ways to lay them are all as likely.

    Parameters
    ----------
    rejected
        Counts what was drawn and left out, by reason; added to.
    """
    grid = Grid(
        num_devices=problem.system.num_devices,
        num_layers=problem.model.num_layers,
        global_batch_size=problem.workload.global_batch_size,
        uses_tatp=True,
        num_experts=0,
        choices=Choices(),
    )
    degrees = degree_columns(grid)
    tables = []
    for _ in range(NUM_STRUCTURES):
        structure = draw_structure(rng)
        tables.append((structure, *_priced(problem, structure, degrees, rng, rejected)))
    drawn = []
    for number in rng.permutation(num):
        structure, columns, speed = tables[int(number) % NUM_STRUCTURES]
        if len(speed):
            strategy = row(columns, int(rng.choice(len(speed), p=speed / speed.sum())))
            drawn.append(Drawn(structure, strategy, _choice(problem, structure, strategy, rng)))
    found = list(dict.fromkeys(drawn))
    rejected["drawn before"] += len(drawn) - len(found)
    return found


def draw_structure(rng: np.random.Generator) -> Structure:
    """Return the categorical choices of a plan, drawn."""
    stage, reshards = ZERO_CHOICES[int(rng.integers(len(ZERO_CHOICES)))]
    return Structure(
        sequence_parallel=bool(rng.random() < 0.5),
        context_kind=list(ContextKind)[int(rng.integers(2))],
        zero_stage=stage,
        reshard_after_forward=reshards,
        recompute=list(Recompute)[int(rng.integers(3))],
        schedule=SCHEDULES[int(rng.integers(len(SCHEDULES)))],
        overlap_tensor_parallel=bool(rng.random() < 0.25),
    )


def _priced(
    problem: Problem, structure: Structure, degrees: StrategyColumns, rng: np.random.Generator,
    rejected: Counter[str],
) -> tuple[StrategyColumns, FloatArray]:  # fmt: skip
    """Return legal strategies of a structure that fit, and how fast each is in closed form."""
    columns = _with_shards(structure, degrees, rng)
    chip = problem.system.chip
    refused = np.zeros(len(columns.tp), dtype=bool)
    for refusal in all_refusals(
        problem.model, problem.workload, columns, structure,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        refused |= refusal.mask
    if structure.schedule is not ScheduleKind.ONE_F_ONE_B:
        refused |= columns.pp == 1
    num = micro_batches(problem, columns)
    is_long = ~refused & (
        (num > MOST_MICRO_BATCHES) | (num * columns.num_virtual_stages > MOST_PASSES)
    )
    rejected["refused by a rule"] += int(refused.sum())
    rejected["longer steps"] += int(is_long.sum())
    legal = np.flatnonzero(~refused & ~is_long)
    legal = np.sort(rng.permutation(legal)[:NUM_PRICED])
    columns = take(columns, legal)
    if not len(legal):
        return columns, np.empty(0)
    step = price_columns(problem, structure, columns).step
    fits = step.memory_bytes <= chip.main_memory.capacity_bytes
    rejected["does not fit memory"] += int((~fits).sum())
    return take(columns, fits), (1.0 / step.time.total_s)[fits]


def _with_shards(
    structure: Structure, degrees: StrategyColumns, rng: np.random.Generator
) -> StrategyColumns:
    """Return the degrees with data replicas divided into shards: drawn; without ZeRO none."""
    shards = np.ones(len(degrees.tp))
    if structure.zero_stage:
        ways = {dp: divisors(int(dp)) for dp in np.unique(degrees.dp).tolist()}
        pick = rng.random(len(shards))
        shards = np.array(
            [ways[dp][int(p * len(ways[dp]))] for dp, p in zip(degrees.dp, pick, strict=True)],
            dtype=float,
        )
    return replace(degrees, dp_shard=shards, dp_replicate=degrees.dp / shards)


def _choice(
    problem: Problem, structure: Structure, strategy: Strategy, rng: np.random.Generator
) -> Choice:
    """Return one way to lay a strategy."""
    ways = list(choices_of(problem, structure, strategy))
    return ways[int(rng.integers(len(ways)))]


def choices_of(problem: Problem, structure: Structure, strategy: Strategy) -> Iterator[Choice]:
    """Yield the ways to lay a strategy on the grid of a problem, at most ``MOST_CHOICES``."""
    return islice(all_choices(structure, strategy, problem.grid_sides), MOST_CHOICES)
