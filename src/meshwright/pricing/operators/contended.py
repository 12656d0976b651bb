"""Prices of operators on links that they share: each option with the link loads of its own window.

While an operator runs, the links carry its own messages and those of its data-parallel and stream
groups, as if the whole model had its option: the same slowdowns as for one strategy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.placement.ranks import block_ranks
from meshwright.pricing.operators.options import Options
from meshwright.pricing.operators.tables import OperatorPrices, operator_prices
from meshwright.pricing.placed.price import contention_of
from meshwright.pricing.price import Priced, price_columns
from meshwright.pricing.problem import Problem
from meshwright.pricing.steps import take_rows
from meshwright.strategy.strategy import AXES, Structure
from meshwright.topology.network import Network


def contended_prices(problem: Problem, options: Options, physical: Network) -> OperatorPrices:
    """Return the prices of options where each one's axes slow each other down."""
    found: list[dict[str, float]] = [{}] * len(options)
    for structure in dict.fromkeys(_shared(structure) for structure in options.structures):
        rows = [n for n, other in enumerate(options.structures) if _shared(other) == structure]
        part = options.take(np.array(rows))
        alone = price_columns(problem, structure, part.columns, part.network)
        for row, index in enumerate(rows):
            found[index] = _slowdown(problem, part, row, take_rows(alone, [row]), physical)
    axes = dict.fromkeys(axis for entry in found for axis in entry)
    slowdown = {axis: np.array([entry.get(axis, 1.0) for entry in found]) for axis in axes}
    network = replace(options.network, slowdown=slowdown)
    return operator_prices(problem, replace(options, network=network))


def _shared(structure: Structure) -> Structure:
    """Return a structure without the order of the axes, which the network knows."""
    return replace(structure, axis_order=AXES)


def _slowdown(
    problem: Problem, options: Options, index: int, alone: Priced, physical: Network
) -> dict[str, float]:
    """Return by axis how much longer the messages of one option take than alone."""
    choice, strategy = options.choices[index], options.strategy(index)
    ranks = block_ranks(physical, problem.grid_sides, choice.axes, choice.shapes)
    assert ranks is not None
    structure = options.structures[index]
    return dict(contention_of(problem, structure, strategy, ranks, alone, physical).slowdown)
