"""Ways to give predictions an 80 % interval, judged on sources that none of them knows.

    python benchmarks/interval_schemes.py        # two minutes

For each source, with others of its vendor: constants fitted without it, intervals made from the
errors of the other sources under fits without both. Prints the share of rows inside, the interval
score (small is good), and the median half-width, all rows together and source by source.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from meshwright.base.arrays import FloatArray, weighted_quantile
from meshwright.calibration.errors import SHARE
from meshwright.calibration.fit.spread import fit_spread, nested
from meshwright.calibration.fit.training import Fit, fit, fit_rows
from meshwright.calibration.rows import published
from meshwright.search.intervals import TRAITS

ROWS_OF_POOL = 20
"""Rows as which the quantile of all rows counts beside those of a kind."""
Ends = tuple[FloatArray, FloatArray]
"""Of the intervals of ln(predicted / measured), each (rows,)."""
Scheme = Callable[[FloatArray, FloatArray, FloatArray], Ends]
"""From errors (NaN: not known), degrees of traits and weights of all rows to their intervals."""


def quantiles(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Ends:
    """The same quantiles of all errors: not even about the prediction."""
    known = ~np.isnan(errors)
    ends = [
        weighted_quantile(errors[known], weights[known], p)
        for p in ((1 - SHARE) / 2, (1 + SHARE) / 2)
    ]
    return np.full(len(errors), ends[0]), np.full(len(errors), ends[1])


def one_width(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Ends:
    """One width for all rows, even about the prediction."""
    known = ~np.isnan(errors)
    half = np.full(len(errors), weighted_quantile(np.abs(errors[known]), weights[known], SHARE))
    return -half, half


def kinds(errors: FloatArray, degrees: FloatArray, weights: FloatArray) -> Ends:
    """A width for each combination of traits, drawn towards that of all rows where it has few."""
    known, half = ~np.isnan(errors), one_width(errors, degrees, weights)[1]
    for kind in np.unique(degrees, axis=0):
        alike = (degrees == kind).all(axis=1)
        own = alike & known
        if own.any():
            mine = np.log(weighted_quantile(np.abs(errors[own]), weights[own], SHARE))
            share = own.sum() / (own.sum() + ROWS_OF_POOL)
            half[alike] = np.exp(share * mine + (1 - share) * np.log(half[alike]))
    return -half, half


def traits(
    errors: FloatArray, degrees: FloatArray, weights: FloatArray, used: tuple[str, ...] = TRAITS
) -> Ends:
    """A factor of the width for each trait, held by what is expected of it."""
    degrees = degrees * np.isin(TRAITS, used)
    spread = fit_spread(errors, degrees, weights)
    half = np.array([spread.of(dict(zip(TRAITS, row, strict=True))) for row in degrees])
    return -half, half


SCHEMES: dict[str, Scheme] = {
    "quantiles of all rows": quantiles,
    "one width": one_width,
    "widths of kinds": kinds,
    "factors of traits": traits,
}
for left_out in TRAITS:
    rest = tuple(name for name in TRAITS if name != left_out)
    SCHEMES[f"  without {left_out}"] = partial(traits, used=rest)


def judged(found: Fit, scheme: Scheme) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return whether each row lies inside, its score, and half of its width."""
    errors, ends = found.left_out_errors, np.full((2, len(found.errors)), np.nan)
    for mine, known, degrees in nested(found):
        ends[:, mine] = np.array(scheme(known, degrees, found.rows.weights))[:, mine]
    low, high = ends
    outside = np.maximum(low - errors, 0.0) + np.maximum(errors - high, 0.0)
    return outside == 0.0, high - low + 2.0 / (1.0 - SHARE) * outside, (high - low) / 2.0


def main() -> None:
    """Print a line for each scheme."""
    found = fit(fit_rows(published("training")))
    groups = np.array(found.rows.groups)
    names = list(dict.fromkeys(found.rows.groups))
    print("inside by source: " + ", ".join(names))
    print(f"{'':<24}{'inside':>7}{'score':>8}{'half':>7}   inside by source")
    for name, scheme in SCHEMES.items():
        inside, score, half = judged(found, scheme)
        shares = "".join(f"{inside[groups == group].mean():>6.0%}" for group in names)
        print(
            f"{name:<24}{inside.mean():>7.1%}{score.mean():>8.3f}{np.median(half):>7.1%}   {shares}"
        )


if __name__ == "__main__":
    main()
