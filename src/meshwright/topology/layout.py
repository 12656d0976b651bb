"""Where nodes are drawn: x to the right, y downwards, one metre apart where no pitch is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshwright.base.arrays import FloatArray

NOMINAL_PITCH_M = 1.0


def near_square(number: int) -> tuple[int, int]:
    """Return the two factors of a number that are nearest to one another, the smaller first."""
    short = next(d for d in range(math.isqrt(number), 0, -1) if number % d == 0)
    return short, number // short


def circle_m(number: int) -> FloatArray:
    """Return the places of so many nodes on a circle, neighbours a pitch apart along it [m]."""
    radius_m = NOMINAL_PITCH_M * number / (2 * np.pi)
    angle = 2 * np.pi * np.arange(number) / number
    return radius_m * np.column_stack([np.sin(angle), -np.cos(angle)])


def row_m(number: int, width_m: float, height_m: float) -> FloatArray:
    """Return the places of so many nodes spread over a row of a width, at a height [m]."""
    x_m = (np.arange(number) + 0.5) * width_m / number
    return np.column_stack([x_m, np.full(number, -height_m)])


def grid_m(sides: Sequence[int], pitches_m: Sequence[float]) -> FloatArray:
    """Return the places of the devices of a grid [m].

    The last side runs along x, the one before it along y; further sides do so in turns, each
    behind a gap of one pitch.

    Parameters
    ----------
    sides, pitches_m
        Members of each side, and their distance in it where it is one of the last two [m].
    """
    device = np.arange(math.prod(sides))
    position_m = np.zeros((len(device), 2))
    extent_m = [0.0, 0.0]
    stride = 1
    for turn, (side, pitch_m) in enumerate(zip(reversed(sides), reversed(pitches_m), strict=True)):
        along = turn % 2
        step_m = extent_m[along] + pitch_m * (1 if turn < 2 else 2)
        position_m[:, along] += device // stride % side * step_m
        extent_m[along] += (side - 1) * step_m
        stride *= side
    return position_m
