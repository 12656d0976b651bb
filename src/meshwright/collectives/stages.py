"""One stage of a collective along a single span: a gather, or a pipeline of pieces.

Around a ring or a switch every member passes on what came last; a torus dimension sends both ways;
on a line each member passes on what comes from either side. A reduction is a gather in reverse.
Each stage has a closed form (seconds, and seconds per byte) and an enumeration (its moves).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base.arrays import N, larger, where
from meshwright.collectives.group import Group, Span


@dataclass(frozen=True)
class Move:
    """One message inside a span: the block of ``origin``, or one half of it, goes one step."""

    step: int
    source: int
    destination: int
    origin: int
    half: int | None = None
    lane: int = 0


def message_s(span: Span[N]) -> N:
    """Return what each message costs on top of its bytes: latency and m_half / bandwidth [s]."""
    return span.latency_s + span.message_half_bytes / span.bandwidth_bytes_per_s


def gather_steps(span: Span[N]) -> N:
    """Return the messages that follow one another: d - 1, or floor(d / 2) when both ways close."""
    if not span.is_grid:
        return span.size - 1.0
    return where(span.closes == 1.0, np.floor(span.size / 2.0), span.size - 1.0)  # type: ignore[no-any-return]


def gather_volume(span: Span[N]) -> N:
    """Return the share of the gathered bytes that the busiest link of a span carries.

    (d - 1)/d, and half of it where a torus dimension sends both ways.
    """
    volume = (span.size - 1.0) / span.size
    if not span.is_grid:
        return volume
    return volume / where(span.closes == 1.0, 2.0, 1.0)  # type: ignore[no-any-return]


def gather_affine(span: Span[N]) -> tuple[N, N]:
    """Return (fixed_s, seconds_per_byte) of gathering a tensor whose shards lie along one span."""
    return gather_steps(span) * message_s(span), gather_volume(span) / span.bandwidth_bytes_per_s


def members_inside(group: Group[N]) -> list[N]:
    """Return for each span the number of members that one of its positions holds."""
    inside: list[Any] = [1.0]
    for span in group.spans[:-1]:
        inside.append(inside[-1] * span.size)
    return inside


def shape_of(group: Group[float]) -> tuple[int, ...]:
    """Return the span sizes of one group, innermost first."""
    return tuple(round(float(span.size)) for span in group.spans)


def gather_moves(span: Span[float]) -> Iterator[Move]:
    """Yield the moves that bring the block of every member of a span to all of them."""
    size = round(float(span.size))
    if not span.is_grid:
        return ring_moves(size)
    return two_way_ring_moves(size) if span.closes else line_moves(size)


def ring_moves(size: int) -> Iterator[Move]:
    """Yield the moves of a ring in one direction."""
    for step in range(size - 1):
        for rank in range(size):
            yield Move(step, rank, (rank + 1) % size, (rank - step) % size)


def two_way_ring_moves(size: int) -> Iterator[Move]:
    """Yield the moves of a ring in both directions; the farthest block comes in halves."""
    for step in range(size // 2):
        halves = size % 2 == 0 and step == size // 2 - 1
        for rank in range(size):
            right, left = (rank + 1) % size, (rank - 1) % size
            yield Move(step, rank, right, (rank - step) % size, 0 if halves else None, 0)
            yield Move(step, rank, left, (rank + step) % size, 1 if halves else None, 1)


def line_moves(size: int) -> Iterator[Move]:
    """Yield the moves of a line: what comes from one side goes on to the other."""
    for step in range(size - 1):
        for rank in range(size):
            if rank + 1 < size and rank - step >= 0:
                yield Move(step, rank, rank + 1, rank - step, None, 0)
            if rank - 1 >= 0 and rank + step < size:
                yield Move(step, rank, rank - 1, rank + step, None, 1)


def pipeline_affine(
    group: Group[Any], hops: Sequence[Any], num_pieces: int, share: float, part: float
) -> tuple[Any, Any]:
    """Return (fixed_s, seconds_per_byte) of pieces that each pass ``hops[k]`` links of level k.

    T = sum over levels of hops (latency + u) + (pieces - 1) max u, where
    u = (piece bytes + m_half) / (share x bandwidth) is how long one piece occupies one link.

    Parameters
    ----------
    hops
        Links of each level on the longest way [1].
    num_pieces
        Pieces that follow one another [1].
    share
        Part of a member's bandwidth that the link has [1].
    part
        Part of the bytes that goes this way [1].
    """
    fixed_s: Any = 0.0
    slope: Any = 0.0
    slowest_half_s: Any = 0.0
    slowest_slope: Any = 0.0
    for span, span_hops in zip(group.spans, hops, strict=True):
        rate = span.bandwidth_bytes_per_s * share
        half_s = span.message_half_bytes / rate
        piece_slope = part / num_pieces / rate
        fixed_s = fixed_s + span_hops * (span.latency_s + half_s)
        slope = slope + span_hops * piece_slope
        spanned = span.size > 1.0
        slowest_half_s = larger(slowest_half_s, where(spanned, half_s, 0.0))
        slowest_slope = larger(slowest_slope, where(spanned, piece_slope, 0.0))
    further = num_pieces - 1.0
    return fixed_s + further * slowest_half_s, slope + further * slowest_slope


def spans_switches_only(group: Group[Any]) -> Any:
    """Return whether no grid dimension is spanned."""
    answer: Any = True
    for span in group.spans:
        answer = answer & ((span.size == 1.0) | (not span.is_grid))
    return answer
