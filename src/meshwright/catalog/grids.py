"""Shapes of grids of devices: which a wafer or a TPU slice may have, and which sides wrap.

A shape is written outermost side first, as published: ``6x8`` is six rows of eight columns, and
the last side is level 0 of the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Literal, Self

from pydantic import model_validator

from meshwright.base.errors import Fault, SpecError
from meshwright.spec.declaration import Count, Declaration
from meshwright.spec.system import NetworkLevel

Shape = tuple[int, ...]
_SHAPE = re.compile(r"[1-9][0-9]{0,3}(x[1-9][0-9]{0,3})+")


class GridRule(Declaration):
    """Which shapes there are, and which of their sides close into a ring."""

    dims: Count
    """Levels 0 to ``dims - 1`` are the sides of the grid."""
    shapes: tuple[str, ...]
    """Standard shape of each number of devices."""
    other_side_multiple: Count | None = None
    """Any other shape is legal whose sides are all multiples of this; none where it is absent."""
    wraps: Literal["never", "whole_cubes", "full_side"] = "never"
    """``whole_cubes``: all sides wrap once all are multiples of 4 (optical switches join cubes of
    4x4x4). ``full_side``: a side wraps where it is as long as the level allows."""

    @model_validator(mode="after")
    def _shapes_have_these_dims(self) -> Self:
        for text in self.shapes:
            shape = parse_shape(text)
            if shape is None or len(shape) != self.dims:
                raise ValueError(f"shapes: {text!r} is no shape of {self.dims} sides such as 4x8")
        if not self.shapes:
            raise ValueError("shapes: at least one shape is needed")
        return self


def shape_text(shape: Shape) -> str:
    """Return a shape as it is written: ``4x4x8``."""
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape | None:
    """Return the sides of a written shape, or None where the text is no shape."""
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


def longest_sides(rule: GridRule, levels: tuple[NetworkLevel, ...]) -> Shape:
    """Return the longest sides the levels allow, outermost first."""
    return tuple(level.size for level in reversed(levels[: rule.dims]))


def listed_shapes(rule: GridRule) -> tuple[Shape, ...]:
    """Return the standard shapes."""
    return tuple(shape for text in rule.shapes if (shape := parse_shape(text)) is not None)


def is_legal(rule: GridRule, longest: Shape, shape: Shape) -> bool:
    """Tell whether a system may have this shape."""
    if shape in listed_shapes(rule):
        return True
    multiple = rule.other_side_multiple
    fits = len(shape) == rule.dims and all(a <= b for a, b in zip(shape, longest, strict=True))
    return multiple is not None and fits and all(side % multiple == 0 for side in shape)


def standard_shape(rule: GridRule, longest: Shape, num_devices: int) -> Shape | None:
    """Return the shape meant by a number of devices, or None where no shape has that many.

    A listed shape comes first; otherwise the legal one with the shortest sides in sum, its short
    sides outermost.
    """
    for shape in listed_shapes(rule):
        if math.prod(shape) == num_devices:
            return shape
    legal = [
        shape
        for shape in factorings(num_devices, rule.dims)
        if list(shape) == sorted(shape) and is_legal(rule, longest, shape)
    ]
    return min(legal, key=sum, default=None)


def factorings(number: int, parts: int) -> Iterator[Shape]:
    """Yield the ways to write a number as a product of so many factors, in order."""
    if parts == 1:
        yield (number,)
        return
    for factor in range(1, number + 1):
        if number % factor == 0:
            for rest in factorings(number // factor, parts - 1):
                yield (factor, *rest)


def near_sizes(rule: GridRule, longest: Shape, num_devices: int) -> str:
    """Return the legal sizes next to a number of devices, in words."""
    lower = (n for n in range(num_devices - 1, 0, -1) if standard_shape(rule, longest, n))
    reach = min(4 * num_devices, math.prod(longest)) + 1
    upper = (n for n in range(num_devices + 1, reach) if standard_shape(rule, longest, n))
    near = [n for n in (next(lower, None), next(upper, None)) if n is not None]
    shapes = (standard_shape(rule, longest, n) for n in near)
    named = zip(near, shapes, strict=True)
    return " or ".join(f"{n} ({shape_text(shape)})" for n, shape in named if shape)


def grid_levels(
    rule: GridRule, levels: tuple[NetworkLevel, ...], shape: Shape
) -> tuple[NetworkLevel, ...]:
    """Return the levels of a grid of this shape, innermost first: tori where they wrap."""
    longest = longest_sides(rule, levels)
    whole_cubes = rule.wraps == "whole_cubes" and all(side % 4 == 0 for side in shape)
    sized = []
    for level, side, limit in zip(levels, reversed(shape), reversed(longest), strict=False):
        wraps = whole_cubes or (rule.wraps == "full_side" and side == limit)
        kind = "torus" if wraps else "mesh"
        sized.append(level.model_copy(update={"size": side, "kind": kind}))
    return tuple(level for level in sized if level.size > 1)


def check_shape(rule: GridRule, longest: Shape, shape: Shape, name: str) -> None:
    """Raise a :class:`SpecError` where a system cannot have this shape."""
    if is_legal(rule, longest, shape):
        return
    allowed = f"standard shapes: {', '.join(rule.shapes)}"
    if rule.other_side_multiple is not None:
        every = rule.other_side_multiple
        sides = "" if every == 1 else f"multiples of {every}, "
        allowed += f"; others: {rule.dims} sides, {sides}at most {shape_text(longest)}"
    raise SpecError(Fault("on", f"{name} cannot have the shape {shape_text(shape)}", allowed))
