"""Grids of devices with any number of sides: a mesh ends at its edges, a torus closes to rings.

A ring is a torus with one side, drawn as a circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

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
)


def mesh(sides: tuple[int, ...], links: LinkSpec | Sequence[LinkSpec]) -> Topology:
    """Return a grid: neighbours along each side share a wire.

    Device n is the mixed-radix number of its place; the last side is level 0. The bisection is
    proven for equal links (Efe and Feng 2007, A proof for bisection width of grids).

    Parameters
    ----------
    sides
        Outermost first: (rows, columns).
    links
        One kind for all sides, or one for each.
    """
    return _grid(sides, links, closes=False)


def torus(sides: tuple[int, ...], links: LinkSpec | Sequence[LinkSpec]) -> Topology:
    """Return a mesh with one more wire in each line, from its last device to its first.

    The bisection is proven for equal links where a longest side is even: 2 N / s wires.
    """
    return _grid(sides, links, closes=True)


def ring(size: int, link: LinkSpec) -> Topology:
    """Return devices with a wire to the next one each; two devices have two."""
    closed = torus((size,), link)
    return replace(
        closed,
        build=lambda: replace(closed.build(), position_m=circle_m(size)),
        bisection_is_exact=True,
    )


def _grid(
    sides: tuple[int, ...], links: LinkSpec | Sequence[LinkSpec], *, closes: bool
) -> Topology:
    num_devices = math.prod(sides)
    kinds = (links,) * len(sides) if isinstance(links, LinkSpec) else tuple(links)

    def build() -> Network:
        return assemble(
            num_devices,
            grid_wires(sides, kinds, num_devices, closes=closes),
            grid_m(sides, [NOMINAL_PITCH_M] * len(sides)),
            devices_forward=True,
            grid_shape=sides,
        )

    rates = [link.bandwidth_bytes_per_s for link in kinds]
    wide = [(side, rate) for side, rate in zip(sides, rates, strict=True) if side > 1]
    if closes:
        num_links = sum(2 * num_devices for _ in wide)
        diameter = sum(side // 2 for side in sides)
    else:
        # 2 (s - 1) in each of the N / s lines of a side of s; from corner to corner s - 1 hops.
        num_links = sum(2 * (side - 1) * num_devices // side for side in sides)
        diameter = sum(side - 1 for side in sides)
    return Topology(
        shape="x".join(map(str, sides)),
        num_devices=num_devices,
        num_links=num_links,
        diameter=diameter,
        bisection_bytes_per_s=grid_bisection(sides, [(1 + closes) * rate for rate in rates]),
        build=build,
        bisection_is_exact=len({rate for _, rate in wide}) <= 1
        and (not closes or max(sides) % 2 == 0),
    )


def grid_wires(
    sides: Sequence[int], links: Sequence[LinkSpec], num_devices: int, *, closes: bool = False
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

    Source: Efe and Feng 2007, with a proof for meshes of equal links; else an upper bound.
    """
    wide = [(side, cut) for side, cut in zip(sides, line_cuts, strict=True) if side > 1]
    cuts = []
    for index, (side, cut) in enumerate(wide):
        others = wide[:index] + wide[index + 1 :]
        across = cut * math.prod(other for other, _ in others)
        step = grid_bisection([s for s, _ in others], [w for _, w in others]) if side % 2 else 0.0
        cuts.append(across + step)
    return min(cuts, default=0.0)
