"""Devices with a wire to each other one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from meshwright.topology.geometry import circle_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble, pair_ends


@topologies.register("fully_connected")
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
