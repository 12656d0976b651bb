"""The look-up: simulated quantities of placed plans, without a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import UnsupportedError
from meshwright.cost.communication import AxisNetwork
from meshwright.cost.problem import Problem
from meshwright.cost.step import Priced, price_columns
from meshwright.network.placement import Nesting
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.wafer.price import choice_network
from meshwright_papers.surrogate.dataset import FIRST_LEARNED, QUANTITIES, Rows, closed_form
from meshwright_papers.surrogate.features import features
from meshwright_papers.surrogate.network import Network, shipped_network, tuned
from meshwright_papers.surrogate.sampling import without_computation


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
        self, plan_options: PlanOptions, network: AxisNetwork, alone: Priced | None = None
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
            alone = price_columns(self.problem, plan_options, strategy, network)
        bare = price_columns(self.bare, plan_options, strategy, network)
        values = closed_form(self.problem, alone, bare)
        values[:, FIRST_LEARNED:] *= self.ratio(network, alone, bare)
        return values

    def ratio(self, network: AxisNetwork, alone: Priced, bare: Priced) -> FloatArray:
        """Return simulated over closed form of each learned quantity, a row for each placement.

        It is 1 where the closed form is kept.
        """
        told = features(self.problem, network, alone, bare)
        found: FloatArray = np.exp(self.learned.kept_log_ratio(told))
        return found

    def step_s(
        self, plan_options: PlanOptions, strategy: Strategy, choices: Sequence[Nesting],
        alone: Priced | None = None,
    ) -> FloatArray:  # fmt: skip
        """Return the step of one strategy laid in each of some ways [s]."""
        network = choice_network(self.problem, [(strategy, choices)])
        if alone is None:
            alone = price_columns(self.problem, plan_options, network.strategy, network)
        bare = price_columns(self.bare, plan_options, network.strategy, network)
        ratio = self.ratio(network, alone, bare)[:, QUANTITIES.index("step_s") - FIRST_LEARNED]
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


LEAST_SCORED = 3
"""Rows of a group that must be left to score."""


@dataclass(frozen=True)
class Score:
    """One quantity over some rows."""

    correlation: float
    """Correlation of the logarithms of predicted and simulated values."""
    mean_error: float
    """Mean of |predicted / simulated - 1|."""
    p95_error: float
    worst_group_error: float
    """Largest mean error of a group."""


def predicted(rows: Rows, network: Network | None, *, where_kept: bool = False) -> FloatArray:
    """Return each quantity of each row: closed form times the network's factor; None: unchanged.

    Parameters
    ----------
    where_kept
        Leave the closed form where the network is not kept.
    """
    values = rows.closed_form.copy()
    if network is not None:
        says = network.kept_log_ratio if where_kept else network.log_ratio
        values[:, FIRST_LEARNED:] *= np.exp(says(rows.features))
    return values


def errors(values: FloatArray, rows: Rows) -> FloatArray:
    """Return |predicted / simulated - 1| of each quantity of each row."""
    found: FloatArray = np.abs(values / rows.simulated - 1.0)
    return found


def score(values: FloatArray, rows: Rows) -> dict[str, Score]:
    """Return the score of predicted values, by quantity."""
    wrong = errors(values, rows)
    groups, number = np.unique(rows.group, return_inverse=True)
    counts = np.bincount(number, minlength=len(groups))
    found = {}
    for column, name in enumerate(QUANTITIES):
        of_group = np.bincount(number, wrong[:, column], len(groups)) / counts
        both = np.log(values[:, column]), np.log(rows.simulated[:, column])
        found[name] = Score(
            float(np.corrcoef(*both)[0, 1]),
            float(wrong[:, column].mean()),
            float(np.percentile(wrong[:, column], 95)),
            float(of_group.max()),
        )
    return found


def tuned_scores(
    rows: Rows, network: Network, num_rows: int = 6
) -> tuple[dict[str, Score], dict[str, Score], int]:
    """Return scores before and after fine-tuning each group on its first rows, on its others.

    Also returns the number of rows scored. Groups with too few rows are left out.

    Parameters
    ----------
    num_rows
        Simulated rows of a group to tune its network on; at least the same number is left to score.
    """
    kept, values = [], []
    for group in np.unique(rows.group).tolist():
        of_group = rows.take(np.flatnonzero(rows.group == group))
        if len(of_group) < num_rows + LEAST_SCORED:
            continue
        known, others = of_group.take(slice(num_rows)), of_group.take(slice(num_rows, None))
        fitted = tuned(network, known.features, known.log_ratio[:, FIRST_LEARNED:])
        kept.append(np.isin(rows.group, group) & np.isin(rows.index, others.index))
        values.append(predicted(others, fitted))
    scored = rows.take(np.logical_or.reduce(kept))
    before = score(predicted(scored, network), scored)
    return before, score(np.concatenate(values), scored), len(scored)
