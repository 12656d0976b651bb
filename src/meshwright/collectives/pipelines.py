"""Time of pieces that follow one another through the levels: hops, and the slowest hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.base.arrays import larger, where
from meshwright.collectives.group import Group


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
