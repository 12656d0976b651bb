"""A tensor as an operation of a framework sees it, and how that lies in the tensor that was made.

A framework knows axes by number only. Here every axis is a row of factors. A reshape that splits
an axis splits its factor, one that merges axes puts their factors side by side, a transpose
changes their order: none of them is a kernel, for the reader still knows where each factor lies.
An axis of size 1 has no factor. A factor that is only repeated (``expand``) lies nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod


@dataclass(frozen=True, eq=False)
class Factor:
    """An axis, or what a reshape made of one; two factors are the same only if they are one."""

    name: str
    size: int
    age: int
    """Older names win where several meet in a kernel."""


Axis = tuple[Factor, ...]
"""Factors side by side, the outer one first."""


@dataclass(frozen=True)
class Value:
    """What stands between two operations: a view of a kernel, an input or a weight."""

    source: str
    places: tuple[Axis, ...]
    """Of the tensor as it was made: the factors of each of its dims."""
    axes: tuple[Axis, ...]
    """As it is seen now."""
    word_bytes: float
    is_weight: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(size_of(axis) for axis in self.axes)

    def axis(self, number: int) -> int:
        """Return the number of an axis, counted from the end where it is negative."""
        return number % len(self.axes) if self.axes else 0

    def permuted(self, order: Sequence[int]) -> Value:
        """Return the value with its axes in another order."""
        return replace(self, axes=tuple(self.axes[self.axis(number)] for number in order))

    def split(self, parts: Mapping[Factor, Sequence[Factor]]) -> Value:
        """Return the value with some factors taken apart."""

        def taken_apart(axis: Axis) -> Axis:
            return tuple(part for factor in axis for part in parts.get(factor, (factor,)))

        return replace(
            self,
            places=tuple(map(taken_apart, self.places)),
            axes=tuple(map(taken_apart, self.axes)),
        )

    def expanded(self, shape: Sequence[int], age: int) -> Value:
        """Return the value repeated along axes of size 1, and along new ones before the first."""
        before = len(shape) - len(self.axes)
        axes = [()] * before + list(self.axes)
        repeated = [
            (Factor(f"{self.source}.repeat{number}", size, age),) if not axis and size > 1 else axis
            for number, (axis, size) in enumerate(zip(axes, shape, strict=True))
        ]
        return replace(self, axes=tuple(repeated))

    def reshaped(self, shape: Sequence[int]) -> Value | None:
        """Return the value in another shape, or None where a factor would be cut unevenly."""
        flat = [factor for axis in self.axes for factor in axis]
        parts = split_at(flat, [size for size in shape if size > 1])
        if parts is None:
            return None
        value = self.split(parts)
        left = [factor for axis in value.axes for factor in axis]
        axes = []
        for size in shape:
            taken: list[Factor] = []
            while prod(factor.size for factor in taken) < size:
                taken.append(left.pop(0))
            axes.append(tuple(taken))
        return replace(value, axes=tuple(axes))


def size_of(axis: Axis) -> int:
    """Return the size of an axis."""
    return prod(factor.size for factor in axis)


def ends_of(sizes: Sequence[int]) -> list[int]:
    """Return how many elements of the outer factors there are at each end of a factor."""
    return [prod(sizes[: number + 1]) for number in range(len(sizes))]


def split_at(
    factors: Sequence[Factor], sizes: Sequence[int]
) -> dict[Factor, tuple[Factor, ...]] | None:
    """Return how factors are to be taken apart so that cuts between other sizes fall on theirs.

    None where a cut falls unevenly inside a factor, as in 6 x 4 seen as 8 x 3.
    """
    ends = ends_of([factor.size for factor in factors])
    cuts = sorted({1, *ends, *ends_of(sizes)})
    if any(after % before for before, after in pairwise(cuts)):
        return None
    starts = [1, *ends][: len(ends)]
    parts: dict[Factor, tuple[Factor, ...]] = {}
    for factor, start, end in zip(factors, starts, ends, strict=True):
        inside = [cut for cut in cuts if start <= cut <= end]
        if len(inside) > 2:
            parts[factor] = tuple(
                Factor(f"{factor.name}.{number}", after // before, factor.age)
                for number, (before, after) in enumerate(pairwise(inside))
            )
    return parts
