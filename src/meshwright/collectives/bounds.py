"""Lower bounds of collectives, and the distance of the algorithms from them.

No algorithm on the spans of a group can be faster. A bound on the bytes divides the bytes
that must cross a cut by the links of the cut; a bound on the latency follows the first byte to the
farthest member. Both hold, so the larger one counts; a pipeline may overlap them, so their sum is
no bound.
Source: Chan et al. 2007, section 2 (lower bounds); Patarasuk and Yuan 2009, theorem 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import Mask, Num, larger, where
from meshwright.collectives.group import Group, Span, group_size, members_inside
from meshwright.collectives.registry import affine_candidates
from meshwright.spec.collective import CollectiveKind


def lower_bound_s(kind: CollectiveKind, num_bytes: Num, group: Group[Num]) -> Num:
    """Return a time below which no algorithm can finish [s]; 0 for a group of one."""
    bandwidth_s = num_bytes * bandwidth_bound_s_per_byte(kind, group)
    return larger(bandwidth_s, latency_bound_s(kind, group))


def latency_bound_s(kind: CollectiveKind, group: Group[Num]) -> Num:
    """Return the latency of the path that no byte can avoid [s].

    The links of every grid dimension up to its farthest member, or, where a switch is spanned, one
    message through the outermost spanned level. A send may be between nearest neighbours, so its
    bound is the least latency of a spanned level.
    """
    least: Num = np.inf
    outermost: Num = 0.0
    all_hops: Num = 0.0
    grids_only: Mask = True
    for span in group.spans:
        spanned = span.size > 1.0
        farthest: Num = spanned * 1.0
        if span.is_grid:
            farthest = where(span.closes == 1.0, np.floor(span.size / 2.0), span.size - 1.0)
        hops_s = farthest * span.latency_s
        least = where(spanned & (span.latency_s < least), span.latency_s, least)
        outermost = where(spanned, hops_s, outermost)
        all_hops = all_hops + hops_s
        grids_only = grids_only & ((span.size == 1.0) | span.is_grid)
    if kind is CollectiveKind.SEND:
        return where(np.isinf(least), 0.0, least)
    return where(grids_only, all_hops, outermost)


def bandwidth_bound_s_per_byte(kind: CollectiveKind, group: Group[Num]) -> Num:
    """Return the largest bytes-over-links of all cuts considered, per byte [s/byte].

    The cuts separate a block of members that fill the levels inside level k from all others, for
    each k, and for an all-to-all also the two halves of each grid dimension.
    """
    bound: Num = 0.0
    members = group_size(group)
    for index, inside in enumerate(members_inside(group)):
        bound = larger(bound, _block_bound(kind, inside, members, group.spans[index:]))
    if kind is CollectiveKind.ALL_TO_ALL:
        for index, span in enumerate(group.spans):
            if span.is_grid:
                bound = larger(bound, _bisection_bound(span, group.spans[index + 1 :]))
    return bound


def _block_bound(
    kind: CollectiveKind, inside: Num, members: Num, outer: tuple[Span[Num], ...]
) -> Num:
    """Return the bound of a block of ``inside`` members and its links into the outer levels.

    An all-reduce among b blocks moves at least 2 (b - 1) S bytes in all, unless switches add.
    """
    is_alone = members == inside
    outside = 1.0 - inside / members
    # Bandwidth of one member into the spanned levels: the fewest, the most and the mean of links.
    fewest: Num = 0.0
    most: Num = 0.0
    mean: Num = 0.0
    switches_add: Mask = False
    for span in outer:
        spanned, rate = span.size > 1.0, span.bandwidth_bytes_per_s
        most_links: Num = 1.0
        mean_links: Num = 1.0
        if span.is_grid:
            # Two links inside a line of three or more, one at its ends: 2 (d - 1)/d on average.
            most_links = where((span.closes == 1.0) | (span.size > 2.0), 2.0, 1.0)
            mean_links = where(span.closes == 1.0, 2.0, 2.0 * (span.size - 1.0) / span.size)
        fewest = fewest + where(spanned, _fewest_links(span) * rate, 0.0)
        most = most + where(spanned, most_links * rate, 0.0)
        mean = mean + where(spanned, mean_links * rate, 0.0)
        switches_add = switches_add | (spanned & span.in_network_reduction)
    corner = where(is_alone, np.inf, inside * fewest)
    if kind is CollectiveKind.ALL_TO_ALL:
        return inside * outside / corner
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return outside / corner
    if kind is CollectiveKind.BROADCAST:
        return 1.0 / corner
    if kind is CollectiveKind.SEND:
        return where(inside == 1.0, 1.0 / where(is_alone, np.inf, most), 0.0)
    average = where(is_alone, np.inf, inside * mean)
    return larger(1.0 / corner, where(switches_add, 0.0, 2.0 * outside / average))


def _bisection_bound(span: Span[Num], outer: tuple[Span[Num], ...]) -> Num:
    """Return the bound of an all-to-all by the cut through the middle of a grid dimension.

    On each line of d members floor(d/2) of them send their share for the other half through the
    links of the cut and through the switches further out.
    """
    half = np.floor(span.size / 2.0)
    switches: Num = 0.0
    for further in outer:
        if not further.is_grid:
            switches = switches + where(further.size > 1.0, further.bandwidth_bytes_per_s, 0.0)
    cut = _fewest_links(span) * span.bandwidth_bytes_per_s + half * switches
    return half * (span.size - half) / span.size / cut


def _fewest_links(span: Span[Num]) -> Num:
    """Return the links of the member that has the fewest: the end of a line has one."""
    return where(span.closes == 1.0, 2.0, 1.0) if span.is_grid else 1.0


def bus_bytes(kind: CollectiveKind, num_bytes: float, size: float) -> float:
    """Return the bytes that a member must send, for a bandwidth that compares with a link [bytes].

    2 (n - 1)/n for an all-reduce, (n - 1)/n for gathers, reductions and all-to-all, 1 otherwise.

    Source: NVIDIA nccl-tests, doc/PERFORMANCE.md (definition of bus bandwidth).
    """
    share = (size - 1.0) / size
    if kind is CollectiveKind.ALL_REDUCE:
        return 2.0 * share * num_bytes
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.SEND):
        return num_bytes
    return share * num_bytes


@dataclass(frozen=True)
class TimedAlgorithm:
    """Time of one algorithm for one collective, with its bus bandwidth and share of the bound."""

    name: str
    time_s: float
    bus_bandwidth_bytes_per_s: float
    bound_fraction: float
    """Lower bound over time: 1 where nothing can be faster."""


def timed_algorithms(
    kind: CollectiveKind, num_bytes: float, group: Group[float]
) -> list[TimedAlgorithm]:
    """Return every algorithm that applies to a group of two or more, fastest first."""
    bound_s = float(lower_bound_s(kind, num_bytes, group))
    moved = bus_bytes(kind, num_bytes, float(group_size(group)))
    rows = []
    for name, fixed_s, seconds_per_byte in affine_candidates(kind, group):
        time_s = float(fixed_s + num_bytes * seconds_per_byte)
        rows.append(TimedAlgorithm(name, time_s, moved / time_s, bound_s / time_s))
    return sorted(rows, key=lambda row: row.time_s)
