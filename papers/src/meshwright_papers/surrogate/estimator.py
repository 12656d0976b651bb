"""The look-up: simulated quantities of placed plans, without a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright.cost.network import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.sharding.strategy import Strategy, Structure
from meshwright.wafer.choices import Choice
from meshwright.wafer.price import choice_network
from meshwright_papers.surrogate.configurations import without_computation
from meshwright_papers.surrogate.features import features
from meshwright_papers.surrogate.network import Network, shipped_network
from meshwright_papers.surrogate.samples import FIRST_LEARNED, QUANTITIES, closed_form


@dataclass(frozen=True)
class Surrogate:
    """Predictions for the plans of one problem."""

    problem: Problem
    learned: Network

    @cached_property
    def bare(self) -> Problem:
        """The problem on chips that compute in no time."""
        return without_computation(self.problem)

    def quantities(
        self, structure: Structure, network: AxisNetwork, alone: Priced | None = None
    ) -> FloatArray:
        """Return each of ``QUANTITIES`` as a simulation would have it, a row for each placement.

        Parameters
        ----------
        network
            The groups of strategies where they lie, from :func:`choice_network`.
        alone
            Their closed form, where it is known.
        """
        strategy = network.strategy
        if alone is None:
            alone = price_columns(self.problem, structure, strategy, network)
        bare = price_columns(self.bare, structure, strategy, network)
        values = closed_form(self.problem, alone, bare)
        values[:, FIRST_LEARNED:] *= self.ratio(network, alone)
        return values

    def ratio(self, network: AxisNetwork, alone: Priced) -> FloatArray:
        """Return simulated over closed form of each learned quantity, a row for each placement.

        It is 1 where the closed form is kept.
        """
        told = features(self.problem, network, alone)
        found: FloatArray = np.exp(self.learned.kept_log_ratio(told))
        return found

    def step_s(
        self, structure: Structure, strategy: Strategy, choices: Sequence[Choice],
        alone: Priced | None = None,
    ) -> FloatArray:  # fmt: skip
        """Return the step of one strategy laid in each of some ways [s]."""
        network = choice_network(self.problem, strategy, choices)
        if alone is None:
            alone = price_columns(self.problem, structure, network.strategy, network)
        ratio = self.ratio(network, alone)[:, QUANTITIES.index("step_s") - FIRST_LEARNED]
        seconds: FloatArray = alone.step.time.total_s * ratio
        return seconds


def shipped(problem: Problem) -> Surrogate:
    """Return the surrogate with the shipped weights.

    Raises
    ------
    UnsupportedError
        On networks that no row was drawn from: it was taught whole grids of two sides.
    """
    system = problem.system
    is_whole = not (system.dead_devices or system.dead_links or system.speed_factors)
    if len(problem.grid_sides) != 2 or not is_whole or problem.num_experts:
        raise UnsupportedError(
            f"{problem.model.name} on {system.name}: the learned cost model knows dense models on "
            "one whole mesh or torus of two sides, such as wafer-6x8"
        )
    return Surrogate(problem, shipped_network())
