"""The step of a plan, played on its devices and links."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.errors import UnsupportedError
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.train.question import problem_of
from meshwright.wafer.candidates import price_as_placed
from meshwright.wafer.price import physical_network
from meshwright.wafer.simulated import SimulatedStep, simulate_step


@dataclass(frozen=True)
class SimulatedPlan:
    """A plan whose step was played on its network."""

    plan: Plan
    network: Network
    step: SimulatedStep


def simulate(plan: Plan) -> SimulatedPlan:
    """Return the step of the best candidate of a plan, played on its devices and links.

    Raises
    ------
    UnsupportedError
        The plan has no placement: its system is no grid of devices, or too large a one.
    """
    problem, entry = problem_of(plan), plan.best
    if entry.placement is None:
        raise UnsupportedError(
            f"the plan for {plan.system.name} has no placement to simulate: that takes a mesh or "
            "a torus of devices, such as wafer-6x8 or tpu-v5p-4x4x4"
        )
    physical = physical_network(problem)
    price = price_as_placed(problem, entry, physical)
    if price is None:
        raise UnsupportedError("the placement of the plan does not fit the devices of its system")
    step = simulate_step(problem, entry.structure, entry.strategy, price, physical)
    return SimulatedPlan(plan, physical, step)
