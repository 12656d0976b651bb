"""A wafer: a mesh of dies of a real size, with IO dies along its edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.topology.layout import grid_m
from meshwright.topology.mesh import Mesh, grid_wires
from meshwright.topology.network import Network
from meshwright.topology.registry import topologies
from meshwright.topology.wires import Wires, assemble


@topologies.register("wafer")
@dataclass(frozen=True)
class Wafer(Mesh):
    """Rows and columns of dies; each die at an edge has an IO die beside it, two at a corner.

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
        """Return the die that each IO die stands beside."""
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
