"""How long links are, and what becomes of those too long for plain signalling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.network import Network

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
