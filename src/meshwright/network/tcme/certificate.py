"""How far a routing can be from the best one: a lower bound, and what whole messages add to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray

_ALIKE = 1e-9
_FINEST = 1e-3
"""Common divisors below this share of the smallest message are taken to be noise."""


@dataclass(frozen=True)
class Certificate:
    """The time of a routing and a proven lower bound on that of every routing."""

    z_s: float
    """Time that the busiest link takes [s]."""
    bound_s: float
    """No routing is faster than this [s]."""
    method: str
    """Which bound: ``cut``, ``dual`` or ``lp``; with ``whole`` where messages cannot be cut."""

    @property
    def gap(self) -> float:
        """Return z / bound - 1 [1]: 0 where the routing is proven best."""
        return self.z_s / self.bound_s - 1 if self.bound_s > 0 else 0.0


def common_divisor(num_bytes: FloatArray) -> float:
    """Return the largest size of which all messages are multiples [bytes]; 0 where none is."""
    sizes = np.unique(num_bytes[num_bytes > 0])
    if not len(sizes):
        return 0.0
    least = float(sizes[0])
    divisor = least
    for size in sizes[1:].tolist():
        rest = size
        while rest > _ALIKE * least:
            divisor, rest = rest, divisor % rest
            rest = 0.0 if divisor - rest <= _ALIKE * least else rest
        if divisor < _FINEST * least:
            return 0.0
    return divisor


def round_up(bound_s: float, divisor_bytes: float, bandwidth_bytes_per_s: FloatArray) -> float:
    """Return the least time from the bound on that some link can take with whole messages [s].

    A link of bandwidth c carries a multiple of g bytes, so z is one of k g / c.
    """
    if divisor_bytes <= 0 or not len(bandwidth_bytes_per_s):
        return bound_s
    unit_s = divisor_bytes / np.unique(bandwidth_bytes_per_s)
    return float((np.ceil(bound_s / unit_s * (1 - _ALIKE)) * unit_s).min())
