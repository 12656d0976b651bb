"""The picture of a wafer as SVG: one file, nothing from outside, equal for equal input."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from meshwright.report.chart import group_class, heat_step, style_sheet
from meshwright.wafer.map.arrows import Arrow, arrows_of, half_width
from meshwright.wafer.map.legend import legend
from meshwright.wafer.map.picture import (
    Box,
    Canvas,
    WaferMap,
    cross,
    group_letter,
    make_canvas,
    rectangle,
)

MARGIN = 38.0
"""Around the grid: room for links that close a ring [px]."""
HEAD = 40.0
"""Height of the title [px]."""
LEAST_WIDTH = 620.0
"""Width that the legend needs [px]."""
SEAM_ABOVE = -8.0
"""Upper end of the line of a seam [px]."""
LINE = 13.0
"""Distance of lines of a label [px]."""


def wafer_svg(picture: WaferMap) -> str:
    """Return the picture of a wafer: groups, ranks, link loads, faults and their legend."""
    canvas = make_canvas(picture.network)
    width = max(canvas.width + 2 * MARGIN, LEAST_WIDTH)
    left, top = (width - canvas.width) / 2, HEAD + MARGIN
    foot, foot_height = legend(picture, canvas, width - 2 * MARGIN)
    height = top + canvas.height + MARGIN + foot_height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{style_sheet()}</style>",
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern></defs>',
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="title" x="{MARGIN:.0f}" y="{HEAD - 8:.0f}">{escape(picture.title)}</text>',
        f'<g transform="translate({left:.1f} {top:.1f})">',
        *_seams(canvas),
        *_links(picture, canvas),
        *_dead_wires(picture, canvas),
        *_nodes(picture, canvas),
        "</g>",
        f'<g transform="translate({MARGIN:.1f} {top + canvas.height + MARGIN:.1f})">',
        *foot,
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _links(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield the arrows of all links, the hottest last, so that they lie on top."""
    shares = picture.load_share.tolist()
    network = picture.network
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    for link in sorted(range(len(ends)), key=lambda link: (shares[link], link)):
        source, target = ends[link]
        share = shares[link]
        arrows = list(arrows_of(source, target, canvas))
        outlines = "".join(f'<polygon points="{arrow.outline(share)}"/>' for arrow in arrows)
        says = f"<title>{source} to {target}: {share:.0%}</title>"
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
    return _text("load", x - along_y * away, y + along_x * away + drop, words, anchor)


def _seams(canvas: Canvas) -> Iterator[str]:
    """Yield a dashed line between wafers."""
    for x in canvas.seams:
        line = f"M{x:.1f} {SEAM_ABOVE:.1f}V{canvas.height:.1f}"
        yield f'<path class="seam" d="{line}"/>'
        yield _text("note quiet", x, SEAM_ABOVE - 6, "seam", "middle")


def _dead_wires(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield a cross between the devices of each dead wire."""
    for first, second in picture.dead_wires:
        here, there = canvas.boxes[first], canvas.boxes[second]
        x, y = (here.x + there.x) / 2, (here.y + there.y) / 2
        yield (f"<g><title>{first} and {second}: dead wire</title>{cross(Box(x, y, 8.0, 8.0))}</g>")


def _nodes(picture: WaferMap, canvas: Canvas) -> Iterator[str]:
    """Yield all devices, then IO dies and switches."""
    num_devices = picture.network.num_devices
    for device, box in enumerate(canvas.boxes[:num_devices]):
        yield "".join(_device(picture, device, box))
    for node, box in enumerate(canvas.boxes[num_devices:], start=num_devices):
        yield f"<g><title>IO die {node}</title>{rectangle(box, 'io', 2.0)}</g>"


def _device(picture: WaferMap, device: int, box: Box) -> Iterator[str]:
    """Yield one device: its colour, number, group and rank, and what is wrong with it."""
    speed = float(picture.network.speed_factor[device])
    colour = group_class(int(picture.group[device]))
    yield f"<g><title>{escape(_told(picture, device))}</title>"
    yield rectangle(box, f"die {'dead' if speed <= 0 else colour}", 7.0)
    if speed <= 0:
        yield cross(Box(box.x, box.y, box.half_width - 5, box.half_height - 5))
    elif speed < 1:
        yield rectangle(box, "die hatched", 7.0)
    yield from _words(picture, device, box, speed)
    yield "</g>"


def _told(picture: WaferMap, device: int) -> str:
    """Return what a pointer over a device tells."""
    speed, group = float(picture.network.speed_factor[device]), int(picture.group[device])
    works = "dead" if speed <= 0 else f"{speed:.0%} of full speed"
    member = picture.group_names[group] if group >= 0 else "no work"
    words = [f"device {device}", works, member, *picture.labels[device].splitlines()]
    return ", ".join(words)


def _words(picture: WaferMap, device: int, box: Box, speed: float) -> Iterator[str]:
    """Yield the number in the middle, the rank under it, group and speed in the corners."""
    lines = picture.labels[device].splitlines() if speed > 0 else []
    top = box.y - LINE * len(lines) / 2
    left, right = box.x - box.half_width + 6, box.x + box.half_width - 6
    corner = box.y - box.half_height + 15
    kind = "number" if speed > 0 else "number struck"
    yield _text(kind, box.x, top + 6, str(device), "middle")
    for index, line in enumerate(lines, start=1):
        yield _text("label", box.x, top + 8 + LINE * index, line, "middle")
    if speed > 0 and picture.group[device] >= 0:
        yield _text("letter", left, corner, group_letter(int(picture.group[device])), "start")
    if 0 < speed < 1:
        yield _text("label", right, corner, f"{speed:.0%}", "end")


def _text(kind: str, x: float, y: float, words: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'
