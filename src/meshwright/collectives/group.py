"""A group of devices that communicate, as the network sees it: one span for each level.

A group of ``size`` members is spread over the levels of the network: ``spans[k].size`` members of
it differ in their coordinate at level k, so the product of the span sizes is the group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, Generic

import numpy as np

from meshwright.base.arrays import N, larger, smaller, where
from meshwright.spec.system import NetworkLevel


@dataclass(frozen=True)
class Span(Generic[N]):
    """What a group sees of one network level; numbers, or columns with one row per group.

    ``bandwidth_bytes_per_s`` is what one member sends into this level in one direction, after
    sharing: all its links on a switch, one link of one direction on a grid dimension.
    """

    size: N
    bandwidth_bytes_per_s: N
    latency_s: N
    message_half_bytes: N
    closes: N
    """1.0 where the members form a ring (a switch, or a torus dimension that is owned whole)."""
    is_grid: bool
    """A grid dimension: neighbours only, both directions of a link at once."""
    in_network_reduction: bool


@dataclass(frozen=True)
class Group(Generic[N]):
    """The spans of a group, innermost level first."""

    spans: tuple[Span[N], ...]


_GRIDS = ("torus", "mesh")


@dataclass(frozen=True)
class Reach(Generic[N]):
    """Where the members of a group lie on the levels of a network, innermost level first."""

    sizes: tuple[N, ...]
    """Members that differ at each level; 0 where the group has no such form."""
    apart: tuple[N, ...]
    """Positions between neighbours at each level."""


def group_size(group: Group[N]) -> N:
    """Return the number of members of a group: the product of its span sizes."""
    size: Any = 1.0
    for span in group.spans:
        size = size * span.size
    return size  # type: ignore[no-any-return]


def make_group(
    levels: Sequence[NetworkLevel],
    stride: N,
    degree: N,
    efficiency: Sequence[Any] | None = None,
) -> Group[N]:
    """Return what the groups of one parallel axis see of each network level.

    Device numbers are mixed-radix: the coordinate at level 0 is n mod s0, at level 1
    (n div s0) mod s1, and so on. The members of a group are ``stride`` apart, and every group
    starts at a multiple of ``stride * degree`` plus less than ``stride``.

    Where the numbers divide, span k is the part of the range [stride, stride * degree) that falls
    between the sizes of the domains inside and outside level k. Where they do not, only as many
    members count inside a domain as provably share it (a block of them divides the domain); the
    others are counted at the next level out. On a grid such misaligned neighbours are charged the
    worst that dimension-order routing of a shift can load on one link: half as many messages as
    the dimension is long. So a group is never cheaper than it is.

    Parameters
    ----------
    levels
        The levels of the network, innermost first; the product of their sizes holds the group.
    stride
        Product of the degrees of the axes inside this one [devices].
    degree
        Members of the group [devices].
    efficiency
        Calibrated share of the stated bandwidth that is reached, a number or a column for each
        level [1].
    """
    factors: list[Any] = [1.0] * len(levels) if efficiency is None else list(efficiency)
    room = prod(level.size for level in levels)
    spans: list[Span[N]] = []
    inside: Any = 1.0
    domain = 1
    for index, level in enumerate(levels):
        outer = domain * level.size
        reached = degree if outer == room else _members_inside(outer, stride, degree)
        is_aligned = (np.mod(stride, domain) == 0) | (inside * stride == domain)
        worst = _misaligned(levels[: index + 1], factors)
        spans.append(_span(level, factors[index], reached / inside, stride, domain, is_aligned,
                           worst, levels[0].size))  # fmt: skip
        inside, domain = reached, outer
    return Group(tuple(spans))


def make_block_group(
    levels: Sequence[NetworkLevel], reach: Reach[N], efficiency: Sequence[Any]
) -> Group[N]:
    """Return the groups of an axis whose members fill blocks of the levels.

    Neighbours that are k apart share each link with k - 1 other groups.
    """
    rows = zip(levels, efficiency, reach.sizes, reach.apart, strict=True)
    return Group(
        tuple(
            _span(level, factor, size, apart, 1, size == size, (0.0, 0.0), 1)
            for level, factor, size, apart in rows
        )
    )


def _members_inside(domain: int, stride: Any, degree: Any) -> Any:
    """Return how many members provably share one domain: the largest d with d * stride | domain."""
    whole_stride = np.asarray(stride).astype(np.int64)
    fits = np.mod(domain, whole_stride) == 0
    blocks = np.where(fits, domain // whole_stride, 1)
    return np.gcd(np.asarray(degree).astype(np.int64), blocks) * 1.0


def _misaligned(levels: Sequence[NetworkLevel], factors: Sequence[Any]) -> tuple[Any, float]:
    """Return the bandwidth [bytes/s] and latency [s] of a shift that crosses any of the levels.

    Every device sends one message at once. In dimension order each line of d devices sees a shift
    by some w: d - w of them go w steps one way, w of them d - w steps the other way, so a link
    carries min(w, d - w) messages. A message passes at most d - 1 links of a line, and one switch.
    """
    bandwidths = []
    switch_s = grid_s = 0.0
    for level, factor in zip(levels, factors, strict=False):
        own = _shared_bandwidth(level, factor) / level.oversubscription
        if level.kind in _GRIDS:
            bandwidths.append(own / max(level.size // 2, 1))
            grid_s += level.latency_s * (level.size - 1)
        else:
            bandwidths.append(own)
            switch_s = max(switch_s, level.latency_s)
    return reduce(smaller, bandwidths), grid_s + switch_s


def _shared_bandwidth(level: NetworkLevel, factor: Any) -> Any:
    """Return what one device sends into a level in one direction when all devices do [bytes/s]."""
    return level.bandwidth_bytes_per_s * level.links_per_device * factor


def _share_of_pairs(level: NetworkLevel, size: Any) -> Any:
    """Return the share of the links of a device that lead to the other members of its group.

    Where each pair of devices has links of its own, a group of k uses (k - 1) / (size - 1) of them.
    """
    others = max(level.size - 1, 1)
    return smaller(larger(size - 1.0, 1.0), others) / others


def _span(
    level: NetworkLevel,
    factor: Any,
    size: Any,
    stride: Any,
    domain: int,
    is_aligned: Any,
    worst: tuple[Any, float],
    host_size: int,
) -> Span[Any]:
    """Return one span; ``domain`` is the number of devices in one member of the level."""
    is_grid = level.kind in _GRIDS
    bandwidth = _shared_bandwidth(level, factor)
    if is_grid:
        apart = larger(stride / domain, 1.0)
        own_bandwidth, own_latency_s = bandwidth / apart, level.latency_s * apart
    else:
        rides_rail = (np.mod(stride, host_size) == 0) & level.rail_optimized
        own_bandwidth = bandwidth / where(rides_rail, 1.0, level.oversubscription)
        own_latency_s = level.latency_s
    if level.kind == "fully_connected":
        own_bandwidth = own_bandwidth * _share_of_pairs(level, size)
    closes = where(
        is_aligned & (size == level.size) & (level.kind == "torus") | (not is_grid), 1.0, 0.0
    )
    return Span(
        size=size,
        bandwidth_bytes_per_s=where(is_aligned, own_bandwidth, worst[0]) + 0.0 * size,
        latency_s=where(is_aligned, own_latency_s, worst[1]) + 0.0 * size,
        message_half_bytes=level.message_half_bytes + 0.0 * size,
        closes=closes + 0.0 * size,
        is_grid=is_grid,
        in_network_reduction=level.in_network_reduction,
    )
