"""Width of intervals: errors of rows left out, by the traits of their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, weighted_quantile
from meshwright.calibration.errors import SHARE, interval_score
from meshwright.calibration.fit.training import NOTHING, Fit, FitRows, Stacks
from meshwright.search.intervals import EXPERTS, TRAITS, UNNAMED, distances_of, traits_of
from meshwright.spec.calibration import Spread, Tail

EXPECTED_FACTOR = 2.0
"""Expected factor by which a trait widens an interval, before any row is used."""
FACTOR_SPREAD = 0.5
"""Standard deviation of the logarithm of this factor."""
ONE_SIDED = (1.0 + SHARE) / 2.0
"""Share of measurements that are not beyond one end."""
MOST_FACTOR = 4.0
"""Largest factor of a trait on an interval: few sources say anything about the host."""
TOLD_APART = 0.1
"""Degree of a trait from which a row counts as having it."""
LEAST_SIZE = 1e-9
"""Size of an error where none is on one side."""


@dataclass(frozen=True)
class Known:
    """Rows with their framework, then without it, with errors of fits that left them out."""

    errors: FloatArray
    """ln(predicted / measured), (rows,); NaN: not known."""
    degrees: FloatArray
    """Degrees of the traits, (rows, traits)."""
    weights: FloatArray
    """Weights: each source counts once with its framework, and once without, because the next one
    is new."""
    groups: tuple[str, ...]


@dataclass(frozen=True)
class HeldOut:
    """Rows of sources left out of the constants and of the spread, with their intervals."""

    errors: FloatArray
    """ln(predicted / measured), (rows,)."""
    slower: FloatArray
    """Distance of the slow end of the interval of each row, (rows,)."""
    faster: FloatArray
    kinds: Mapping[str, BoolArray]
    """Rows of each property that rows share, (rows,)."""
    groups: tuple[str, ...]

    @property
    def inside(self) -> BoolArray:
        """Whether each row lies inside its interval, (rows,)."""
        return np.asarray((self.errors <= self.slower) & (-self.errors <= self.faster))

    @property
    def scores(self) -> FloatArray:
        """The interval score of each row."""
        return interval_score(self.errors, self.slower, self.faster)


def spread_of(found: Fit) -> Spread | None:
    """Return the distance of rows from predictions made without their source."""
    known = known_of(found, NOTHING)
    return fit_spread(known.errors, known.degrees, known.weights)


def held_out(found: Fit) -> HeldOut | None:
    """Return rows with intervals made without their source; None: too few sources."""
    truth = known_of(found, NOTHING)
    ends = np.full((2, len(truth.errors)), np.nan)
    for mine, known in nested(found):
        spread = fit_spread(known.errors, known.degrees, known.weights)
        if spread is None:
            return None
        ends[:, mine] = ends_of(spread, known.degrees[mine], TRAITS)
    return HeldOut(truth.errors, ends[0], ends[1], _kinds(truth.degrees), truth.groups)


def _kinds(degrees: FloatArray) -> dict[str, BoolArray]:
    """Return the rows of each trait, (rows,); all but one with their framework."""
    has: BoolArray = degrees > TOLD_APART
    unnamed = has[:, TRAITS.index(UNNAMED)]
    named = {name: mine & ~unnamed for name, mine in zip(TRAITS, has.T, strict=True)}
    sparse = named.pop(EXPERTS)
    del named[UNNAMED]
    return {
        "framework named": ~unnamed, "framework not named": unnamed, "dense": ~sparse & ~unnamed,
        EXPERTS: sparse, **named,
    }  # fmt: skip


def ends_of(spread: Spread, degrees: FloatArray, names: Sequence[str]) -> FloatArray:
    """Return the distances of the slow and the fast end of the interval of each row, (2, rows)."""
    traits = (dict(zip(names, row, strict=True)) for row in degrees)
    return np.array([distances_of(spread, one) for one in traits]).T


def nested(found: Fit) -> Iterator[tuple[BoolArray, Known]]:
    """Yield, for each stack, its rows, and the errors of all others.

    Errors are those of fits without the stack and without that of each row; NaN for its own rows.
    """
    parts = 1 if found.unnamed is None else 2
    stacks = np.array(found.rows.stacks * parts)
    for stack in dict.fromkeys(found.rows.stacks):
        mine = stacks == stack
        known = known_of(found, frozenset({stack}))
        yield (
            mine,
            Known(np.where(mine, np.nan, known.errors), known.degrees, known.weights, known.groups),
        )


def known_of(found: Fit, without: Stacks) -> Known:
    """Return the errors of rows under fits without some stacks and without that of each row.

    A row that names no framework counts once, without one.
    """
    named = np.array([job.row.framework is not None for job in found.rows.jobs])
    errors = found.left_out_errors_without(without)
    parts = [(found, np.where(named, errors, np.nan) if found.unnamed else errors)]
    if found.unnamed is not None:
        parts.append((found.unnamed, found.unnamed.left_out_errors_without(without)))
    groups = np.array(found.rows.groups)
    counts = {group: float((groups == group).sum()) for group in dict.fromkeys(found.rows.groups)}
    return Known(
        errors=np.concatenate([errors for _, errors in parts]),
        degrees=np.vstack([degrees_of(part, without) for part, _ in parts]),
        weights=np.array([1.0 / counts[group] for group in found.rows.groups] * len(parts)),
        groups=tuple(found.rows.groups * len(parts)),
    )


def degrees_of(found: Fit, without: Stacks) -> FloatArray:
    """Return the degrees of the traits of each row, (rows, traits).

    A family is unseen where no other stack has rows of it, but for those that are left out.
    """
    rows: FitRows = found.rows
    pairs = set(zip(rows.families, rows.stacks, strict=True))
    degrees = []
    shares = np.nan_to_num(found.host_shares_left_out(without))
    for job, family, stack, share in zip(
        rows.jobs, rows.families, rows.stacks, shares, strict=True
    ):
        witnesses = {s for f, s in pairs if f == family} - without - {stack}
        traits = traits_of(job.problem, is_seen=bool(witnesses), host_share=share)
        degrees.append([traits[name] for name in TRAITS])
    return np.array(degrees)


def fit_spread(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Spread | None:
    """Return the spread of errors that are known, not NaN; None: no error is.

    Parameters
    ----------
    errors
        ln(predicted / measured), (rows,).
    degrees
        Degrees of the traits, (rows, traits).
    weights
        Weights of the rows, (rows,).
    """
    return spread_by(_tail, errors, degrees, weights)


def spread_by(
    tail: Callable[[FloatArray, FloatArray, FloatArray], Tail],
    errors: FloatArray, degrees: FloatArray, weights: FloatArray,
) -> Spread | None:  # fmt: skip
    """Return the spread with both ends by one rule; None: no error is known."""
    known = ~np.isnan(errors)
    if not known.any():
        return None
    errors, degrees, weights = errors[known], degrees[known], weights[known]
    return Spread(slower=tail(errors, degrees, weights), faster=tail(-errors, degrees, weights))


def _tail(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Tail:
    """Return the distance beyond which one in ten rows lies, for each trait a factor."""
    logs = _log_scales(np.maximum(errors, 0.0), weights, degrees)
    scales = np.exp(logs[0] + degrees @ logs[1:])
    factors = {name: float(np.exp(log)) for name, log in zip(TRAITS, logs[1:], strict=True)}
    beyond = max(weighted_quantile(errors / scales, weights, ONE_SIDED), 0.0)
    return Tail(distance=float(np.exp(logs[0])) * beyond, factors=factors)


def _log_scales(sizes: FloatArray, weights: FloatArray, degrees: FloatArray) -> FloatArray:
    """Return the log of the mean size of errors and of the factor of each trait.

    Sizes are taken as exponential with a mean of exp(b0 + degrees b); b is the most likely one with
    factors held near their expected values: no trait makes a prediction more certain.
    """
    from scipy.optimize import minimize

    weights = weights * len(weights) / weights.sum()
    matrix = np.column_stack([np.ones(len(sizes)), degrees])
    mean = max(float(np.average(sizes, weights=weights)), LEAST_SIZE)
    start = np.log([mean, *[EXPECTED_FACTOR] * degrees.shape[1]])

    def unlikely(logs: FloatArray) -> tuple[float, FloatArray]:
        scaled = sizes * np.exp(-matrix @ logs)
        away = (logs[1:] - start[1:]) / FACTOR_SPREAD
        value = weights @ (scaled + matrix @ logs) + 0.5 * (away @ away)
        slope = matrix.T @ (weights * (1.0 - scaled))
        slope[1:] += away / FACTOR_SPREAD
        return float(value), slope

    bounds = [(np.log(LEAST_SIZE), None), *[(0.0, float(np.log(MOST_FACTOR)))] * degrees.shape[1]]
    return np.asarray(minimize(unlikely, start, jac=True, method="L-BFGS-B", bounds=bounds).x)
