"""How wide intervals are: errors of rows left out, by the traits of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.errors import SHARE
from meshwright.calibration.fit.training import NOTHING, Fit, FitRows, Stacks
from meshwright.cost.problem import TRAITS, half_width_of, traits_of
from meshwright.spec.calibration import Spread

EXPECTED_FACTOR = 2.0
"""By which a trait is expected to widen an interval, before any row tells."""
FACTOR_SPREAD = 0.5
"""Standard deviation of its logarithm."""
MOST_ROUNDS = 100
SETTLED = 1e-9


@dataclass(frozen=True)
class HeldOut:
    """Rows of sources left out of the constants and of the spread, with their intervals."""

    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    half_widths: FloatArray
    """Of the interval of each, (rows,)."""
    even_half_widths: FloatArray
    """The same, if all rows had one width."""
    degrees: FloatArray
    """Of the traits, (rows, traits)."""

    def kinds(self) -> dict[str, BoolArray]:
        """Return which rows have what in common."""
        has: BoolArray = self.degrees > 0
        plain = ~np.any(has, axis=1)
        found = {"all rows": np.ones(len(has), dtype=bool), "without a trait": plain}
        return found | dict(zip(TRAITS, has.T, strict=True))


def spread_of(found: Fit) -> Spread | None:
    """Return how far rows lie from predictions that know nothing of their source."""
    return fit_spread(found.left_out_errors, degrees_of(found.rows, NOTHING), found.rows.weights)


def held_out(found: Fit) -> HeldOut | None:
    """Return rows with intervals that know nothing of their source; None: too few sources."""
    weights = found.rows.weights
    widths, even = np.full(len(weights), np.nan), np.full(len(weights), np.nan)
    for mine, errors, degrees in nested(found):
        spread = fit_spread(errors, degrees, weights)
        if spread is None:
            return None
        traits = (dict(zip(TRAITS, row, strict=True)) for row in degrees[mine])
        widths[mine] = [half_width_of(spread, one) for one in traits]
        even[mine] = quantile(np.abs(errors[~mine]), weights[~mine], SHARE)
    return HeldOut(found.left_out_errors, widths, even, degrees_of(found.rows, NOTHING))


def nested(found: Fit) -> Iterator[tuple[BoolArray, FloatArray, FloatArray]]:
    """Yield, for each stack, its rows, the errors of the others, and the degrees of all traits.

    Errors are those of fits without the stack and without that of each row; NaN for its own rows.
    """
    stacks = np.array(found.rows.stacks)
    for stack in dict.fromkeys(found.rows.stacks):
        mine, without = stacks == stack, frozenset({stack})
        errors = np.where(mine, np.nan, found.left_out_errors_without(without))
        yield mine, errors, degrees_of(found.rows, without)


def degrees_of(rows: FitRows, without: Stacks) -> FloatArray:
    """Return the degrees of the traits of each row, (rows, traits).

    A family is unseen where no other stack has rows of it, but for those that are left out.
    """
    pairs = set(zip(rows.families, rows.stacks, strict=True))
    found = []
    for job, family, stack in zip(rows.jobs, rows.families, rows.stacks, strict=True):
        witnesses = {s for f, s in pairs if f == family} - without - {stack}
        traits = traits_of(job.problem, is_seen=bool(witnesses))
        found.append([traits[name] for name in TRAITS])
    return np.array(found)


def fit_spread(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Spread | None:
    """Return the spread of errors that are known, not NaN; None: no error is.

    Parameters
    ----------
    errors
        ln(predicted / measured), (rows,).
    degrees
        Of traits, (rows, traits).
    weights
        Of rows, (rows,).
    """
    known = ~np.isnan(errors)
    if not known.any():
        return None
    sizes, degrees, weights = np.abs(errors[known]), degrees[known], weights[known]
    logs = _log_scales(sizes, weights, degrees)
    scales = np.exp(logs[0] + degrees @ logs[1:])
    factors = {name: float(np.exp(log)) for name, log in zip(TRAITS, logs[1:], strict=True)}
    half_width = float(np.exp(logs[0])) * quantile(sizes / scales, weights, SHARE)
    return Spread(half_width=half_width, factors=factors)


def _log_scales(sizes: FloatArray, weights: FloatArray, degrees: FloatArray) -> FloatArray:
    """Return the log of the mean size of errors and of the factor of each trait.

    Sizes are taken as exponential with a mean of exp(b0 + degrees b); the most likely b is found
    by Fisher's scoring, factors held by what is expected of them.
    """
    matrix = np.column_stack([np.ones(len(sizes)), degrees])
    prior = np.concatenate([[0.0], np.full(degrees.shape[1], np.log(EXPECTED_FACTOR))])
    hold = np.diag(np.concatenate([[0.0], np.full(degrees.shape[1], FACTOR_SPREAD**-2)]))
    curvature = matrix.T @ (matrix * weights[:, None]) + hold
    logs = np.concatenate([[np.log(np.average(sizes, weights=weights))], prior[1:]])
    for _ in range(MOST_ROUNDS):
        excess = weights * (sizes * np.exp(-matrix @ logs) - 1.0)
        step = np.linalg.solve(curvature, matrix.T @ excess - hold @ (logs - prior))
        logs = logs + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < SETTLED:
            break
    return np.asarray(logs, dtype=float)


def quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the value at or below which a share of the weight lies."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])])
