"""Devices on a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from meshwright.topology.layout import circle_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble, line_ends


@topologies.register("ring")
@dataclass(frozen=True)
class Ring(Topology):
    """Each device has a wire to the next one; two devices have two."""

    size: int
    link: LinkSpec

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return the ring."""
        return cls(num_devices, link)

    @property
    def shape(self) -> str:
        """Its length."""
        return str(self.size)

    @property
    def num_devices(self) -> int:
        """Its size."""
        return self.size

    @property
    def num_links(self) -> int:
        """2 N; none of a lone device."""
        return 2 * self.size if self.size > 1 else 0

    @property
    def diameter(self) -> int:
        """Half way round."""
        return self.size // 2

    @property
    def bisection_bytes_per_s(self) -> float:
        """Two wires, wherever a ring is cut in two."""
        return 2 * self.link.bandwidth_bytes_per_s if self.size > 1 else 0.0

    def build(self) -> Network:
        """Return the ring as a grid of one side."""
        ends = line_ends(self.size, self.size, 1, closes=True)
        return assemble(
            self.size,
            [Wires(*ends, self.link)],
            circle_m(self.size),
            devices_forward=True,
            grid_shape=(self.size,),
        )
