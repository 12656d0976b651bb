"""Curves of kernels fitted to measured times: one for each chip and variant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright_papers.kernels.curves import Curve, curve_type
from meshwright_papers.kernels.fitted import KernelCurves, Key
from meshwright_papers.kernels.timings import Place, Timings, groups_of, place_of, predicted_s

SOFT = 0.1
"""Error of ln(predicted / measured) beyond which it counts by its size, not its square."""
PULL = 0.1
"""Weight of the expected value of a field; its logarithm is expected within 1."""
STEP = 0.02
STARTS = 2
MOST_ROUNDS = 60


def fit_kernels(tables: Sequence[Timings]) -> KernelCurves:
    """Return curves fitted to the rows of tables that are not held back."""
    found: dict[Key, dict[str, Curve]] = defaultdict(dict)
    for table in tables:
        kept = table.rows(~table.held_back)
        for chip, variant, rows in groups_of(kept):
            place, known = place_of(chip), KernelCurves(found)
            found[table.kernel.name, variant][chip] = fit_curve(rows, variant, place, known)
    return KernelCurves(found)


def fit_curve(rows: Timings, variant: str, place: Place, known: KernelCurves) -> Curve:
    """Return the curve of one chip and variant with the least error.

    Large errors count by their size (soft L1), so that a few rows on which another kernel ran do
    not bend the curve. The best of some starts is taken; starts are drawn from a fixed seed.
    """
    kind = curve_type(rows.kernel.name, variant)
    moved = [entry for entry in fields(kind) if "range" in entry.metadata]
    picked = [entry for entry in fields(kind) if "choices" in entry.metadata]
    expected = np.log([kind().numbers[entry.name] for entry in moved])
    lowest, highest = np.log([entry.metadata["range"] for entry in moved]).T
    measured = np.log(rows.measured_s)
    best: tuple[float, Curve] | None = None
    for choice in product(*(entry.metadata["choices"] for entry in picked)):
        given = replace(
            kind(), **{entry.name: value for entry, value in zip(picked, choice, strict=True)}
        )

        def curve_at(values: FloatArray, given: Curve = given) -> Curve:
            numbers = {e.name: float(v) for e, v in zip(moved, np.exp(values), strict=True)}
            return replace(given, **numbers)

        def errors_at(values: FloatArray) -> FloatArray:
            predicted = predicted_s(rows, variant, place, curve_at(values), known)
            errors: FloatArray = np.log(predicted) - measured
            return errors

        cost, values = _solved(errors_at, expected, lowest, highest)
        if best is None or cost < best[0]:
            best = cost, curve_at(values)
    assert best is not None
    return best[1]


def _solved(
    errors_at: Callable[[FloatArray], FloatArray], expected: FloatArray, lowest: FloatArray,
    highest: FloatArray,
) -> tuple[float, FloatArray]:  # fmt: skip
    """Return the least cost and the point that reaches it, of several starts within the bounds."""
    from scipy.optimize import least_squares

    def residuals(values: FloatArray) -> FloatArray:
        return np.concatenate([errors_at(values), PULL * (values - expected)])

    def slopes(values: FloatArray) -> FloatArray:
        columns = []
        for number in range(len(values)):
            up, down = values.copy(), values.copy()
            up[number] = min(up[number] + STEP, highest[number])
            down[number] = max(down[number] - STEP, lowest[number])
            columns.append((residuals(up) - residuals(down)) / (up[number] - down[number]))
        return np.array(columns).T

    draws, margin = np.random.default_rng(0), 1e-3 * (highest - lowest)
    found: list[tuple[float, FloatArray]] = []
    for number in range(STARTS):
        start = expected + (draws.normal(0.0, 0.5, len(expected)) if number else 0.0)
        result = least_squares(
            residuals, np.clip(start, lowest + margin, highest - margin), jac=slopes,
            bounds=(lowest, highest), loss="soft_l1", f_scale=SOFT, max_nfev=MOST_ROUNDS,
            xtol=1e-4, ftol=1e-5,
        )  # fmt: skip
        found.append((float(result.cost), result.x))
    return min(found, key=lambda entry: entry[0])


def curves_text(curves: KernelCurves, name: str, command: str) -> str:
    """Return the file of some curves."""
    lines = [f"# Written by {command}; not by hand.", f"name: {name}", "curves:"]
    kernels: dict[str, dict[str, Mapping[str, Curve]]] = defaultdict(dict)
    for (kernel, variant), chips in curves.fitted.items():
        kernels[kernel][variant] = chips
    for kernel, variants in kernels.items():
        lines.append(f"  {kernel}:")
        for variant, chips in variants.items():
            lines.append(f"    {variant}:")
            for chip, curve in chips.items():
                numbers = ", ".join(f"{key}: {value:.4g}" for key, value in curve.numbers.items())
                lines.append(f"      {chip}: {{{numbers}}}")
    return "\n".join(lines) + "\n"
