"""Small grids and switches as link columns, for tests of placement and routing."""

from __future__ import annotations

import numpy as np

from meshwright.network.traffic import Demands
from meshwright.topology.network import Network


def network_of(pairs, num_devices, num_nodes=None, *, shape=(), bandwidth=1.0, latency=1.0):
    """Return a network with a link for each ordered pair; nodes after the devices are switches."""
    num_nodes = num_nodes or num_devices
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    forwards = np.ones(num_nodes, dtype=np.int64)
    if not shape:
        forwards[:num_devices] = 0
    return Network(
        num_devices=num_devices,
        num_nodes=num_nodes,
        source=source.copy(),
        target=target.copy(),
        bandwidth_bytes_per_s=np.full(len(pairs), bandwidth),
        latency_s=np.full(len(pairs), latency),
        message_half_bytes=np.zeros(len(pairs)),
        level=np.zeros(len(pairs), dtype=np.int64),
        forwards=forwards,
        position_m=np.zeros((num_nodes, 2)),
        speed_factor=np.ones(num_devices),
        grid_shape=shape,
    )


def grid(rows, cols, *, wraps=False, bandwidth=1.0):
    """Return a mesh or torus of rows x cols devices."""
    pairs = []
    for row in range(rows):
        for col in range(cols):
            here = row * cols + col
            if col + 1 < cols or (wraps and cols > 2):
                pairs.append((here, row * cols + (col + 1) % cols))
            if row + 1 < rows or (wraps and rows > 2):
                pairs.append((here, (row + 1) % rows * cols + col))
    both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    return network_of(both, rows * cols, shape=(rows, cols), bandwidth=bandwidth)


def star(num_devices):
    """Return devices on one switch."""
    switch = num_devices
    pairs = [p for d in range(num_devices) for p in ((d, switch), (switch, d))]
    return network_of(pairs, num_devices, num_devices + 1)


def demands_of(rows):
    """Return demands from (source, destination) or (source, destination, bytes, payload).

    Without the last two a row is one byte of data of its own.
    """
    own = [row if len(row) == 4 else (*row, 1.0, -1 - index) for index, row in enumerate(rows)]
    source, destination, num_bytes, payload = zip(*own, strict=True) if own else ((),) * 4
    return Demands(
        source=np.array(source, dtype=np.int64),
        destination=np.array(destination, dtype=np.int64),
        num_bytes=np.array(num_bytes, dtype=np.float64),
        payload=np.array(payload, dtype=np.int64),
        operation=np.zeros(len(own), dtype=np.int64),
    )
