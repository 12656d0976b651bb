"""A plan on its grid: who belongs together and how busy the links are, as data and as text."""

from __future__ import annotations

import math
import string
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.units import format_seconds
from meshwright.report.screen import WIDTH
from meshwright.topology.network import Network
from meshwright.train.answer import Plan
from meshwright.train.question import problem_of
from meshwright.wafer.placing import price_as_placed
from meshwright.wafer.price import PlacedPrice, physical_network

PITCH = 112.0
"""Distance of neighbours along the narrower side [px]."""
GAP = 44.0
"""Room for links between neighbours [px]."""
IO_HALF = 9.0
"""Half of the side of an IO die or a switch [px]."""


@dataclass(frozen=True)
class WaferMap:
    """A grid of devices with groups and link loads, as plain columns."""

    network: Network
    title: str
    caption: str
    """What the loads are of, and their fidelity."""
    group: IntArray
    """Index of the group of each device in ``group_names``; -1 for a device without work."""
    group_names: tuple[str, ...]
    """Such as ``tatp 0``, for each group of the axis that is shown."""
    labels: tuple[str, ...]
    """Coordinates of the rank on each device, in lines."""
    load_share: FloatArray
    """Load of each link as a share of what counts as full, 0 to 1."""
    load_note: str
    """What is full: ``100 % = 4.2 MB, the hottest link``."""
    dead_wires: tuple[tuple[int, int], ...] = ()
    """Pairs of devices whose wire has died."""

    def __post_init__(self) -> None:
        """Refuse what has no rows and columns."""
        network = self.network
        rows, columns = (len(np.unique(at)) for at in place_of(network).T)
        passes_on = bool(network.forwards[: network.num_devices].all())
        if not passes_on or rows * columns != network.num_devices:
            raise UnsupportedError(
                "a picture is drawn of devices in rows and columns: a wafer, a mesh, a torus; "
                "the devices of this network are arranged otherwise"
            )


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


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre and half of its sides [px]."""

    x: float
    y: float
    half_width: float
    half_height: float


@dataclass(frozen=True)
class Canvas:
    """Boxes of all nodes; the corner of the outermost ones is at (0, 0) [px]."""

    boxes: tuple[Box, ...]
    width: float
    height: float
    pixels_per_m: float
    pitch_m: float
    """Distance of neighbours along the narrower side [m]."""
    seams: tuple[float, ...]
    """Middle of the gaps between columns that are wider than between neighbours [px]."""


def make_canvas(network: Network) -> Canvas:
    """Return where the nodes of a grid are drawn, true to scale.

    Devices fill their pitch but for the room of the links; IO dies are small squares.
    """
    pitches = [_pitch_m(at) for at in place_of(network).T]
    known = [pitch for pitch in pitches if pitch > 0] or [1.0]
    scale = PITCH / min(known)
    half = [(scale * (pitch or known[0]) - GAP) / 2 for pitch in pitches]
    halves = np.full((network.num_nodes, 2), IO_HALF)
    halves[: network.num_devices] = half
    centres = network.position_m * scale
    corner = (centres - halves).min(axis=0)
    width, height = ((centres + halves).max(axis=0) - corner).tolist()
    rows = np.hstack([centres - corner, halves]).tolist()
    columns = np.unique(place_of(network)[:, 0])
    wide = np.flatnonzero(np.diff(columns) > 1.01 * pitches[0])
    seams = (columns[wide] + columns[wide + 1]) / 2 * scale - corner[0]
    boxes = tuple(Box(*row) for row in rows)
    return Canvas(boxes, width, height, scale, min(known), tuple(seams.tolist()))


def _pitch_m(coordinates: FloatArray) -> float:
    """Return the least distance of two rows or columns; 0 where there is one only [m]."""
    steps = np.diff(np.unique(coordinates))
    return float(steps.min()) if len(steps) else 0.0


def rectangle(box: Box, kind: str, radius: float) -> str:
    """Return a box with round corners, of a kind that the style sheet knows."""
    return (
        f'<rect class="{kind}" x="{box.x - box.half_width:.1f}" y="{box.y - box.half_height:.1f}" '
        f'width="{2 * box.half_width:.1f}" height="{2 * box.half_height:.1f}" rx="{radius:g}"/>'
    )


def cross(box: Box) -> str:
    """Return both diagonals of a box."""
    left, right = box.x - box.half_width, box.x + box.half_width
    top, bottom = box.y - box.half_height, box.y + box.half_height
    return (
        f'<path class="mark" d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}'
        f'M{right:.1f} {top:.1f}L{left:.1f} {bottom:.1f}"/>'
    )


NARROWEST, WIDEST = 1.6, 11.0
"""Width of the shaft of an idle link and of a full one [px]."""
HEAD_LENGTH, HEAD_EXTRA = 9.0, 3.0
"""Length of a head, and what it is wider than its shaft on either side [px]."""
APART = 8.5
"""Distance of a link from the middle of its wire [px]."""
CLEARANCE = 2.0
"""Between an arrow and the boxes that it joins [px]."""


@dataclass(frozen=True)
class Arrow:
    """From one point to another [px]."""

    from_x: float
    from_y: float
    to_x: float
    to_y: float

    @property
    def length(self) -> float:
        """From the tail to the tip [px]."""
        return math.hypot(self.to_x - self.from_x, self.to_y - self.from_y)

    @property
    def direction(self) -> tuple[float, float]:
        """Of length one."""
        return (self.to_x - self.from_x) / self.length, (self.to_y - self.from_y) / self.length

    def outline(self, share: float) -> str:
        """Return the corners as the points of a polygon, for a load of 0 to 1."""
        half, length, along = half_width(share), self.length, self.direction
        neck = max(length - HEAD_LENGTH, 0.0)
        corners = (
            (0.0, half), (neck, half), (neck, half + HEAD_EXTRA), (length, 0.0),
            (neck, -half - HEAD_EXTRA), (neck, -half), (0.0, -half),
        )  # fmt: skip
        return " ".join(
            f"{self.from_x + s * along[0] - t * along[1]:.1f},"
            f"{self.from_y + s * along[1] + t * along[0]:.1f}"
            for s, t in corners
        )


def half_width(share: float) -> float:
    """Return half of the width of the shaft for a load of 0 to 1 [px]."""
    return (NARROWEST + (WIDEST - NARROWEST) * min(max(share, 0.0), 1.0)) / 2


def arrows_of(source: int, target: int, canvas: Canvas) -> Iterator[Arrow]:
    """Yield the arrow of a link, on the right-hand side of its wire.

    A link that would cross other boxes, as one that closes a ring, is drawn as two short arrows
    that leave the grid at one end and enter it at the other.
    """
    here, there = canvas.boxes[source], canvas.boxes[target]
    along = _direction(here, there)
    if not _crosses(source, target, canvas):
        yield _between(here, there, along)
        return
    back = (-along[0], -along[1])
    outside = Box(*_beyond(here, back), 0.0, 0.0)
    yield _between(here, outside, back)
    outside = Box(*_beyond(there, along), 0.0, 0.0)
    yield _between(outside, there, back)


def _direction(here: Box, there: Box) -> tuple[float, float]:
    length = math.hypot(there.x - here.x, there.y - here.y)
    return (there.x - here.x) / length, (there.y - here.y) / length


def _between(here: Box, there: Box, along: tuple[float, float]) -> Arrow:
    """Return the arrow from edge to edge of two boxes, moved to the right of its direction."""
    start, stop = _reach(here, along) + CLEARANCE, _reach(there, along) + CLEARANCE
    side_x, side_y = -along[1] * APART, along[0] * APART
    return Arrow(
        here.x + along[0] * start + side_x,
        here.y + along[1] * start + side_y,
        there.x - along[0] * stop + side_x,
        there.y - along[1] * stop + side_y,
    )


def _reach(box: Box, along: tuple[float, float]) -> float:
    """Return how far the edge of a box is from its centre in a direction [px]."""
    if box.half_width == 0:
        return 0.0
    limits = [
        half / abs(part)
        for half, part in ((box.half_width, along[0]), (box.half_height, along[1]))
        if abs(part) > 1e-9
    ]
    return min(limits)


def _beyond(box: Box, along: tuple[float, float]) -> tuple[float, float]:
    """Return the point outside of a box where a link that closes a ring is cut off."""
    reach = _reach(box, along) + 0.8 * GAP
    return box.x + along[0] * reach, box.y + along[1] * reach


def _crosses(source: int, target: int, canvas: Canvas) -> bool:
    """Tell whether the straight line between two boxes runs through the middle of another one."""
    here, there = canvas.boxes[source], canvas.boxes[target]
    along = _direction(here, there)
    length = math.hypot(there.x - here.x, there.y - here.y)
    if length - _reach(here, along) - _reach(there, along) <= 2 * GAP:
        return False
    for index, box in enumerate(canvas.boxes):
        if index in (source, target):
            continue
        ahead = (box.x - here.x) * along[0] + (box.y - here.y) * along[1]
        aside = (box.y - here.y) * along[0] - (box.x - here.x) * along[1]
        nearest = min(box.half_width, box.half_height)
        if 0 < ahead < length and abs(aside) < nearest:
            return True
    return False


def draw(plan: Plan, axis: str | None = None) -> WaferMap:
    """Return the picture of a plan on its grid: groups of an axis, ranks, and link heat.

    Parameters
    ----------
    axis
        Whose groups have colours; the innermost one where it is not given.

    Raises
    ------
    UnsupportedError
        The plan has no placement.
    SpecError
        The axis has one device.
    """
    problem, placement = problem_of(plan), plan.best.placement
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
    hottest = price.contention.hottest
    most_s = float(hottest.max(initial=0.0))
    return WaferMap(
        network=physical,
        title=f"{plan.model.name} on {plan.system.name}: {plan.best.text}",
        caption="seconds that links are busy in the backward pass of a micro-batch; contended",
        group=group,
        group_names=tuple(f"{shown} group {number}" for number in range(len(groups))),
        labels=_labels(price, physical),
        load_share=hottest / most_s if most_s > 0 else hottest,
        load_note=f"100 % = {format_seconds(most_s)} busy, the hottest link",
        dead_wires=plan.system.dead_links,
    )


def _labels(price: PlacedPrice, physical: Network) -> tuple[str, ...]:
    """Return the coordinates of the rank on each device, one axis a line."""
    ranks = price.ranks
    labels = [""] * physical.num_devices
    used = [i for i, degree in enumerate(ranks.device.shape) if degree > 1]
    for position, device in np.ndenumerate(ranks.device):
        labels[int(device)] = "\n".join(f"{ranks.axes[i]} {position[i]}" for i in used)
    return tuple(labels)


LINK = 4
"""Columns of text between two devices."""
MOST_GROUPS = 24
"""Groups that are named."""
MOST_OTHERS = 6
"""Links outside the grid that are listed."""
KEY = "d> and <d: load of d0 to d9 %, 9 for all above; . idle, x dead, ~ part of its cores"


def wafer_text(picture: WaferMap) -> Iterator[str]:
    """Yield the lines of the map, wafer by wafer, within 100 columns."""
    yield picture.title
    grid = _grid(picture)
    for wafer in _wafers(picture, grid):
        yield ""
        yield from _drawn(picture, wafer)
    yield ""
    yield from _others(picture, grid)
    names = [f"{group_letter(i)} {name}" for i, name in enumerate(picture.group_names)]
    listed = [*names[:MOST_GROUPS], *(["..."] if len(names) > MOST_GROUPS else [])]
    for text in (f"{KEY}; {picture.load_note}", ", ".join(listed), picture.caption):
        yield from textwrap.wrap(text, WIDTH)


def _grid(picture: WaferMap) -> IntArray:
    """Return the device at each row and column, as arranged."""
    columns, rows = (
        np.unique(at, return_inverse=True)[1].reshape(-1) for at in place_of(picture.network).T
    )
    grid = np.empty((rows.max() + 1, columns.max() + 1), dtype=np.int64)
    grid[rows, columns] = np.arange(picture.network.num_devices)
    return grid


def _wafers(picture: WaferMap, grid: IntArray) -> list[IntArray]:
    """Return the columns of each wafer: a seam is wider than the distance of neighbours."""
    steps = np.diff(np.unique(place_of(picture.network)[:, 0]))
    cuts = np.flatnonzero(steps > 1.01 * steps.min(initial=np.inf)) + 1
    return np.split(grid, cuts, axis=1)


def _drawn(picture: WaferMap, wafer: IntArray) -> Iterator[str]:
    """Yield one wafer: three lines for each row; letters alone where that is too wide."""
    names = [[_name(picture, device) for device in row] for row in wafer.tolist()]
    cell = max(len(name) for row in names for name in row) + 1
    if wafer.shape[1] * (cell + LINK) - LINK > WIDTH:
        yield from _letters(picture, wafer)
        return
    for row, line in enumerate(wafer.tolist()):
        right = [_load(picture, pair, "{}>") for pair in pairwise(line)]
        left = [_load(picture, pair[::-1], "<{}") for pair in pairwise(line)]
        yield _joined(names[row], right, cell)
        yield _joined([""] * len(line), left, cell)
        if row + 1 < len(wafer):
            pairs = list(zip(line, wafer[row + 1].tolist(), strict=True))
            down = [_load(picture, pair, "{}v") for pair in pairs]
            up = [_load(picture, pair[::-1], "^{}") for pair in pairs]
            yield _joined([a + b for a, b in zip(down, up, strict=True)], [""] * len(line), cell)


def _joined(cells: list[str], links: list[str], cell: int) -> str:
    """Return one line of devices and what is between them."""
    parts = zip_longest(cells, links, fillvalue="")
    return "".join(name.ljust(cell) + text.ljust(LINK) for name, text in parts).rstrip()


def _name(picture: WaferMap, device: int) -> str:
    """Return the letter of the group and the number of a device, with what is wrong with it."""
    speed = float(picture.network.speed_factor[device])
    if speed <= 0:
        return f"x{device}"
    return f"{group_letter(int(picture.group[device]))}{device}{'~' if speed < 1 else ''}"


def _load(picture: WaferMap, ends: tuple[int, int], form: str) -> str:
    """Return the load between neighbours as a digit; blank where one of them is dead."""
    link = picture.network.link_between.get(ends)
    if link is not None:
        return form.format(_digit(float(picture.load_share[link])))
    is_dead = ends in picture.dead_wires or ends[::-1] in picture.dead_wires
    return form.format("x") if is_dead else ""


def _digit(share: float) -> str:
    return str(min(int(10 * share), 9)) if share > 0 else "."


def _letters(picture: WaferMap, wafer: IntArray) -> Iterator[str]:
    """Yield the letters of the groups, closely set."""
    if wafer.shape[1] > WIDTH:
        raise UnsupportedError(f"{wafer.shape[1]} columns of devices do not fit in {WIDTH} of text")
    for row in wafer.tolist():
        yield "".join(_name(picture, device)[0] for device in row)
    yield f"too wide for numbers and links in {WIDTH} columns; letters repeat after Z"


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
