"""Collectives of one group, and topologies for one number of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.collectives.bounds import TimedAlgorithm
from meshwright.collectives.group import Group
from meshwright.spec.system import NetworkLevel, SystemSpec
from meshwright.topology.levels import corrected_links, network_of
from meshwright.topology.network import Topology
from meshwright.topology.wafer import io_bytes_per_s


@dataclass(frozen=True)
class Span:
    """A level that a group spans."""

    level: str
    size: float
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Collectives:
    """Algorithms of every kind of collective on a group, fastest first."""

    system: str
    stride: int
    num_bytes: float
    fidelity: str
    devices: Sequence[int]
    spans: Sequence[Span]
    """Levels of the group; empty where it is no block of the levels."""
    collectives: Mapping[str, Sequence[TimedAlgorithm]]


def spans_of(levels: Sequence[NetworkLevel], group: Group[float]) -> list[Span]:
    """Return the levels that a group spans."""
    return [
        Span(level.name, float(span.size), float(span.bandwidth_bytes_per_s), float(span.latency_s))
        for level, span in zip(levels, group.spans, strict=True)
    ]


@dataclass(frozen=True)
class Network:
    """Closed forms of a topology."""

    num_links: int
    diameter: int
    bisection_bytes_per_s: float
    bisection_is_exact: bool
    """Whether the bisection is exact; else it is an upper bound."""


@dataclass(frozen=True)
class Shaped(Network):
    """A topology in its usual shape, with links of 1 byte/s."""

    shape: str


@dataclass(frozen=True)
class Topologies:
    """Every topology in its usual shape for a number of devices."""

    num_devices: int
    topologies: Mapping[str, Shaped | None]
    """Topology by name; null: no shape for this number of devices."""


@dataclass(frozen=True)
class SingleWires:
    """Wires of a system that differ from those of their level, and the way out of its grid."""

    corrected: Sequence[tuple[int, int]]
    """Ends of wires with error correction, 210 ns of latency."""
    slow: Sequence[tuple[int, int, float]]
    """Ends of wires with less bandwidth than their level, and the share that is left."""
    host_bytes_per_s: float | None
    """Rate of each device to the host when all send at once through IO dies; None: no IO dies."""


def single_wires(system: SystemSpec) -> SingleWires | None:
    """Return the wires that differ from those of their level; None where all are alike."""
    limited = any(level.max_link_length_m for level in system.levels)
    if not (limited or system.dead_links or system.io or any(system.single_links.values())):
        return None
    network = network_of(system)
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    links = corrected_links(network, system).tolist()
    slow = []
    for a, b, _ in (*system.slow_links, *system.failed_lanes):
        link = network.link_between.get((a, b))
        if link is not None:
            whole = system.levels[network.level[link]].bandwidth_bytes_per_s
            slow.append((a, b, float(network.bandwidth_bytes_per_s[link]) / whole))
    slow = [wire for wire in slow if wire[2] < 1.0]
    corrected = sorted({(min(ends[k]), max(ends[k])) for k in links})
    through_io = system.io is not None and system.host is not None
    host_bytes_per_s = io_bytes_per_s(system) if through_io else None
    found = SingleWires(corrected, slow, host_bytes_per_s)
    return found if corrected or slow or through_io else None


def network_of_topology(topology: Topology) -> Network:
    """Return the closed forms of a topology."""
    return Network(
        topology.num_links, topology.diameter, topology.bisection_bytes_per_s,
        topology.bisection_is_exact,
    )  # fmt: skip


def shaped_topologies(num_devices: int, shaped: Mapping[str, Topology | None]) -> Topologies:
    """Return topologies by name as data; a link carries 1 byte/s."""
    return Topologies(
        num_devices,
        {name: None if one is None else Shaped(**vars(network_of_topology(one)), shape=one.shape)
         for name, one in shaped.items()},
    )  # fmt: skip
