"""The picture of a wafer as SVG: devices true to scale, arrows of link loads, faults, a legend."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.topology.network import Network
from meshwright.view.drawing import HEAT_STEPS, group_class, heat_step, label, page
from meshwright.wafer.picture import MOST_GROUPS, WaferMap, group_letter, load_in_words, place_of

PITCH = 112.0
"""Distance of neighbours along the narrower side [px]."""
GAP = 44.0
"""Room for links between neighbours [px]."""
IO_HALF = 9.0
"""Half of the side of an IO die or a switch [px]."""
MARGIN = 38.0
"""Around the grid: room for links that close a ring [px]."""
HEAD = 18.0
"""Height without the lines of the title [px]."""
TITLE_LINE, TITLE_LETTER = 22.0, 10.4
"""Height of a line of the title, and width of a letter at most, nearly [px]."""
LEAST_WIDTH = 620.0
"""Width that the legend needs [px]."""
SEAM_ABOVE = -8.0
"""Upper end of the line of a seam [px]."""
LINE = 13.0
"""Distance of lines of a label [px]."""
NARROWEST, WIDEST = 1.6, 11.0
"""Width of the shaft of an idle link and of a full one [px]."""
HEAD_LENGTH, HEAD_EXTRA = 9.0, 3.0
"""Length of a head, and its width beyond the shaft on either side [px]."""
APART = 8.5
"""Distance of a link from the middle of its wire [px]."""
CLEARANCE = 2.0
"""Clearance between an arrow and the boxes that it joins [px]."""
STEP_WIDTH = 30.0
"""Length of one step of the heat scale [px]."""
ROW = 22.0
"""Height of a line of the legend [px]."""
SAMPLE_WIDTH = 40.0
"""Room of a sample, and between two entries [px]."""
LETTER_WIDTH = 6.3
"""Mean width of a letter of the caption [px]."""
NOMINAL_PITCH_M = 0.5
"""Devices farther apart than this are at places without a meaning."""
_HATCH = (
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern>'
)


@dataclass(frozen=True)
class Box:
    """A rectangle by its centre and half of its sides [px]."""

    x: float
    y: float
    half_width: float
    half_height: float

    def drawn(self, kind: str, radius: float) -> str:
        """Return it with round corners, of a kind that the style sheet knows."""
        return (
            f'<rect class="{kind}" x="{self.x - self.half_width:.1f}" '
            f'y="{self.y - self.half_height:.1f}" width="{2 * self.half_width:.1f}" '
            f'height="{2 * self.half_height:.1f}" rx="{radius:g}"/>'
        )

    def cross(self) -> str:
        """Return both of its diagonals."""
        left, right = self.x - self.half_width, self.x + self.half_width
        top, bottom = self.y - self.half_height, self.y + self.half_height
        return (
            f'<path class="mark" d="M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}'
            f'M{right:.1f} {top:.1f}L{left:.1f} {bottom:.1f}"/>'
        )

    def reach(self, along: tuple[float, float]) -> float:
        """Return the distance of the edge from the centre in a direction [px]."""
        if self.half_width == 0:
            return 0.0
        sides = ((self.half_width, along[0]), (self.half_height, along[1]))
        return min(half / abs(part) for half, part in sides if abs(part) > 1e-9)


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
    """Return the boxes of the nodes of a grid, drawn true to scale.

    Devices fill their pitch but for the room of the links; IO dies are small squares.
    """
    # The least distance of two rows or columns; 0 where there is one only [m].
    steps = [np.diff(np.unique(coordinates)) for coordinates in place_of(network).T]
    pitches = [float(each.min()) if len(each) else 0.0 for each in steps]
    known = [pitch for pitch in pitches if pitch > 0] or [1.0]
    scale = PITCH / min(known)
    half = [(scale * (pitch or known[0]) - GAP) / 2 for pitch in pitches]
    halves: FloatArray = np.full((network.num_nodes, 2), IO_HALF)
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


@dataclass(frozen=True)
class Arrow:
    """An arrow from one point to another [px]."""

    from_x: float
    from_y: float
    to_x: float
    to_y: float

    @property
    def length(self) -> float:
        """Distance from the tail to the tip [px]."""
        return math.hypot(self.to_x - self.from_x, self.to_y - self.from_y)

    @property
    def direction(self) -> tuple[float, float]:
        """Unit vector along the arrow."""
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
    wire = Arrow(here.x, here.y, there.x, there.y)
    along, length = wire.direction, wire.length
    others = [box for node, box in enumerate(canvas.boxes) if node not in (source, target)]
    is_long = length - here.reach(along) - there.reach(along) > 2 * GAP
    if not (is_long and any(_crosses(box, here, along, length) for box in others)):
        yield _between(here, there, along)
        return
    back = (-along[0], -along[1])
    for box, away, enters in ((here, back, False), (there, along, True)):
        reach = box.reach(away) + 0.8 * GAP
        outside = Box(box.x + away[0] * reach, box.y + away[1] * reach, 0.0, 0.0)
        yield _between(outside, box, back) if enters else _between(box, outside, back)


def _crosses(box: Box, start: Box, along: tuple[float, float], length: float) -> bool:
    """Tell whether a line of a length from the middle of a box runs through another one."""
    ahead = (box.x - start.x) * along[0] + (box.y - start.y) * along[1]
    aside = (box.y - start.y) * along[0] - (box.x - start.x) * along[1]
    return 0 < ahead < length and abs(aside) < min(box.half_width, box.half_height)


def _between(here: Box, there: Box, along: tuple[float, float]) -> Arrow:
    """Return the arrow from edge to edge of two boxes, moved to the right of its direction."""
    start, stop = here.reach(along) + CLEARANCE, there.reach(along) + CLEARANCE
    side_x, side_y = -along[1] * APART, along[0] * APART
    return Arrow(
        here.x + along[0] * start + side_x,
        here.y + along[1] * start + side_y,
        there.x - along[0] * stop + side_x,
        there.y - along[1] * stop + side_y,
    )


def wafer_svg(picture: WaferMap) -> str:
    """Return the picture of a wafer: groups, ranks, link loads, faults and their legend."""
    canvas = make_canvas(picture.network)
    width = max(canvas.width + 2 * MARGIN, LEAST_WIDTH)
    title = textwrap.wrap(picture.title, int((width - 2 * MARGIN) / TITLE_LETTER))
    left, top = (width - canvas.width) / 2, HEAD + TITLE_LINE * len(title) + MARGIN
    num_devices = picture.network.num_devices
    parts = [
        *(
            label(MARGIN, HEAD - 8 + TITLE_LINE * number, line, "title")
            for number, line in enumerate(title, start=1)
        ),
        f'<g transform="translate({left:.1f} {top:.1f})">',
    ]
    for x in canvas.seams:
        line = f"M{x:.1f} {SEAM_ABOVE:.1f}V{canvas.height:.1f}"
        parts.append(f'<path class="seam" d="{line}"/>')
        parts.append(label(x, SEAM_ABOVE - 6, "seam", "note quiet", "middle"))
    parts += _links(picture, canvas)
    for first, second in picture.dead_wires:
        here, there = canvas.boxes[first], canvas.boxes[second]
        mark = Box((here.x + there.x) / 2, (here.y + there.y) / 2, 8.0, 8.0).cross()
        parts.append(f"<g><title>{first} and {second}: dead wire</title>{mark}</g>")
    for device, box in enumerate(canvas.boxes[:num_devices]):
        parts.append("".join(_device(picture, device, box)))
    for node, box in enumerate(canvas.boxes[num_devices:], start=num_devices):
        parts.append(f"<g><title>IO die {node}</title>{box.drawn('io', 2.0)}</g>")
    parts.append("</g>")
    y = top + canvas.height + MARGIN
    for drawn, section_height in _legend(picture, canvas, width - 2 * MARGIN):
        parts += [f'<g transform="translate({MARGIN:.1f} {y:.1f})">', *drawn, "</g>"]
        y += section_height
    return page(width, y + ROW / 2, picture.title, parts, definitions=_HATCH)


def _links(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield the arrows of all links, the hottest last, so that they are on top."""
    shares = picture.load_share.tolist()
    network = picture.network
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    for link in sorted(range(len(ends)), key=lambda link: (shares[link], link)):
        source, target = ends[link]
        share = shares[link]
        arrows = list(arrows_of(source, target, canvas))
        outlines = "".join(f'<polygon points="{arrow.outline(share)}"/>' for arrow in arrows)
        says = f"<title>{source} to {target}: {load_in_words(picture, link)}</title>"
        yield f'<g class="link h{heat_step(share)}">{says}{outlines}</g>'
        yield from (_percent(arrow, share) for arrow in arrows if share > 0)


