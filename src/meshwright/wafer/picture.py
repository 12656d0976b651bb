"""A plan on its grid: groups of devices and loads of the links, as data and as text."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.units import format_seconds
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.view.terminal import WIDTH
from meshwright.wafer.price import physical_network, step_links
from meshwright.wafer.search import price_as_placed

LINK = 4
"""Columns of text between two devices."""
MOST_GROUPS = 24
"""Groups that are named; letters on the devices name the others."""
LEAST_SHOWN = 0.005
"""Share of a link from which an axis is named."""
MOST_OTHERS = 6
"""Links outside the grid that are listed."""
KEY = "d> and <d: load of d0 to d9 %, 9 for all above; . idle, x dead, ~ part of its cores"


@dataclass(frozen=True)
class WaferMap:
    """A grid of devices with groups and link loads, as plain columns."""

    network: Network
    title: str
    caption: str
    """Kind of the loads, and their fidelity."""
    group: IntArray
    """Index of the group of each device in ``group_names``; -1 for a device without work."""
    group_names: tuple[str, ...]
    """Names such as ``tatp 0``, for each group of the axis that is shown."""
    labels: tuple[str, ...]
    """Coordinates of the rank on each device, in lines."""
    load_share: FloatArray
    """Load of each link as a share of a full load, 0 to 1."""
    load_note: str
    """Meaning of a full load: ``100 % = busy all 2 s of a step``."""
    dead_wires: tuple[tuple[int, int], ...] = ()
    """Pairs of devices with a dead wire between them."""
    load_parts: Mapping[str, FloatArray] = field(default_factory=dict)
    """Part of ``load_share`` of each axis, where axes are told apart."""
    die_values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Power and temperature of each device, by name with unit, where they are known."""

    def __post_init__(self) -> None:
        """Refuse a network without rows and columns."""
        network = self.network
        rows, columns = (len(np.unique(at)) for at in place_of(network).T)
        passes_on = bool(network.forwards[: network.num_devices].all())
        if not passes_on or rows * columns != network.num_devices:
            raise UnsupportedError(
                "a picture is drawn of devices in rows and columns: a wafer, a mesh, a torus; "
                "the devices of this network are arranged otherwise"
            )


def draw(plan: Plan, axis: str | None = None) -> WaferMap:
    """Return the picture of a plan on its grid: groups of an axis, ranks, and link heat.

    Parameters
    ----------
    axis
        Axis with coloured groups; the innermost one where it is not given.

    Raises
    ------
    UnsupportedError
        The plan has no placement.
    SpecError
        The axis has one device.
    """
    problem, placement = plan.problem, plan.best.placement
    physical = physical_network(problem)
    price = price_as_placed(problem, plan.best, physical)
    if placement is None or price is None:
        raise UnsupportedError(f"the plan for {plan.system.name} has no placement to draw")
    if axis is not None and axis not in placement.axes:
        fault = Fault("axis", f"{axis!r} has one device", ", ".join(placement.axes))
        raise SpecError(fault, origin=plan.best.text)
    ranks, shown = price.ranks, axis or (placement.axes[0] if placement.axes else "tp")
    groups = ranks.groups(shown).reshape(-1, ranks.device.shape[ranks.axes.index(shown)])
    group = np.full(physical.num_devices, -1, dtype=np.int64)
    group[groups] = np.arange(len(groups))[:, None]
    used = [i for i, degree in enumerate(ranks.device.shape) if degree > 1]
    labels = [""] * physical.num_devices
    for position, die in np.ndenumerate(ranks.device):
        labels[int(die)] = "\n".join(f"{ranks.axes[i]} {position[i]}" for i in used)
    known = {"power [W]": placement.die_power_w, "temperature [C]": placement.die_celsius}
    for device, watts in enumerate(placement.die_power_w):
        if labels[device]:
            warm = f", {placement.die_celsius[device]:.0f} C" if placement.die_celsius else ""
            labels[device] += f"\n{watts:.0f} W{warm}"
    links = step_links(problem, price, physical)
    return WaferMap(
        network=physical,
        title=f"{plan.model.name} on {plan.system.name}: {plan.best.text}",
        caption="share of the step during which a link carries something; contended",
        group=group,
        group_names=tuple(f"{shown} group {number}" for number in range(len(groups))),
        labels=tuple(labels),
        load_share=links.busy_s / price.time_s,
        load_note=f"100 % = busy all {format_seconds(price.time_s)} of a step; the hottest link "
        f"{links.busiest_s / price.time_s:.0%}",
        dead_wires=plan.system.dead_links,
        die_values={name: each for name, each in known.items() if each},
        load_parts={axis: busy_s / price.time_s for axis, busy_s in links.by_axis_s.items()},
    )


def load_in_words(picture: WaferMap, link: int) -> str:
    """Return the load of a link, and which axes make it: ``45% (tatp 40%, dp_shard 5%)``."""
    parts = {axis: float(shares[link]) for axis, shares in picture.load_parts.items()}
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    named = ", ".join(f"{axis} {share:.0%}" for axis, share in ranked if share >= LEAST_SHOWN)
    return f"{float(picture.load_share[link]):.0%}" + (f" ({named})" if named else "")


