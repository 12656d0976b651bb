"""The price of given strategies, one or a column of them, each with all its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.cost.layers import Collectives, price_layers
from meshwright.cost.network import AxisNetwork
from meshwright.cost.problem import Problem, ProblemOf
from meshwright.cost.stages import PipelinePrice, price_pipeline, send_bytes
from meshwright.cost.steps import StepPrice, price_step, sync_links
from meshwright.sharding.strategy import Strategy, StrategyColumns, Structure, stack
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class Priced:
    """Strategies under one structure, with the price of each."""

    strategy: StrategyColumns
    structure: Structure
    step: StepPrice
    pipeline: PipelinePrice


def price_columns(
    problem: Problem,
    structure: Structure,
    strategy: StrategyColumns,
    network: AxisNetwork | None = None,
) -> Priced:
    """Return the price of each row of the columns, all under one structure.

    Parameters
    ----------
    network
        The groups of the rows, where they are not those of the order of the axes alone.
    """
    network = network or problem.network(structure.axis_order, strategy)
    layers = price_layers(
        problem, structure, network, (structure.recompute,),
        uses_tatp=bool((strategy.tatp > 1).any()),
    )  # fmt: skip
    collectives = Collectives(network, problem.calibration.collective_launch_s)
    send = send_s(problem, structure, strategy, collectives)
    pipeline = price_pipeline(problem, structure, strategy, layers[structure.recompute], send)
    step = price_step(problem, structure, strategy, pipeline, sync_links(problem, collectives))
    return Priced(strategy, structure, step, pipeline)


def price_one(problem: Problem, structure: Structure, strategy: Strategy) -> Priced:
    """Return the price of one strategy: a column of one row."""
    return price_columns(problem, structure, stack([strategy]))


def send_s(
    problem: ProblemOf[Any], structure: Structure, strategy: Any, collectives: Collectives
) -> Any:
    """Return the seconds in which one micro-batch passes to the next stage [s]."""
    num_bytes = send_bytes(problem, structure, strategy)
    return collectives.time_s(CollectiveKind.SEND, "pp", num_bytes)
