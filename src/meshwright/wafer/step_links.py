"""What the links carry in a whole step of a placed plan: the busiest of them, and their energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.energy import step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.network import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.spec.system import SystemSpec
from meshwright.topology.network import Network
from meshwright.wafer.choices import Choice
from meshwright.wafer.contention import axis_loads, contention
from meshwright.wafer.passes import Message, piece_passes
from meshwright.wafer.price import (
    DATA_AXES,
    PlacedPrice,
    choice_network,
    data_messages,
    dense_params,
    layer_messages,
    only,
    pipeline_messages,
    price_placed,
)


@dataclass(frozen=True)
class StepLinks:
    """The links of a placed plan over a whole step."""

    busiest_s: float
    """How long the busiest link carries something [s]."""
    energy_j: float | None
    """Of all bytes on all links that they cross, for each device in use [J]; None: not known."""


def price_below_caps(
    problem: Problem, structure: PlanOptions, strategy: Strategy, choices: Sequence[Choice],
    physical: Network, *, is_routed: bool = False, alone: Priced | None = None,
) -> list[PlacedPrice]:  # fmt: skip
    """Return the price of a strategy laid in each of some ways, as :func:`price_placed` does.

    Below a cap on power each is slowed down by the energy of the links that it crosses.
    """
    found = price_placed(
        problem, structure, strategy, choices, physical, is_routed=is_routed, alone=alone
    )
    if not problem.system.is_power_capped:
        return found
    return [
        replace(price, contended=with_link_energy(problem, structure, price.contended, links))
        for price in found
        for links in [step_links(problem, structure, strategy, price, physical)]
    ]


def step_links(
    problem: Problem, structure: PlanOptions, strategy: Strategy, price: PlacedPrice,
    physical: Network,
) -> StepLinks:  # fmt: skip
    """Return what the links carry in a step.

    Both passes of all layers and edges for every micro-batch, the sends of the pipeline, and the
    data-parallel messages as often as the stage of ZeRO asks for them; sums once a step over tp
    or tatp are left out. Messages take the default routes; where a window of the plan is routed
    anew, an axis goes as much farther in the whole step as in the window.
    """
    network = choice_network(problem, strategy, [Choice(price.ranks.axes, price.ranks.shapes)])
    messages = list(_step_messages(problem, structure, strategy, network, price))
    loads = list(axis_loads(messages, structure, network, price.ranks))
    if not loads:
        return StepLinks(0.0, 0.0)
    carried = contention(loads, physical)
    per_link = link_j_per_byte(problem.system, physical)
    if per_link is None:
        return StepLinks(float(carried.hottest.max(initial=0.0)), None)
    pipeline = price.closed_form.pipeline
    mean = 0.0 if pipeline.mean is None else only(pipeline.mean.dense_params)
    share = dict.fromkeys(DATA_AXES, mean / dense_params(price))
    energy_j = sum(
        float((busy_s * physical.bandwidth_bytes_per_s * per_link).sum())
        * price.contention.detour.get(axis, 1.0)
        * share.get(axis, 1.0)
        for axis, busy_s in carried.busy_s.items()
    )
    return StepLinks(
        float(carried.hottest.max(initial=0.0)), energy_j / float(strategy.num_devices)
    )


def _step_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, network: AxisNetwork,
    price: PlacedPrice,
) -> Iterator[tuple[Message, float]]:  # fmt: skip
    """Yield what all stages send in a step, and how often; edges are on one stage of ``pp``."""
    passes = piece_passes(problem, structure, strategy, network)
    num_passes = only(price.closed_form.pipeline.pipeline.num_micro_batches)
    for is_forward in (True, False):
        yield from layer_messages(problem, strategy, passes, num_passes, is_forward=is_forward)
    for edge in passes[len(problem.graph.layers) :]:
        for work in (*edge.forward, *edge.backward):
            yield from ((message, num_passes / strategy.pp) for message in work.messages)
    yield from pipeline_messages(problem, structure, strategy, num_passes)
    gather, scatter, sums = data_messages(problem, structure, strategy, dense_params(price))
    drops = structure.zero_stage == 3 and structure.reshard_after_forward
    num_gathers = num_passes * (1 + drops) if structure.zero_stage == 3 else 1.0
    num_scatters = num_passes if structure.zero_stage >= 2 else 1.0
    yield from ((message, num_gathers) for message in gather)
    yield from ((message, num_scatters) for message in scatter)
    yield from ((message, 1.0) for message in sums)


def link_j_per_byte(system: SystemSpec, network: Network) -> FloatArray | None:
    """Return the energy of a byte on each link [J/B]; None where one is not known."""
    energies = [level.energy_j_per_byte for level in system.levels]
    known = [energy for energy in energies if energy is not None]
    return np.array(known)[network.level] if len(known) == len(energies) else None


def with_link_energy(
    problem: Problem, structure: PlanOptions, priced: Priced, links: StepLinks
) -> Priced:
    """Return a priced row with the energy of the links that its messages cross."""
    step, link_j = priced.step, links.energy_j
    if link_j is None:
        return priced
    time = throttled(problem, structure, priced.strategy, priced.pipeline, step.time, link_j)
    parts_j = step_energy_parts_j(
        problem, structure, priced.strategy, priced.pipeline, time, link_j
    )
    energy_j = total_energy_j(parts_j, time.total_s)
    return replace(priced, step=replace(step, time=time, energy_j=energy_j, energy_parts_j=parts_j))
