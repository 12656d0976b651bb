"""Double binary tree all-reduce on switches: about 2 log2(n) latencies at full bandwidth.

Two trees carry half of the bytes each; a member that is inside one is a leaf of the other, so it
sends at most four streams (up, two down, up as a leaf), each at a quarter of its bandwidth. Over
several levels a tree in each domain feeds a tree over the domains.
Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; in use by NCCL since 2.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.base.arrays import Num
from meshwright.collectives.group import Group
from meshwright.collectives.pipelines import pipeline_affine, spans_switches_only
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.stages import shape_of
from meshwright.collectives.trees import TREE_STREAMS, ceil_log2, double_tree_moves
from meshwright.spec.collective import CollectiveKind


@collective("tree_all_reduce", num_pieces=1)
@collective("pipelined_tree_all_reduce", num_pieces=32)
class TreeAllReduce(Algorithm):
    """Reduce up two complementary binary trees and broadcast down again, piece after piece."""

    kind = CollectiveKind.ALL_REDUCE

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[Num]) -> tuple[Num, Num]:
        """Return the pipeline of 2 ceil(log2 d) hops per level at a quarter of the bandwidth."""
        hops = [2.0 * ceil_log2(span.size) for span in group.spans]
        fixed_s, slope = pipeline_affine(group, hops, self.num_pieces, 1.0 / TREE_STREAMS, 0.5)
        return where_it_applies(spans_switches_only(group), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of both trees."""
        return 2 * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece on its way up and down its tree."""
        piece_bytes = num_bytes / self.num_chunks(group)
        for move in double_tree_moves(shape_of(group), self.num_pieces):
            yield Transfer(
                move.step,
                move.source,
                move.destination,
                piece_bytes,
                (move.tree * self.num_pieces + move.piece,),
                move.level,
                move.lane,
                1.0 / TREE_STREAMS,
                reduces=move.reduces,
            )
