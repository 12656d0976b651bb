"""Configurations drawn from a seed: a wafer, a model and a training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, column
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.systems import load_system
from meshwright.catalog.workloads import load_optimizer
from meshwright.cost.pipeline import micro_batches
from meshwright.cost.problem import Problem
from meshwright.cost.step import price_columns
from meshwright.network.placement import Nesting, all_choices
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, Grid, degree_columns, divisors
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    StrategyColumns,
    row,
    take,
)
from meshwright.spec.model import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec
from meshwright.spec.system import DType, SystemSpec
from meshwright.spec.workload import Training

BASE = "wafer-4x8"
"""Wafer that gives the die, energies and power of all drawn systems."""
ROWS, COLUMNS = (2, 3, 4, 6), (4, 6, 8)
TORUS_SHARE = 1.0 / 3.0
BANDWIDTH_BYTES_PER_S = (0.5e12, 4e12)
LATENCY_S = (15e-9, 210e-9)
MESSAGE_HALF_BYTES = (0.0, 0.25e6, 1e6, 4e6, 8e6)
HBM_BYTES_PER_S = (0.8e12, 2.4e12)
SRAM_BYTES = (20e6, 160e6)
HEADS = (16, 24, 32, 40, 48, 64, 96)
HEAD_SIZE = 128
GROUPED_HEADS = 8
LAYERS = (12, 16, 24, 32, 40, 48, 64)
VOCABULARIES = (32_000, 51_200, 128_256)
SEQUENCES = (1024, 2048, 4096, 8192)
BATCHES = (8, 16, 32, 64)
INSTANT = 1e9
"""Speed of a chip that computes in no time, over that of a chip."""


@dataclass(frozen=True)
class Configuration:
    """Configuration that the rows of a group share."""

    problem: Problem
    bare: Problem
    """Problem on chips that compute in no time: only the messages are left."""


def draw_problem(rng: np.random.Generator) -> Problem:
    """Return a drawn wafer, model and step; whether anything fits is not looked at."""
    system, model = draw_system(rng), draw_model(rng)
    work = Training(
        global_batch_size=_one(rng, BATCHES),
        sequence_length=_one(rng, SEQUENCES),
        optimizer=load_optimizer("temp-12"),
    )
    return Problem(model, system, work, load_calibration(system.chip.family))


def draw_system(rng: np.random.Generator) -> SystemSpec:
    """Return a grid of dies with drawn sides, links, HBM and SRAM.

    The feed of the cores is left out: large products reach a share of the peak there.
    """
    base = load_system(BASE)
    rows, columns = _one(rng, ROWS), _one(rng, COLUMNS)
    link = {
        "kind": "torus" if rng.random() < TORUS_SHARE else "mesh",
        "bandwidth_bytes_per_s": _between(rng, BANDWIDTH_BYTES_PER_S),
        "latency_s": _between(rng, LATENCY_S),
        "message_half_bytes": MESSAGE_HALF_BYTES[rng.integers(len(MESSAGE_HALF_BYTES))],
    }
    sram, hbm = base.chip.memories
    chip = base.chip.model_copy(
        update={
            "noc_bytes_per_s": None,
            "memories": (
                sram.model_copy(update={"capacity_bytes": _between(rng, SRAM_BYTES)}),
                hbm.model_copy(update={"bandwidth_bytes_per_s": _between(rng, HBM_BYTES_PER_S)}),
            ),
        }
    )
    levels = tuple(
        level.model_copy(update={**link, "size": size})
        for level, size in zip(base.levels, (columns, rows), strict=True)
    )
    return base.model_copy(
        update={
            "name": f"drawn-{rows}x{columns}",
            "chip": chip,
            "levels": levels,
            "num_devices": rows * columns,
        }
    )


def draw_model(rng: np.random.Generator) -> ModelSpec:
    """Return a dense transformer of drawn width, depth, attention and network."""
    heads, is_gated = _one(rng, HEADS), bool(rng.random() < 0.5)
    is_grouped = bool(rng.random() < 0.5)
    hidden = heads * HEAD_SIZE
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=GROUPED_HEADS if is_grouped else heads,
        head_size=HEAD_SIZE,
        value_head_size=HEAD_SIZE,
    )
    network = FeedForwardSpec(ffn_size=hidden * 11 // 4 if is_gated else hidden * 4, gated=is_gated)
    return ModelSpec(
        name="drawn",
        architecture="drawn",
        hidden_size=hidden,
        vocab_size=_one(rng, VOCABULARIES),
        layer_kinds=(LayerSpec(attention=attention, feed_forward=network),),
        layer_pattern=(0,) * _one(rng, LAYERS),
    )


def configuration(problem: Problem) -> Configuration:
    """Return a problem with its twin on chips that compute in no time."""
    return Configuration(problem, without_computation(problem))


def without_computation(problem: Problem) -> Problem:
    """Return the same problem on chips that compute in no time, without launches and jitter."""
    chip = problem.system.chip
    faster = chip.model_copy(
        update={
            "noc_bytes_per_s": None,
            "matmul_flops_per_s": _scaled(chip.matmul_flops_per_s),
            "best_matmul_flops_per_s": _scaled(chip.best_matmul_flops_per_s),
            "vector_flops_per_s": _scaled(chip.vector_flops_per_s),
            "memories": tuple(
                memory.model_copy(
                    update={
                        "bandwidth_bytes_per_s": (memory.bandwidth_bytes_per_s or 1.0) * INSTANT
                    }
                )
                for memory in chip.memories
            ),
        }
    )
    constants = replace(
        problem.calibration, launch_s=0.0, operator_s=0.0, jitter=0.0, overlap_slowdown=0.0
    )
    system = problem.system.model_copy(update={"chip": faster})
    return replace(problem, system=system, calibration=constants)


def _scaled(rates: Mapping[DType, float]) -> dict[DType, float]:
    """Return rates of a chip that computes in no time."""
    return {name: rate * INSTANT for name, rate in rates.items()}


def _one(rng: np.random.Generator, values: tuple[int, ...]) -> int:
    """Return one of some values, all equally likely."""
    return values[int(rng.integers(len(values)))]


def _between(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """Return a number between two limits; its logarithm is evenly spread."""
    low, high = np.log(limits)
    return float(np.exp(rng.uniform(low, high)))


ZERO_CHOICES = ((0, True), (1, True), (2, True), (3, True), (3, False))
SCHEDULES = (*ScheduleKind, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ONE_F_ONE_B)
"""One stage has no other schedule, so it is drawn as often as all others."""
NUM_OPTION_SETS = 6
"""Sets of plan options that are drawn for a configuration."""
NUM_PRICED = 200
"""Legal strategies of a set of plan options, priced in closed form; rows are drawn from them."""
MOST_CHOICES = 512
MOST_MICRO_BATCHES, MOST_PASSES = 8, 16
"""Steps of more micro-batches, or of more passes of a micro-batch through chunks of a stage, are
left out: they take long to simulate, and repeat themselves."""


@dataclass(frozen=True)
class Drawn:
    """One plan to be priced."""

    plan_options: PlanOptions
    strategy: Strategy
    choice: Nesting


def draw_candidates(
    problem: Problem, rng: np.random.Generator, num: int, rejected: Counter[str]
) -> list[Drawn]:
    """Return drawn plans, at most ``num``: fewer where the space has no more.

    Fast strategies are drawn more often: with a chance in proportion to their speed in closed
    form. All of their layouts are equally likely.

    Parameters
    ----------
    rejected
        Numbers of plans drawn and left out, by reason; added to.
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
    for _ in range(NUM_OPTION_SETS):
        plan_options = draw_plan_options(rng)
        tables.append((plan_options, *_priced(problem, plan_options, degrees, rng, rejected)))
    drawn = []
    for number in rng.permutation(num):
        plan_options, columns, speed = tables[int(number) % NUM_OPTION_SETS]
        if len(speed):
            strategy = row(columns, int(rng.choice(len(speed), p=speed / speed.sum())))
            drawn.append(
                Drawn(plan_options, strategy, _choice(problem, plan_options, strategy, rng))
            )
    found = list(dict.fromkeys(drawn))
    rejected["drawn before"] += len(drawn) - len(found)
    return found


