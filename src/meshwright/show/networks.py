"""Collectives of one group, and topologies for one number of devices, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.collectives.bounds import TimedAlgorithm
from meshwright.collectives.group import Group
from meshwright.spec.system import NetworkLevel
from meshwright.topology.network import Topology


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
