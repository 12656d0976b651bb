"""Devices joined by switches or routers, or each to all others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError
from meshwright.topology.network import (
    NOMINAL_PITCH_M,
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    circle_m,
    near_square,
    pair_ends,
    row_m,
)


@dataclass(frozen=True)
class FullyConnected(Topology):
    """Every pair of devices has a wire; nobody forwards."""

    size: int
    link: LinkSpec
    """Of one pair."""

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return all pairs of this many devices."""
        return cls(num_devices, link)

    @property
    def shape(self) -> str:
        """Its devices."""
        return f"{self.size} devices"

    @property
    def num_devices(self) -> int:
        """Its size."""
        return self.size

    @property
    def num_links(self) -> int:
        """One from each device to each other one."""
        return self.size * (self.size - 1)

    @property
    def diameter(self) -> int:
        """All are neighbours."""
        return min(self.size - 1, 1)

    @property
    def bisection_bytes_per_s(self) -> float:
        """One link from each of the one half to each of the other."""
        half = self.size // 2
        return half * (self.size - half) * self.link.bandwidth_bytes_per_s

    def build(self) -> Network:
        """Return the devices on a circle."""
        ends = pair_ends(self.size, self.size, 1)
        return assemble(
            self.size,
            [Wires(*ends, self.link)],
            circle_m(self.size),
            devices_forward=False,
        )


