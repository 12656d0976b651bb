"""The map of a wafer for a terminal: letters of groups, a digit of load on each link."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import pairwise, zip_longest

import numpy as np

from meshwright.base.arrays import IntArray
from meshwright.base.errors import UnsupportedError
from meshwright.report.screen import WIDTH
from meshwright.wafer.map.picture import WaferMap, group_letter, place_of

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
