"""Whether what ``plan`` says of grids with faults holds: ``estimate`` of random strategies of them.

    python benchmarks/faulty_grids.py [--grids 300] [--strategies 50] [--seed 0] [--seconds 600]

Each grid is a mesh or a torus of 2x3 to 4x6 devices, small chips or dies of a wafer, some of them
dead or slow, some links dead. Model, batch, memory and some plan options are drawn too. ``plan``
states the fastest time and a bound under it. Then strategies are drawn, those on fewer devices and
all schedules included, and each that fits is estimated: none may be below the bound, and none
faster than a plan that is called the proven fastest. What leads takes as long when it is estimated
by itself; its simulated step is compared with that price.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import meshwright as mw
from meshwright.base.errors import InfeasibleError, SpecError, UnlawfulError, UnsupportedError
from meshwright.catalog.systems import load_system
from meshwright.sharding.space import MICRO_BATCH_SIZES
from meshwright.sharding.strategy import AXES
from meshwright.spec.system import SystemSpec
from meshwright.train.answer import Candidate, Plan
from meshwright.wafer.simulation import not_played, simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from placed_problems import EXPERT_MODELS, MODELS
from small_problems import ADAM, SMALL_STATE, level, system

MOST_TRIES = 6
"""Draws for each strategy that is estimated; most are refused by a rule or do not fit."""
ROUNDING = 1e-9
CLOSE = 0.03
"""Largest distance of a simulated step from its price that is not printed [1]."""
GIB = 2.0**30


def faults_of(draw: Random, sides: tuple[int, int]) -> dict[str, Any]:
    """Return dead devices, dead links and slow devices of a grid, innermost side first."""
    columns, rows = sides
    number = columns * rows
    links = [(d, d + 1) for d in range(number) if (d + 1) % columns]
    links += [(d, d + columns) for d in range(number - columns)]
    dead = draw.sample(range(number), draw.choice((0, 1, 1, 2)))
    cut = draw.sample(links, draw.choice((0, 0, 1, 2)))
    slow = draw.sample([d for d in range(number) if d not in dead], draw.choice((0, 0, 1, 2)))
    if not (dead or cut or slow):
        dead = [draw.randrange(number)]
    return {
        "dead_devices": tuple(sorted(dead)),
        "dead_links": tuple(cut),
        "speed_factors": {device: draw.choice((0.5, 0.79, 0.9)) for device in slow},
    }


def grid_of(draw: Random) -> SystemSpec:
    """Return a grid of small chips or of dies of a wafer, with faults."""
    sides = draw.choice((3, 4, 4, 5, 6)), draw.choice((2, 2, 3, 4))
    kind = draw.choice(("mesh", "mesh", "torus"))
    is_wafer = draw.random() < 0.12
    rates = (5e11, 2e12) if is_wafer else (1e9, 4e9, 2e10, 1e11)
    halves = (0.0, 64 * 1024.0, 4e6) if is_wafer else (0.0, 0.0, 64 * 1024.0)
    half = draw.choice(halves)
    levels = [level(side, kind, draw.choice(rates), message_half_bytes=half) for side in sides]
    chips: dict[str, Any] = (
        {"chip": load_system("wafer-4x4").chip}
        if is_wafer
        else {"capacity_bytes": draw.choice((1.9, 2.5, 4.0)) * GIB}
    )
    return system(*levels, **chips).model_copy(update=faults_of(draw, sides))


def question_of(draw: Random) -> tuple[Any, SystemSpec, dict[str, Any]]:
    """Return a model, a grid and the options of a step on it."""
    on = grid_of(draw)
    if on.chip.name == "small":
        model = draw.choice((*MODELS, *EXPERT_MODELS))()
        tokens, longest = draw.choice((64, 128, 256)), model.learned_positions or 256
        asked: dict[str, Any] = {
            "seq": min(tokens, longest), "optimizer": draw.choice((ADAM, SMALL_STATE)),
        }  # fmt: skip
    else:
        model = draw.choice(("gpt2-medium", "gpt3-6.7b", "llama3.2-1b"))
        asked = {"seq": draw.choice((512, 2048))}
    asked |= {"global_batch": draw.choice((8, 12, 16, 24)), "cuda_graphs": draw.random() < 0.5}
    return model, on, asked


def fixed_of(draw: Random) -> dict[str, Any]:
    """Return the plan options that both verbs are given, so that a search takes a second."""
    return {
        "recompute": draw.choice(("none", "none", "selective", "full")),
        "zero": draw.choice((0, 1, 1, 2, 3)),
        "cp_kind": "ring",
        "reshard": "on",
        "offload": "none",
        "mbs": draw.choice(MICRO_BATCH_SIZES[:5]),
    }


def strategy_of(draw: Random, num_devices: int, has_experts: bool) -> dict[str, Any]:
    """Return degrees on some of the devices, and plan options."""
    degrees = dict.fromkeys(("tp", "tatp", "pp", "cp", "dp"), 1)
    left = draw.choice((num_devices, draw.randint(1, num_devices)))
    for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23):
        while left % prime == 0:
            degrees[draw.choice(tuple(degrees))] *= prime
            left //= prime
    chosen: dict[str, Any] = dict(degrees)
    shards = [shard for shard in (1, 2, 3, 4) if degrees["dp"] % shard == 0]
    if draw.random() < 0.3:
        chosen["dp_shard"] = draw.choice(shards)
    if degrees["pp"] > 1:
        chosen["schedule"] = draw.choice(("1f1b", "gpipe", "zero_bubble"))
        if draw.random() < 0.3:
            chosen |= {"vpp": 2, "schedule": "interleaved"}
    if has_experts:
        chosen["ep"] = draw.choice((1, 2, 4))
    return chosen


@dataclass
class Checked:
    """What was compared with the answer to one question, and what contradicts it."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    simulated: list[float] = field(default_factory=list)
    """Simulated over contended time of what leads, less one [1]."""


