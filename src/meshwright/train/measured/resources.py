"""The resources of a machine, and the constants that say how much of each a job gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import FloatArray
from meshwright.spec.calibration import CalibrationOf, calibration_columns


@dataclass(frozen=True)
class Resource:
    """Something that work waits for. A factor above 1: work on it takes that much longer."""

    name: str
    title: str
    rates: tuple[str, ...] = ()
    """Constants that are shares of what the data sheet promises: divided by the factor."""
    times: tuple[str, ...] = ()
    """Constants that are seconds, or shares of a step: multiplied by the factor."""

    @property
    def main(self) -> str:
        """The constant that tells how well the resource is known."""
        return (*self.rates, *self.times)[0]


RESOURCES = (
    Resource(
        "compute",
        "matrix units",
        rates=(
            "matmul_sustained_efficiency",
            "attention_forward_efficiency",
            "attention_backward_efficiency",
        ),
    ),
    Resource("memory", "memory traffic", rates=("memory_efficiency", "elementwise_efficiency")),
    Resource("fast_network", "network inside a host or grid", rates=("fast_network_efficiency",)),
    Resource("slow_network", "network between hosts", rates=("slow_network_efficiency",)),
    Resource("launches", "launches by the host", times=("launch_s", "collective_launch_s")),
    Resource("waiting", "waiting for the slowest device", times=("jitter",)),
)
"""In the order in which they are told."""

NAMES = tuple(resource.name for resource in RESOURCES)
SCALED = tuple(name for resource in RESOURCES for name in (*resource.rates, *resource.times))
"""The constants of all resources."""
LEAST_FACTOR = 1e-3
"""Of seconds, which no data sheet bounds."""


def scaled(
    calibration: CalibrationOf[Any], factors: Sequence[Any] | FloatArray
) -> CalibrationOf[Any]:
    """Return the constants under factors of the resources.

    Parameters
    ----------
    factors
        One number, or one column of draws, for each of ``RESOURCES`` [1].
    """
    changed: dict[str, Any] = {}
    for resource, factor in zip(RESOURCES, factors, strict=True):
        changed |= {name: getattr(calibration, name) / factor for name in resource.rates}
        changed |= {name: getattr(calibration, name) * factor for name in resource.times}
    return calibration_columns(calibration, changed)


def lowest_log_factors(calibration: CalibrationOf[float]) -> list[float]:
    """Return ln of the least factor of each resource: no rate is above its data sheet."""
    return [
        math.log(max((getattr(calibration, name) for name in resource.rates), default=LEAST_FACTOR))
        for resource in RESOURCES
    ]


def scaled_intervals(
    intervals: Mapping[str, tuple[float, float]], calibration: CalibrationOf[float],
    widths: Sequence[tuple[float, float]],
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """Return the intervals of constants, those of the resources as wide as their factors."""
    found = dict(intervals)
    for resource, (low, high) in zip(RESOURCES, widths, strict=True):
        for name in resource.rates:
            value = getattr(calibration, name)
            found[name] = (value / high, min(value / low, max(1.0, value)))
        for name in resource.times:
            value = getattr(calibration, name)
            found[name] = (value * low, value * high)
    return found
