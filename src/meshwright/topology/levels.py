"""One level of a system as wires, places and cuts.

A level of kind ``switch`` has one switch for each domain, or, where its spine is oversubscribed or
it is rail-optimized, a spine over leaves: one leaf for each member, or for each rail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.spec.system import NetworkLevel
from meshwright.topology.layout import NOMINAL_PITCH_M
from meshwright.topology.leaf_spine import leaves_cut_bytes_per_s
from meshwright.topology.registry import LinkSpec
from meshwright.topology.wires import Wires, line_ends, pair_ends

GRIDS = ("mesh", "torus")


def level_link(level: NetworkLevel) -> LinkSpec:
    """Return all links of one device into a level as one; half of a switch's latency on each way.

    A device of a fully connected level has an equal share of them to each other member.
    """
    num_links = level.links_per_device
    if level.kind == "fully_connected":
        num_links /= max(level.size - 1, 1)
    return LinkSpec(
        level.bandwidth_bytes_per_s * num_links,
        level.latency_s / (2 if level.kind == "switch" else 1),
        level.message_half_bytes,
    )


def has_leaves(level: NetworkLevel, index: int) -> bool:
    """Tell whether a switch level is a spine over leaves."""
    return level.oversubscription > 1 or (level.rail_optimized and index > 0)


def level_wires(
    levels: Sequence[NetworkLevel], index: int, num_devices: int, first_switch: int
) -> tuple[list[Wires], int]:
    """Return the wires of a level, and the number of its switches.

    Parameters
    ----------
    num_devices
        Devices that are there, from number 0.
    first_switch
        Number of the first node that is free for its switches: leaves, then spines.
    """
    level, domain = levels[index], prod(inner.size for inner in levels[:index])
    link = level_link(level)
    if level.kind in GRIDS:
        ends = line_ends(num_devices, level.size, domain, closes=level.kind == "torus")
        return [Wires(*ends, link, index)], 0
    if level.kind == "fully_connected":
        return [Wires(*pair_ends(num_devices, level.size, domain), link, index)], 0
    device = np.arange(num_devices)
    switch = device // (domain * level.size)
    if not has_leaves(level, index):
        return [Wires(device, first_switch + switch, link, index)], int(switch[-1]) + 1
    leaf, spine_of_leaf, num_below = _leaves(levels, index, num_devices)
    up = LinkSpec(link.bandwidth_bytes_per_s, 0.0, link.message_half_bytes)
    leaves = first_switch + np.arange(len(num_below))
    spines = first_switch + len(num_below) + spine_of_leaf
    return [
        Wires(device, first_switch + leaf, link, index),
        Wires(leaves, spines, up, index, num_below / level.oversubscription),
    ], len(num_below) + int(switch[-1]) + 1


def _leaves(
    levels: Sequence[NetworkLevel], index: int, num_devices: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the leaf of each device, the spine of each leaf, and the devices below each leaf."""
    domain = prod(level.size for level in levels[:index])
    device = np.arange(num_devices)
    spine = device // (domain * levels[index].size)
    host_size = levels[0].size
    on_rails = levels[index].rail_optimized and index > 0
    named = spine * host_size + device % host_size if on_rails else device // domain
    _, first, leaf, num_below = np.unique(
        named, return_index=True, return_inverse=True, return_counts=True
    )
    return leaf, spine[first], num_below


def cut_between_members(level: NetworkLevel, index: int, domain: int) -> float:
    """Return the cut of a level where half of its members are on each side [bytes/s].

    With an odd number of them the middle one is itself cut in two, which is not counted here.

    Parameters
    ----------
    domain
        Devices in one member.
    """
    device_bytes_per_s = level_link(level).bandwidth_bytes_per_s
    half, rest = level.size // 2, level.size - level.size // 2
    if level.kind in GRIDS:
        wires = (1 if level.kind == "mesh" else 2) if level.size > 1 else 0
        return wires * domain * device_bytes_per_s
    if level.kind == "fully_connected":
        return half * rest * domain * device_bytes_per_s
    if has_leaves(level, index) and not level.rail_optimized:
        return leaves_cut_bytes_per_s(
            level.size, domain, device_bytes_per_s, level.oversubscription
        )
    return domain * level.size // 2 * device_bytes_per_s


def cut_inside_members(level: NetworkLevel, domain: int) -> float:
    """Return the cut of a level where every member is cut in the same two halves [bytes/s]."""
    if level.kind != "switch":
        return 0.0
    return domain * level.size // 2 * level_link(level).bandwidth_bytes_per_s


def place_devices(levels: Sequence[NetworkLevel], num_devices: int) -> FloatArray:
    """Return the places of the devices [m].

    Sides of a grid run along x and y in turns; members of other levels fill a near-square block,
    under room for the switches.
    """
    device, domain = np.arange(num_devices), 1
    position_m, extent_m = np.zeros((num_devices, 2)), np.zeros(2)
    for index, level in enumerate(levels):
        pitch_m = level.pitch_m or NOMINAL_PITCH_M
        across = _members_across(level, index)
        gap_m = pitch_m if (index < 2 and level.kind in GRIDS) or domain == 1 else 2 * pitch_m
        step_m = extent_m + gap_m
        member = device // domain % level.size
        position_m += np.column_stack([member % across, member // across]) * step_m
        position_m[:, 1] += _heads(level, index) * NOMINAL_PITCH_M
        extent_m = extent_m + [across - 1, math.ceil(level.size / across) - 1] * step_m
        extent_m[1] += _heads(level, index) * NOMINAL_PITCH_M
        domain *= level.size
    return position_m


def place_switches(
    levels: Sequence[NetworkLevel], wires: Sequence[Wires], device_m: FloatArray, num_nodes: int
) -> FloatArray:
    """Return the places of all nodes: the switches of a domain in rows above its devices [m].

    Those of one row, the leaves or the switch or spine, are spread over the width of the domain.
    """
    num_devices = len(device_m)
    position_m = np.concatenate([device_m, np.zeros((num_nodes - num_devices, 2))])
    for group in wires:
        if levels[group.level].kind != "switch":
            continue
        on_devices = group.first[-1] < num_devices
        inner = levels[: group.level + 1]
        rows_below = sum(_heads(level, index) for index, level in enumerate(inner[:-1]))
        switch, first = np.unique(group.second, return_index=True)
        starts = np.arange(0, num_devices, prod(level.size for level in inner))
        left_m = np.minimum.reduceat(device_m[:, 0], starts) - NOMINAL_PITCH_M / 2
        right_m = np.maximum.reduceat(device_m[:, 0], starts) + NOMINAL_PITCH_M / 2
        top_m = np.minimum.reduceat(device_m[:, 1], starts)
        domain = (
            np.searchsorted(starts, first, "right") - 1 if on_devices else np.arange(len(first))
        )
        beside = np.bincount(domain)[domain]
        turn = np.arange(len(switch)) - np.searchsorted(domain, domain)
        share = (turn + 0.5) / beside
        position_m[switch, 0] = left_m[domain] + share * (right_m - left_m)[domain]
        lift_m = NOMINAL_PITCH_M * (rows_below + (1 if on_devices else 2))
        position_m[switch, 1] = top_m[domain] - lift_m
    return position_m


def _heads(level: NetworkLevel, index: int) -> int:
    """Return the rows of switches above a domain of a level."""
    return (1 + has_leaves(level, index)) if level.kind == "switch" else 0


def _members_across(level: NetworkLevel, index: int) -> int:
    """Return how many members of a level stand beside one another along x."""
    if level.kind in GRIDS:
        return level.size if index % 2 == 0 else 1
    return math.isqrt(level.size - 1) + 1
