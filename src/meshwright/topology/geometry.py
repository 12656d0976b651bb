"""Where nodes lie (x to the right, y downwards) and how long links are.

Nodes are one metre apart where no pitch is known; links that are too long for plain signalling
need error correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.network import Network

NOMINAL_PITCH_M = 1.0


def near_square(number: int) -> tuple[int, int]:
    """Return the two factors of a number that are nearest to one another, the smaller first."""
    short = next(d for d in range(math.isqrt(number), 0, -1) if number % d == 0)
    return short, number // short


def circle_m(number: int) -> FloatArray:
    """Return the places of this many nodes on a circle, neighbours a pitch apart along it [m]."""
    radius_m = NOMINAL_PITCH_M * number / (2 * np.pi)
    angle = 2 * np.pi * np.arange(number) / number
    return radius_m * np.column_stack([np.sin(angle), -np.cos(angle)])


def row_m(number: int, width_m: float, height_m: float) -> FloatArray:
    """Return the places of this many nodes spread over a row of a width, at a height [m]."""
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


MAX_INTERPOSER_LINK_M = 50e-3
"""Longest link on an interposer without error correction (TEMP, arXiv 2512.14256, II-B) [m]."""
ERROR_CORRECTED_LATENCY_S = 210e-9
"""Latency of a link with forward error correction (TEMP, citing Sella 2018) [s]."""


def link_length_m(network: Network) -> FloatArray:
    """Return the length of each link: along x and y, from centre to centre [m]."""
    ends = network.position_m[network.target] - network.position_m[network.source]
    length_m: FloatArray = np.abs(ends).sum(axis=1)
    return length_m


def too_long_links(network: Network, max_length_m: Sequence[float | None]) -> IntArray:
    """Return the links that are longer than those of their level may be.

    Parameters
    ----------
    max_length_m
        For each level, innermost first; None where any length will do [m].
    """
    limits_m = np.array([np.inf if limit is None else limit for limit in max_length_m])
    if not len(limits_m):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(link_length_m(network) > limits_m[network.level] * (1 + 1e-9))


def with_error_correction(network: Network, links: IntArray) -> Network:
    """Return the network with the latency that these links have with error correction."""
    latency_s = network.latency_s.copy()
    latency_s[links] = np.maximum(latency_s[links], ERROR_CORRECTED_LATENCY_S)
    return replace(network, latency_s=latency_s)
