"""Prices of operators on links that they share: each option with the link loads of its own window.

While an operator runs, the links carry its own messages and those of its data-parallel and stream
groups, as if the whole model had its option: the same slowdowns as for one strategy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.pricing.operators.options import Options
from meshwright.pricing.operators.tables import OperatorPrices, operator_prices
from meshwright.pricing.placed.price import price_placed
from meshwright.pricing.problem import Problem
from meshwright.topology.network import Network


def contended_prices(problem: Problem, options: Options, physical: Network) -> OperatorPrices:
    """Return the prices of options where each one's axes slow each other down."""
    found = [_slowdown(problem, options, index, physical) for index in range(len(options))]
    axes = dict.fromkeys(axis for entry in found for axis in entry)
    slowdown = {axis: np.array([entry.get(axis, 1.0) for entry in found]) for axis in axes}
    network = replace(options.network, slowdown=slowdown)
    return operator_prices(problem, replace(options, network=network))


def _slowdown(
    problem: Problem, options: Options, index: int, physical: Network
) -> dict[str, float]:
    """Return by axis how much longer the messages of one option take than alone."""
    placed = price_placed(
        problem, options.structures[index], options.strategy(index), [options.choices[index]],
        physical,
    )  # fmt: skip
    return dict(placed[0].contention.slowdown)
