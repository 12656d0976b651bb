"""Where a plan runs: blocks of its axes, routes, what waits for shared links, the hottest links."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from meshwright.base.units import format_seconds
from meshwright.report.screen import wrapped
from meshwright.train.answer import Placement

_BUSY = {"compute": "arithmetic", "hbm": "HBM", "d2d": "links", "exposed": "exposed"}


def placement_lines(placement: Placement) -> Iterator[str]:
    """Yield where the ranks run and what their messages wait for, in a few lines."""
    yield from wrapped("placement: ", blocks_in_words(placement))
    yield from wrapped("routes: ", placement.routing + "; " + _waits(placement))
    busy = ", ".join(
        f"{_BUSY[name]} {format_seconds(seconds)}" for name, seconds in placement.busy_s.items()
    )
    yield f"busiest device in a step: {busy}"


def blocks_in_words(placement: Placement) -> str:
    """Return the blocks in words, innermost first."""
    sides = "x".join(map(str, placement.grid_shape))
    blocks = ", ".join(
        f"{axis} {'x'.join(map(str, placement.shapes[axis]))}" for axis in placement.axes
    )
    of = " of rows x columns" if len(placement.grid_shape) == 2 else ""
    ways = "one way" if placement.num_choices == 1 else f"best of {placement.num_choices} ways"
    return f"blocks{of} on {sides}, from the inside: {blocks or 'one device'}; {ways} to nest them"


def _waits(placement: Placement) -> str:
    """Return which axes share links, and what that costs."""
    slower = {axis: f for axis, f in placement.slowdown.items() if f > 1.005}
    if not slower:
        return "no two axes share a busy link"
    ordered = sorted(slower.items(), key=lambda item: -item[1])
    return (
        "links shared with others make "
        + ", ".join(f"{a} {f:.2f}x" for a, f in ordered)
        + (
            " slower than links of its own"
            if len(slower) == 1
            else " slower than links of their own"
        )
    )


def hottest_lines(placement: Placement) -> Iterator[str]:
    """Yield the busiest links and who shares them."""
    yield "hottest links, in the backward pass of a micro-batch"
    for link in placement.hottest_links:
        ends = " -> ".join(
            _node(device, placement.grid_shape) for device in (link.source, link.target)
        )
        shares = ", ".join(
            f"{axis} {seconds / link.busy_s:.0%}"
            for axis, seconds in sorted(link.by_axis_s.items(), key=lambda item: -item[1])
        )
        yield from wrapped(f"  {format_seconds(link.busy_s):>8}  ", f"{ends}: {shares}")


def _node(number: int, grid_shape: tuple[int, ...]) -> str:
    """Return a device and where it is on the grid; nodes beyond the devices are IO dies."""
    if number >= prod(grid_shape):
        return f"IO die {number - prod(grid_shape)}"
    at, rest = [], number
    for side in grid_shape[::-1]:
        rest, place = divmod(rest, side)
        at.append(place)
    if len(at) == 2:
        return f"{number} (row {at[1]}, column {at[0]})"
    return f"{number} ({', '.join(map(str, at[::-1]))})"
