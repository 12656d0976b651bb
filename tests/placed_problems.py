"""Small problems on grids of devices whose times can be derived by hand."""

from __future__ import annotations

from dataclasses import replace

from small_problems import level, problem, system

from meshwright.pricing.placed.choices import all_choices
from meshwright.pricing.placed.price import (
    PlacedPrice,
    choice_network,
    only,
    physical_network,
    price_placed,
)
from meshwright.pricing.placed.simulated import SimulatedStep, simulate_step
from meshwright.pricing.problem import Problem
from meshwright.search.placing import place
from meshwright.spec.system import SystemSpec
from meshwright.strategy.strategy import Strategy, Structure

ROOM = 1e9


def grid_system(*sides: int, kind: str = "mesh", latency_s: float = 0.0, **fields) -> SystemSpec:
    """Return a grid, innermost side first, with faults and speeds as given."""
    bandwidth = fields.pop("bandwidth", 1e11)
    faults = {
        name: fields.pop(name)
        for name in ("dead_devices", "dead_links", "speed_factors")
        if name in fields
    }
    levels = [level(side, kind, bandwidth, latency_s=latency_s) for side in sides]
    return system(*levels, **({"capacity_bytes": ROOM} | fields)).model_copy(update=faults)


def ideal(asked: Problem) -> Problem:
    """Return a problem without what no device or link does: launches, jitter, slowdown, margins."""
    constants = replace(
        asked.calibration,
        launch_s=0.0,
        collective_launch_s=0.0,
        jitter=0.0,
        overlap_slowdown=0.0,
        fast_network_efficiency=1.0,
    )
    found = replace(asked, calibration=constants)
    vars(found)["_layouts"] = asked._layouts
    return found


def grid_problem(*sides: int, spec=None, **fields) -> Problem:
    """Return an ideal problem on a grid without latency."""
    work = {
        name: fields.pop(name)
        for name in ("global_batch_size", "sequence_length", "optimizer")
        if name in fields
    }
    return ideal(problem(spec, grid_system(*sides, **fields), **work))


def placed(asked: Problem, strategy: Strategy, structure: Structure) -> PlacedPrice:
    """Return the best placement of a strategy."""
    found = place(asked, structure, strategy, physical_network(asked))
    assert found is not None
    return found.price


def every_placement(asked: Problem, strategy: Strategy, structure: Structure) -> list[PlacedPrice]:
    """Return all placements of a strategy, with contention."""
    choices = list(all_choices(structure, strategy, asked.grid_sides))
    return price_placed(asked, structure, strategy, choices, physical_network(asked))


def simulated(
    asked: Problem, strategy: Strategy, structure: Structure, price: PlacedPrice | None = None
) -> tuple[PlacedPrice, SimulatedStep]:
    """Return a placement (the best one if not given) and its simulated step."""
    price = price or placed(asked, strategy, structure)
    return price, simulate_step(asked, structure, strategy, price, physical_network(asked))


def step_s(priced) -> float:
    """Return the step time of a price [s]."""
    return only(priced.step.time.total_s)


def groups_of(asked: Problem, strategy: Strategy, price: PlacedPrice):
    """Return the groups of a placed strategy as the closed form sees them."""
    from meshwright.pricing.placed.choices import Choice

    return choice_network(asked, strategy, [Choice(price.ranks.axes, price.ranks.shapes)])
