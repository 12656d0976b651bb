"""Prices of operators on links that they share: each option with the link loads of its own window.

While an operator runs, the links carry its own messages and those of its data-parallel and stream
groups, as if the whole model had its option: the same slowdowns as for one strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import IntArray, joined, take_rows
from meshwright.cost.problem import Problem
from meshwright.network.ranks import block_ranks
from meshwright.topology.network import Network
from meshwright.wafer.operators.options import Options
from meshwright.wafer.operators.tables import OperatorPrices, operator_prices
from meshwright.wafer.price import contention_of

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


def slowed_prices(
    prices: OperatorPrices, rows: IntArray, slowdowns: Sequence[Slowdown]
) -> OperatorPrices:
    """Return prices in which some of the options have a slowdown each, and all others their own."""
    part = prices.options.take(rows)
    axes = dict.fromkeys(axis for entry in slowdowns for axis in entry)
    columns = {axis: np.array([entry.get(axis, 1.0) for entry in slowdowns]) for axis in axes}
    slower = replace(part, network=replace(part.network, slowdown=columns))
    found = operator_prices(prices.problem, slower)
    index = np.arange(len(prices.options))
    index[rows] = len(prices.options) + np.arange(len(rows))
    whole = dict(prices.options.network.slowdown)
    for axis in axes:
        slower_by = np.array(whole.get(axis, np.ones(len(index))))
        slower_by[rows] = columns[axis]
        whole[axis] = slower_by
    network = replace(prices.options.network, slowdown=whole)
    return OperatorPrices(
        prices.problem,
        replace(prices.options, network=network),
        take_rows(joined([prices.costs, found.costs]), index),
    )
