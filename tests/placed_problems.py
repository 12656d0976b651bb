"""Small problems on grids of devices whose times can be derived by hand."""

from __future__ import annotations

import random
from dataclasses import replace

from small_problems import (
    ADAM,
    SMALL_STATE,
    dense,
    experts,
    gqa,
    level,
    mla,
    model,
    problem,
    system,
)
from small_problems import random_strategy as any_strategy

from meshwright.base.arrays import number_at
from meshwright.cost.problem import Problem
from meshwright.network.placement import all_choices
from meshwright.sharding.axes import all_refusals
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Strategy,
    StreamForm,
    stack,
)
from meshwright.spec.system import SystemSpec
from meshwright.spec.workload import SoftwareStack
from meshwright.wafer.price import PlacedPrice, choice_network, physical_network, price_placed
from meshwright.wafer.search import place
from meshwright.wafer.simulation import SimulatedStep, simulate_step

ROOM = 1e9


def grid_system(*sides: int, kind: str = "mesh", latency_s: float = 0.0, **fields) -> SystemSpec:
    """Return a grid, innermost side first, with faults and speeds as given."""
    bandwidth = fields.pop("bandwidth", 1e11)
    faults = {
        name: fields.pop(name)
        for name in ("dead_devices", "dead_links", "slow_links", "speed_factors")
        if name in fields
    }
    levels = [level(side, kind, bandwidth, latency_s=latency_s) for side in sides]
    return system(*levels, **({"capacity_bytes": ROOM} | fields)).model_copy(update=faults)


def ideal(asked: Problem) -> Problem:
    """Return a problem without what no device or link does: launches, jitter, slowdown, margins."""
    constants = replace(
        asked.calibration,
        launch_s=0.0,
        operator_s=0.0,
        collective_launch_s=0.0,
        jitter=0.0,
        overlap_slowdown=0.0,
        fast_network_efficiency=1.0,
    )
    found = replace(asked, calibration=constants)
    vars(found)["_shardings"] = asked._shardings
    return found


def grid_problem(*sides: int, spec=None, **fields) -> Problem:
    """Return an ideal problem on a grid without latency."""
    work = {
        name: fields.pop(name)
        for name in ("global_batch_size", "sequence_length", "optimizer")
        if name in fields
    }
    return ideal(problem(spec, grid_system(*sides, **fields), **work))


def placed(asked: Problem, strategy: Strategy, plan_options: PlanOptions) -> PlacedPrice:
    """Return the best placement of a strategy."""
    found = place(asked, plan_options, strategy, physical_network(asked))
    assert found is not None
    return found.price


def every_placement(
    asked: Problem, strategy: Strategy, plan_options: PlanOptions
) -> list[PlacedPrice]:
    """Return all placements of a strategy, with contention."""
    choices = list(all_choices(plan_options, strategy, asked.grid_sides))
    ways = [(plan_options, strategy, choice) for choice in choices]
    found = price_placed(asked, ways, physical_network(asked))
    return [price for price in found if price is not None]


def simulated(
    asked: Problem, strategy: Strategy, plan_options: PlanOptions, price: PlacedPrice | None = None
) -> tuple[PlacedPrice, SimulatedStep]:
    """Return a placement (the best one if not given) and its simulated step."""
    price = price or placed(asked, strategy, plan_options)
    price = replace(price, plan_options=plan_options, strategy=strategy)
    return price, simulate_step(asked, price, physical_network(asked))


def step_s(priced) -> float:
    """Return the step time of a price [s]."""
    return number_at(priced.step.time.total_s)


def groups_of(asked: Problem, strategy: Strategy, price: PlacedPrice):
    """Return the groups of a placed strategy as the closed form sees them."""
    from meshwright.network.placement import Nesting

    return choice_network(asked, [(strategy, [Nesting(price.ranks.axes, price.ranks.shapes)])])


GRIDS = (
    lambda: system(level(4, "mesh"), level(2, "mesh"), capacity_bytes=ROOM),
    lambda: system(level(3, "mesh", 4e9), level(4, "mesh", 2e10), capacity_bytes=ROOM),
    lambda: system(
        level(2, "mesh", 1e9), level(2, "mesh", 1e9), level(2, "mesh", 3e9), capacity_bytes=ROOM
    ),
    lambda: system(level(4, "torus", 1e9), level(2, "torus", 1e9), capacity_bytes=ROOM),
)
MODELS = (
    lambda: model(num_layers=4),
    lambda: model(num_layers=6, tied_embeddings=True, learned_positions=128, norm="layer"),
    lambda: model(dense(gqa(8, 8), 96), dense(gqa(8, 4, window=16)), num_layers=4),
    lambda: model(dense(mla()), num_layers=4),
)
EXPERT_MODELS = (
    lambda: model(experts(), num_layers=4),
    lambda: model(dense(), experts(8, 2, 64), num_layers=4),
)


def random_grid_problem(chance, models=MODELS):
    """Return a small problem on a grid."""
    return problem(
        chance.choice(models)(),
        chance.choice(GRIDS)(),
        global_batch_size=chance.choice([8, 12, 16]),
        sequence_length=chance.choice([64, 128]),
        optimizer=chance.choice([ADAM, SMALL_STATE]),
        software=SoftwareStack(cuda_graphs=chance.random() < 0.5),
    )


def random_plan_options(chance):
    """Return random structural choices."""
    return PlanOptions(
        sequence_parallel=chance.random() < 0.7,
        context_kind=chance.choice(list(ContextKind)),
        zero_stage=chance.choice([0, 1, 2, 3]),
        reshard_after_forward=chance.random() < 0.7,
        recompute=chance.choice(list(Recompute)),
        schedule=chance.choice(list(ScheduleKind)),
        overlap_data_parallel=chance.random() < 0.8,
        overlap_tensor_parallel=chance.random() < 0.3,
        stream_form=chance.choice(list(StreamForm)),
    )


def drawn(seed, models=MODELS):
    """Return a random problem on a grid with a legal strategy of more than one device."""
    chance = random.Random(seed)
    while True:
        asked, plan_options = random_grid_problem(chance, models), random_plan_options(chance)
        for _ in range(20):
            strategy = any_strategy(chance, asked)
            if strategy.num_devices == 1:
                continue
            refusals = all_refusals(
                asked.model, asked.workload, stack([strategy]), plan_options,
                tile_rows=asked.system.chip.tile_rows, tile_columns=asked.system.chip.tile_columns,
            )  # fmt: skip
            if any(bool(refusal.mask[0]) for refusal in refusals):
                continue
            if any(True for _ in all_choices(plan_options, strategy, asked.grid_sides)):
                return asked, plan_options, strategy
