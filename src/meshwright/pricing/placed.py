"""The price of a plan where it lies: the same formulas, on links slowed by those who share them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from meshwright.placement.blocks import Shape, reaches_of_shapes
from meshwright.placement.ranks import Ranks, block_ranks
from meshwright.pricing.contention import Contention, axis_loads, contention
from meshwright.pricing.network import AxisNetwork, Layout, strides_of
from meshwright.pricing.passes import Message, piece_passes
from meshwright.pricing.price import Priced, price_columns
from meshwright.pricing.problem import Problem
from meshwright.pricing.stages import send_bytes
from meshwright.spec.collective import CollectiveKind
from meshwright.strategy.strategy import ScheduleKind, Strategy, Structure, stack
from meshwright.topology.network import Network
from meshwright.topology.of_system import network_of

DATA_AXES = ("dp_shard*cp", "dp_replicate", "dp_replicate*dp_shard*cp")
YIELDING = (*DATA_AXES, "pp")
"""What runs beside the computation of a whole stage, and leaves the links to its streams."""


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


def placed_network(
    problem: Problem, strategy: Strategy, axes: tuple[str, ...], shapes: tuple[Shape, ...]
) -> AxisNetwork:
    """Return the groups of one strategy whose axes have these shapes, as columns of one row."""
    columns = stack([strategy])
    layout = Layout(strides_of(axes, columns), reaches_of_shapes(axes, [shapes]))
    return problem.network_with(layout, columns)


def price_placed(
    problem: Problem,
    structure: Structure,
    strategy: Strategy,
    shapes: tuple[Shape, ...],
    physical: Network,
) -> PlacedPrice | None:
    """Return the price of a strategy whose axes fill these blocks; None where they do not fit.

    Parameters
    ----------
    shapes
        Of each axis in the order of ``structure.axis_order``.
    physical
        From :func:`physical_network`.
    """
    ranks = block_ranks(physical, structure.axis_order, shapes)
    if ranks is None:
        return None
    network = placed_network(problem, strategy, structure.axis_order, shapes)
    columns = stack([strategy])
    alone = price_columns(problem, structure, columns, network)
    messages = list(window_messages(problem, structure, strategy, network, alone))
    loads = axis_loads(messages, structure, network, ranks, yielding=YIELDING)
    shared = contention(list(loads), physical)
    slowed = replace(network, slowdown=shared.slowdown)
    return PlacedPrice(ranks, alone, price_columns(problem, structure, columns, slowed), shared)


def window_messages(
    problem: Problem, structure: Structure, strategy: Strategy, network: AxisNetwork, alone: Priced
) -> Iterator[tuple[Message, float]]:
    """Yield what one stage sends in the backward pass of a micro-batch, and how often.

    Layers count as many times as a stage has them; edges are left out, they are on one stage.
    """
    passes = piece_passes(problem, structure, strategy, network)
    pattern = problem.model.layer_pattern
    for kind in range(len(problem.graph.layers)):
        times = pattern.count(kind) / strategy.pp
        for work in passes[kind].backward:
            yield from ((message, times) for message in work.messages)
    yield from ((message, 1.0) for message in data_messages(problem, structure, strategy, alone))
    if strategy.pp > 1:
        num_bytes = send_bytes(problem, structure, stack([strategy]))
        is_beside = structure.schedule is ScheduleKind.INTERLEAVED
        message = Message("pp", CollectiveKind.SEND, _only(num_bytes), is_beside)
        yield message, strategy.num_virtual_stages


def data_messages(
    problem: Problem, structure: Structure, strategy: Strategy, alone: Priced
) -> Iterator[Message]:
    """Yield the data-parallel collectives beside one backward pass, by the stage of ZeRO.

    The sums of gradients, and where weights were dropped also their gathering.
    """
    optimizer, params = problem.workload.optimizer, _only(alone.pipeline.heaviest.dense_params)
    gradient_bytes = params * optimizer.reduced_gradient_bytes_per_param
    beside = structure.overlap_data_parallel
    shards = strategy.dp_shard * strategy.cp
    if structure.zero_stage == 0:
        yield Message(DATA_AXES[2], CollectiveKind.ALL_REDUCE, gradient_bytes, beside)
        return
    yield Message(DATA_AXES[0], CollectiveKind.REDUCE_SCATTER, gradient_bytes, beside)
    yield Message(DATA_AXES[1], CollectiveKind.ALL_REDUCE, gradient_bytes / shards, beside)
    if structure.zero_stage == 3 and structure.reshard_after_forward:
        weight_bytes = params * optimizer.gathered_weight_bytes_per_param
        yield Message(DATA_AXES[0], CollectiveKind.ALL_GATHER, weight_bytes, beside)


def _only(column: object) -> float:
    """Return the only row of a column."""
    return float(np.asarray(column, dtype=float).reshape(-1)[0])
