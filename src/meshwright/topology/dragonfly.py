"""Groups of routers, all pairs of groups joined by one global wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.geometry import NOMINAL_PITCH_M, circle_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble, pair_ends


@topologies.register("dragonfly")
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