def draw_plan_options(rng: np.random.Generator) -> PlanOptions:
    """Return the categorical choices of a plan, drawn."""
    stage, reshards = ZERO_CHOICES[int(rng.integers(len(ZERO_CHOICES)))]
    return PlanOptions(
        sequence_parallel=bool(rng.random() < 0.5),
        context_kind=(ContextKind.RING, ContextKind.ULYSSES)[int(rng.integers(2))],
        zero_stage=stage,
        reshard_after_forward=reshards,
        recompute=list(Recompute)[int(rng.integers(3))],
        schedule=SCHEDULES[int(rng.integers(len(SCHEDULES)))],
        overlap_tensor_parallel=bool(rng.random() < 0.25),
    )


def _priced(
    problem: Problem, plan_options: PlanOptions, degrees: StrategyColumns, rng: np.random.Generator,
    rejected: Counter[str],
) -> tuple[StrategyColumns, FloatArray]:  # fmt: skip
    """Return legal strategies that fit under the plan options, and their speed in closed form."""
    columns = _with_shards(plan_options, degrees, rng)
    chip = problem.system.chip
    refused = np.zeros(len(columns.tp), dtype=bool)
    for refusal in all_refusals(
        problem.model, problem.workload, columns, plan_options,
        tile_rows=chip.tile_rows, tile_columns=chip.tile_columns,
    ):  # fmt: skip
        refused |= refusal.mask
    if plan_options.schedule is not ScheduleKind.ONE_F_ONE_B:
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
    step = price_columns(problem, plan_options, columns).step
    fits = column(step.memory_bytes) <= chip.main_memory.capacity_bytes
    rejected["does not fit memory"] += int((~fits).sum())
    return take(columns, fits), (1.0 / column(step.time.total_s))[fits]


def _with_shards(
    plan_options: PlanOptions, degrees: StrategyColumns, rng: np.random.Generator
) -> StrategyColumns:
    """Return the degrees with data replicas divided into shards: drawn; without ZeRO none."""
    shards = np.ones(len(degrees.tp))
    if plan_options.zero_stage:
        ways = {dp: divisors(int(dp)) for dp in np.unique(degrees.dp).tolist()}
        pick = rng.random(len(shards))
        shards = np.array(
            [ways[dp][int(p * len(ways[dp]))] for dp, p in zip(degrees.dp, pick, strict=True)],
            dtype=float,
        )
    return replace(degrees, dp_shard=shards, dp_replicate=degrees.dp / shards)


def _choice(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy, rng: np.random.Generator
) -> Nesting:
    """Return one layout of a strategy."""
    ways: Sequence[Nesting] = choices_of(problem, plan_options, strategy)
    return ways[int(rng.integers(len(ways)))]


def choices_of(
    problem: Problem, plan_options: PlanOptions, strategy: Strategy
) -> Sequence[Nesting]:
    """Return the ways to lay a strategy on the grid of a problem, at most ``MOST_CHOICES``."""
    return all_choices(plan_options, strategy, problem.grid_sides, most=MOST_CHOICES)
