"""Networks of systems as DFModel (Ko et al. 2024, arXiv 2412.16432) describes them; their price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from meshwright.spec.system import LevelKind, SystemSpec

DRAM_PRICE, LINK_PRICE, SWITCH_PRICE = 1.0, 2.0, 24.0
"""Prices of each GB/s, in units of the peer."""
_GB = 1e9


class DimKind(StrEnum):
    """Connection of the members along one dimension of a network."""

    RING = "ring"
    FULL = "fully_connected"
    SWITCH = "switch"


@dataclass(frozen=True)
class NetworkDim:
    """One dimension of a network."""

    kind: DimKind
    size: int
    bandwidth_bytes_per_s: float
    """Bandwidth of one link."""


KINDS: dict[LevelKind, DimKind] = {
    "torus": DimKind.RING, "mesh": DimKind.RING,
    "switch": DimKind.SWITCH, "fully_connected": DimKind.FULL,
    "fat_tree": DimKind.SWITCH, "dragonfly": DimKind.SWITCH,
}  # fmt: skip


def price_units(system: SystemSpec) -> float:
    """Return the price of memories, links and switches in DFModel units; chips are free there.

    2 for each GB/s of a link, 24 for each of a switch port, 1 for each of DRAM (Ko et al. 2024,
    arXiv 2412.16432). A mesh costs the same as a torus, a fat tree and a dragonfly as a switch.
    Outer groups that are fully connected are joined by one link there; it is as wide as the links
    of all pairs of devices.
    """
    dims = network_dims(system)
    total = prod(dim.size for dim in dims)
    joined = [
        replace(dim, bandwidth_bytes_per_s=dim.bandwidth_bytes_per_s * total / dim.size)
        if place and dim.kind is DimKind.FULL
        else dim
        for place, dim in enumerate(dims)
    ]
    return network_price(joined, system.chip.main_memory.bandwidth_bytes_per_s or 0.0)


def network_price(dims: Sequence[NetworkDim], dram_bytes_per_s: float) -> float:
    """Return the price of memories, links and switches of all devices, chips left out."""
    total = prod(dim.size for dim in dims)
    price = DRAM_PRICE * total * dram_bytes_per_s / _GB
    for place, dim in enumerate(dims):
        links, switches = _links_and_ports(dim, total, is_inner=place == 0)
        rate = dim.bandwidth_bytes_per_s / _GB
        price += rate * (LINK_PRICE * links + SWITCH_PRICE * switches)
    return price


def _links_and_ports(dim: NetworkDim, total: int, *, is_inner: bool) -> tuple[float, float]:
    """Return the number of links and of switch ports of a dimension.

    A ring counts two ports. Outer groups that are fully connected are joined once, by switches.
    """
    n = dim.size
    if dim.kind is DimKind.RING:
        return total, 2.0 * total / n
    if dim.kind is DimKind.SWITCH:
        return total, total
    return (n * (n - 1) * total / n, 0.0) if is_inner else (n * (n - 1), n**2)


def network_dims(system: SystemSpec) -> list[NetworkDim]:
    """Return the network of a system as DFModel describes it, the innermost dimension first.

    In a fully connected group, a device spreads its rate over the links to all others.
    """
    found = []
    for level in system.levels:
        kind = KINDS[level.kind]
        links = level.size - 1 if kind is DimKind.FULL else 1
        rate = level.bandwidth_bytes_per_s * level.links_per_device / max(links, 1)
        found.append(NetworkDim(kind, level.size, rate))
    return found
