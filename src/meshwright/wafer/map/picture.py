"""What a picture of a wafer shows, and where it is drawn."""

from __future__ import annotations

import string
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
                "the devices of this network stand otherwise"
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