def place_of(network: Network) -> FloatArray:
    """Return the places of the devices, exact to a micrometre (num_devices, 2) [m]."""
    place: FloatArray = np.round(network.position_m[: network.num_devices], 6)
    return place


def group_letter(index: int) -> str:
    """Return the letters of a group: A to Z, AA, AB and so on; - for a device without work."""
    text = ""
    while index >= 0:
        text = string.ascii_uppercase[index % 26] + text
        index = index // 26 - 1
    return text or "-"


def wafer_text(picture: WaferMap) -> Iterator[str]:
    """Yield the lines of the map for a terminal, wafer by wafer, within 100 columns."""
    columns, rows = (
        np.unique(at, return_inverse=True)[1].reshape(-1) for at in place_of(picture.network).T
    )
    grid = np.empty((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    grid[rows, columns] = np.arange(picture.network.num_devices)
    # A seam between wafers is wider than the distance of neighbours.
    steps = np.diff(np.unique(place_of(picture.network)[:, 0]))
    cuts = np.flatnonzero(steps > 1.01 * steps.min(initial=np.inf)) + 1
    yield picture.title
    for wafer in np.split(grid, cuts, axis=1):
        yield ""
        yield from _drawn(picture, wafer)
    for name, each in picture.die_values.items():
        yield f"\nMean {name} over a step"
        cells = [[f"{each[device]:.0f}" for device in row] for row in grid.tolist()]
        width = max(len(cell) for row in cells for cell in row) + 1
        if width * grid.shape[1] > WIDTH:
            yield f"{min(each):.0f} to {max(each):.0f}; too wide for {WIDTH} columns"
        else:
            yield from ("".join(cell.rjust(width) for cell in row) for row in cells)
    yield ""
    yield from _others(picture, grid)
    names = [f"{group_letter(i)} {name}" for i, name in enumerate(picture.group_names)]
    listed = [*names[:MOST_GROUPS], *(["..."] if len(names) > MOST_GROUPS else [])]
    for text in (f"{KEY}; {picture.load_note}", ", ".join(listed), picture.caption):
        yield from textwrap.wrap(text, WIDTH)


def _drawn(picture: WaferMap, wafer: IntArray) -> Iterator[str]:
    """Yield one wafer: three lines for each row; letters alone where that is too wide."""
    names = [[_name(picture, device) for device in row] for row in wafer.tolist()]
    width = max(len(name) for row in names for name in row) + 1
    num_columns = wafer.shape[1]
    if num_columns > WIDTH:
        raise UnsupportedError(f"{num_columns} columns of devices do not fit in {WIDTH} of text")
    if num_columns * (width + LINK) - LINK > WIDTH:
        yield from ("".join(name[0] for name in row) for row in names)
        yield f"too wide for numbers and links in {WIDTH} columns; letters repeat after Z"
        return

    def joined(cells: list[str], links: list[str]) -> str:
        parts = zip_longest(cells, links, fillvalue="")
        return "".join(cell.ljust(width) + link.ljust(LINK) for cell, link in parts).rstrip()

    blank = [""] * num_columns
    for row, line in enumerate(wafer.tolist()):
        yield joined(names[row], [_load(picture, pair, "{}>") for pair in pairwise(line)])
        yield joined(blank, [_load(picture, pair[::-1], "<{}") for pair in pairwise(line)])
        if row + 1 < len(wafer):
            pairs = list(zip(line, wafer[row + 1].tolist(), strict=True))
            yield joined(
                [_load(picture, p, "{}v") + _load(picture, p[::-1], "^{}") for p in pairs], blank
            )


def _name(picture: WaferMap, device: int) -> str:
    """Return the letter of the group and the number of a device, with its fault."""
    speed = float(picture.network.speed_factor[device])
    if speed <= 0:
        return f"x{device}"
    return f"{group_letter(int(picture.group[device]))}{device}{'~' if speed < 1 else ''}"


def _load(picture: WaferMap, ends: tuple[int, int], form: str) -> str:
    """Return the load between neighbours as a digit; blank where one of them is dead."""
    link = picture.network.link_between.get(ends)
    if link is not None:
        share = float(picture.load_share[link])
        return form.format(min(int(10 * share), 9) if share > 0 else ".")
    is_dead = ends in picture.dead_wires or ends[::-1] in picture.dead_wires
    return form.format("x") if is_dead else ""


def _others(picture: WaferMap, grid: IntArray) -> Iterator[str]:
    """Yield the hottest links outside the grid: to IO dies, over seams, closing rings."""
    row, column = np.full((2, picture.network.num_nodes), -9)
    row[grid], column[grid] = np.indices(grid.shape)
    source, target = picture.network.source, picture.network.target
    apart = np.abs(row[source] - row[target]) + np.abs(column[source] - column[target])
    inside = (apart == 1) & (row[source] >= 0) & (row[target] >= 0)
    hot = [int(k) for k in np.argsort(-picture.load_share, kind="stable") if not inside[k]]
    loaded = [link for link in hot if picture.load_share[link] > 0]
    if loaded:
        shown = [
            f"{source[link]} > {target[link]} {picture.load_share[link]:.0%}"
            for link in loaded[:MOST_OTHERS]
        ]
        text = f"{len(loaded)} other loaded links, as {', '.join(shown)}"
        yield from textwrap.wrap(text, WIDTH)
