"""Grids of devices with any number of sides: a mesh ends at its edges, a torus closes to rings.

A ring is a torus with one side, drawn as a circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from meshwright.topology.network import (
    NOMINAL_PITCH_M,
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    circle_m,
    grid_m,
    line_ends,
    near_square,
)


@dataclass(frozen=True)
class Mesh(Topology):
    """Neighbours along each side share a wire; device n is the mixed-radix number of its place."""

    sides: tuple[int, ...]
    """Outermost first: (rows, columns)."""
    links: tuple[LinkSpec, ...]
    """One kind for each side."""
    closes: ClassVar[bool] = False

    @classmethod
    def uniform(cls, sides: tuple[int, ...], link: LinkSpec) -> Self:
        """Return the grid with the same links along all sides."""
        return cls(sides, (link,) * len(sides))

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return the grid of two sides that is nearest to a square."""
        return cls.uniform(near_square(num_devices), link)

    @property
    def shape(self) -> str:
        """Its sides: ``6x8``."""
        return "x".join(map(str, self.sides))

    @property
    def num_devices(self) -> int:
        """Product of the sides."""
        return math.prod(self.sides)

    @property
    def num_links(self) -> int:
        """2 (s - 1) in each of the N / s lines of a side of s."""
        return sum(2 * (side - 1) * self.num_devices // side for side in self.sides)

    @property
    def diameter(self) -> int:
        """From corner to corner: the sum of s - 1."""
        return sum(side - 1 for side in self.sides)

    @property
    def bisection_bytes_per_s(self) -> float:
        """Smallest straight or stepped cut through the middle of a side."""
        wires = 2 if self.closes else 1
        return grid_bisection(
            self.sides, [wires * link.bandwidth_bytes_per_s for link in self.links]
        )

    @property
    def bisection_is_exact(self) -> bool:
        """Proven for equal links (Efe and Feng 2007, A proof for bisection width of grids)."""
        return len(self._bandwidths) <= 1

    @property
    def _bandwidths(self) -> set[float]:
        """The bandwidths that occur along sides of more than one device."""
        each = zip(self.sides, self.links, strict=True)
        return {link.bandwidth_bytes_per_s for side, link in each if side > 1}

    def build(self) -> Network:
        """Return the grid; the last side is level 0."""
        return assemble(
            self.num_devices,
            grid_wires(self.sides, self.links, self.num_devices, closes=self.closes),
            grid_m(self.sides, [NOMINAL_PITCH_M] * len(self.sides)),
            devices_forward=True,
            grid_shape=self.sides,
        )


def grid_wires(
    sides: Sequence[int], links: Sequence[LinkSpec], num_devices: int, *, closes: bool
) -> list[Wires]:
    """Return the wires of a grid, or of several grids numbered one after the other."""
    wires, stride = [], 1
    for level, (side, link) in enumerate(zip(reversed(sides), reversed(links), strict=True)):
        wires.append(Wires(*line_ends(num_devices, side, stride, closes=closes), link, level))
        stride *= side
    return wires


def grid_bisection(sides: Sequence[int], line_cuts: Sequence[float]) -> float:
    """Return the smallest cut of a grid into halves by planes across a side [bytes/s].

    cut(s_1 .. s_d) = min over i of w_i N / s_i + (cut of the other sides where s_i is odd): the
    middle slab of an odd side is halved in turn, which makes a step.

    Parameters
    ----------
    line_cuts
        Bandwidth in one direction of a line of each side that is cut in two, w: one wire of a
        mesh, two of a torus [bytes/s].

    Source: Efe and Feng 2007, who prove it for meshes of equal links; else an upper bound.
    """
    wide = [(side, cut) for side, cut in zip(sides, line_cuts, strict=True) if side > 1]
    cuts = []
    for index, (side, cut) in enumerate(wide):
        others = wide[:index] + wide[index + 1 :]
        across = cut * math.prod(other for other, _ in others)
        step = grid_bisection([s for s, _ in others], [w for _, w in others]) if side % 2 else 0.0
        cuts.append(across + step)
    return min(cuts, default=0.0)


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
