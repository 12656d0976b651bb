"""From wires, given as columns of their two ends, to a network of directed links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec


@dataclass(frozen=True)
class Wires:
    """Full-duplex wires of one kind, as columns."""

    first: IntArray
    second: IntArray
    link: LinkSpec
    level: int = 0
    num_beside: FloatArray | float = 1.0
    """Wires side by side that are merged into one, for all or for each."""


def line_ends(
    num_devices: int, size: int, stride: int, *, closes: bool
) -> tuple[IntArray, IntArray]:
    """Return the ends of the wires along one dimension of a grid of devices.

    Coordinate c of device n is (n div stride) mod size; it has a wire to the device with
    coordinate c + 1. A closed line has one more, from the last to the first, so two members have
    two wires.
    """
    device = np.arange(num_devices)
    coordinate = device // stride % size
    first = device[(coordinate < size - 1) & (device + stride < num_devices)]
    second = first + stride
    if closes and size > 1:
        last = device[coordinate == size - 1]
        first = np.concatenate([first, last])
        second = np.concatenate([second, last - (size - 1) * stride])
    return first, second


def pair_ends(num_devices: int, size: int, stride: int) -> tuple[IntArray, IntArray]:
    """Return the ends of the wires of each pair that differs in one coordinate only."""
    device = np.arange(num_devices)
    coordinate = device // stride % size
    firsts = [
        device[(coordinate + apart < size) & (device + apart * stride < num_devices)]
        for apart in range(1, size)
    ]
    seconds = [first + apart * stride for apart, first in enumerate(firsts, start=1)]
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *firsts]), np.concatenate([none, *seconds])


def assemble(
    num_devices: int,
    wires: Sequence[Wires],
    position_m: FloatArray,
    *,
    devices_forward: bool,
    grid_shape: tuple[int, ...] = (),
) -> Network:
    """Return the network of these wires; links 2 w and 2 w + 1 are the directions of wire w.

    Parameters
    ----------
    position_m
        Place of every node, devices first, (num_nodes, 2) [m].
    devices_forward
        Whether devices pass on what is not for them; all other nodes do.
    """
    num_nodes = len(position_m)
    forwards = np.ones(num_nodes, dtype=np.int64)
    forwards[:num_devices] = devices_forward
    return Network(
        num_devices=num_devices,
        num_nodes=num_nodes,
        source=_joined([_both_ways(w.first, w.second) for w in wires]),
        target=_joined([_both_ways(w.second, w.first) for w in wires]),
        bandwidth_bytes_per_s=_column(
            wires, [w.link.bandwidth_bytes_per_s * w.num_beside for w in wires]
        ),
        latency_s=_column(wires, [w.link.latency_s for w in wires]),
        message_half_bytes=_column(wires, [w.link.message_half_bytes for w in wires]),
        level=_column(wires, [w.level for w in wires]).astype(np.int64),
        forwards=forwards,
        position_m=position_m,
        speed_factor=np.ones(num_devices),
        grid_shape=grid_shape,
    )


def _both_ways(first: IntArray, second: IntArray) -> IntArray:
    """Return the column of ends where each wire is followed by its other direction."""
    return np.column_stack([first, second]).ravel()


def _joined(columns: Sequence[IntArray]) -> IntArray:
    """Return the columns behind one another."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *columns])


def _column(wires: Sequence[Wires], values: Sequence[FloatArray | float]) -> FloatArray:
    """Return a value of each group of wires as a column of links."""
    per_wire = [
        np.broadcast_to(np.asarray(value, dtype=np.float64), w.first.shape)
        for w, value in zip(wires, values, strict=True)
    ]
    return np.repeat(np.concatenate([np.zeros(0), *per_wire]), 2)
