"""A group of devices that communicate, as the network sees it: one span for each level.

A group of ``size`` members is spread over the levels of the network: ``spans[k].size`` members of
it differ in their coordinate at level k, so the product of the span sizes is the group size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from meshwright.base.arrays import Num


@dataclass(frozen=True)
class Span(Generic[Num]):
    """What a group sees of one network level; numbers, or columns with one row per group.

    ``bandwidth_bytes_per_s`` is what one member sends into this level in one direction, after
    sharing: all its links on a switch, one link of one direction on a grid dimension.
    """

    size: Num
    bandwidth_bytes_per_s: Num
    latency_s: Num
    message_half_bytes: Num
    closes: Num
    """1.0 where the members form a ring (a switch, or a torus dimension that is owned whole)."""
    is_grid: bool
    """A grid dimension: neighbours only, both directions of a link at once."""
    in_network_reduction: bool


@dataclass(frozen=True)
class Group(Generic[Num]):
    """The spans of a group, innermost level first."""

    spans: tuple[Span[Num], ...]
