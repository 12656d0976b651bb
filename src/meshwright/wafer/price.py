"""The price of a placed plan: the same formulas, on links slowed by those who share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, joined, take_rows
from meshwright.cost.communication import AxisNetwork, AxisPlacement, strides_of
from meshwright.cost.energy import step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.network.placement import Choice, Ranks, reaches_of_shapes, stated_ranks
from meshwright.sharding.strategy import AXES, PlanOptions, Strategy, Streamed, stack
from meshwright.spec.system import SystemSpec
from meshwright.topology.levels import network_of
from meshwright.topology.network import Network
from meshwright.wafer.contention import Contention, axis_loads, contention
from meshwright.wafer.messages import DATA_AXES, only, step_messages, window_messages

YIELDING = (*DATA_AXES, "pp")
"""What overlaps with the computation of a whole stage, and leaves the links to its streams."""


@dataclass(frozen=True)
class PlacedPrice:
    """A strategy on its devices: what it costs alone on its links, and with all others."""

    ranks: Ranks
    closed_form: Priced
    contended: Priced
    contention: Contention

    @property
    def time_s(self) -> float:
        """Step time with contention [s]."""
        return only(self.contended.step.time.total_s)

    @property
    def dense_params(self) -> float:
        """Dense parameters on one device of the fullest stage [1]."""
        return only(self.closed_form.pipeline.heaviest.dense_params)


def physical_network(problem: Problem) -> Network:
    """Return the links of the system, at the share of their bandwidth that is reached."""
    network = network_of(problem.system)
    share = np.array([only(efficiency) for efficiency in problem.efficiencies])[network.level]
    return replace(network, bandwidth_bytes_per_s=network.bandwidth_bytes_per_s * share)


def choice_network(problem: Problem, strategy: Strategy, choices: Sequence[Choice]) -> AxisNetwork:
    """Return the groups of one strategy, one row for each way to lay it."""
    columns = stack([strategy] * len(choices))
    layouts = []
    for choice in choices:
        strides = strides_of(choice.axes, stack([strategy]))
        reaches = reaches_of_shapes(choice.axes, [choice.shapes])
        layouts.append(AxisPlacement(strides, {axis: reaches[axis] for axis in AXES}))
    return problem.network_with(joined(layouts), columns)


def contention_of(
    problem: Problem, structure: PlanOptions, strategy: Strategy, ranks: Ranks, params: float,
    physical: Network, *, is_routed: bool = False,
) -> Contention:  # fmt: skip
    """Return what the links carry when a strategy runs on its devices.

    Parameters
    ----------
    params
        Dense parameters on one device of the fullest stage.
    physical
        From :func:`physical_network`.
    """
    network = choice_network(problem, strategy, [Choice(ranks.axes, ranks.shapes)])
    messages = list(window_messages(problem, structure, strategy, network, params))
    # Where both tensors stream, tp and tatp have the same rounds: of N sub-weights N - 1 are sent,
    # one together with all that passes along the rows.
    meeting = {}
    if structure.streamed is Streamed.BOTH and strategy.tatp > 1:
        meeting = {"tp": 1.0 / (strategy.tatp - 1.0), "tatp": 1.0}
    loads = axis_loads(messages, structure, network, ranks, yielding=YIELDING, meeting=meeting)
    return contention(list(loads), physical, is_routed=is_routed)


def price_placed(
    problem: Problem, structure: PlanOptions, strategy: Strategy, choices: Sequence[Choice],
    physical: Network, *, is_routed: bool = False, alone: Priced | None = None,
) -> list[PlacedPrice]:  # fmt: skip
    """Return the price of a strategy laid in each of some ways; those that do not fit are left out.

    All closed forms are priced at once, and all contended prices.

    Parameters
    ----------
    is_routed
        Whether messages that share links are routed anew where that may help; else they take the
        default routes, which is never better.
    alone
        The price of each way on links of its own, where it is known.
    """
    laid = [(c, stated_ranks(physical, problem.grid_sides, c)) for c in choices]
    rows = [row for row, (_, ranks) in enumerate(laid) if ranks is not None]
    fitting = [(choice, ranks) for choice, ranks in laid if ranks is not None]
    if not fitting:
        return []
    network = choice_network(problem, strategy, [choice for choice, _ in fitting])
    columns = network.strategy
    if alone is None:
        alone = price_columns(problem, structure, columns, network)
    else:
        alone = take_rows(alone, rows)
    params = np.ravel(alone.pipeline.heaviest.dense_params).tolist()
    shared = [
        contention_of(problem, structure, strategy, ranks, num, physical, is_routed=is_routed)
        for (_, ranks), num in zip(fitting, params, strict=True)
    ]
    slowdown = {
        axis: np.array([entry.slowdown.get(axis, 1.0) for entry in shared])
        for axis in dict.fromkeys(axis for entry in shared for axis in entry.slowdown)
    }
    together = price_columns(problem, structure, columns, replace(network, slowdown=slowdown))
    return [
        PlacedPrice(ranks, take_rows(alone, [row]), take_rows(together, [row]), shared[row])
        for row, (_, ranks) in enumerate(fitting)
    ]


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
    pipeline, params = price.closed_form.pipeline, price.dense_params
    num_passes = only(pipeline.num_micro_batches)
    messages = list(step_messages(problem, structure, strategy, network, params, num_passes))
    loads = list(axis_loads(messages, structure, network, price.ranks))
    if not loads:
        return StepLinks(0.0, 0.0)
    carried = contention(loads, physical)
    busiest_s = float(carried.hottest.max(initial=0.0))
    per_link = link_j_per_byte(problem.system, physical)
    if per_link is None:
        return StepLinks(busiest_s, None)
    mean = 0.0 if pipeline.mean is None else only(pipeline.mean.dense_params)
    share = dict.fromkeys(DATA_AXES, mean / params)
    energy_j = sum(
        float((busy_s * physical.bandwidth_bytes_per_s * per_link).sum())
        * price.contention.detour.get(axis, 1.0)
        * share.get(axis, 1.0)
        for axis, busy_s in carried.busy_s.items()
    )
    return StepLinks(busiest_s, energy_j / float(strategy.num_devices))


def link_j_per_byte(system: SystemSpec, network: Network) -> FloatArray | None:
    """Return the energy of a byte on each link [J/B]; None where one is not known."""
    energies = [level.energy_j_per_byte for level in system.levels]
    known = [energy for energy in energies if energy is not None]
    return np.array(known)[network.level] if len(known) == len(energies) else None


def with_link_energy(
    problem: Problem, structure: PlanOptions, priced: Priced, links: StepLinks
) -> Priced:
    """Return a priced row with the energy of the links that its messages cross."""
    step, link_j, pipeline = priced.step, links.energy_j, priced.pipeline
    if link_j is None:
        return priced
    time = throttled(problem, structure, priced.strategy, pipeline, step.time, link_j)
    parts_j = step_energy_parts_j(problem, structure, priced.strategy, pipeline, time, link_j)
    energy_j = total_energy_j(parts_j, time.total_s)
    return replace(priced, step=replace(step, time=time, energy_j=energy_j, energy_parts_j=parts_j))
