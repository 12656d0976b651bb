"""A wafer: a mesh of dies of a real size, IO dies along its edges; and wafers joined by seams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.mesh import Mesh, grid_wires
from meshwright.topology.network import (
    LinkSpec,
    Network,
    Topology,
    Wires,
    assemble,
    grid_m,
    near_square,
)


@dataclass(frozen=True)
class Wafer(Mesh):
    """Rows and columns of dies; each die at an edge has an IO die next to it, two at a corner.

    Devices are the dies; the IO dies follow: left edge, right edge, top, bottom. They are joined
    as the dies are, and nothing between dies passes through them.

    Source: TEMP (arXiv 2512.14256), figure 3; sizes fit its 215 mm x 215 mm wafer of 6 x 8 dies.
    """

    die_m: tuple[float, float] = (24.99e-3, 33.25e-3)
    """Width and height of a die with its keep-out: the distance of neighbours [m]."""
    io_depth_m: float = 7.5e-3
    """Depth of an IO die, away from the edge [m]."""

    @property
    def num_io_dies(self) -> int:
        """One for each row and column at either end."""
        rows, columns = self.sides
        return 2 * (rows + columns)

    @property
    def num_links(self) -> int:
        """Those of the mesh and two for each IO die."""
        return super().num_links + 2 * self.num_io_dies

    def build(self) -> Network:
        """Return the mesh and its IO dies; the columns are level 0."""
        grid = grid_wires(self.sides, self.links, self.num_devices, closes=False)
        io_dies = self.num_devices + np.arange(self.num_io_dies)
        return assemble(
            self.num_devices,
            [*grid, *self.io_wires(self.edge_devices(), io_dies)],
            np.concatenate([self.die_position_m(), self.io_position_m()]),
            devices_forward=True,
            grid_shape=self.sides,
        )

    def edge_devices(self) -> IntArray:
        """Return the die that each IO die is attached to."""
        rows, columns = self.sides
        row, column = np.arange(rows) * columns, np.arange(columns)
        return np.concatenate([row, row + columns - 1, column, column + (rows - 1) * columns])

    def io_wires(self, devices: IntArray, io_dies: IntArray) -> list[Wires]:
        """Return the wires between edge dies and IO dies, given in the order of the edges."""
        row_link, column_link = self.links
        is_beside = np.arange(len(devices)) % self.num_io_dies < 2 * self.sides[0]
        above = ~is_beside
        return [
            Wires(devices[is_beside], io_dies[is_beside], column_link, 0),
            Wires(devices[above], io_dies[above], row_link, 1),
        ]

    def die_position_m(self) -> FloatArray:
        """Return the centres of the dies [m]."""
        width_m, height_m = self.die_m
        return grid_m(self.sides, (height_m, width_m))

    def io_position_m(self) -> FloatArray:
        """Return the centres of the IO dies [m]."""
        rows, columns = self.sides
        out_m = (np.array(self.die_m) + self.io_depth_m) / 2
        away = np.repeat([[-1, 0], [1, 0], [0, -1], [0, 1]], [rows, rows, columns, columns], axis=0)
        position_m: FloatArray = self.die_position_m()[self.edge_devices()] + away * out_m
        return position_m


_SEAM_HOPS = 3
"""Die to IO die, IO die to IO die, IO die to die."""


@dataclass(frozen=True)
class MultiWafer(Topology):
    """The IO dies of facing edges are joined; wafers stand in a row, left to right.

    Devices are the dies, wafer after wafer; the IO dies follow in the same order.
    """

    num_wafers: int
    wafer: Wafer
    seam: LinkSpec
    """All that two wafers send one another in one direction; each row has an equal share."""

    @classmethod
    def of_size(cls, num_devices: int, link: LinkSpec) -> Self | None:
        """Return two near-square wafers, the seam half as wide as the links inside."""
        if num_devices % 2:
            return None
        sides = near_square(num_devices // 2)
        seam = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * sides[0] / 2)
        return cls(2, Wafer.uniform(sides, link), seam)

    @property
    def shape(self) -> str:
        """Number of wafers and their sides."""
        return f"{self.num_wafers} of {self.wafer.shape}"

    @property
    def num_devices(self) -> int:
        """Dies of all wafers."""
        return self.num_wafers * self.wafer.num_devices

    @property
    def num_links(self) -> int:
        """Those of the wafers, and two for each row of each seam."""
        return self.num_wafers * self.wafer.num_links + 2 * self.wafer.sides[0] * (
            self.num_wafers - 1
        )

    @property
    def diameter(self) -> int:
        """Down a side, along all wafers, and three links over each seam."""
        rows, columns = self.wafer.sides
        return rows - 1 + self.num_wafers * (columns - 1) + _SEAM_HOPS * (self.num_wafers - 1)

    @property
    def bisection_bytes_per_s(self) -> float:
        """The middle seam or the middle columns, with a step in an odd one; or along the rows."""
        rows, columns = self.wafer.sides
        row_bytes_per_s, column_bytes_per_s = (
            link.bandwidth_bytes_per_s for link in self.wafer.links
        )
        crossed, step = column_bytes_per_s, 0.0
        if self.num_wafers % 2 == 0 or columns == 1:
            share = self.seam.bandwidth_bytes_per_s / rows if self.num_wafers > 1 else 0.0
            crossed = min(share, column_bytes_per_s)
        if self.num_wafers % 2 and columns % 2 and rows > 1:
            step = row_bytes_per_s
        across = rows * crossed + step
        along = self.num_wafers * columns * row_bytes_per_s
        return across if rows % 2 else min(across, along)

    @property
    def bisection_is_exact(self) -> bool:
        """A bound from above: a seam slower than the links inside can make others smaller."""
        return False

    def build(self) -> Network:
        """Return all wafers; columns are level 0, rows level 1, seams level 2."""
        wafer, count = self.wafer, self.num_wafers
        dies = (np.arange(count)[:, None] * wafer.num_devices + wafer.edge_devices()).ravel()
        io_dies = self.num_devices + np.arange(count * wafer.num_io_dies)
        return assemble(
            self.num_devices,
            [
                *grid_wires(wafer.sides, wafer.links, self.num_devices, closes=False),
                *wafer.io_wires(dies, io_dies),
                self._seam_wires(),
            ],
            np.concatenate([self._in_a_row(wafer.die_position_m()),
                            self._in_a_row(wafer.io_position_m())]),
            devices_forward=True,
        )  # fmt: skip

    def _seam_wires(self) -> Wires:
        """Return the wires from the right edge of each wafer to the left one of the next."""
        rows, per_wafer = self.wafer.sides[0], self.wafer.num_io_dies
        left = np.arange(self.num_wafers)[:, None] * per_wafer + np.arange(rows) + self.num_devices
        right = left + rows
        return Wires(right[:-1].ravel(), left[1:].ravel(), self.seam, 2, 1 / rows)

    def _in_a_row(self, position_m: FloatArray) -> FloatArray:
        """Return the places of the nodes of one wafer, repeated for each wafer [m]."""
        columns = self.wafer.sides[1]
        step_m = columns * self.wafer.die_m[0] + 4 * self.wafer.io_depth_m
        shift_m = np.arange(self.num_wafers)[:, None, None] * [step_m, 0.0]
        placed: FloatArray = (position_m[None] + shift_m).reshape(-1, 2)
        return placed
