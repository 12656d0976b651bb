"""Wafers: meshes of dies of a real size with IO dies along their edges, joined by seams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.spec.system import HostLink, SystemSpec
from meshwright.topology.grid import grid_wires, mesh
from meshwright.topology.network import LinkSpec, Network, Topology, Wires, assemble, grid_m

IO_DEPTH_M = 7.5e-3
"""Depth of an IO die, away from the edge of the wafer [m]."""
SEAM_HOPS = 3
"""Die to IO die, IO die to IO die, IO die to die."""


@dataclass(frozen=True)
class Wafer:
    """Rows and columns of dies; each die at an edge has an IO die next to it, two at a corner.

    IO dies are numbered: left edge, right edge, top, bottom. They are joined as the dies are, and
    nothing between dies passes through them.

    Source: TEMP (arXiv 2512.14256), figure 3; sizes fit its 215 mm x 215 mm wafer of 6 x 8 dies.
    """

    sides: tuple[int, int]
    """Rows and columns."""
    links: tuple[LinkSpec, LinkSpec]
    """Links between rows, and between columns."""
    die_m: tuple[float, float] = (24.99e-3, 33.25e-3)
    """Width and height of a die with its keep-out: the distance of neighbours [m]."""

    @property
    def num_io_dies(self) -> int:
        """One for each row and column at either end."""
        return 2 * sum(self.sides)


def one_wafer(wafer: Wafer) -> Topology:
    """Return the mesh and its IO dies; the columns are level 0."""
    dies = mesh(wafer.sides, wafer.links)
    return Topology(
        shape=dies.shape,
        num_devices=dies.num_devices,
        num_links=dies.num_links + 2 * wafer.num_io_dies,
        diameter=dies.diameter,
        bisection_bytes_per_s=dies.bisection_bytes_per_s,
        build=lambda: _network(wafer, 1, [], grid_shape=wafer.sides),
        bisection_is_exact=dies.bisection_is_exact,
    )


def io_bytes_per_s(system: SystemSpec) -> float:
    """Return the rate at which each die reaches the host when all do at once [bytes/s].

    Of R rows and C columns with t, b, l, r as the rates of an IO die at each side, each no more
    than the link to its die: (t + b) / R + (l + r) / C, all IO dies over all dies. No part of the
    grid is slower: a block of h x w dies has w (t + b) + h (l + r) at most towards the rim, more
    inside, where each t is the rate of a whole link; divided by h w it is least for the whole grid.
    6 x 8 dies with 28 IO dies of 0.12 TB/s: 70 GB/s.

    Dead parts are left aside. Sides that face other wafers carry the seam, and nothing else.

    Source: derived; equal to the maximum flow (tests/unit/topology/test_io_dies.py).
    """
    io = system.io
    if io is None:
        return math.inf
    columns, rows = system.levels[:2]
    free = set(io.sides) - ({"left", "right"} if system.has_seam else set())
    upright = len(free & {"top", "bottom"}) * min(
        io.bandwidth_bytes_per_s, rows.bandwidth_bytes_per_s
    )
    across = len(free & {"left", "right"}) * min(
        io.bandwidth_bytes_per_s, columns.bandwidth_bytes_per_s
    )
    return upright / rows.size + across / columns.size


def host_link(system: SystemSpec) -> HostLink | None:
    """Return the way to the host, no faster than the IO dies of a wafer."""
    host = system.host
    if host is None or system.io is None:
        return host
    reached = min(host.bandwidth_bytes_per_s, io_bytes_per_s(system))
    return host.model_copy(update={"bandwidth_bytes_per_s": reached})


def wafers_in_a_row(num_wafers: int, wafer: Wafer, seam: LinkSpec) -> Topology:
    """Return wafers from left to right, the IO dies of facing edges joined.

    Devices are the dies, wafer after wafer; the IO dies follow in the same order. Columns are
    level 0, rows level 1, seams level 2. The bisection is a bound from above: a seam slower than
    the links inside can make others smaller.

    Parameters
    ----------
    seam
        Link between two wafers, all rows together in one direction; each row has an equal share.
    """
    alone = one_wafer(wafer)
    rows, columns = wafer.sides
    row_bytes_per_s, column_bytes_per_s = (link.bandwidth_bytes_per_s for link in wafer.links)
    # The middle seam or the middle columns are cut, with a step in an odd one; or all along a row.
    crossed, step = column_bytes_per_s, 0.0
    if num_wafers % 2 == 0 or columns == 1:
        share = seam.bandwidth_bytes_per_s / rows if num_wafers > 1 else 0.0
        crossed = min(share, column_bytes_per_s)
    if num_wafers % 2 and columns % 2 and rows > 1:
        step = row_bytes_per_s
    across = rows * crossed + step
    along = num_wafers * columns * row_bytes_per_s
    # From the right edge of each wafer to the left one of the next.
    left = np.arange(num_wafers)[:, None] * wafer.num_io_dies + np.arange(rows)
    left = left + num_wafers * alone.num_devices
    seams = Wires((left + rows)[:-1].ravel(), left[1:].ravel(), seam, 2, 1 / rows)
    return Topology(
        shape=f"{num_wafers} of {alone.shape}",
        num_devices=num_wafers * alone.num_devices,
        num_links=num_wafers * alone.num_links + 2 * rows * (num_wafers - 1),
        diameter=rows - 1 + num_wafers * (columns - 1) + SEAM_HOPS * (num_wafers - 1),
        bisection_bytes_per_s=across if rows % 2 else min(across, along),
        build=lambda: _network(wafer, num_wafers, [seams]),
        bisection_is_exact=False,
    )


def _network(
    wafer: Wafer, count: int, seams: Sequence[Wires], *, grid_shape: tuple[int, ...] = ()
) -> Network:
    """Return this many wafers in a row, with the wires of their seams."""
    rows, columns = wafer.sides
    row_link, column_link = wafer.links
    row, column = np.arange(rows) * columns, np.arange(columns)
    # Of each IO die: the die that it is attached to, and the direction out of it.
    edge = np.concatenate([row, row + columns - 1, column, column + (rows - 1) * columns])
    away = np.repeat([[-1, 0], [1, 0], [0, -1], [0, 1]], [rows, rows, columns, columns], axis=0)
    die_m = grid_m(wafer.sides, wafer.die_m[::-1])
    io_m = die_m[edge] + away * ((np.array(wafer.die_m) + IO_DEPTH_M) / 2)
    step_m = columns * wafer.die_m[0] + 4 * IO_DEPTH_M
    shift_m = np.arange(count)[:, None, None] * [step_m, 0.0]
    num_dies = count * rows * columns
    die = (np.arange(count)[:, None] * (rows * columns) + edge).ravel()
    io_die = num_dies + np.arange(len(die))
    at_side = np.arange(len(die)) % wafer.num_io_dies < 2 * rows
    return assemble(
        num_dies,
        [
            *grid_wires(wafer.sides, wafer.links, num_dies),
            Wires(die[at_side], io_die[at_side], column_link, 0),
            Wires(die[~at_side], io_die[~at_side], row_link, 1),
            *seams,
        ],
        np.concatenate([(of_one_m[None] + shift_m).reshape(-1, 2) for of_one_m in (die_m, io_m)]),
        devices_forward=True,
        grid_shape=grid_shape,
    )
