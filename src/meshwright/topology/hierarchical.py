"""The network of a system: levels inside one another, as hosts on switches, grids, all pairs.

A level of kind ``switch`` has one switch for each domain, or, where its spine is oversubscribed or
it is rail-optimized, a spine over leaves: one leaf for each member, or for each rail.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError
from meshwright.spec.system import NetworkLevel, SystemSpec
from meshwright.topology.mesh import grid_bisection
from meshwright.topology.network import (
    NOMINAL_PITCH_M,
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    line_ends,
    near_square,
    pair_ends,
    too_long_links,
    with_error_correction,
)
from meshwright.topology.switched import leaves_cut_bytes_per_s
from meshwright.topology.wafer import MultiWafer, Wafer

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
        side_by_side = np.bincount(domain)[domain]
        turn = np.arange(len(switch)) - np.searchsorted(domain, domain)
        share = (turn + 0.5) / side_by_side
        position_m[switch, 0] = left_m[domain] + share * (right_m - left_m)[domain]
        lift_m = NOMINAL_PITCH_M * (rows_below + (1 if on_devices else 2))
        position_m[switch, 1] = top_m[domain] - lift_m
    return position_m


def _heads(level: NetworkLevel, index: int) -> int:
    """Return the rows of switches above a domain of a level."""
    return (1 + has_leaves(level, index)) if level.kind == "switch" else 0


def _members_across(level: NetworkLevel, index: int) -> int:
    """Return how many members of a level stand side by side along x."""
    if level.kind in GRIDS:
        return level.size if index % 2 == 0 else 1
    return math.isqrt(level.size - 1) + 1


@dataclass(frozen=True)
class Hierarchical(Topology):
    """Device n has the coordinate (n div domain) mod size in each level, innermost first."""

    levels: tuple[NetworkLevel, ...]

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return near-square hosts on a switch, under a rail-optimized network half as fast."""
        hosts, host_size = near_square(num_devices)
        if hosts == 1:
            return None
        inner = NetworkLevel(
            name="hosts",
            size=host_size,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
            latency_s=link.latency_s,
            message_half_bytes=link.message_half_bytes,
        )
        outer = inner.model_copy(
            update={
                "name": "network",
                "size": hosts,
                "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s / 2,
                "rail_optimized": True,
            }
        )
        return cls((inner, outer))

    @property
    def shape(self) -> str:
        """Kind and size of the levels, innermost first."""
        return ", ".join(f"{level.kind} {level.size}" for level in self.levels)

    @property
    def num_devices(self) -> int:
        """Product of the sizes."""
        return prod(level.size for level in self.levels)

    @property
    def domains(self) -> tuple[int, ...]:
        """Devices in one member of each level."""
        return tuple(prod(level.size for level in self.levels[:k]) for k in range(len(self.levels)))

    @property
    def devices_forward(self) -> bool:
        """Whether some devices reach one another through others only: on grids, and pairs of hosts.

        Chips with links to all others of their host do not forward, unless nothing else joins the
        hosts.
        """
        pairs_only = len(self.levels) > 1 and self.levels[-1].kind == "fully_connected"
        return pairs_only or any(level.kind in GRIDS for level in self.levels)

    @property
    def num_links(self) -> int:
        """Sum over the levels, spines included."""
        total = 0
        for index, level in enumerate(self.levels):
            domain, size = self.domains[index], level.size
            if level.kind == "switch":
                leaves = self._leaves_per_domain(index) if has_leaves(level, index) else 0
                total += 2 * self.num_devices
                total += 2 * leaves * (self.num_devices // (domain * size))
            else:
                neighbours = {"mesh": 2, "torus": 2, "fully_connected": size}[level.kind]
                lines = self.num_devices // size
                members = size if level.kind == "torus" and size > 1 else size - 1
                total += neighbours * members * lines
        return total

    def _leaves_per_domain(self, index: int) -> int:
        """Return the leaf switches under one spine of a level: one for each rail or member."""
        level = self.levels[index]
        return self.levels[0].size if level.rail_optimized and index else level.size

    @property
    def diameter(self) -> int:
        """Sum over direct levels; a switch takes 2 links, or 4 through its spine, at any distance.

        Where devices forward, a rail may be reached over the host instead of the spine.
        """
        hops = 0
        for index, level in enumerate(self.levels):
            if level.size == 1:
                continue
            if level.kind == "switch":
                spine = has_leaves(level, index) and self._leaves_per_domain(index) > 1
                detour = 2 + hops if self.devices_forward and level.rail_optimized else 4
                hops = min(4, detour) if spine else 2
            else:
                across = {"mesh": level.size - 1, "torus": level.size // 2}
                hops += across.get(level.kind, 1)
        return hops

    @property
    def bisection_bytes_per_s(self) -> float:
        """Between the halves of the outermost level, or through each of its members."""
        sides = self.levels[: self._num_grid_levels]
        cut = grid_bisection(
            [level.size for level in sides],
            [(1 + (s.kind == "torus")) * level_link(s).bandwidth_bytes_per_s for s in sides],
        )
        for index in range(len(sides), len(self.levels)):
            level, domain = self.levels[index], self.domains[index]
            between = cut_between_members(level, index, domain) + (cut if level.size % 2 else 0.0)
            inside = level.size * cut + cut_inside_members(level, domain)
            cut = between if domain % 2 else min(between, inside)
        return cut

    @property
    def bisection_is_exact(self) -> bool:
        """Proven for one level, for a uniform grid, and under a switch of an even size.

        A switch alone is cut by no halves in less than its own bisection; rails whose spine is
        oversubscribed are left out, because halves of the hosts and of the rails compete there.
        """
        if len(self.levels) <= 1:
            return not any(level.kind == "torus" and level.size % 2 for level in self.levels)
        last = self.levels[-1]
        if self._num_grid_levels == len(self.levels):
            equal = len({level_link(level).bandwidth_bytes_per_s for level in self.levels}) == 1
            kinds = {level.kind for level in self.levels}
            longest = max(level.size for level in self.levels)
            return equal and (kinds == {"mesh"} or (kinds == {"torus"} and longest % 2 == 0))
        competing = last.rail_optimized and last.oversubscription > 1
        return last.kind == "switch" and last.size % 2 == 0 and not competing

    @property
    def _num_grid_levels(self) -> int:
        """Innermost levels that together are one grid."""
        others = (k for k, level in enumerate(self.levels) if level.kind not in GRIDS)
        return next(others, len(self.levels))

    def build(self) -> Network:
        """Return all devices and their switches."""
        return self.occupied(self.num_devices)

    def occupied(self, num_devices: int) -> Network:
        """Return the network of the first devices; switches that serve none of them are absent."""
        wires, first_switch = [], num_devices
        for index in range(len(self.levels)):
            added, num_switches = level_wires(self.levels, index, num_devices, first_switch)
            wires += added
            first_switch += num_switches
        device_m = place_devices(self.levels, num_devices)
        is_grid = self._num_grid_levels == len(self.levels) and num_devices == self.num_devices
        sides = tuple(level.size for level in reversed(self.levels))
        return assemble(
            num_devices,
            wires,
            place_switches(self.levels, wires, device_m, first_switch),
            devices_forward=self.devices_forward,
            grid_shape=sides if is_grid else (),
        )


def topology_of(system: SystemSpec) -> Topology:
    """Return the topology that the levels declare, with all of their places taken."""
    if system.levels and system.levels[-1].through_io_dies:
        return _wafers(system.levels)
    return Hierarchical(system.levels)


def network_of(system: SystemSpec) -> Network:
    """Return the network of the devices of a system, without what is dead.

    Links that are longer than their level allows have the latency of error correction.

    Raises
    ------
    SpecError
        When a dead link is none of the network, or a wafer is not whole.
    """
    topology = topology_of(system)
    if isinstance(topology, Hierarchical):
        network = topology.occupied(system.num_devices)
    elif system.num_devices == topology.num_devices:
        network = topology.build()
    else:
        raise SpecError(Fault("num_devices", f"{system.num_devices} are no {topology.shape}"))
    limits_m = [level.max_link_length_m if level.pitch_m else None for level in system.levels]
    network = with_error_correction(network, too_long_links(network, limits_m))
    speed_factor = network.speed_factor.copy()
    speed_factor[list(system.speed_factors)] = list(system.speed_factors.values())
    network = replace(network, speed_factor=speed_factor)
    if not (system.dead_devices or system.dead_links):
        return network
    _check_links(network, system.dead_links)
    return network.without(system.dead_devices, system.dead_links)


def _check_links(network: Network, dead_links: Iterable[tuple[int, int]]) -> None:
    """Raise a :class:`SpecError` where devices that lost their link never had one."""
    faults = [
        Fault(f"dead_links[{index}]", f"devices {a} and {b} have no link between them")
        for index, (a, b) in enumerate(dead_links)
        if (a, b) not in network.link_between
    ]
    if faults:
        raise SpecError(faults)


def _wafers(levels: tuple[NetworkLevel, ...]) -> MultiWafer:
    """Return wafers in a row: the sides of the mesh of one, and the seam between two."""
    columns, rows, seam = levels
    wafer = Wafer(
        (rows.size, columns.size),
        (level_link(rows), level_link(columns)),
        die_m=(columns.pitch_m or Wafer.die_m[0], rows.pitch_m or Wafer.die_m[1]),
    )
    share = level_link(seam)
    total_bytes_per_s = share.bandwidth_bytes_per_s * wafer.num_devices
    return MultiWafer(
        seam.size,
        wafer,
        LinkSpec(total_bytes_per_s, share.latency_s, share.message_half_bytes),
    )