def _percent(arrow: Arrow, share: float) -> str:
    """Return the load of a link in percent, on the outer side of its arrow."""
    x, y = (arrow.from_x + arrow.to_x) / 2, (arrow.from_y + arrow.to_y) / 2
    along_x, along_y = arrow.direction
    away = half_width(share) + 2.0
    is_upright = abs(along_y) > abs(along_x)
    anchor = ("start" if along_y < 0 else "end") if is_upright else "middle"
    drop = 3.0 if is_upright else (7.0 if along_x > 0 else 0.0)
    words = f"{100 * share:.0f}" if share >= 0.005 else "<1"
    return label(x - along_y * away, y + along_x * away + drop, words, "load", anchor)


def _device(picture: WaferMap, device: int, box: Box) -> Iterator[str]:
    """Yield one device: its colour, number, group and rank, and its fault."""
    speed, group = float(picture.network.speed_factor[device]), int(picture.group[device])
    lines = picture.labels[device].splitlines()
    works = "dead" if speed <= 0 else f"{speed:.0%} of full speed"
    member = picture.group_names[group] if group >= 0 else "no work"
    yield f"<g><title>{escape(', '.join([f'device {device}', works, member, *lines]))}</title>"
    yield box.drawn(f"die {'dead' if speed <= 0 else group_class(group)}", 7.0)
    if speed <= 0:
        yield Box(box.x, box.y, box.half_width - 5, box.half_height - 5).cross()
        yield label(box.x, box.y + 6, str(device), "number struck", "middle")
        yield "</g>"
        return
    if speed < 1:
        yield box.drawn("die hatched", 7.0)
    # The number in the middle, the rank under it, group and speed in the corners.
    top, corner = box.y - LINE * len(lines) / 2, box.y - box.half_height + 15
    yield label(box.x, top + 6, str(device), "number", "middle")
    for index, line in enumerate(lines, start=1):
        yield label(box.x, top + 8 + LINE * index, line, "label", "middle")
    if group >= 0:
        yield label(box.x - box.half_width + 6, corner, group_letter(group), "letter")
    if speed < 1:
        yield label(box.x + box.half_width - 6, corner, f"{speed:.0%}", "label", "end")
    yield "</g>"


