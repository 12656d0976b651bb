"""Physical networks: nodes, directed links as columns, places, and the interface of a topology."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.registry import Registry
from meshwright.spec.system import ABOUT_ONE, ERROR_CORRECTED_LATENCY_S


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes and the directed links between them; a full-duplex wire is two links.

    Nodes 0 to ``num_devices`` - 1 are devices, as they are numbered in plans; switches and IO dies
    follow. A dead device keeps its number and has no links.
    """

    num_devices: int
    num_nodes: int
    source: IntArray
    """Node at which each link begins."""
    target: IntArray
    """Node at which each link ends."""
    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    message_half_bytes: FloatArray
    """Message size that reaches half of the bandwidth: m_half / B of occupation per message."""
    level: IntArray
    """Index of the level of the system that each link belongs to, innermost first."""
    forwards: IntArray
    """1 for nodes that forward messages to others: switches, and the dies of a grid."""
    position_m: FloatArray
    """Place of each node, (num_nodes, 2): x to the right, y downwards [m]."""
    speed_factor: FloatArray
    """Share of its full rate that each device computes at; 0 for a dead one."""
    grid_shape: tuple[int, ...] = ()
    """Sides of a grid of devices, outermost first (rows, columns); empty: no grid."""

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.source)

    @property
    def alive(self) -> IntArray:
        """Devices that work."""
        return np.flatnonzero(self.speed_factor > 0)

    @cached_property
    def link_between(self) -> dict[tuple[int, int], int]:
        """Return the link from one node to another; the first one where several run in parallel."""
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        links: dict[tuple[int, int], int] = {}
        for link, pair in enumerate(pairs):
            links.setdefault(pair, link)
        return links

    @cached_property
    def outgoing(self) -> tuple[IntArray, IntArray]:
        """Return (offsets, links): those that leave node n are links[offsets[n]:offsets[n + 1]]."""
        order = np.argsort(self.source, kind="stable")
        counts = np.bincount(self.source, minlength=self.num_nodes)
        return np.concatenate(([0], np.cumsum(counts))), order

    @cached_property
    def next_to_faults(self) -> BoolArray:
        """Whether each device has a link slower than its level, or lacks one of a grid."""
        best = np.zeros(int(self.level.max(initial=-1)) + 1)
        np.maximum.at(best, self.level, self.bandwidth_bytes_per_s)
        is_slow = self.bandwidth_bytes_per_s < best[self.level]
        ends = np.concatenate([self.source[is_slow], self.target[is_slow]])
        found = np.zeros(self.num_nodes, dtype=bool)
        found[ends] = True
        number = np.arange(self.num_devices).reshape(self.grid_shape or (1, -1))
        for side in range(number.ndim if self.grid_shape else 0):
            in_line = np.moveaxis(number, side, 0)
            pairs = np.stack([in_line[:-1].ravel(), in_line[1:].ravel()], axis=1)
            gone = [pair for pair in pairs.tolist() if tuple(pair) not in self.link_between]
            found[np.array(gone, dtype=np.int64).ravel()] = True
        return found[: self.num_devices]

    def without(
        self, dead_devices: Iterable[int] = (), dead_links: Iterable[tuple[int, int]] = ()
    ) -> Network:
        """Return the network after devices and wires (both directions) have died."""
        speed = self.speed_factor.copy()
        speed[list(dead_devices)] = 0.0
        gone = np.zeros(self.num_nodes, dtype=bool)
        gone[: self.num_devices] = speed <= 0
        cut = {frozenset(pair) for pair in dead_links}
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        is_cut = np.array([frozenset(pair) in cut for pair in pairs], dtype=bool)
        kept = np.flatnonzero(~(is_cut | gone[self.source] | gone[self.target]))
        return replace(
            self,
            source=self.source[kept],
            target=self.target[kept],
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s[kept],
            latency_s=self.latency_s[kept],
            message_half_bytes=self.message_half_bytes[kept],
            level=self.level[kept],
            speed_factor=speed,
        )

    def slowed(self, slow_links: Iterable[tuple[int, int, float]]) -> Network:
        """Return the network with a share of the bandwidth on wires, in both directions.

        A message takes the time of as many more bytes on them, and so does its occupation.
        """
        share = {frozenset((a, b)): left for a, b, left in slow_links}
        pairs = zip(self.source.tolist(), self.target.tolist(), strict=True)
        left = np.array([share.get(frozenset(pair), 1.0) for pair in pairs])
        return replace(self, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * left)


def share_of_lanes(num_lanes: int, num_spare: int | None, num_failed: int) -> float:
    """Return the share of the bandwidth of a wire that is left when lanes have failed [1].

    min(1, (lanes + spares - failed) / lanes): spare lanes replace failed ones first. Of 64 lanes
    with 4 spares all of it is left when 4 have failed, three quarters when 20 have.
    """
    return min(1.0, max(0, num_lanes + (num_spare or 0) - num_failed) / num_lanes)


