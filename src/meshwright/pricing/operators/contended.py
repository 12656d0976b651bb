"""Prices of operators on links that they share: each option with the link loads of its own window.

While an operator runs, the links carry its own messages and those of its data-parallel and stream
groups, as if the whole model had its option: the same slowdowns as for one strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.placement.ranks import block_ranks
from meshwright.pricing.operators.options import Options
from meshwright.pricing.operators.tables import OperatorPrices, operator_prices
from meshwright.pricing.placed.price import contention_of
from meshwright.pricing.problem import Problem
from meshwright.topology.network import Network

Slowdown = Mapping[str, float]
"""By axis: how much longer its messages take than on links of their own."""


def slowdown_of(
    problem: Problem, options: Options, index: int, params: float, physical: Network
) -> Slowdown:
    """Return what the messages of one option suffer where the whole model has it.

    Parameters
    ----------
    params
        Dense parameters of the model on one device under this option.
    """
    choice, strategy = options.choices[index], options.strategy(index)
    ranks = block_ranks(physical, problem.grid_sides, choice.axes, choice.shapes)
    assert ranks is not None
    structure = options.structures[index]
    return contention_of(problem, structure, strategy, ranks, params, physical).slowdown


def slowed_prices(prices: OperatorPrices, slowdowns: Sequence[Slowdown]) -> OperatorPrices:
    """Return the prices of the same options with a slowdown for each."""
    options = prices.options
    axes = dict.fromkeys(axis for entry in slowdowns for axis in entry)
    columns = {axis: np.array([entry.get(axis, 1.0) for entry in slowdowns]) for axis in axes}
    network = replace(options.network, slowdown=columns)
    return operator_prices(prices.problem, replace(options, network=network))
