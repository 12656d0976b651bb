"""Topologies and the network of a system: shape, links, diameter, bisection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typing_extensions import TypedDict

from meshwright.base.units import format_si
from meshwright.topology.network import Topology

Shaped = Mapping[str, Topology | None]
"""Topologies by name for one number of devices; None where it has no such shape."""


def topologies_lines(num_devices: int, shaped: Shaped) -> Iterator[str]:
    """Yield a table of topologies with links of one bandwidth."""
    yield f"{num_devices} devices, the bisection in links of one direction (<= : a bound)"
    yield ""
    yield f"{'topology':<16} {'shape':<48} {'links':>7} {'diameter':>9} {'bisection':>11}"
    for name, topology in shaped.items():
        if topology is None:
            yield f"{name:<16} no shape of {num_devices}"
            continue
        sign = "" if topology.bisection_is_exact else "<= "
        bisection = f"{sign}{topology.bisection_bytes_per_s:g}"
        yield (
            f"{name:<16} {topology.shape:<48} {topology.num_links:>7} {topology.diameter:>9} "
            f"{bisection:>11}"
        )


class NetworkRecord(TypedDict):
    """Closed forms of a topology."""

    num_links: int
    diameter: int
    bisection_bytes_per_s: float
    bisection_is_exact: bool


class TopologyRecord(NetworkRecord):
    """A topology in its usual shape, with links of 1 byte/s."""

    shape: str


class TopologiesRecord(TypedDict):
    """Every topology in its usual shape for a number of devices."""

    num_devices: int
    topologies: Mapping[str, TopologyRecord | None]
    """Topology by name; null: no shape for this number of devices."""


def topologies_record(num_devices: int, shaped: Shaped) -> TopologiesRecord:
    """Return the topologies as data; a link carries 1 byte/s."""
    return {
        "num_devices": num_devices,
        "topologies": {
            name: None
            if topology is None
            else {"shape": topology.shape, **network_record(topology)}
            for name, topology in shaped.items()
        },
    }


def network_line(topology: Topology) -> str:
    """Return the links, diameter and bisection of a network, in one line."""
    bound = "" if topology.bisection_is_exact else "at most "
    bisection = format_si(topology.bisection_bytes_per_s, "B/s")
    return (
        f"network: {topology.num_links} links, {topology.diameter} hops across, "
        f"bisection {bound}{bisection}"
    )


def network_record(topology: Topology) -> NetworkRecord:
    """Return the closed forms of a topology."""
    return {
        "num_links": topology.num_links,
        "diameter": topology.diameter,
        "bisection_bytes_per_s": topology.bisection_bytes_per_s,
        "bisection_is_exact": topology.bisection_is_exact,
    }
