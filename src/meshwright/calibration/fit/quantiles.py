"""Intervals of serving: quantiles of errors left out, moved until rows held out lie inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from meshwright.base.arrays import FloatArray, weighted_quantile
from meshwright.calibration.errors import SHARE
from meshwright.calibration.fit.spread import (
    EXPECTED_FACTOR,
    FACTOR_SPREAD,
    ONE_SIDED,
    HeldOut,
    spread_by,
)
from meshwright.spec.calibration import Spread, Tail

LEAST_DISTANCE = 1e-3
"""Least distance of an end, where no error is on its side."""
ROUNDED = 0.01
"""Error over which the corner of a loss is rounded."""


def quantile_spread(
    errors: FloatArray, degrees: FloatArray, weights: FloatArray, traits: Sequence[str]
) -> Spread | None:
    """Return the spread whose ends one in ten rows exceeds on each side; None: no error is known.

    The parameters are those of ``fit_spread``; weights sum to one for each group that was left out
    together.
    """
    return spread_by(partial(_tail, traits), errors, degrees, weights)


def _tail(
    traits: Sequence[str], errors: FloatArray, degrees: FloatArray, weights: FloatArray
) -> Tail:
    """Return the distance q beyond which one in ten rows lies, for each trait a factor.

    Quantile regression: ln q = b0 + degrees b of least mean loss, 0.9 (error - q) beyond the end
    and 0.1 (q - error) before it. Errors are taken as asymmetric Laplace of unknown scale, factors
    as held near their expected values; the corner of the loss is rounded for the descent.
    Source: Koenker and Bassett 1978, Regression quantiles.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    matrix = np.column_stack([np.ones(len(errors)), degrees])
    num_groups, shares = weights.sum(), weights / weights.sum()
    first = max(weighted_quantile(errors, weights, ONE_SIDED), LEAST_DISTANCE)
    start = np.log([first, *[EXPECTED_FACTOR] * degrees.shape[1]])

    def unlikely(logs: FloatArray) -> tuple[float, FloatArray]:
        ends = np.exp(matrix @ logs)
        beyond = (errors - ends) / ROUNDED
        loss = shares @ ((1.0 - ONE_SIDED) * -beyond + np.logaddexp(0.0, beyond))
        slope = matrix.T @ (shares * ends * ((1.0 - ONE_SIDED) - expit(beyond))) / ROUNDED
        away = (logs[1:] - start[1:]) / FACTOR_SPREAD
        slope *= num_groups / loss
        slope[1:] += away / FACTOR_SPREAD
        return float(num_groups * np.log(loss) + 0.5 * away @ away), slope

    least = [(np.log(LEAST_DISTANCE), None), *[(0.0, None)] * degrees.shape[1]]
    logs = minimize(unlikely, start, jac=True, method="L-BFGS-B", bounds=least).x
    distance, *factors = np.exp(logs).tolist()
    return Tail(distance=distance, factors=dict(zip(traits, factors, strict=True)))


def conformal(
    spread: Spread | None, tested: HeldOut, weights: FloatArray
) -> tuple[Spread | None, HeldOut]:
    """Return a spread and rows held out, with all ends moved by one factor.

    Each row held out lies just inside at a factor of its own; the quantile SHARE (1 + 1 / groups)
    of these factors moves the ends. Source: Romano, Patterson and Candes 2019,
    Conformalized quantile regression.
    """
    needed = np.maximum(tested.errors / tested.slower, -tested.errors / tested.faster)
    known = ~np.isnan(needed) & (weights > 0.0)
    if spread is None or not known.any():
        return spread, tested
    level = min(SHARE * (1.0 + 1.0 / float(weights[known].sum())), 1.0)
    factor = weighted_quantile(needed[known], weights[known], level)

    def moved(tail: Tail) -> Tail:
        return tail.model_copy(update={"distance": factor * tail.distance})

    tested = replace(tested, slower=factor * tested.slower, faster=factor * tested.faster)
    return Spread(slower=moved(spread.slower), faster=moved(spread.faster)), tested