def own_options(best: Candidate) -> dict[str, Any]:
    """Return the options that state a candidate."""
    strategy, plan_options = best.strategy, best.plan_options
    degrees = {name: int(getattr(strategy, name)) for name in AXES if not name.startswith("dp_")}
    return degrees | {
        "dp": int(strategy.dp), "dp_shard": int(strategy.dp_shard), "ep": int(strategy.ep),
        "vpp": int(strategy.num_virtual_stages), "mbs": int(strategy.micro_batch_size),
        "recompute": str(plan_options.recompute), "schedule": str(plan_options.schedule),
        "zero": plan_options.zero_stage, "offload": str(plan_options.offload),
        "reshard": "on" if plan_options.reshard_after_forward else "off",
        "sp": "on" if plan_options.sequence_parallel else "off",
        "cp_kind": str(plan_options.context_kind),
        "streamed": str(plan_options.streamed), "stream_form": str(plan_options.stream_form),
    }  # fmt: skip


def compared(seed: int, num_strategies: int) -> Checked:
    """Return what contradicts the plan of one random question."""
    draw, checked = Random(seed), Checked()
    model, on, asked = question_of(draw)
    asked |= fixed_of(draw)
    try:
        found: Plan = mw.plan(model, on=on, top=1, simulated=0, fastest=True, **asked)
    except (InfeasibleError, UnsupportedError, SpecError) as error:
        has_fault = isinstance(error, SpecError)
        checked.counts["refused" if has_fault else "nothing fits"] += 1
        return checked
    checked.counts["grids"] += 1
    least_s, best_s = found.coverage.lower_bound_s, found.best.estimate.step_time_s
    is_proven = found.coverage.gap <= ROUNDING
    checked.counts["proven"] += is_proven
    if least_s > found.fastest_s * (1.0 + ROUNDING):
        checked.faults.append(f"bound {least_s} above the answer {found.fastest_s}")
    again_s = mw.estimate(model, on=on, **(asked | own_options(found.best))).best.estimate
    if abs(again_s.step_time_s / best_s - 1.0) > ROUNDING:
        checked.faults.append(f"the leader takes {best_s}, estimated {again_s.step_time_s}")
    if found.best.placement is not None and not not_played(found.best.plan_options):
        checked.simulated.append(simulate(found).step.step_time_s / best_s - 1.0)
    has_experts = not isinstance(model, str) and model.has_experts
    numbers = range(1, prod(entry.size for entry in on.levels) + 1)
    for _ in range(MOST_TRIES * num_strategies):
        if checked.counts["strategies"] == num_strategies:
            break
        stated = strategy_of(draw, draw.choice((numbers[-1], on.num_alive)), has_experts)
        try:
            other = mw.estimate(model, on=on, **asked, **stated).best.estimate
        except (SpecError, InfeasibleError, UnsupportedError):
            continue
        except UnlawfulError as error:
            checked.faults.append(f"{'; '.join(error.broken)}: {stated}")
            continue
        if not other.fits:
            continue
        checked.counts["strategies"] += 1
        if other.step_time_s < least_s * (1.0 - ROUNDING):
            checked.faults.append(f"{other.step_time_s} below the bound {least_s}: {stated}")
        elif other.step_time_s < found.fastest_s * (1.0 - ROUNDING):
            checked.counts["faster, bound holds"] += 1
            if is_proven:
                checked.faults.append(f"{other.step_time_s} beats the proven {best_s}: {stated}")
    return checked


def main() -> None:
    """Ask, and print what contradicts an answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--grids", type=int, default=300)
    parser.add_argument("--strategies", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0, help="CPU seconds at most")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    simulated: list[float] = []
    for seed in range(args.seed, args.seed + args.grids):
        if time.process_time() > args.seconds:
            break
        checked = compared(seed, args.strategies)
        counts += checked.counts
        counts["contradictions"] += len(checked.faults)
        for line in checked.faults:
            print(f"seed {seed}: {line}", flush=True)
        for apart in checked.simulated:
            if abs(apart) > CLOSE:
                print(f"seed {seed}: simulated {apart:+.1%} from its price", flush=True)
        simulated += checked.simulated
        if seed % 20 == 19:
            print(dict(counts), file=sys.stderr, flush=True)
    listed = ", ".join(f"{number} {name}" for name, number in counts.items())
    num_close = sum(abs(apart) <= CLOSE for apart in simulated)
    print(f"{listed}; {time.process_time():.0f} CPU s")
    print(f"{num_close} of {len(simulated)} simulated within {CLOSE:.0%} of their price")


if __name__ == "__main__":
    main()