@dataclass(frozen=True)
class Switch(Topology):
    """Each device has a wire to the switch."""

    size: int
    link: LinkSpec

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return the switch."""
        return cls(num_devices, link)

    @property
    def shape(self) -> str:
        """Its ports."""
        return f"{self.size} ports"

    @property
    def num_devices(self) -> int:
        """Its size."""
        return self.size

    @property
    def num_links(self) -> int:
        """Up and down for each device."""
        return 2 * self.size

    @property
    def diameter(self) -> int:
        """To the switch and from it."""
        return 2 if self.size > 1 else 0

    @property
    def bisection_bytes_per_s(self) -> float:
        """The links of the smaller half."""
        return self.size // 2 * self.link.bandwidth_bytes_per_s

    def build(self) -> Network:
        """Return the devices in a row under their switch, which is the last node."""
        width_m = self.size * NOMINAL_PITCH_M
        device = np.arange(self.size)
        return assemble(
            self.size,
            [Wires(device, np.full_like(device, self.size), self.link)],
            np.concatenate([row_m(self.size, width_m, 0.0), row_m(1, width_m, NOMINAL_PITCH_M)]),
            devices_forward=False,
        )


@dataclass(frozen=True)
class LeafSpine(Topology):
    """Each device has a wire to its leaf, each leaf one to every spine: a two-layer fat tree."""

    num_leaves: int
    devices_per_leaf: int
    link: LinkSpec
    """Of a device."""
    num_spines: int = 1
    oversubscription: float = 1.0
    """Bandwidth into a leaf over that into the spines, at least 1."""

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return a near-square tree, half of the leaf's bandwidth going up to two spines."""
        return cls(*near_square(num_devices), link, num_spines=2, oversubscription=2.0)

    @property
    def shape(self) -> str:
        """Leaves, spines, and the ratio between them."""
        return (
            f"{self.num_leaves} leaves of {self.devices_per_leaf}, "
            f"{self.num_spines} spines, {self.oversubscription:g}:1"
        )

    @property
    def num_devices(self) -> int:
        """Leaves times the devices of each."""
        return self.num_leaves * self.devices_per_leaf

    @property
    def num_links(self) -> int:
        """Two for each device, two for each pair of leaf and spine."""
        return 2 * (self.num_devices + self.num_leaves * self.num_spines)

    @property
    def diameter(self) -> int:
        """Through a spine where there are several leaves."""
        return 4 if self.num_leaves > 1 else min(self.devices_per_leaf - 1, 1) * 2

    @property
    def bisection_bytes_per_s(self) -> float:
        """What half of the leaves send up; a leaf in the middle is cut between its devices."""
        return leaves_cut_bytes_per_s(
            self.num_leaves, self.devices_per_leaf, self.link.bandwidth_bytes_per_s,
            self.oversubscription,
        )  # fmt: skip

    def build(self) -> Network:
        """Return devices, leaves and spines, in this order."""
        devices, leaves, spines = self.num_devices, self.num_leaves, self.num_spines
        device, up = np.arange(devices), np.arange(leaves * spines)
        uplink_bytes_per_s = self.link.bandwidth_bytes_per_s * self.devices_per_leaf
        uplink = replace(
            self.link, bandwidth_bytes_per_s=uplink_bytes_per_s / self.oversubscription / spines
        )
        first_spine = devices + leaves
        width_m = devices * NOMINAL_PITCH_M
        return assemble(
            devices,
            [
                Wires(device, devices + device // self.devices_per_leaf, self.link),
                Wires(devices + up // spines, first_spine + up % spines, uplink),
            ],
            np.concatenate(
                [
                    row_m(number, width_m, 2 * turn * NOMINAL_PITCH_M)
                    for turn, number in enumerate([devices, leaves, spines])
                ]
            ),
            devices_forward=False,
        )


def leaves_cut_bytes_per_s(
    num_leaves: int, devices_per_leaf: int, bandwidth_bytes_per_s: float, oversubscription: float
) -> float:
    """Return the smallest cut of leaves under a spine into equal halves of the devices [bytes/s].

    floor(L / 2) p B / f, and floor(p / 2) B more where L is odd. A leaf with a devices in the one
    half and p - a in the other adds min(a B + p B / f, (p - a) B): concave in a, so that all
    leaves but one are whole.

    Parameters
    ----------
    bandwidth_bytes_per_s
        Of a device into its leaf, B [bytes/s].
    oversubscription
        f, at least 1.
    """
    whole = num_leaves // 2 * devices_per_leaf / oversubscription
    halved = devices_per_leaf // 2 if num_leaves % 2 else 0
    return (whole + halved) * bandwidth_bytes_per_s


@dataclass(frozen=True)
class FatTree(Topology):
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches, k ports each.

    Source: Al-Fares, Loukissas, Vahdat 2008, A scalable, commodity data center network.
    """

    radix: int
    """Ports of a switch, k; even."""
    link: LinkSpec

    def __post_init__(self) -> None:
        if self.radix < 2 or self.radix % 2:
            raise SpecError(Fault("radix", f"{self.radix} ports", "an even number of at least 2"))

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return the tree where k^3 / 4 devices are asked for."""
        sizes = {radix**3 // 4: radix for radix in range(2, 2 + 2 * num_devices, 2)}
        return cls(sizes[num_devices], link) if num_devices in sizes else None

    @property
    def shape(self) -> str:
        """The ports of its switches."""
        return f"k = {self.radix}"

    @property
    def num_devices(self) -> int:
        """k^3 / 4: k/2 on each of the k^2 / 2 edge switches."""
        return self.radix**3 // 4

    @property
    def num_links(self) -> int:
        """As many wires in each of the three layers as there are devices."""
        return 6 * self.num_devices

    @property
    def diameter(self) -> int:
        """Up to a core switch and down again."""
        return 6

    @property
    def bisection_bytes_per_s(self) -> float:
        """The links of half of the devices: the tree can be arranged never to block."""
        return self.num_devices // 2 * self.link.bandwidth_bytes_per_s

    def build(self) -> Network:
        """Return devices, edge, aggregation and core switches, in this order."""
        half, devices = self.radix // 2, self.num_devices
        per_layer = self.radix * half
        edge, aggregation, core = (devices + per_layer * layer for layer in range(3))
        wire = np.arange(devices)
        pod, lower, upper = wire // half**2, wire // half % half, wire % half
        layers = [
            (wire, edge + wire // half),
            (edge + pod * half + lower, aggregation + pod * half + upper),
            (aggregation + pod * half + lower, core + lower * half + upper),
        ]
        width_m = devices * NOMINAL_PITCH_M
        rows = [devices, per_layer, per_layer, half**2]
        return assemble(
            devices,
            [Wires(first, second, self.link) for first, second in layers],
            np.concatenate(
                [row_m(n, width_m, 2 * turn * NOMINAL_PITCH_M) for turn, n in enumerate(rows)]
            ),
            devices_forward=False,
        )


@dataclass(frozen=True)
class Dragonfly(Topology):
    """g = a h + 1 groups of a routers; each router has p devices and h global wires.

    The routers of a group are fully connected. Global port q of group i (router q div h) leads to
    group i + q + 1 modulo g.

    Source: Kim, Dally, Scott, Abts 2008, Technology-driven, highly-scalable dragonfly topology.
    """

    devices_per_router: int
    """p."""
    routers_per_group: int
    """a."""
    global_wires_per_router: int
    """h."""
    link: LinkSpec
    """Of a device, and between the routers of a group."""
    global_link: LinkSpec

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return the dragonfly of this many devices that is nearest to a = 2 p = 2 h."""
        fitting = [
            (abs(a - 2 * p) + abs(a - 2 * h), (p, a, h))
            for a in range(1, num_devices + 1)
            for h in range(1, num_devices // a + 1)
            if num_devices % (a * (a * h + 1)) == 0
            for p in [num_devices // (a * (a * h + 1))]
        ]
        return cls(*min(fitting)[1], link, link) if fitting else None

    @property
    def shape(self) -> str:
        """Devices, routers and global wires, as published."""
        p, a, h = self.devices_per_router, self.routers_per_group, self.global_wires_per_router
        return f"p = {p}, a = {a}, h = {h}"

    @property
    def num_groups(self) -> int:
        """One more than the global wires of a group: a h + 1."""
        return self.routers_per_group * self.global_wires_per_router + 1

    @property
    def num_routers(self) -> int:
        """Routers of all groups, a g."""
        return self.routers_per_group * self.num_groups

    @property
    def num_devices(self) -> int:
        """Devices of all routers, p a g."""
        return self.devices_per_router * self.num_routers

    @property
    def num_links(self) -> int:
        """Two for each device, each pair of routers in a group, and each pair of groups."""
        local = self.num_routers * (self.routers_per_group - 1)
        return 2 * self.num_devices + local + self.num_groups * (self.num_groups - 1)

    @property
    def diameter(self) -> int:
        """A global hop, a local one on either side of it, and the links of the two devices."""
        return 5 if self.routers_per_group > 1 else 3

    @property
    def bisection_bytes_per_s(self) -> float:
        """The cut between half of the groups and the other half, or all links of one half.

        An odd number of groups has one group in the middle, whose routers are split: those with
        global wires to the one half go with it. Where a is odd, so is its middle router.
        """
        p, a, h = self.devices_per_router, self.routers_per_group, self.global_wires_per_router
        device, across = self.link.bandwidth_bytes_per_s, self.global_link.bandwidth_bytes_per_s
        half = self.num_groups // 2
        cut = half * (self.num_groups - half) * across
        if self.num_groups % 2:
            cut = half * half * across + a // 2 * (a - a // 2) * device
            cut += (h // 2 * across + p // 2 * device) * (a % 2)
        return min(cut, self.num_devices // 2 * device)

    @property
    def bisection_is_exact(self) -> bool:
        """A bound from above: other halves may share fewer wires."""
        return False

    def build(self) -> Network:
        """Return the devices and then the routers, group by group."""
        devices, routers = self.num_devices, self.num_routers
        device = np.arange(devices)
        local = pair_ends(routers, self.routers_per_group, 1)
        near, far = self._global_ends()
        return assemble(
            devices,
            [
                Wires(device, devices + device // self.devices_per_router, self.link),
                Wires(devices + local[0], devices + local[1], self.link),
                Wires(devices + near, devices + far, self.global_link),
            ],
            self._position_m(),
            devices_forward=False,
        )

    def _global_ends(self) -> tuple[IntArray, IntArray]:
        """Return the routers at both ends of each global wire; the first group is the lower one."""
        groups = self.num_groups
        lower, upper = np.triu_indices(groups, 1)
        ports = upper - lower - 1, groups - (upper - lower) - 1
        near, far = (port // self.global_wires_per_router for port in ports)
        return lower * self.routers_per_group + near, upper * self.routers_per_group + far

    def _position_m(self) -> FloatArray:
        """Return the routers on a circle, and their devices fanned outwards behind them."""
        fan = np.arange(self.devices_per_router) - (self.devices_per_router - 1) / 2
        width_m = self.devices_per_router * NOMINAL_PITCH_M
        router_m = circle_m(self.num_routers) * self.devices_per_router
        outwards = router_m / np.linalg.norm(router_m, axis=1, keepdims=True)
        sideways = np.column_stack([-outwards[:, 1], outwards[:, 0]])
        places = router_m + outwards * width_m
        device_m = places[:, None, :] + fan[None, :, None] * NOMINAL_PITCH_M * sideways[:, None, :]
        return np.concatenate([device_m.reshape(-1, 2), router_m])
