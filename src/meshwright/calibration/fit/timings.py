"""Constants fitted to timings of single kernels: half of the timings, the others are kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray
from meshwright.calibration.fit.constants import FittedConstant, Free, Key, two_deviations
from meshwright.calibration.fit.training import STEP, robust_step, solved
from meshwright.calibration.rows import DATA

NOISE = 0.1
"""Error below which a timing counts squared, in logarithms."""


def stored_timings(name: str) -> dict[str, Any]:
    """Return a stored table of timings: its source, the names of its columns, and its rows."""
    content: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return content


@dataclass(frozen=True)
class TimingFit:
    """Constants fitted to timings, with the error of the timings kept apart."""

    free: Sequence[Free]
    values: FloatArray
    """Logarithms of the constants."""
    spreads: FloatArray
    """Deviations of the logarithms; they hold the scatter of the timings too."""
    apart: float
    """Median error of the timings kept apart, in logarithms."""
    num_timings: int

    def constants(self, place: str = "") -> Iterator[FittedConstant]:
        """Yield each constant with its interval."""
        why = f"fitted to {self.num_timings:,} timings of kernels; half of them kept apart: "
        why += f"{self.apart:.0%} off"
        for free, value, spread in zip(self.free, self.values, self.spreads, strict=True):
            middle, low, high = two_deviations(value, spread).tolist()
            yield FittedConstant(free.name, middle, low, high, why, part="serving", place=place)


def fit_timings(
    free: Sequence[Free], errors_of: Callable[[FloatArray], FloatArray], is_apart: BoolArray
) -> TimingFit:
    """Return the constants of least robust error.

    Parameters
    ----------
    errors_of
        Errors of all timings for logarithms of the constants.
    """
    keys = [Key(each) for each in free]
    weights = np.ones(int((~is_apart).sum()))

    def errors_and_slopes(values: FloatArray) -> tuple[FloatArray, FloatArray]:
        moved = values + STEP * np.vstack([np.zeros(len(values)), np.eye(len(values))])
        errors = np.array([errors_of(each)[~is_apart] for each in moved])
        return errors[0], (errors[1:] - errors[0]).T / STEP

    priors = np.log([each.prior for each in free])
    values, errors, slopes = solved(errors_and_slopes, keys, priors, weights, NOISE)
    spreads = robust_step(errors, slopes, weights, keys, values, NOISE)[1]
    apart = float(np.median(np.abs(errors_of(values)[is_apart])))
    return TimingFit(free, values, float(np.median(np.abs(errors))) + spreads, apart, len(is_apart))
