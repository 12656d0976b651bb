"""The price of a placed plan: the same formulas, on links slowed by those who share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, joined, take_rows
from meshwright.cost.communication import AxisNetwork, AxisPlacement, strides_of
from meshwright.cost.energy import step_energy_parts_j, throttled, total_energy_j
from meshwright.cost.pipeline import send_bytes
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.network.placement import Choice, Ranks, block_ranks, reaches_of_shapes
from meshwright.sharding.strategy import AXES, PlanOptions, Strategy, Streamed, stack
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.system import SystemSpec
from meshwright.topology.levels import network_of
from meshwright.topology.network import Network
from meshwright.wafer.contention import Contention, axis_loads, contention
from meshwright.wafer.messages import Message, PiecePasses, piece_passes

DATA_AXES = ("dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
YIELDING = (*DATA_AXES, "pp")
"""What overlaps with the computation of a whole stage, and leaves the links to its streams."""


@dataclass(frozen=True)
class PlacedPrice:
    """A strategy on its devices: what it costs alone on its links, and with all others."""

    ranks: Ranks
    closed_form: Priced
    contended: Priced
    contention: Contention


def physical_network(problem: Problem) -> Network:
    """Return the links of the system, at the share of their bandwidth that is reached."""
    network = network_of(problem.system)
    share = np.array([float(np.asarray(e)) for e in problem.efficiencies])[network.level]
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
    loads = axis_loads(
        messages, structure, network, ranks,
        yielding=YIELDING, meeting=_meeting(structure, strategy),
    )  # fmt: skip
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
    laid = [(c, block_ranks(physical, problem.grid_sides, c.axes, c.shapes)) for c in choices]
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


def _meeting(structure: PlanOptions, strategy: Strategy) -> dict[str, float]:
    """Return the axes of the same rounds, where both tensors stream, with what each one meets.

    Of N sub-weights N - 1 are sent, one together with all that passes along the rows.
    """
    if structure.streamed is not Streamed.BOTH or strategy.tatp == 1:
        return {}
    return {"tp": 1.0 / (strategy.tatp - 1.0), "tatp": 1.0}


def window_messages(
    problem: Problem,
    structure: PlanOptions,
    strategy: Strategy,
    network: AxisNetwork,
    params: float,
) -> Iterator[tuple[Message, float]]:
    """Yield what one stage sends in the backward pass of a micro-batch, and how often.

    With the sums of gradients, and where weights were dropped also their gathering.
    """
    passes = piece_passes(problem, structure, strategy, network)
    yield from layer_messages(problem, strategy, passes, 1.0, is_forward=False)
    gather, scatter, sums = data_messages(problem, structure, strategy, params)
    drops = structure.zero_stage == 3 and structure.reshard_after_forward
    for message in (*scatter, *sums, *(gather if drops else ())):
        yield message, 1.0
    yield from pipeline_messages(problem, structure, strategy, 1.0)


def layer_messages(
    problem: Problem, strategy: Strategy, passes: Sequence[PiecePasses], num_passes: float,
    *, is_forward: bool,
) -> Iterator[tuple[Message, float]]:  # fmt: skip
    """Yield what the layers of a stage send in a number of passes, and how often.

    Edges are left out: they are on one stage.
    """
    pattern = problem.model.layer_pattern
    for kind in range(len(problem.graph.layers)):
        times = num_passes * pattern.count(kind) / strategy.pp
        for work in passes[kind].forward if is_forward else passes[kind].backward:
            yield from ((message, times) for message in work.messages)


def pipeline_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, num_passes: float
) -> Iterator[tuple[Message, float]]:
    """Yield what neighbouring stages hand each other, both ways, and how often."""
    if strategy.pp > 1:
        num_bytes = send_bytes(problem, structure, stack([strategy]))
        message = Message("pp", CollectiveKind.SEND, only(num_bytes), structure.wraps)
        yield message, num_passes * strategy.num_virtual_stages


def data_messages(
    problem: Problem, structure: PlanOptions, strategy: Strategy, params: float
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Return gathering of parameters, scattering of gradients, and their sums over replicas.

    Of one stage, each once; without ZeRO there are sums alone.
    """
    optimizer = problem.workload.optimizer
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    weight_bytes = params * optimizer.gathered_weight_bytes_per_param
    beside, shards = structure.overlap_data_parallel, strategy.dp_shard * strategy.cp
    shard, replicate, everyone = DATA_AXES
    if structure.zero_stage == 0:
        sums = Message(everyone, CollectiveKind.ALL_REDUCE, gradient_bytes, beside)
        return (), (), (sums,) if shards * strategy.dp_replicate > 1 else ()
    gather = Message(shard, CollectiveKind.ALL_GATHER, weight_bytes, beside)
    scatter = Message(shard, CollectiveKind.REDUCE_SCATTER, gradient_bytes, beside)
    sums = Message(replicate, CollectiveKind.ALL_REDUCE, gradient_bytes / shards, beside)
    return (
        (gather,) if shards > 1 else (),
        (scatter,) if shards > 1 else (),
        (sums,) if strategy.dp_replicate > 1 else (),
    )


def dense_params(price: PlacedPrice) -> float:
    """Return the dense parameters on one device of the fullest stage [1]."""
    return only(price.closed_form.pipeline.heaviest.dense_params)


def only(column: object) -> float:
    """Return the only row of a column."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])


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
    num_passes = only(price.closed_form.pipeline.num_micro_batches)
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
