"""The peer's collectives by the kind of a network dimension, and its prices of networks.

A network has one dimension for each way to split the work. Times have no latency, and a ring takes
half of what it takes in one direction, as if all of its links sent twice. Rates are those of one
link. Source: the public implementation of Ko et al. 2024 (arXiv 2412.16432).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

DRAM_PRICE, LINK_PRICE, SWITCH_PRICE = 1.0, 2.0, 24.0
"""Of each GB/s, in units of the peer."""
_GB = 1e9


class DimKind(StrEnum):
    """How the members along one dimension of a network are joined."""

    RING = "ring"
    FULL = "fully_connected"
    SWITCH = "switch"


@dataclass(frozen=True)
class NetworkDim:
    """One dimension of a network."""

    kind: DimKind
    size: int
    bandwidth_bytes_per_s: float
    """Of one link."""


def all_reduce_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-reduce: (n - 1)/n S/B, 2 S/(n B) where fully connected [s]."""
    n = dim.size
    share = 2.0 / n if dim.kind is DimKind.FULL else (n - 1) / n
    return share * num_bytes / dim.bandwidth_bytes_per_s


def gather_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of an all-gather or a reduce-scatter: half an all-reduce [s]."""
    return all_reduce_s(num_bytes, dim) / 2.0


def broadcast_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a broadcast: (n - 1)/2 S/B on a ring, S/(2 B) elsewhere [s]."""
    share = (dim.size - 1) / 2.0 if dim.kind is DimKind.RING else 0.5
    return share * num_bytes / dim.bandwidth_bytes_per_s


def send_s(num_bytes: float, dim: NetworkDim) -> float:
    """Return the time of a message to a neighbour: S/B [s]."""
    return num_bytes / dim.bandwidth_bytes_per_s


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


def network_price(dims: Sequence[NetworkDim], dram_bytes_per_s: float) -> float:
    """Return the price of memories, links and switches of all devices, chips left out."""
    total = prod(dim.size for dim in dims)
    price = DRAM_PRICE * total * dram_bytes_per_s / _GB
    for place, dim in enumerate(dims):
        links, switches = _parts(dim, total, is_inner=place == 0)
        rate = dim.bandwidth_bytes_per_s / _GB
        price += rate * (LINK_PRICE * links + SWITCH_PRICE * switches)
    return price


def _parts(dim: NetworkDim, total: int, *, is_inner: bool) -> tuple[float, float]:
    """Return the links and the ports of switches of a dimension.

    A ring pays two ports. Outer groups that are fully connected are joined once, by switches.
    """
    n = dim.size
    if dim.kind is DimKind.RING:
        return total, 2.0 * total / n
    if dim.kind is DimKind.SWITCH:
        return total, total
    return (n * (n - 1) * total / n, 0.0) if is_inner else (n * (n - 1), n**2)
