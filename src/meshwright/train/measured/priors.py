"""What is expected of the factors before anything is measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.spec.calibration import CalibrationOf
from meshwright.train.measured.resources import RESOURCES, Resource

UNFITTED = 0.15
"""Spread of ln(predicted / measured) that is assumed where constants were not fitted."""
MOST = 0.42
"""No resource is expected to be off by more than a factor of 2, 5th to 95th percentile."""
HALF_OF_80_PERCENT = 1.2816
"""Four of five normal values lie within so many standard deviations of their mean."""


def residual_spread(half_width: float | None) -> float:
    """Return how far measurements of such questions lie from their prediction.

    Parameters
    ----------
    half_width
        Of the 80 % interval of ln(measured / predicted); None: nothing was fitted.

    Returns
    -------
    float
        The standard deviation of a normal error with that interval.
    """
    return UNFITTED if half_width is None else half_width / HALF_OF_80_PERCENT


def prior_spreads(calibration: CalibrationOf[Any], residual: float) -> FloatArray:
    """Return the standard deviation of ln(factor) of each resource before measurements.

    The larger of two, up to ``MOST``: the residual, which any one resource could have caused, and
    what the interval of its constant allows.

    Parameters
    ----------
    residual
        Standard deviation of ln(predicted / measured) of rows left out of the fit.
    """
    widths = [max(residual, _of_interval(calibration, entry)) for entry in RESOURCES]
    return np.minimum(widths, MOST)


def _of_interval(calibration: CalibrationOf[Any], resource: Resource) -> float:
    """Return the standard deviation of the logarithm of a constant that is uniform there.

    Of a lognormal value with the same ratio v of standard deviation to mean: sqrt(ln(1 + v^2)).
    """
    value = getattr(calibration, resource.main)
    low, high = calibration.intervals.get(resource.main, (value, value))
    if value <= 0:
        return 0.0
    variation = (high - low) / math.sqrt(12.0) / value
    return math.sqrt(math.log1p(variation**2))
