"""A grid of devices whose lines close to rings, with any number of sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.topology.mesh import Mesh
from meshwright.topology.registry import topologies


@topologies.register("torus")
@dataclass(frozen=True)
class Torus(Mesh):
    """A mesh with one more wire in each line, from its last device to its first."""

    closes: ClassVar[bool] = True

    @property
    def num_links(self) -> int:
        """2 N for each side of more than one device."""
        return sum(2 * self.num_devices for side in self.sides if side > 1)

    @property
    def diameter(self) -> int:
        """Half way round each side: the sum of s div 2."""
        return sum(side // 2 for side in self.sides)

    @property
    def bisection_is_exact(self) -> bool:
        """Proven for equal links where a longest side is even: 2 N / s wires."""
        return len(self._bandwidths) <= 1 and max(self.sides) % 2 == 0
