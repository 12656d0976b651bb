"""Sets of nodes whose cuts are worth a look: nodes, blocks of a grid, what a switch joins."""

from __future__ import annotations

import numpy as np

from meshwright.base.arrays import BoolArray
from meshwright.topology.network import Network

_MOST_SETS = 4096


def node_sets(network: Network) -> BoolArray:
    """Return sets of nodes as rows.

    A switch or an IO die belongs to a set of devices if all devices that it is linked to do.
    """
    single = np.eye(network.num_nodes, dtype=bool)
    joined = _linked_devices(network)
    blocks = _blocks(network.grid_shape)
    devices = np.concatenate([joined[joined.any(axis=1)], *blocks])
    sets = np.zeros((len(devices), network.num_nodes), dtype=bool)
    sets[:, : network.num_devices] = devices
    if len(joined):
        left_out = (~devices).astype(np.float32) @ joined.T.astype(np.float32)
        sets[:, network.num_devices :] = (left_out == 0) & joined.any(axis=1)
    return np.concatenate((single, sets))


def _linked_devices(network: Network) -> BoolArray:
    """Return [node, device] for the nodes that are no devices: whether a link joins the two."""
    table = np.zeros((network.num_nodes, network.num_nodes), dtype=bool)
    table[network.source, network.target] = True
    table |= table.T
    return table[network.num_devices :, : network.num_devices]


def _blocks(shape: tuple[int, ...]) -> list[BoolArray]:
    """Return blocks of a grid as rows over its devices, as many as are sensible.

    All blocks of a small grid, those that reach an edge in each dimension of a larger one, those
    that are cut in one dimension only of a very large one.
    """
    if not shape:
        return []
    for intervals in (_all_intervals, _outer_intervals):
        sides = [intervals(side) for side in shape]
        if np.prod([len(side) for side in sides]) <= _MOST_SETS:
            return [_product(sides)]
    whole = [np.ones((1, side), dtype=bool) for side in shape]
    return [
        _product([*whole[:dim], _outer_intervals(side), *whole[dim + 1 :]])
        for dim, side in enumerate(shape)
    ]


def _all_intervals(side: int) -> BoolArray:
    """Return every interval of a dimension as a row."""
    first, last = np.triu_indices(side)
    at = np.arange(side)
    inside: BoolArray = (first[:, None] <= at) & (at <= last[:, None])
    return inside


def _outer_intervals(side: int) -> BoolArray:
    """Return the intervals that reach an end of a dimension."""
    rows = _all_intervals(side)
    return rows[rows[:, 0] | rows[:, -1]]


def _product(sides: list[BoolArray]) -> BoolArray:
    """Return every block with one interval in each dimension, as rows over the devices."""
    blocks = np.ones((1, 1), dtype=bool)
    for side in sides:
        table = blocks[:, None, :, None] & side[None, :, None, :]
        blocks = table.reshape(len(blocks) * len(side), -1)
    return blocks
