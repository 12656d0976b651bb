"""The network of a system: levels inside one another, as hosts on switches, grids, all pairs.

A level of kind ``switch`` has one switch for each domain, or, where its spine is oversubscribed or
it is rail-optimized, a spine over leaves: one leaf for each member, or for each rail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError
from meshwright.spec.system import NetworkLevel, SystemSpec, least_radix
from meshwright.topology.grid import grid_bisection
from meshwright.topology.network import (
    NOMINAL_PITCH_M,
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    line_ends,
    pair_ends,
    share_of_lanes,
    too_long_links,
    with_error_correction,
)
from meshwright.topology.switched import (
    dragonfly_cut_bytes_per_s,
    dragonfly_diameter,
    dragonfly_links,
    dragonfly_wires,
    fat_tree_diameter,
    fat_tree_links,
    fat_tree_wires,
    leaves_cut_bytes_per_s,
)
from meshwright.topology.wafer import Wafer, wafers_in_a_row

GRIDS = ("mesh", "torus")
SWITCHES = ("switch", "fat_tree", "dragonfly")


def topology_of(system: SystemSpec) -> Topology:
    """Return the topology that the levels declare, with all of their places taken."""
    if not system.has_seam:
        return hierarchical(system.levels)
    columns, rows, seam = system.levels
    default_m = Wafer.die_m
    wafer = Wafer(
        (rows.size, columns.size),
        (_level_link(rows), _level_link(columns)),
        die_m=(columns.pitch_m or default_m[0], rows.pitch_m or default_m[1]),
    )
    share = _level_link(seam)
    total_bytes_per_s = share.bandwidth_bytes_per_s * prod(wafer.sides)
    whole_seam = LinkSpec(total_bytes_per_s, share.latency_s, share.message_half_bytes)
    return wafers_in_a_row(seam.size, wafer, whole_seam)


def network_of(system: SystemSpec) -> Network:
    """Return the network of the devices of a system, without its dead parts.

    Links that are longer than their level allows have the latency of error correction.

    Raises
    ------
    SpecError
        When a link that is stated is not in the network, or a wafer is not whole.
    """
    if system.has_seam:
        topology = topology_of(system)
        if system.num_devices != topology.num_devices:
            raise SpecError(Fault("num_devices", f"{system.num_devices} are no {topology.shape}"))
        network = topology.build()
    else:
        network = occupied(system.levels, system.num_devices)
    speed_factor = network.speed_factor.copy()
    speed_factor[list(system.speed_factors)] = list(system.speed_factors.values())
    network = _with_single_links(replace(network, speed_factor=speed_factor), system)
    if not (system.dead_devices or system.dead_links):
        return network
    return network.without(system.dead_devices, system.dead_links)


def corrected_links(network: Network, system: SystemSpec) -> IntArray:
    """Return the links with error correction: those stated, and those that are too long."""
    limits_m = [level.max_link_length_m if level.pitch_m else None for level in system.levels]
    stated = {frozenset(pair) for pair in system.corrected_links}
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    chosen = [link for link, pair in enumerate(ends) if stated and frozenset(pair) in stated]
    return np.union1d(too_long_links(network, limits_m), np.array(chosen, dtype=np.int64))


def _with_single_links(network: Network, system: SystemSpec) -> Network:
    """Return the network with the wires that a system states one by one, as they are.

    Raises
    ------
    SpecError
        With all wires that are not there, or have no lane left.
    """
    faults, slow = [], list(system.slow_links)
    for field, links in {"dead_links": system.dead_links, **system.single_links}.items():
        for index, (a, b) in enumerate(links):
            if (a, b) not in network.link_between:
                message = f"devices {a} and {b} have no link between them"
                faults.append(Fault(f"{field}[{index}]", message))
    for index, (a, b, failed) in enumerate(system.failed_lanes):
        link = network.link_between.get((a, b))
        if link is None:
            continue
        level, at = system.levels[network.level[link]], f"failed_lanes[{index}]"
        if level.num_lanes is None:
            message = f"level {level.name} does not state the lanes of its links"
            faults.append(Fault(at, message, "add num_lanes to the level"))
        elif left := share_of_lanes(level.num_lanes, level.num_spare_lanes, failed):
            slow.append((a, b, left))
        else:
            message = f"{failed} of {level.num_lanes} lanes and {level.num_spare_lanes or 0} spares"
            faults.append(Fault(at, message, f"list [{a}, {b}] under dead_links"))
    if faults:
        raise SpecError(faults)
    network = network.slowed(slow) if slow else network
    return with_error_correction(network, corrected_links(network, system))


def hierarchical(levels: tuple[NetworkLevel, ...]) -> Topology:
    """Return the network in which device n has coordinate (n div domain) mod size in each level."""
    num_devices = prod(level.size for level in levels)
    return Topology(
        shape=", ".join(f"{level.kind} {level.size}" for level in levels),
        num_devices=num_devices,
        num_links=_num_links(levels, num_devices),
        diameter=_diameter(levels),
        bisection_bytes_per_s=_bisection_bytes_per_s(levels),
        build=lambda: occupied(levels, num_devices),
        bisection_is_exact=_bisection_is_exact(levels),
    )


def occupied(levels: Sequence[NetworkLevel], num_devices: int) -> Network:
    """Return the network of the first devices; switches that serve none of them are absent."""
    wires: list[Wires] = []
    num_nodes = num_devices
    for index in range(len(levels)):
        added, num_switches = _level_wires(levels, index, num_devices, num_nodes)
        wires += added
        num_nodes += num_switches
    device_m = _place_devices(levels, num_devices)
    whole = num_devices == prod(level.size for level in levels)
    is_grid = whole and _num_grid_levels(levels) == len(levels)
    return assemble(
        num_devices,
        wires,
        _place_switches(levels, wires, device_m, num_nodes),
        devices_forward=_devices_forward(levels),
        grid_shape=tuple(level.size for level in reversed(levels)) if is_grid else (),
    )


def _level_link(level: NetworkLevel) -> LinkSpec:
    """Return all links of one device into a level as one.

    Half of the latency of a switch is on the link up, half on the link down. A device of a fully
    connected level has an equal share of them to each other member.
    """
    num_links = level.links_per_device
    if level.kind == "fully_connected":
        num_links /= max(level.size - 1, 1)
    return LinkSpec(
        level.bandwidth_bytes_per_s * num_links,
        level.latency_s / (2 if level.kind in SWITCHES else 1),
        level.message_half_bytes,
    )


def _radix(levels: Sequence[NetworkLevel]) -> int:
    """Return the ports of the switches of the fat tree that is the last level."""
    return levels[-1].radix or least_radix(prod(level.size for level in levels))


def _has_leaves(level: NetworkLevel, index: int) -> bool:
    """Tell whether a switch level is a spine over leaves."""
    return level.oversubscription > 1 or (level.rail_optimized and index > 0)


def _num_grid_levels(levels: Sequence[NetworkLevel]) -> int:
    """Return the innermost levels that together are one grid."""
    others = (k for k, level in enumerate(levels) if level.kind not in GRIDS)
    return next(others, len(levels))


def _devices_forward(levels: Sequence[NetworkLevel]) -> bool:
    """Tell whether some devices reach one another through others only: grids, and pairs of hosts.

    Chips with links to all others of their host do not forward, unless nothing else joins the
    hosts.
    """
    pairs_only = len(levels) > 1 and levels[-1].kind == "fully_connected"
    return pairs_only or any(level.kind in GRIDS for level in levels)


def _leaves_per_domain(levels: Sequence[NetworkLevel], index: int) -> int:
    """Return the leaf switches under one spine of a level: one for each rail or member."""
    return levels[0].size if levels[index].rail_optimized and index else levels[index].size


def _num_links(levels: Sequence[NetworkLevel], num_devices: int) -> int:
    """Return the sum over the levels, spines included."""
    total, domain = 0, 1
    for index, level in enumerate(levels):
        size = level.size
        if level.kind == "switch":
            leaves = _leaves_per_domain(levels, index) if _has_leaves(level, index) else 0
            total += 2 * num_devices + 2 * leaves * (num_devices // (domain * size))
        elif level.kind == "fat_tree":
            total += fat_tree_links(num_devices, _radix(levels))
        elif level.kind == "dragonfly":
            total += dragonfly_links(level.dragonfly_shape)
        else:
            neighbours = size if level.kind == "fully_connected" else 2
            members = size if level.kind == "torus" and size > 1 else size - 1
            total += neighbours * members * (num_devices // size)
        domain *= size
    return total


def _diameter(levels: Sequence[NetworkLevel]) -> int:
    """Return the sum over direct levels; a switch takes 2 links, or 4 through its spine.

    That is so at any distance. Where devices forward, a rail may be reached over the host instead
    of the spine.
    """
    hops = 0
    for index, level in enumerate(levels):
        if level.size == 1:
            continue
        if level.kind == "switch":
            spine = _has_leaves(level, index) and _leaves_per_domain(levels, index) > 1
            detour = 2 + hops if _devices_forward(levels) and level.rail_optimized else 4
            hops = min(4, detour) if spine else 2
        elif level.kind == "fat_tree":
            hops = fat_tree_diameter(prod(inner.size for inner in levels), _radix(levels))
        elif level.kind == "dragonfly":
            hops = dragonfly_diameter(level.dragonfly_shape)
        else:
            hops += {"mesh": level.size - 1, "torus": level.size // 2}.get(level.kind, 1)
    return hops


def _bisection_bytes_per_s(levels: Sequence[NetworkLevel]) -> float:
    """Return the cut between the halves of the outermost level, or through each of its members."""
    sides = levels[: _num_grid_levels(levels)]
    domain = prod(level.size for level in sides)
    cut = grid_bisection(
        [level.size for level in sides],
        [(1 + (s.kind == "torus")) * _level_link(s).bandwidth_bytes_per_s for s in sides],
    )
    for index in range(len(sides), len(levels)):
        level, size = levels[index], levels[index].size
        device_bytes_per_s = _level_link(level).bandwidth_bytes_per_s
        # Half of the members on each side, the middle one of an odd number cut in two itself ...
        if level.kind in GRIDS:
            wires = (1 if level.kind == "mesh" else 2) if size > 1 else 0
            between = wires * domain * device_bytes_per_s
        elif level.kind == "fully_connected":
            between = size // 2 * (size - size // 2) * domain * device_bytes_per_s
        elif _has_leaves(level, index) and not level.rail_optimized:
            between = leaves_cut_bytes_per_s(
                size, domain, device_bytes_per_s, level.oversubscription
            )
        elif level.kind == "dragonfly":
            link = _level_link(level)
            between = dragonfly_cut_bytes_per_s(level.dragonfly_shape, link, link)
        else:
            between = domain * size // 2 * device_bytes_per_s
        # ... or every member cut in the same two halves.
        own = domain * size // 2 * device_bytes_per_s if level.kind in SWITCHES else 0.0
        inside = size * cut + own
        between += cut if size % 2 else 0.0
        cut = between if domain % 2 else min(between, inside)
        domain *= size
    return cut


def _bisection_is_exact(levels: Sequence[NetworkLevel]) -> bool:
    """Tell where the bisection is proven: for one level, a uniform grid, and under an even switch.

    A switch alone is cut by no halves in less than its own bisection; rails whose spine is
    oversubscribed are left out, because halves of the hosts and of the rails compete there.
    """
    if len(levels) <= 1:
        odd = any(level.kind == "torus" and level.size % 2 for level in levels)
        return not odd and not any(level.kind == "dragonfly" for level in levels)
    last = levels[-1]
    if _num_grid_levels(levels) == len(levels):
        equal = len({_level_link(level).bandwidth_bytes_per_s for level in levels}) == 1
        kinds = {level.kind for level in levels}
        longest = max(level.size for level in levels)
        return equal and (kinds == {"mesh"} or (kinds == {"torus"} and longest % 2 == 0))
    competing = last.rail_optimized and last.oversubscription > 1
    never_blocks = last.kind in ("switch", "fat_tree")
    return never_blocks and last.size % 2 == 0 and not competing


def _level_wires(
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
    link = _level_link(level)
    if level.kind in GRIDS:
        ends = line_ends(num_devices, level.size, domain, closes=level.kind == "torus")
        return [Wires(*ends, link, index)], 0
    if level.kind == "fully_connected":
        return [Wires(*pair_ends(num_devices, level.size, domain), link, index)], 0
    between = LinkSpec(link.bandwidth_bytes_per_s, 0.0, link.message_half_bytes)
    if level.kind == "fat_tree":
        wires, layers = fat_tree_wires(
            num_devices, _radix(levels), link, between, first_switch, index
        )
        return wires, sum(layers)
    if level.kind == "dragonfly":
        shape = level.dragonfly_shape
        wires = dragonfly_wires(num_devices, shape, link, between, between, first_switch, index)
        return wires, shape[1] * (shape[1] * shape[2] + 1)
    device = np.arange(num_devices)
    spine = device // (domain * level.size)
    num_spines = int(spine[-1]) + 1
    if not _has_leaves(level, index):
        return [Wires(device, first_switch + spine, link, index)], num_spines
    host_size = levels[0].size
    on_rails = level.rail_optimized and index > 0
    leaf_name = spine * host_size + device % host_size if on_rails else device // domain
    _, first, leaf, num_below = np.unique(
        leaf_name, return_index=True, return_inverse=True, return_counts=True
    )
    num_leaves = len(num_below)
    leaves = first_switch + np.arange(num_leaves)
    spines = first_switch + num_leaves + spine[first]
    return [
        Wires(device, first_switch + leaf, link, index),
        Wires(leaves, spines, between, index, num_below / level.oversubscription),
    ], num_leaves + num_spines


def _switch_rows(level: NetworkLevel, index: int) -> int:
    """Return the rows of switches above a domain of a level."""
    rows = {"switch": 1 + _has_leaves(level, index), "fat_tree": 3, "dragonfly": 1}
    return rows.get(level.kind, 0)


def _place_devices(levels: Sequence[NetworkLevel], num_devices: int) -> FloatArray:
    """Return the places of the devices [m].

    Sides of a grid run along x and y in turns; members of other levels fill a near-square block,
    under room for the switches.
    """
    device, domain = np.arange(num_devices), 1
    position_m, extent_m = np.zeros((num_devices, 2)), np.zeros(2)
    for index, level in enumerate(levels):
        pitch_m = level.pitch_m or NOMINAL_PITCH_M
        across = math.isqrt(level.size - 1) + 1
        if level.kind in GRIDS:
            across = level.size if index % 2 == 0 else 1
        gap_m = pitch_m if (index < 2 and level.kind in GRIDS) or domain == 1 else 2 * pitch_m
        step_m = extent_m + gap_m
        member = device // domain % level.size
        position_m += np.column_stack([member % across, member // across]) * step_m
        position_m[:, 1] += _switch_rows(level, index) * NOMINAL_PITCH_M
        extent_m = extent_m + [across - 1, math.ceil(level.size / across) - 1] * step_m
        extent_m[1] += _switch_rows(level, index) * NOMINAL_PITCH_M
        domain *= level.size
    return position_m


def _place_switches(
    levels: Sequence[NetworkLevel], wires: Sequence[Wires], device_m: FloatArray, num_nodes: int
) -> FloatArray:
    """Return the places of all nodes: the switches of a domain in rows above its devices [m].

    Those of one row, the leaves or the switch or spine, are spread over the width of the domain.
    """
    num_devices = len(device_m)
    position_m = np.concatenate([device_m, np.zeros((num_nodes - num_devices, 2))])
    num_placed = num_devices
    for group in wires:
        if levels[group.level].kind in ("fat_tree", "dragonfly"):
            # A row above the whole system for each layer of switches.
            nodes = np.unique(np.concatenate([group.first, group.second]))
            row = nodes[nodes >= num_placed]
            if not len(row):
                continue
            ends_m = device_m[:, 0].min(), device_m[:, 0].max() + NOMINAL_PITCH_M
            share = (np.arange(len(row)) + 0.5) / max(len(row), 1)
            position_m[row, 0] = ends_m[0] + share * (ends_m[1] - ends_m[0])
            above_m = position_m[:num_placed, 1].min()
            position_m[row, 1] = above_m - NOMINAL_PITCH_M
            num_placed = max(num_placed, int(nodes[-1]) + 1)
            continue
        num_placed = max(num_placed, int(group.second.max(initial=-1)) + 1)
        if levels[group.level].kind != "switch":
            continue
        on_devices = group.first[-1] < num_devices
        inner = levels[: group.level + 1]
        rows_below = sum(_switch_rows(level, index) for index, level in enumerate(inner[:-1]))
        switch, first = np.unique(group.second, return_index=True)
        starts = np.arange(0, num_devices, prod(level.size for level in inner))
        left_m = np.minimum.reduceat(device_m[:, 0], starts) - NOMINAL_PITCH_M / 2
        right_m = np.maximum.reduceat(device_m[:, 0], starts) + NOMINAL_PITCH_M / 2
        top_m = np.minimum.reduceat(device_m[:, 1], starts)
        domain = (
            np.searchsorted(starts, first, "right") - 1 if on_devices else np.arange(len(first))
        )
        side_by_side = np.bincount(domain)[domain]
        turn = np.arange(len(switch)) - np.searchsorted(domain, domain)
        share = (turn + 0.5) / side_by_side
        position_m[switch, 0] = left_m[domain] + share * (right_m - left_m)[domain]
        lift_m = NOMINAL_PITCH_M * (rows_below + (1 if on_devices else 2))
        position_m[switch, 1] = top_m[domain] - lift_m
    return position_m
