"""A group of devices that communicate, as the network sees it: one span for each level.

A group of ``size`` members is spread over the levels of the network: ``spans[k].size`` members of
it differ in their coordinate at level k, so the product of the span sizes is the group size.
Members are numbered with the innermost span running fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Generic, cast

import numpy as np

from meshwright.base.arrays import Mask, N, Num, larger, smaller, where
from meshwright.spec.system import NetworkLevel


@dataclass(frozen=True)
class Span(Generic[N]):
    """One network level as seen by a group; numbers, or columns with one row per group.

    ``bandwidth_bytes_per_s`` is the rate of one member into this level in one direction, after
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


SPAN_COLUMNS = ("size", "bandwidth_bytes_per_s", "latency_s", "message_half_bytes", "closes")
"""Numbers of a span, in their order; the other fields are those of its level."""


@dataclass(frozen=True)
class Group(Generic[N]):
    """The spans of a group, innermost level first."""

    spans: tuple[Span[N], ...]


@dataclass(frozen=True)
class Reach(Generic[N]):
    """Place of the members of a group on the levels of a network, innermost level first."""

    sizes: tuple[N, ...]
    """Members that differ at each level; 0 where the group has no such form."""
    apart: tuple[N, ...]
    """Positions between neighbours at each level."""


def group_size(group: Group[Num]) -> Num:
    """Return the number of members of a group: the product of its span sizes."""
    size: Num = 1.0
    for span in group.spans:
        size = size * span.size
    return size


def members_inside(group: Group[Num]) -> list[Num]:
    """Return for each span the number of members that one of its positions holds."""
    inside: list[Num] = [1.0]
    for span in group.spans[:-1]:
        inside.append(inside[-1] * span.size)
    return inside


def spans_only(group: Group[Num], *, grids: bool) -> Mask:
    """Return whether all levels that are spanned are grid dimensions, or none is."""
    answer: Mask = True
    for span in group.spans:
        answer = answer & ((span.size == 1.0) | (span.is_grid == grids))
    return answer


def message_s(span: Span[Num]) -> Num:
    """Return the seconds of each message on top of its bytes: latency and m_half / bandwidth."""
    return span.latency_s + span.message_half_bytes / span.bandwidth_bytes_per_s


def shape_of(group: Group[float]) -> tuple[int, ...]:
    """Return the span sizes of one group, innermost first."""
    return tuple(round(float(span.size)) for span in group.spans)


def rank_of(shape: tuple[int, ...], coordinates: Sequence[int]) -> int:
    """Return the number of a member: the innermost span runs fastest."""
    rank, stride = 0, 1
    for size, coordinate in zip(shape, coordinates, strict=True):
        rank, stride = rank + coordinate * stride, stride * size
    return rank


