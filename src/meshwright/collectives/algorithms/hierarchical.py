"""Hierarchical collectives: one stage for each level that the group spans.

A gather goes outermost level first: each member gathers along its own position (with its own NIC),
so level k carries S (d_k - 1)/d_k over the members inside. Cut into pieces, the levels work at the
same time and the slowest one decides; one piece has the least messages.
Source: Cho et al. 2019, "BlueConnect", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.base.arrays import N, larger
from meshwright.collectives.gathers import (
    GATHER_KINDS,
    Stream,
    StreamGather,
    gather_affine,
    gather_steps,
    members_inside,
    outermost_first,
)
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import collective_algorithms
from meshwright.spec.collective import CollectiveKind

NUM_PIECES = 32
"""Pieces of the pipelined form: the levels that wait add 1/32 of their time."""


class Hierarchical(StreamGather):
    """Stages over the levels, one after the other for each piece of the data."""

    def __init__(self, kind: CollectiveKind, num_pieces: int) -> None:
        super().__init__(kind)
        self.num_pieces = num_pieces
        if num_pieces > 1:
            self.replay_slack = 1.0 if kind is CollectiveKind.ALL_REDUCE else 0.25

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the sum of the stages for one piece, and the slowest level for each further one.

        Each further piece repeats the messages of every level, whose m_half the slowest one pays.
        """
        size = group_size(group)
        applies: Any = True
        fixed_s: Any = 0.0
        slope: Any = 0.0
        occupied_s: Any = 0.0
        worst_slope: Any = 0.0
        for span, inside in zip(group.spans, members_inside(group), strict=True):
            stage_s, stage_slope = gather_affine(span)
            stage_slope = stage_slope / inside
            half_s = gather_steps(span) * span.message_half_bytes / span.bandwidth_bytes_per_s
            applies = applies & (span.size != size)
            fixed_s, slope = fixed_s + stage_s, slope + stage_slope
            occupied_s, worst_slope = larger(occupied_s, half_s), larger(worst_slope, stage_slope)
        further = self.num_pieces - 1.0
        return (
            applies,
            fixed_s + further * occupied_s,
            (slope + further * worst_slope) / self.num_pieces,
        )

    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return the pieces, each in a channel of its own and a phase behind the one before."""
        order = outermost_first(group)
        return [Stream(order, channel=piece) for piece in range(self.num_pieces)]


for _kind in GATHER_KINDS:
    collective_algorithms.register(f"hierarchical_{_kind}")(Hierarchical(_kind, 1))
    collective_algorithms.register(f"pipelined_hierarchical_{_kind}")(
        Hierarchical(_kind, NUM_PIECES)
    )
