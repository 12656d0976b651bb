"""What a picture of a wafer shows, and where it is drawn."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.topology.network import Network

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
