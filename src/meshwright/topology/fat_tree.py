"""The k-ary fat tree: three layers of equal switches with full bisection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from meshwright.base.errors import Fault, SpecError
from meshwright.topology.geometry import NOMINAL_PITCH_M, row_m
from meshwright.topology.network import Network
from meshwright.topology.registry import LinkSpec, Topology, topologies
from meshwright.topology.wires import Wires, assemble


@topologies.register("fat_tree")
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