def connected_components(network: Network) -> IntArray:
    """Return for each node the number of the piece of the network it is in, from 0.

    Nodes of different pieces have no links between them. A dead device is a separate piece.
    Each node takes the least name of its neighbours, and the name of that one, until none changes.
    """
    least = np.arange(network.num_nodes)
    while True:
        lower = least.copy()
        np.minimum.at(lower, network.target, least[network.source])
        np.minimum.at(lower, network.source, least[network.target])
        lower = lower[lower]
        if np.array_equal(lower, least):
            return np.unique(least, return_inverse=True)[1].reshape(-1)
        least = lower


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a full-duplex wire; the other direction is equal."""

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    message_half_bytes: float = 0.0
    """Message size that reaches half of the bandwidth."""


@dataclass(frozen=True)
class Topology:
    """Closed forms of one physical network, and the network; tests prove the forms equal to it."""

    shape: str
    """Sides in words, such as ``6x8``."""
    num_devices: int
    """Switches and IO dies are not counted."""
    num_links: int
    """Directed links: two for each wire."""
    diameter: int
    """Links on the shortest path between the two devices that are farthest apart."""
    bisection_bytes_per_s: float
    """Smallest bandwidth from one half of the devices to the other, one direction [bytes/s].

    Halves differ by one device at most; switches are on the side that makes the cut smaller. Where
    ``bisection_is_exact`` is false this is the cut of one such pair of halves, so the true value is
    at most this.
    """
    build: Callable[[], Network]
    """Lists every node and link."""
    bisection_is_exact: bool = True
    """Whether no other pair of equal halves has a smaller cut, by proof."""


topologies: Registry[Callable[[int, LinkSpec], Topology | None]] = Registry("topology")
"""Usual shape of each topology by number of devices and link; None where it has none."""


@dataclass(frozen=True)
class Wires:
    """Full-duplex wires of one kind: the nodes at their ends as columns, (wires,) each."""

    first: IntArray
    second: IntArray
    link: LinkSpec
    level: int = 0
    num_parallel: FloatArray | float = 1.0
    """Parallel wires that are merged into one, for all or for each."""


def line_ends(
    num_devices: int, size: int, stride: int, *, closes: bool
) -> tuple[IntArray, IntArray]:
    """Return the ends of the wires along one dimension of a grid of devices.

    Coordinate c of device n is (n div stride) mod size; it has a wire to the device with
    coordinate c + 1. A closed line has one more, from the last to the first, so two members have
    two wires.
    """
    first, second = pair_ends(num_devices, size, stride, farthest=1)
    if closes and size > 1:
        device = np.arange(num_devices)
        last = device[device // stride % size == size - 1]
        first = np.concatenate([first, last])
        second = np.concatenate([second, last - (size - 1) * stride])
    return first, second


def pair_ends(
    num_devices: int, size: int, stride: int, *, farthest: int | None = None
) -> tuple[IntArray, IntArray]:
    """Return the ends of the wires of each pair that differs in one coordinate only.

    It differs by at most ``farthest``, or by any number.
    """
    device = np.arange(num_devices)
    coordinate = device // stride % size
    firsts, seconds = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for apart in range(1, size if farthest is None else min(size, farthest + 1)):
        fits = (coordinate + apart < size) & (device + apart * stride < num_devices)
        firsts.append(device[fits])
        seconds.append(device[fits] + apart * stride)
    return np.concatenate(firsts), np.concatenate(seconds)


def assemble(
    num_devices: int,
    wires: Sequence[Wires],
    position_m: FloatArray,
    *,
    devices_forward: bool = False,
    grid_shape: tuple[int, ...] = (),
) -> Network:
    """Return the network of these wires; links 2 w and 2 w + 1 are the directions of wire w.

    Parameters
    ----------
    position_m
        Place of every node, devices first, (num_nodes, 2) [m].
    devices_forward
        Whether devices forward messages to others; all other nodes do.
    """
    forwards = np.ones(len(position_m), dtype=np.int64)
    forwards[:num_devices] = devices_forward
    none = np.zeros(0, dtype=np.int64)
    first = np.concatenate([none, *(w.first for w in wires)])
    second = np.concatenate([none, *(w.second for w in wires)])

    def of_links(value: Callable[[Wires], FloatArray | float]) -> FloatArray:
        """Return a value of each group of wires as a column of links."""
        per_wire = [np.broadcast_to(np.asarray(value(w), float), w.first.shape) for w in wires]
        return np.repeat(np.concatenate([np.zeros(0), *per_wire]), 2)

    return Network(
        num_devices=num_devices,
        num_nodes=len(position_m),
        source=np.column_stack([first, second]).ravel(),
        target=np.column_stack([second, first]).ravel(),
        bandwidth_bytes_per_s=of_links(lambda w: w.link.bandwidth_bytes_per_s * w.num_parallel),
        latency_s=of_links(lambda w: w.link.latency_s),
        message_half_bytes=of_links(lambda w: w.link.message_half_bytes),
        level=of_links(lambda w: w.level).astype(np.int64),
        forwards=forwards,
        position_m=position_m,
        speed_factor=np.ones(num_devices),
        grid_shape=grid_shape,
    )


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


def link_length_m(network: Network) -> FloatArray:
    """Return the length of each link: along x and y, from centre to centre [m]."""
    ends = network.position_m[network.target] - network.position_m[network.source]
    length_m: FloatArray = np.abs(ends).sum(axis=1)
    return length_m


def too_long_links(network: Network, max_length_m: Sequence[float | None]) -> IntArray:
    """Return the links that exceed the longest length of their level.

    Parameters
    ----------
    max_length_m
        Longest link of each level, innermost first [m]; None: any length.
    """
    limits_m = np.array([np.inf if limit is None else limit for limit in max_length_m])
    if not len(limits_m):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(link_length_m(network) > limits_m[network.level] * ABOUT_ONE)


def with_error_correction(network: Network, links: IntArray) -> Network:
    """Return the network with the latency of error correction on these links."""
    latency_s = network.latency_s.copy()
    latency_s[links] = np.maximum(latency_s[links], ERROR_CORRECTED_LATENCY_S)
    return replace(network, latency_s=latency_s)
