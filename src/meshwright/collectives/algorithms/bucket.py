"""Bucket collectives on several grid dimensions at once.

With k dimensions the data is cut into k parts; part i gathers along dimension i first, then along
the next one, so that every link works in every phase. On an R x C mesh this is the pair of halves,
row first and column first.
Source: Sack and Gropp 2015, "Collective algorithms for multiported torus networks", section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from meshwright.base.arrays import N, larger, where
from meshwright.collectives.gathers import (
    GATHER_KINDS,
    Stream,
    StreamGather,
    gather_affine,
    shape_of,
)
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import collective_algorithms
from meshwright.spec.collective import CollectiveKind


class Bucket(StreamGather):
    """Every part of the data visits the grid dimensions in a rotated order."""

    def __init__(self, kind: CollectiveKind) -> None:
        super().__init__(kind)
        self.replay_slack = 0.5
        """Where dimensions differ, a part need not wait for the slowest one of a phase."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the form for the grid dimensions that each row spans, two or more."""
        size = group_size(group)
        grids = [span for span in group.spans if span.is_grid]
        applies: Any = False
        fixed_s: Any = 0.0
        seconds_per_byte: Any = 0.0
        for count in range(2, len(grids) + 1):
            for chosen in combinations(grids, count):
                here, members = _spans_exactly(chosen, size)
                rotated_s, rotated_slope = _rotated(chosen, members)
                applies = applies | here
                fixed_s = where(here, rotated_s, fixed_s)
                seconds_per_byte = where(here, rotated_slope, seconds_per_byte)
        return applies, fixed_s, seconds_per_byte

    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return one stream for each dimension to begin with."""
        shape = shape_of(group)
        spanned = [level for level, size in enumerate(shape) if size > 1]
        alone = [level for level, size in enumerate(shape) if size == 1]
        count = max(len(spanned), 1)
        return [Stream((*spanned[first:], *spanned[:first], *alone)) for first in range(count)]


def _spans_exactly(chosen: Sequence[Span[Any]], size: Any) -> tuple[Any, Any]:
    """Return whether a group spans these dimensions and no other, and their members."""
    members: Any = 1.0
    each: Any = True
    for span in chosen:
        members = members * span.size
        each = each & (span.size > 1.0)
    return each & (members == size), members


def _rotated(chosen: Sequence[Span[Any]], members: Any) -> tuple[Any, Any]:
    """Return (fixed_s, seconds_per_byte): the sum over the phases of their slowest part.

    In phase j part i works on dimension (i + j) mod k and ends with its share of the bytes times
    the sizes of the dimensions visited so far, over the members.
    """
    count = len(chosen)
    fixed_s: Any = 0.0
    slope: Any = 0.0
    gathered: list[Any] = [1.0 / (members * count)] * count
    for phase in range(count):
        phase_s: Any = 0.0
        phase_slope: Any = 0.0
        for part in range(count):
            span = chosen[(part + phase) % count]
            gathered[part] = gathered[part] * span.size
            stage_s, stage_slope = gather_affine(span)
            phase_s = larger(phase_s, stage_s)
            phase_slope = larger(phase_slope, stage_slope * gathered[part])
        fixed_s, slope = fixed_s + phase_s, slope + phase_slope
    return fixed_s, slope


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"bucket_{_kind}")(Bucket(_kind))