def coordinates_of(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of every member, innermost first, in the order of their numbers."""
    for outer_first in product(*[range(size) for size in reversed(shape)]):
        yield tuple(reversed(outer_first))


def moved(place: tuple[int, ...], level: int, position: int) -> tuple[int, ...]:
    """Return the coordinates with another position at one level."""
    return (*place[:level], position, *place[level + 1 :])


def crossed_level(shape: tuple[int, ...], source: int, destination: int) -> int:
    """Return the outermost level at which two members differ."""
    crossed, inside = 0, 1
    for level, size in enumerate(shape):
        if (source // inside) % size != (destination // inside) % size:
            crossed = level
        inside *= size
    return crossed


def is_block(sides: Sequence[int], stride: int, size: int) -> bool:
    """Return whether devices at a distance are a block of the levels, each as far apart on one.

    Parameters
    ----------
    sides
        Size of each level, innermost first.
    stride
        Devices from member to member.
    """
    apart, left = stride, size
    for side in sides:
        if apart % side == 0:
            apart //= side
        elif side % apart == 0:
            here = min(left, side // apart)
            if left % here:
                return False
            left, apart = left // here, 1
        else:
            return left == 1
    return left == 1


def make_group(
    levels: Sequence[NetworkLevel], stride: N, degree: N, efficiency: Sequence[Num] | None = None
) -> Group[N]:
    """Return the groups of one parallel axis, with a span for each network level.

    Device numbers are mixed-radix: the coordinate at level 0 is n mod s0, at level 1
    (n div s0) mod s1, and so on. The members of a group are ``stride`` apart, and every group
    starts at a multiple of ``stride * degree`` plus less than ``stride``.

    Where the numbers divide, span k is the part of the range [stride, stride * degree) that falls
    between the sizes of the domains inside and outside level k. Where they do not, only members
    that provably share a domain count inside it (a block of them divides the domain); the others
    are counted at the next level out. On a grid such misaligned neighbours are charged the worst
    load of one link under dimension-order routing of a shift: messages for half the length of the
    dimension. So a group is never cheaper than it is.

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
    factors: Sequence[Num] = [1.0] * len(levels) if efficiency is None else efficiency
    room = prod(level.size for level in levels)
    whole_stride = np.asarray(stride).astype(np.int64)
    whole_degree = np.asarray(degree).astype(np.int64)
    spans: list[Span[Num]] = []
    inside: Num = 1.0
    domain = 1
    for index, level in enumerate(levels):
        outer = domain * level.size
        reached: Num = degree
        if outer != room:
            # Members that provably share a domain: the largest d with d * stride | domain.
            blocks = np.where(np.mod(outer, whole_stride) == 0, outer // whole_stride, 1)
            reached = np.gcd(whole_degree, blocks) * 1.0
        span = _span(
            level,
            factors[index],
            reached / inside,
            stride,
            domain=domain,
            is_aligned=(np.mod(stride, domain) == 0) | (inside * stride == domain),
            misaligned=_misaligned(levels[: index + 1], factors),
            host_size=levels[0].size,
        )
        spans.append(span)
        inside, domain = reached, outer
    return cast(Group[N], Group(tuple(spans)))


def make_block_group(
    levels: Sequence[NetworkLevel], reach: Reach[N], efficiency: Sequence[Num]
) -> Group[N]:
    """Return the groups of an axis with members that fill blocks of the levels.

    Neighbours that are k apart share each link with k - 1 other groups.
    """
    rows = zip(levels, efficiency, reach.sizes, reach.apart, strict=True)
    return cast(Group[N], Group(tuple(_span(*row) for row in rows)))


_GRIDS = ("torus", "mesh")


def _misaligned(levels: Sequence[NetworkLevel], factors: Sequence[Num]) -> tuple[Num, float]:
    """Return the bandwidth [bytes/s] and latency [s] of a shift that crosses any of the levels.

    Every device sends one message at once. In dimension order each line of d devices sees a shift
    by some w: d - w of them go w steps forwards, w of them d - w steps backwards, so a link
    carries min(w, d - w) messages. A message passes at most d - 1 links of a line, and one switch.
    """
    bandwidths: list[Num] = []
    switch_s = grid_s = 0.0
    for level, factor in zip(levels, factors, strict=False):
        own = level.bandwidth_bytes_per_s * level.links_per_device * factor / level.blocking
        if level.kind in _GRIDS:
            bandwidths.append(own / max(level.size // 2, 1))
            grid_s += level.hop_latency_s * (level.size - 1)
        else:
            bandwidths.append(own)
            switch_s = max(switch_s, level.latency_s)
    return reduce(smaller, bandwidths), grid_s + switch_s


def _span(
    level: NetworkLevel,
    factor: Num,
    size: Num,
    stride: Num,
    *,
    domain: int = 1,
    is_aligned: Mask = True,
    misaligned: tuple[Num, float] = (0.0, 0.0),
    host_size: int = 1,
) -> Span[Num]:
    """Return one span.

    Parameters
    ----------
    factor
        Share of the stated bandwidth that is reached [1].
    size, stride
        Members that differ at this level, and their distance [devices].
    domain
        Devices in one member of the level.
    is_aligned
        Whether the groups start where the domains do; the others have the ``misaligned``
        bandwidth [bytes/s] and latency [s].
    host_size
        Devices of a host; members that many apart use separate rails.
    """
    is_grid = level.kind in _GRIDS
    bandwidth: Num = level.bandwidth_bytes_per_s * level.links_per_device * factor
    latency_s: Num = level.hop_latency_s
    if is_grid:
        # Neighbours that are k apart share each link with k - 1 other groups.
        apart = larger(stride / domain, 1.0)
        bandwidth, latency_s = bandwidth / apart, latency_s * apart
    else:
        rides_rail = (np.mod(stride, host_size) == 0) & level.rail_optimized
        bandwidth = bandwidth / where(rides_rail, 1.0, level.blocking)
    if level.kind == "fully_connected":
        # Each pair has links of its own: a group of k uses (k - 1)/(size - 1) of them.
        others = max(level.size - 1, 1)
        bandwidth = bandwidth * (smaller(larger(size - 1.0, 1.0), others) / others)
    closes = is_aligned & (size == level.size) & (level.kind == "torus") | (not is_grid)
    return Span(
        size=size,
        bandwidth_bytes_per_s=where(is_aligned, bandwidth, misaligned[0]) + 0.0 * size,
        latency_s=where(is_aligned, latency_s, misaligned[1]) + 0.0 * size,
        message_half_bytes=level.message_half_bytes + 0.0 * size,
        closes=where(closes, 1.0, 0.0) + 0.0 * size,
        is_grid=is_grid,
        in_network_reduction=level.in_network_reduction,
    )
