"""The memory of the devices that hold stages, in the order in which the stages are filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Rooms:
    """What each stage has room for; stages beyond the last one stated are like it."""

    capacity_bytes: Sequence[float]
    most_in_flight: int = 1
    """Stage i keeps the activations of ``min(i + 1, most_in_flight)`` micro-batches. Training
    fills stages from the last layer to the first: under 1F1B the i-th stage from the end is i
    passes away from the first gradient. Inference keeps none, so that 1 does."""

    def capacities(self, num_stages: int) -> FloatArray:
        """Return the room of the first stages [bytes]."""
        at = np.minimum(np.arange(num_stages), len(self.capacity_bytes) - 1)
        return np.asarray(self.capacity_bytes, dtype=float)[at]

    def in_flight(self, num_stages: int) -> IntArray:
        """Return the micro-batches whose activations the first stages keep."""
        return np.minimum(np.arange(1, num_stages + 1), self.most_in_flight)