Section = tuple[list[str], float]
"""Elements drawn from (0, 0) downwards, and their height [px]."""


def _legend(picture: WaferMap, canvas: Canvas, width: float) -> Iterator[Section]:
    """Yield the sections of the legend: heat scale and length, groups, marks, caption."""
    parts = [label(0, 12, f"link load: {picture.load_note}", "note")]
    for step in range(HEAT_STEPS + 1):
        share = step / HEAT_STEPS
        x = step * STEP_WIDTH
        shape = Arrow(x, 30, x + STEP_WIDTH - 3, 30).outline(share)
        parts.append(f'<polygon class="link h{heat_step(share)}" points="{shape}"/>')
        if step % 2 == 0:
            x += STEP_WIDTH / 2 - 2
            parts.append(label(x, 52, f"{share:.0%}", "note quiet", "middle"))
    if canvas.pitch_m <= NOMINAL_PITCH_M:
        # A bar of a round length about as long as a device, where places are known.
        unit_m = 10.0 ** math.floor(math.log10(canvas.pitch_m))
        length_m = max(m * unit_m for m in (1.0, 2.0, 5.0) if m * unit_m <= canvas.pitch_m)
        end, start = width, width - length_m * canvas.pixels_per_m
        bar = f"M{start:.1f} 25V35M{start:.1f} 30H{end:.1f}M{end:.1f} 25V35"
        parts.append(f'<path class="axis" d="{bar}"/>')
        parts.append(label(end, 52, f"{length_m * 1e3:g} mm", "note quiet", "end"))
    yield parts, 72.0
    sample = Box(9.0, 8.0, 9.0, 8.0)
    groups = [
        (
            sample.drawn(f"die {group_class(index)}", 3.0)
            + label(9, 12.5, group_letter(index), "letter", "middle"),
            name,
        )
        for index, name in enumerate(picture.group_names[:MOST_GROUPS])
    ]
    yield _entries(groups, width)
    speed, idle = picture.network.speed_factor, sample.drawn("die none", 3.0)
    has_io_dies = picture.network.num_nodes > picture.network.num_devices
    marks = (
        (idle, "no work", ((picture.group < 0) & (speed > 0)).any()),
        (idle + sample.drawn("die hatched", 3.0), "part of its cores",
         ((speed > 0) & (speed < 1)).any()),
        (sample.drawn("die dead", 3.0) + sample.cross(), "dead device", (speed <= 0).any()),
        (Box(9.0, 8.0, 5.0, 5.0).cross(), "dead wire", bool(picture.dead_wires)),
        (Box(9.0, 8.0, 6.0, 6.0).drawn("io", 2.0), "IO die", has_io_dies),
    )  # fmt: skip
    yield _entries([(drawn, name) for drawn, name, occurs in marks if occurs], width)
    lines = textwrap.wrap(picture.caption, int(width / LETTER_WIDTH))
    words = [label(0, 16 + 17 * i, line, "note quiet") for i, line in enumerate(lines)]
    yield words, 8.0 + 17.0 * len(lines)


def _entries(entries: list[tuple[str, str]], width: float) -> Section:
    """Return samples with their names in rows."""
    longest = max((len(name) for _, name in entries), default=0)
    entry_width = SAMPLE_WIDTH + LETTER_WIDTH * longest
    columns = max(int(width // entry_width), 1)
    parts = []
    for index, (sample, name) in enumerate(entries):
        row, column = divmod(index, columns)
        place = f"translate({column * entry_width:.1f} {row * ROW:.1f})"
        parts.append(f'<g transform="{place}">{sample}{label(24, 12, name, "note")}</g>')
    return parts, math.ceil(len(entries) / columns) * ROW
