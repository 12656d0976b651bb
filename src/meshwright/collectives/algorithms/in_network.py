"""In-network all-reduce: the switch adds, so each member sends its bytes about once.

T = 2 (latency + u) + (pieces - 1) u with u = (piece bytes + m_half) / bandwidth: up and down one
switch, whose two directions work at the same time.
Source: Graham et al. 2016 (SHARP); Klenk et al. 2020, "An in-network architecture for
accelerating shared-memory multiprocessor collectives" (NVLS).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.base.arrays import N
from meshwright.collectives.gathers import pipeline_affine, shape_of
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.spec.collective import CollectiveKind


@collective("in_network_all_reduce", num_pieces=1)
@collective("pipelined_in_network_all_reduce", num_pieces=32)
class InNetworkAllReduce(Algorithm):
    """Every member sends up, the switch adds and sends the sum down to all."""

    kind = CollectiveKind.ALL_REDUCE

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the pipeline of two hops, where one switch that adds joins the whole group."""
        size = group_size(group)
        applies: Any = False
        hops: list[Any] = []
        for span in group.spans:
            applies = applies | (span.size == size) & span.in_network_reduction
            hops.append((span.size > 1.0) * 2.0)
        fixed_s, slope = pipeline_affine(group, hops, self.num_pieces, 1.0, 1.0)
        return where_it_applies(applies, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces."""
        return self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece up to the switch, whose number is the group size, and down to all."""
        shape = shape_of(group)
        switch = round(float(group_size(group)))
        level = max((k for k, size in enumerate(shape) if size > 1), default=0)
        for piece in range(self.num_pieces):
            for rank in range(switch if switch > 1 else 0):
                size = num_bytes / self.num_pieces
                yield Transfer(piece, rank, switch, size, (piece,), level, reduces=True)
                yield Transfer(piece + 1, switch, rank, size, (piece,), level, lane=rank)
