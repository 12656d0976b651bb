"""Devices on one switch that never blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from meshwright.topology.geometry import NOMINAL_PITCH_M, row_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble


@topologies.register("switch")
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
