"""Where a measured step loses time against its prediction, resource by resource."""

from __future__ import annotations

from math import factorial

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.problem import Problem
from meshwright.sharding.strategy import PlanOptions, Strategy
from meshwright.train.measured.factors import step_seconds
from meshwright.train.measured.resources import RESOURCES


def losses_s(
    problem: Problem, strategy: Strategy, structure: PlanOptions, factors: FloatArray
) -> FloatArray:
    """Return what the factor of each resource adds to a step [s].

    Resources act together (a slower network may hide behind slower products), so each one gets
    its mean effect over all orders in which the factors could set in. The shares sum to the
    difference between the step under all factors and under none.

    Parameters
    ----------
    problem
        Under the calibrated constants.
    factors
        Shape (resources, draws).

    Returns
    -------
    FloatArray
        Shape (resources, draws).

    Source: Shapley (1953), A Value for n-Person Games.
    """
    number, num_draws = factors.shape
    sets = np.arange(2**number)
    members = (sets[:, None] >> np.arange(number)) & 1
    columns = np.where(members.T[:, :, None] == 1, factors[:, None, :], 1.0)
    seconds = step_seconds(problem, strategy, structure, columns.reshape(number, -1))
    by_set = seconds.reshape(2**number, num_draws)
    sizes = members.sum(axis=1)
    weights = np.array([factorial(s) * factorial(number - s - 1) for s in range(number)])
    shares = []
    for index in range(len(RESOURCES)):
        without = sets[members[:, index] == 0]
        gained = by_set[without | 1 << index] - by_set[without]
        shares.append(weights[sizes[without]] @ gained / factorial(number))
    return np.array(shares)
