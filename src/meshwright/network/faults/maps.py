"""Fault maps: what is dead, drawn with a seed; and what that makes of a network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.network import Network


@dataclass(frozen=True)
class FaultRates:
    """Probabilities that something is dead, each on its own."""

    link: float = 0.0
    """Of each wire, both directions at once."""
    device: float = 0.0
    row: float = 0.0
    """Of each row of a grid, with all its devices."""
    core: float = 0.0
    """Of each core of each device."""
    num_cores: int = 64
    """Cores of a device: the fewer, the more devices differ."""


@dataclass(frozen=True)
class FaultMap:
    """What is dead."""

    seed: int
    dead_devices: IntArray
    dead_links: tuple[tuple[int, int], ...]
    """Wires, as pairs of nodes, the smaller first."""
    core_fraction: FloatArray
    """Share of its cores that each device has left [1]."""

    def applied(self, network: Network) -> Network:
        """Return the network with these faults."""
        slowed = replace(network, speed_factor=network.speed_factor * self.core_fraction)
        gone = np.flatnonzero(slowed.speed_factor <= 0)
        return slowed.without(np.union1d(self.dead_devices, gone).tolist(), self.dead_links)


def wires(network: Network) -> tuple[tuple[int, int], ...]:
    """Return the pairs of nodes that have links between them, the smaller first, ascending."""
    low = np.minimum(network.source, network.target)
    high = np.maximum(network.source, network.target)
    near, far = np.divmod(np.unique(low * network.num_nodes + high), network.num_nodes)
    return tuple(zip(near.tolist(), far.tolist(), strict=True))


def random_faults(network: Network, rates: FaultRates, seed: int) -> FaultMap:
    """Return a fault map; a higher rate with the same seed keeps what is dead already.

    The draws for links, devices and rows do not depend on the rates.
    """
    chance = np.random.default_rng(seed)
    pairs = wires(network)
    link_dies = chance.random(len(pairs)) < rates.link
    dies = chance.random(network.num_devices) < rates.device
    if len(network.grid_shape) == 2:
        row_dies = chance.random(network.grid_shape[0]) < rates.row
        dies |= np.repeat(row_dies, network.grid_shape[1])
    lost = chance.binomial(rates.num_cores, rates.core, network.num_devices)
    return FaultMap(
        seed,
        np.flatnonzero(dies),
        tuple(pair for pair, is_dead in zip(pairs, link_dies.tolist(), strict=True) if is_dead),
        1.0 - lost / rates.num_cores,
    )


@dataclass(frozen=True)
class Diagnosis:
    """What faults have done to a network."""

    dead: IntArray
    """Devices that do not work."""
    degraded: IntArray
    """Devices that work at less than their full rate."""
    isolated: IntArray
    """Devices that work and reach no other."""
    parts: tuple[IntArray, ...]
    """Working devices that reach each other, the largest part first."""

    @property
    def is_connected(self) -> bool:
        """Whether all working devices reach each other."""
        return len(self.parts) <= 1


def classify(network: Network) -> Diagnosis:
    """Return what is dead, slowed down or cut off."""
    parts = connected_parts(network)
    alone = [part for part in parts if len(part) == 1 and len(parts) > 1]
    speed = network.speed_factor
    return Diagnosis(
        np.flatnonzero(speed <= 0),
        np.flatnonzero((speed > 0) & (speed < 1)),
        np.sort(np.concatenate(alone)) if alone else np.zeros(0, dtype=np.int64),
        parts,
    )


def connected_parts(network: Network) -> tuple[IntArray, ...]:
    """Return the working devices that reach each other, the largest part first."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    size = network.num_nodes
    ones = np.ones(network.num_links)
    graph = csr_array((ones, (network.source, network.target)), shape=(size, size))
    labels = connected_components(graph, connection="strong")[1]
    working = network.alive
    parts = [working[labels[working] == label] for label in np.unique(labels[working])]
    return tuple(sorted(parts, key=lambda part: (-len(part), int(part[0]))))
