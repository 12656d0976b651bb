"""Where a plan runs: blocks of its axes, routes, what waits for shared links, the hottest links."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from string import ascii_uppercase

from meshwright.base.units import format_bytes, format_seconds
from meshwright.report.screen import time_lines, wrapped
from meshwright.train.answer import OperatorOption, OperatorPlan, OperatorRun, Placement

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


def operator_lines(plan: OperatorPlan, one_for_all_s: float) -> Iterator[str]:
    """Yield the options, who has which, the price and the proofs; at most 100 columns wide."""
    faster = one_for_all_s / plan.step_time_s - 1.0
    than = f"{faster:.1%} faster" if faster >= 0 else f"{-faster:.1%} slower"
    yield (
        f"a strategy for each operator: {format_seconds(plan.step_time_s)} a step "
        f"({than} than one for all), {format_bytes(plan.memory_bytes)}; {plan.fidelity}"
    )
    for number, option in enumerate(plan.options):
        yield from wrapped(f"  {_letter(number)}  ", option.text)
        yield from wrapped("     ", _place(option))
    yield f"  {'layers':<9} option  operators"
    for run in plan.runs:
        head = f"  {_layers(run):<9} {_letter(run.option):<6}  "
        yield from wrapped(head, ", ".join(run.operators))
    yield from time_lines("  time of a step", plan.time_parts_s, plan.step_time_s)
    yield from wrapped(
        "  proof: ",
        f"alone on its links {format_seconds(plan.closed_form_s)}, no choice among "
        f"{plan.num_options} options takes less than {format_seconds(plan.closed_form_bound_s)} "
        f"(gap {plan.closed_form_gap:.2%}); with contention and resharding no plan of these "
        f"micro-batches takes less than {format_seconds(plan.lower_bound_s)} "
        f"(gap {plan.gap:.1%}); found in {plan.search_s:.1f} s",
    )


def _letter(number: int) -> str:
    """Return the name of an option: A to Z, then A1."""
    times, letter = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[letter] + (str(times) if times else "")


def _layers(run: OperatorRun) -> str:
    if run.first_layer is None:
        return "edge"
    if run.first_layer == run.last_layer:
        return str(run.first_layer)
    return f"{run.first_layer}-{run.last_layer}"


def _place(option: OperatorOption) -> str:
    """Return where the axes of an option lie."""
    blocks = ", ".join(f"{axis} {'x'.join(map(str, option.shapes[axis]))}" for axis in option.axes)
    return f"blocks of rows x columns, from the inside: {blocks or 'none'}"
