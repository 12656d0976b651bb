"""Ways to lay the axes of a strategy on a grid: nested blocks, in any order of the axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from meshwright.network.blocks import Shape, all_block_shapes
from meshwright.sharding.strategy import PlanOptions, Strategy


@dataclass(frozen=True)
class Choice:
    """A way to lay the axes of a strategy on a grid."""

    axes: tuple[str, ...]
    """Innermost first."""
    shapes: tuple[Shape, ...]
    """Members of each axis on each level, innermost level first."""


def all_choices(structure: PlanOptions, strategy: Strategy, sides: Shape) -> Iterator[Choice]:
    """Yield every way to lay the axes in nested blocks; those of the plan's own order first."""
    used = [axis for axis in structure.axis_order if getattr(strategy, axis) > 1]
    unused = tuple(axis for axis in structure.axis_order if axis not in used)
    seen = set()
    for axes in permutations(used):
        degrees = tuple(int(getattr(strategy, axis)) for axis in axes)
        for shapes in all_block_shapes(degrees, sides):
            choice = Choice((*axes, *unused), (*shapes, *((1,) * len(sides) for _ in unused)))
            key = _key(choice)
            if key not in seen:
                seen.add(key)
                yield choice


def _key(choice: Choice) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return what tells choices apart: on each level the axes that are longer than one there."""
    levels = range(len(choice.shapes[0]))
    return tuple(
        tuple((a, s[k]) for a, s in zip(choice.axes, choice.shapes, strict=True) if s[k] > 1)
        for k in levels
    )
