"""Contended prices of random placements beside their simulation: never far from it."""

import random

import numpy as np
import pytest
from grid_networks import grid
from small_problems import ADAM, CALIBRATION, level, system

from meshwright.base.arrays import number_at
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cost.problem import Problem
from meshwright.network.placement import all_choices, block_ranks
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.workload import Training
from meshwright.wafer.price import physical_network, price_placed
from meshwright.wafer.simulation import simulated_step_s

DIE = load_system("wafer-4x4").chip
NEAR, TOO_LOW, TOO_HIGH = 0.03, 0.07, 0.1
"""Shares by which a simulated step is off its contended price: most, above it, and below it."""
MOST = 0.75
"""Share of the placements that are near."""


def drawn_placement(seed):
    """Return a random strategy with streams or gradients on a small wafer with faults, placed.

    Some dies are dead, so that others host their ranks, and some links are slow.
    """
    chance = random.Random(seed)
    while True:
        columns, rows = chance.choice((2, 3, 4, 5)), chance.choice((2, 2, 3, 4))
        number, rate = columns * rows, chance.choice((2.5e11, 5e11, 1e12, 2e12))
        dead = tuple(sorted(chance.sample(range(number), chance.choice((0, 0, 1, 1, 2)))))
        wires = [(d, d + 1) for d in range(number) if (d + 1) % columns]
        wires += [(d, d + columns) for d in range(number - columns)]
        wires = [wire for wire in wires if not set(wire) & set(dead)]
        slow = chance.sample(wires, min(len(wires), chance.choice((0, 0, 1, 2))))
        half = chance.choice((0.0, 0.0, 1e6))
        levels = [
            level(side, "mesh", rate, latency_s=2e-7, message_half_bytes=half)
            for side in (columns, rows)
        ]
        slow_links = tuple((*wire, chance.choice((0.1, 0.3, 0.5))) for wire in slow)
        on = system(*levels, chip=DIE).model_copy(
            update={"dead_devices": dead, "slow_links": slow_links}
        )
        work = Training(global_batch_size=16, sequence_length=1024, optimizer=ADAM)
        asked = Problem(load_model("llama3.2-1b"), on, work, CALIBRATION)
        degrees = dict.fromkeys(("tatp", "dp_shard", "tp"), 1)
        left = number if chance.random() < 0.5 else chance.randint(2, number)
        for prime in (2, 3, 5):
            while left % prime == 0:
                degrees[chance.choice(("tatp", "dp_shard", "dp_shard", "tp"))] *= prime
                left //= prime
        plan_options = PlanOptions(zero_stage=chance.choice((1, 2, 3)))
        strategy = make_strategy(**degrees)
        if left > 1 or degrees["tatp"] * degrees["dp_shard"] == 1:
            continue
        refusals = all_refusals(
            asked.model, work, stack([strategy]), plan_options,
            tile_rows=DIE.tile_rows, tile_columns=DIE.tile_columns,
        )  # fmt: skip
        if any(bool(refusal.mask[0]) for refusal in refusals):
            continue
        physical = physical_network(asked)
        for choice in list(all_choices(plan_options, strategy, asked.grid_sides))[:1]:
            (price,) = price_placed(asked, [(plan_options, strategy, choice)], physical)
            if price is not None:
                return asked, price, physical


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 100))]
)
def test_a_simulated_step_is_not_far_from_its_contended_price(seed):
    asked, price, physical = drawn_placement(seed)
    off = simulated_step_s(asked, price, physical) / price.time_s - 1.0
    assert -TOO_HIGH <= off <= TOO_LOW
    assert price.time_s >= number_at(price.closed_form.step.time.total_s) * (1 - 1e-12)
    own = price.contention.own_slowdown
    assert np.all([times >= 1.0 for times in own.values()])


@pytest.mark.slow
def test_most_simulated_steps_are_near_their_contended_price():
    off = []
    for seed in range(100):
        asked, price, physical = drawn_placement(seed)
        off.append(simulated_step_s(asked, price, physical) / price.time_s - 1.0)
    assert np.mean(np.abs(off) <= NEAR) >= MOST


def test_a_price_does_not_depend_on_the_question_before():
    """Both have eight devices and pairs along the second side: 0 and 2 on one, 0 and 4 on the
    other. A place that was known by its blocks and its devices alone took those of the first."""
    first, then = (
        block_ranks(grid(*sides), sides[::-1], ("tp", "dp_shard"), ((1, 2), rest))
        for sides, rest in (((4, 2), (2, 2)), ((2, 4), (4, 1)))
    )
    assert first.place("tp") != then.place("tp")
    assert first.groups("tp").ravel()[:2].tolist() == [0, 2]
    assert then.groups("tp").ravel()[:2].tolist() == [0, 4]
