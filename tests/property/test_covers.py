"""Laws of axes that lie along covers of grids with faults."""

import random
from dataclasses import replace

import pytest
from placed_problems import EXPERT_MODELS, MODELS, grid_system, random_plan_options, step_s
from small_problems import problem, random_strategy

from meshwright.base.arrays import column
from meshwright.cost.communication import OPEN
from meshwright.cost.step import price_each
from meshwright.network.covers import cover_choices
from meshwright.network.regions import make_region
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import AXES, stack
from meshwright.wafer.price import physical_network, price_placed

SIDES = ((4, 2), (3, 3), (4, 3), (5, 3), (4, 4))


def drawn_with_faults(chance, models):
    """Return a random problem on a grid with dead devices, and a legal strategy for a cover."""
    while True:
        sides = chance.choice(SIDES)
        room = sides[0] * sides[1]
        dead = tuple(sorted(chance.sample(range(room), chance.choice([1, 2, 3]))))
        asked = problem(
            chance.choice(models)(), grid_system(*sides, dead_devices=dead),
            global_batch_size=chance.choice([8, 12, 24]), sequence_length=64,
        )  # fmt: skip
        for _ in range(20 * bool(asked.cover_numbers)):
            strategy, plan_options = random_strategy(chance, asked), random_plan_options(chance)
            refusals = all_refusals(
                asked.model, asked.workload, stack([strategy]), plan_options,
                tile_rows=asked.system.chip.tile_rows, tile_columns=asked.system.chip.tile_columns,
            )  # fmt: skip
            is_legal = not any(bool(refusal.mask[0]) for refusal in refusals)
            if is_legal and strategy.num_devices in asked.cover_numbers:
                return asked, plan_options, strategy


@pytest.mark.parametrize("models", [MODELS, EXPERT_MODELS], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 100))]
)
def test_the_open_price_bounds_every_cover(seed, models):
    """Open <= closed form <= contended, on devices that work, each once."""
    asked, plan_options, strategy = drawn_with_faults(random.Random(seed), models)
    physical = physical_network(asked)
    region = make_region(physical, asked.islands[0])
    degrees = tuple((axis, int(getattr(strategy, axis))) for axis in AXES)
    choices = cover_choices(region, degrees, asked.grid_sides)
    assert choices
    columns = stack([strategy])
    ((_, alone),) = price_each(
        asked, [(replace(plan_options, axis_order=AXES), 1)], asked.network_with(OPEN, columns)
    )
    open_s = float(column(alone.step.time.total_s)[0])
    ways = [(plan_options, strategy, choice) for choice in choices[:24]]
    for choice, price in zip(choices, price_placed(asked, ways, physical), strict=False):
        assert len(set(choice.devices)) == len(choice.devices) == strategy.num_devices
        assert set(choice.devices) <= set(asked.islands[0])
        if price is not None:
            closed_s = step_s(price.closed_form)
            assert open_s <= closed_s * (1 + 1e-12)
            assert closed_s <= price.time_s * (1 + 1e-12)
