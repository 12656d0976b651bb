"""Whether what is called proven holds: random grids, models and faults against plans one by one.

Run: python benchmarks/grid_bounds.py [--problems 1000] [--plans 8] [--seed 0] [--catalog]

Each problem is a grid of one to three levels, meshes or tori of 2 to 16 devices with links of
different speeds, some with dead devices or links, some with a host; the model, the workload and the
memory are drawn too. The whole space is searched. Then plans are drawn from it and placed by
themselves: none that fits may be faster than the answer where the search has it in its space, none
below its bound. Without faults a
torus may not be slower than the mesh with the same links. ``--catalog`` draws grids and models of
the catalog instead.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from math import prod
from pathlib import Path

from meshwright.base.errors import InfeasibleError
from meshwright.catalog.systems import load_system
from meshwright.cost.problem import Problem
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.space import Choices, divisors
from meshwright.sharding.strategy import (
    AXES,
    REUSED_AXES,
    ScheduleKind,
    Strategy,
    Streamed,
    StreamForm,
    make_strategy,
    stack,
)
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import make_problem, training
from meshwright.wafer.price import physical_network
from meshwright.wafer.search import fits_devices, place
from meshwright.wafer.training import GRIDS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from placed_problems import EXPERT_MODELS, MODELS, random_plan_options
from small_problems import (
    ADAM,
    MIB,
    SMALL_STATE,
    level,
    problem,
    system,
)

SIDES = ((4, 2), (2, 2), (3, 4), (6, 2), (4, 4), (2, 2, 2), (4, 2, 2), (8, 2))
SCHEDULES = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE, ScheduleKind.ZERO_BUBBLE)
TRIES = 40
"""Draws for each plan that is compared; most are refused by a rule or do not fit."""
ROUNDING = 1e-9


def random_grid(chance: random.Random) -> Problem:
    """Return a random training problem on a grid, perhaps with faults."""
    sides = chance.choice(SIDES)
    kinds = [chance.choice(["mesh", "torus"])] * len(sides)
    if chance.random() < 0.2:
        kinds = [chance.choice(["mesh", "torus"]) for _ in sides]
    levels = [
        level(side, kind, chance.choice([1e9, 4e9, 2e10, 1e11]))
        for side, kind in zip(sides, kinds, strict=True)
    ]
    room = chance.choice([3.0, 4.0, 6.0, 16.0, 64.0]) * MIB
    on = system(*levels, capacity_bytes=room, host_bytes=chance.choice([0.0, 0.0, 8.0 * MIB]))
    if chance.random() < 0.25:
        dead = tuple(sorted(chance.sample(range(on.num_devices), chance.choice([1, 2]))))
        on = on.model_copy(update={"dead_devices": dead})
    return problem(
        chance.choice([*MODELS, *EXPERT_MODELS])(),
        on,
        global_batch_size=chance.choice([8, 12, 16]),
        sequence_length=chance.choice([64, 128, 256]),
        optimizer=chance.choice([ADAM, SMALL_STATE]),
        software=SoftwareStack(
            cuda_graphs=chance.random() < 0.5, async_tensor_parallel=chance.random() < 0.3
        ),
        causal=chance.random() < 0.8,
    )


CATALOG_GRIDS = (
    "tpu-v3-4x8", "tpu-v4-2x2x4", "tpu-v4-4x4x4", "tpu-v5e-4x8", "tpu-v5e-16x16", "tpu-v5p-2x4x4",
    "tpu-v5p-4x4x8", "tpu-v6e-8x8", "tpu-v7x-4x4x4", "16xTrainium1", "dojo-tile", "wafer-4x8",
    "wafer-6x8", "wafer-6x9", "wafer-8x8", "2xwafer-4x4", "4xwafer-6x8",
)  # fmt: skip
CATALOG_MODELS = ("gpt3-6.7b", "llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b")


def catalog_grid(chance: random.Random) -> Problem:
    """Return a training problem with a grid and a model of the catalog, perhaps with faults."""
    on = load_system(chance.choice(CATALOG_GRIDS))
    if chance.random() < 0.4:
        dead = tuple(sorted(chance.sample(range(on.num_devices), chance.choice([1, 2]))))
        on = on.model_copy(update={"dead_devices": dead})
    work = training(
        on,
        sequence_length=2048,
        global_batch_size=on.num_devices * chance.choice([2, 4]),
    )
    return make_problem(chance.choice(CATALOG_MODELS), on, work, "calibrated")


def random_degrees(chance: random.Random, asked: Problem) -> Strategy:
    """Return random degrees for one of the numbers of devices that are worth using."""
    degrees, left = dict.fromkeys(AXES, 1), chance.choice(asked.device_numbers)
    for prime in (2, 3, 5, 7, 11, 13):
        while left % prime == 0:
            left //= prime
            degrees[chance.choice(AXES)] *= prime
    degrees["num_virtual_stages"] = chance.choice([1, 1, 2]) if degrees["pp"] > 1 else 1
    degrees["micro_batch_size"] = chance.choice([1, 1, 2, 4])
    if asked.num_experts:
        shared = prod(degrees[axis] for axis in REUSED_AXES)
        degrees["ep"] = chance.choice(divisors(shared))
        degrees["etp"] = chance.choice([1, 1, *divisors(shared // degrees["ep"])])
    return make_strategy(**degrees)


def violations(asked: Problem, chance: random.Random, num_plans: int) -> tuple[list[str], int]:
    """Return what contradicts the answer to a problem, and the plans that were compared."""
    try:
        leaders = GRIDS.best(GRIDS.space(asked, Choices({})), top=1)
    except InfeasibleError:
        return [], 0
    if leaders.fastest is None:
        return [], 0
    physical, found, num_compared = physical_network(asked), [], 0
    best_s, bound_s = leaders.fastest_s, leaders.coverage.lower_bound_s
    if bound_s > best_s * (1 + ROUNDING):
        found.append(f"bound {bound_s} above its own answer {best_s}")
    tile = {
        "tile_rows": asked.system.chip.tile_rows,
        "tile_columns": asked.system.chip.tile_columns,
    }
    for _ in range(TRIES * num_plans):
        if num_compared == num_plans:
            break
        strategy = random_degrees(chance, asked)
        plan_options = replace(
            random_plan_options(chance),
            sequence_parallel=strategy.tp > 1 and chance.random() < 0.7,
            schedule=chance.choice(SCHEDULES) if strategy.pp > 1 else ScheduleKind.ONE_F_ONE_B,
            stream_form=StreamForm.AUTO,
            streamed=chance.choice([Streamed.AUTO, Streamed.WEIGHTS, Streamed.INPUTS]),
            overlap_tensor_parallel=asked.workload.software.async_tensor_parallel,
        )
        columns = stack([strategy])
        refusals = all_refusals(asked.model, asked.workload, columns, plan_options, **tile)
        if any(bool(refusal.mask[0]) for refusal in refusals):
            continue
        placing = place(asked, plan_options, strategy, physical)
        if placing is None or not fits_devices(asked, placing.price.closed_form)[0]:
            continue
        num_compared += 1
        least_s = min(placing.time_s, float(placing.price.closed_form.step.time.total_s[0]))
        if least_s < bound_s * (1 - ROUNDING):
            found.append(f"{least_s} below the bound {bound_s}: {strategy} {plan_options}")
        # The space has overlapped gradients alone; what is not overlapped has the same bound.
        if plan_options.overlap_data_parallel and placing.time_s < best_s * (1 - ROUNDING):
            found.append(f"{placing.time_s} faster than {best_s}: {strategy} {plan_options}")
    return found, num_compared


def torus_is_slower(asked: Problem) -> list[str]:
    """Return how much slower a torus is than the mesh with the same links, where it is."""
    best_s = {}
    for kind in ("mesh", "torus"):
        levels = tuple(one.model_copy(update={"kind": kind}) for one in asked.system.levels)
        on = asked.system.model_copy(update={"levels": levels})
        leaders = GRIDS.best(GRIDS.space(replace(asked, system=on), Choices({})), top=1)
        found = leaders.fastest and leaders.fastest.candidate
        best_s[kind] = float("inf") if found is None else found.estimate.step_time_s
    if best_s["torus"] > best_s["mesh"] * (1 + ROUNDING):
        return [f"torus {best_s['torus']} slower than mesh {best_s['mesh']}"]
    return []


def main() -> None:
    """Check problems and print what they contradict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--plans", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--catalog", action="store_true")
    args = parser.parse_args()
    started, num_bad, num_compared = time.perf_counter(), 0, 0
    for seed in range(args.seed, args.seed + args.problems):
        chance = random.Random(seed)
        asked = catalog_grid(chance) if args.catalog else random_grid(chance)
        bad, number = violations(asked, chance, args.plans)
        num_compared += number
        if not asked.system.dead_devices and seed % 4 == 0:
            bad += torus_is_slower(asked)
        for line in bad:
            num_bad += 1
            print(f"problem {seed}: {line}", flush=True)
    elapsed_s = time.perf_counter() - started
    counts = f"{args.problems} problems, {num_compared} plans, {num_bad} contradictions"
    print(f"{counts}, {elapsed_s:.0f} s")


if __name__ == "__main__":
    main()
