"""One row of the data set: a placed plan in closed form, with contention, and simulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.energy import (
    dynamic_parts_j,
    least_link_j,
    link_energy_j,
    system_parts_j,
    total_energy_j,
)
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.network.simulation.usage import busy_fractions
from meshwright.topology.network import Network
from meshwright.wafer.price import PlacedPrice, choice_network, only, price_placed
from meshwright.wafer.simulated import SimulatedStep, simulate_step
from meshwright.wafer.step_tasks import COMPUTE
from meshwright_papers.surrogate.candidates import Drawn
from meshwright_papers.surrogate.configurations import Configuration
from meshwright_papers.surrogate.features import MESSAGE_PARTS, features

QUANTITIES = ("compute_s", "messages_s", "step_s", "power_w")
"""What is compared: computation of the busiest device, its messages as if nothing hid them, the
step in which both overlap, and the mean power of a device."""
FIRST_LEARNED = 1
"""Computation is the same in closed form and simulated: nothing to learn."""


@dataclass(frozen=True)
class Row:
    """One plan: what is known of it at once, and what the simulation says."""

    features: FloatArray
    closed_form: FloatArray
    """Of each quantity."""
    simulated: FloatArray
    contended_s: float
    """The step with contention, for comparison [s]."""


def measure(asked: Configuration, drawn: Drawn, physical: Network) -> Row | None:
    """Return the row of a drawn plan; None where its step is too long to be played whole."""
    problem, structure, strategy = asked.problem, drawn.structure, drawn.strategy
    network = choice_network(problem, strategy, [drawn.choice])
    alone = price_columns(problem, structure, network.strategy, network)
    bare = price_columns(asked.bare, structure, network.strategy, network)
    placed = price_placed(problem, structure, strategy, [drawn.choice], physical, alone=alone)
    if not placed:
        return None
    price = placed[0]
    step = simulate_step(problem, structure, strategy, price, physical)
    if step.num_micro_batches < only(alone.pipeline.pipeline.num_micro_batches):
        return None
    return Row(
        features(problem, network, alone)[0],
        closed_form(problem, alone, bare)[0],
        _simulated(problem, price, step),
        only(price.contended.step.time.total_s),
    )


def closed_form(problem: Problem, alone: Priced, bare: Priced) -> FloatArray:
    """Return each quantity in closed form, one row for each placement.

    Parameters
    ----------
    bare
        The same placements on chips that compute in no time.
    """
    time, messages = alone.step.time, bare.step.time
    step_s = time.total_s
    columns = (
        time.compute_s + time.recompute_s + time.launch_s,
        sum(getattr(messages, name) for name in MESSAGE_PARTS),
        step_s,
        _power_w(problem, alone, step_s),
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)


def _simulated(problem: Problem, price: PlacedPrice, step: SimulatedStep) -> FloatArray:
    """Return each quantity as simulated.

    Messages count while they are under way, each axis for itself, on the device that has most.
    Bytes count on every link that they take.
    """
    timeline, graph = step.timeline, step.graph
    busy_s = busy_fractions(timeline, problem.system.num_devices) * timeline.makespan_s
    computes = timeline.tracks.index(COMPUTE)
    messages_s = busy_s.sum(axis=1) - busy_s[:, computes]
    carried_bytes = float((graph.num_bytes * graph.routes.num_hops).sum())
    link_j = link_energy_j(problem.system, carried_bytes / price.ranks.num_devices)
    power = _power_w(problem, price.closed_form, np.array([step.step_time_s]), link_j)
    return np.array(
        [busy_s[:, computes].max(), messages_s.max(), step.step_time_s, float(power[0])]
    )


def _power_w(
    problem: Problem, alone: Priced, step_s: FloatArray, link_j: object = None
) -> FloatArray:
    """Return the mean power of one device in a step of this length [W].

    Parameters
    ----------
    link_j
        Of all links, for each device [J]; if not given, of the least bytes over one link each.
    """
    time, work, engine = alone.step.time, alone.pipeline.mean, problem.engine
    assert work is not None
    if link_j is None:
        link_j = least_link_j(problem, alone.structure, alone.strategy, work, alone.pipeline)
    update_bytes = time.optimizer_s * engine.memory_bytes_per_s
    dynamic_j = dynamic_parts_j(
        problem.system.chip, work.busy_s + time.optimizer_s, work.flops,
        work.memory_traffic_bytes + update_bytes, link_j,
    )  # fmt: skip
    energy_j = total_energy_j(system_parts_j(problem.system, dynamic_j, step_s, 1.0), step_s)
    watts: FloatArray = np.asarray(energy_j / step_s, dtype=np.float64)
    return watts
