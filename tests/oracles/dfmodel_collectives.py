"""Collectives of DFModel (Ko et al. 2024, arXiv 2412.16432) that no command prices: their times.

Times have no latency, and a ring takes half of what it takes in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshwright.dataflow.dfmodel_rules import DimKind, NetworkDim, all_reduce_s


def gather_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-gather or a reduce-scatter: half an all-reduce [s]."""
    return all_reduce_s(num_bytes, dim) / 2.0


def broadcast_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a broadcast: (n - 1)/2 S/B on a ring, S/(2 B) elsewhere [s]."""
    share = (dim.size - 1) / 2.0 if dim.kind is DimKind.RING else 0.5
    return share * num_bytes / dim.bandwidth_bytes_per_s


def all_to_all_s(message_bytes: float, dims: Sequence[NetworkDim]) -> float:
    """Return the time of an all-to-all: what crosses the middle of each dimension over its links.

    Each of N devices sends a message to each other one. The messages across a middle are N^2/4,
    for the first dimension of a network that is no torus n^2/4 of its own n devices.
    """
    is_torus = all(dim.kind is DimKind.RING for dim in dims)
    total = prod(dim.size for dim in dims)
    times = []
    for place, dim in enumerate(dims):
        size = total if is_torus or place else dim.size
        links = _links_across(dims, place)
        times.append(message_bytes * size**2 / 4.0 / (dim.bandwidth_bytes_per_s * links))
    return max(times)


def _links_across(dims: Sequence[NetworkDim], place: int) -> float:
    """Return the links over the middle of a dimension."""
    dim = dims[place]
    if dim.kind is DimKind.SWITCH:
        return dim.size
    if dim.kind is DimKind.FULL:
        return dim.size**2 / 4.0
    is_torus = len(dims) > 1 and all(other.kind is DimKind.RING for other in dims)
    return prod(other.size for other in dims if other is not dim) if is_torus else 2.0
