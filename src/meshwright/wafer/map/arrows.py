"""Links as arrows between boxes: the two directions of a wire side by side, as wide as loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.wafer.map.picture import GAP, Box, Canvas

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
