"""Lower bounds of collectives: no algorithm on the spans of a group can be faster.

A bound on the bytes counts what must cross a cut and divides by the links of the cut; a bound on
the latency follows the first byte to the farthest member. Both hold, so the larger one counts; a
pipeline may overlap them, so their sum is no bound.
Source: Chan et al. 2007, section 2 (lower bounds); Patarasuk and Yuan 2009, theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import N, larger, where
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import affine_candidates
from meshwright.collectives.ring import members_inside, message_s
from meshwright.spec.collective import CollectiveKind


def lower_bound_s(kind: CollectiveKind, num_bytes: N, group: Group[N]) -> N:
    """Return a time below which no algorithm can finish [s]; 0 for a group of one."""
    bandwidth_s = num_bytes * bandwidth_bound_s_per_byte(kind, group)
    bound_s: N = larger(bandwidth_s, latency_bound_s(kind, group))
    return bound_s


def occupied_lower_bound_s(kind: CollectiveKind, num_bytes: N, group: Group[N]) -> N:
    """Return a bound that counts the messages as well [s]; 0 for a group of one.

    Whole messages are sent on from member to member, each at the cost of m_half / B on top of its
    bytes. So every hop of the farthest way costs that and a latency; and each link of a cut carries
    at least one message, the last of which arrives a latency after its last byte has left.
    """
    bandwidth_s = num_bytes * bandwidth_bound_s_per_byte(kind, group)
    one_s = _way(CollectiveKind.SEND, group, message_s)
    bound_s: N = larger(bandwidth_s + one_s, _way(kind, group, message_s))
    return bound_s


def latency_bound_s(kind: CollectiveKind, group: Group[N]) -> N:
    """Return the latency of the way that one byte cannot avoid [s].

    The links of every grid dimension up to its farthest member, or, where a switch is spanned, one
    message through the outermost spanned level. A send may be between nearest neighbours, so its
    bound is the least latency of a spanned level.
    """
    return _way(kind, group, _latency_s)


def _latency_s(span: Span[Any]) -> Any:
    return span.latency_s


def _way(kind: CollectiveKind, group: Group[N], hop_s: Callable[[Span[Any]], Any]) -> N:
    """Return what the way that one byte cannot avoid costs, hop by hop [s]."""
    least: Any = np.inf
    outermost: Any = 0.0
    all_hops: Any = 0.0
    grids_only: Any = True
    for span in group.spans:
        spanned = span.size > 1.0
        hops_s = _farthest(span) * hop_s(span)
        least = where(spanned & (hop_s(span) < least), hop_s(span), least)
        outermost = where(spanned, hops_s, outermost)
        all_hops = all_hops + hops_s
        grids_only = grids_only & ((span.size == 1.0) | span.is_grid)
    if kind is CollectiveKind.SEND:
        return where(np.isinf(least), 0.0, least)  # type: ignore[no-any-return]
    return where(grids_only, all_hops, outermost)  # type: ignore[no-any-return]


def bandwidth_bound_s_per_byte(kind: CollectiveKind, group: Group[N]) -> N:
    """Return the largest bytes-over-links of all cuts considered, per byte [s/byte].

    The cuts separate a block of members that fill the levels inside level k from all others, for
    each k, and for an all-to-all also the two halves of each grid dimension.
    """
    bound: Any = 0.0
    members = group_size(group)
    for index, inside in enumerate(members_inside(group)):
        outer = group.spans[index:]
        bound = larger(bound, _block_bound(kind, inside, members, outer))
    if kind is CollectiveKind.ALL_TO_ALL:
        for index, span in enumerate(group.spans):
            if span.is_grid:
                bound = larger(bound, _bisection_bound(span, group.spans[index + 1 :]))
    return bound  # type: ignore[no-any-return]


def _block_bound(
    kind: CollectiveKind, inside: Any, members: Any, outer: tuple[Span[Any], ...]
) -> Any:
    """Return the bound of a block of ``inside`` members and its links into the outer levels.

    An all-reduce among b blocks moves at least 2 (b - 1) S bytes in all, unless switches add.
    """
    is_alone = members == inside
    outside = 1.0 - inside / members
    corner = where(is_alone, np.inf, inside * _links_out(outer, _fewest_links))
    if kind is CollectiveKind.ALL_TO_ALL:
        return inside * outside / corner
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        return outside / corner
    if kind is CollectiveKind.BROADCAST:
        return 1.0 / corner
    if kind is CollectiveKind.SEND:
        sender = where(is_alone, np.inf, _links_out(outer, _most_links))
        return where(inside == 1.0, 1.0 / sender, 0.0)
    average = where(is_alone, np.inf, inside * _links_out(outer, _mean_links))
    switches_add: Any = False
    for span in outer:
        switches_add = switches_add | ((span.size > 1.0) & span.in_network_reduction)
    return larger(1.0 / corner, where(switches_add, 0.0, 2.0 * outside / average))


def _bisection_bound(span: Span[Any], outer: tuple[Span[Any], ...]) -> Any:
    """Return the bound of an all-to-all by the cut through the middle of a grid dimension.

    On each line of d members floor(d/2) of them send their share for the other half through the
    links of the cut and through the switches further out.
    """
    half = np.floor(span.size / 2.0)
    switches: Any = 0.0
    for further in outer:
        if not further.is_grid:
            switches = switches + where(further.size > 1.0, further.bandwidth_bytes_per_s, 0.0)
    cut = _fewest_links(span) * span.bandwidth_bytes_per_s + half * switches
    return half * (span.size - half) / span.size / cut


def _links_out(spans: tuple[Span[Any], ...], links: Callable[[Span[Any]], Any]) -> Any:
    """Return the bandwidth of one member into the spanned levels [bytes/s]."""
    total: Any = 0.0
    for span in spans:
        total = total + where(span.size > 1.0, links(span) * span.bandwidth_bytes_per_s, 0.0)
    return total


def _fewest_links(span: Span[Any]) -> Any:
    """Return the links of the member that has the fewest: the end of a line has one."""
    return where(span.closes == 1.0, 2.0, 1.0) if span.is_grid else 1.0


def _most_links(span: Span[Any]) -> Any:
    """Return the links of the member that has the most: two inside a line of three or more."""
    return where((span.closes == 1.0) | (span.size > 2.0), 2.0, 1.0) if span.is_grid else 1.0


def _mean_links(span: Span[Any]) -> Any:
    """Return the links of the average member: 2 (d - 1)/d on a line."""
    if not span.is_grid:
        return 1.0
    return where(span.closes == 1.0, 2.0, 2.0 * (span.size - 1.0) / span.size)


def _farthest(span: Span[Any]) -> Any:
    """Return the hops to the farthest position of a span."""
    if not span.is_grid:
        return (span.size > 1.0) * 1.0
    return where(span.closes == 1.0, np.floor(span.size / 2.0), span.size - 1.0)


def least_sent_bytes(kind: CollectiveKind, num_bytes: Any, group_size: Any) -> Any:
    """Return what no algorithm does without: bytes that each rank sends, on average [bytes].

    Every rank needs the n - 1 parts of the others, or hands on its own n - 1; a sum of whole
    tensors gathers n - 1 of them and returns as many results. Each byte crosses one link at least.

    Parameters
    ----------
    num_bytes
        Of the full tensor on one rank [bytes].

    Source: Chan et al. 2007, section 2.
    """
    others = (group_size - 1.0) / group_size
    if kind is CollectiveKind.SEND:
        return num_bytes * (group_size > 1)
    return num_bytes * others * (2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0)


@dataclass(frozen=True)
class TimedAlgorithm:
    """What one algorithm needs for one collective."""

    name: str
    time_s: float
    bus_bandwidth_bytes_per_s: float
    bound_fraction: float
    """Lower bound over time: 1 where nothing can be faster."""


def bus_bytes(kind: CollectiveKind, num_bytes: N, size: N) -> N:
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


def timed_algorithms(
    kind: CollectiveKind, num_bytes: float, group: Group[float]
) -> list[TimedAlgorithm]:
    """Return every algorithm that applies to a group of two or more, fastest first."""
    bound_s = float(lower_bound_s(kind, num_bytes, group))
    moved = float(bus_bytes(kind, num_bytes, group_size(group)))
    rows = []
    for name, fixed_s, seconds_per_byte in affine_candidates(kind, group):
        time_s = float(fixed_s + num_bytes * seconds_per_byte)
        rows.append(TimedAlgorithm(name, time_s, moved / time_s, bound_s / time_s))
    return sorted(rows, key=lambda row: row.time_s)
