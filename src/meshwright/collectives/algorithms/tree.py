"""Double binary tree all-reduce on switches: about 2 log2(n) latencies at full bandwidth.

Two trees carry half of the bytes each; a member that is inside one is a leaf of the other, so it
sends at most four streams (up, two down, up as a leaf), each at a quarter of its bandwidth. Over
several levels a tree in each domain feeds a tree over the domains.
Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; in use by NCCL since 2.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from meshwright.base.arrays import Num
from meshwright.collectives.gathers import coordinates_of
from meshwright.collectives.group import Group
from meshwright.collectives.pipelines import pipeline_affine, spans_switches_only
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.stages import shape_of
from meshwright.collectives.trees import Edge, binary_tree, ceil_log2, nested_tree, second_tree
from meshwright.spec.collective import CollectiveKind

_STREAMS = 4
"""Streams that leave one member: a static share of its port for each."""


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
        fixed_s, slope = pipeline_affine(group, hops, self.num_pieces, 1.0 / _STREAMS, 0.5)
        return where_it_applies(spans_switches_only(group), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of both trees."""
        return 2 * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece on its way up and down its tree."""
        shape = shape_of(group)
        places = list(coordinates_of(shape))
        for index, tree in enumerate((binary_tree, second_tree)):
            edges = nested_tree(shape, places, tree)
            deepest = max((edge.depth for edge in edges), default=0)
            lanes = _down_lanes(edges, index)
            for piece in range(self.num_pieces):
                chunk = (index * self.num_pieces + piece,)
                size = num_bytes / self.num_chunks(group)
                for edge in edges:
                    up, down = deepest - edge.depth + piece, deepest + edge.depth - 1 + piece
                    yield Transfer(up, edge.child, edge.parent, size, chunk, edge.level,
                                   index, 1.0 / _STREAMS, reduces=True)  # fmt: skip
                    yield Transfer(down, edge.parent, edge.child, size, chunk, edge.level,
                                   lanes[edge], 1.0 / _STREAMS)  # fmt: skip


def _down_lanes(edges: list[Edge], tree: int) -> dict[Edge, int]:
    """Return the lane of each way down: lanes 0 and 1 go up, two for each tree go down."""
    used: dict[tuple[int, int], int] = defaultdict(int)
    lanes = {}
    for edge in edges:
        lanes[edge] = 2 + 2 * tree + used[edge.parent, edge.level]
        used[edge.parent, edge.level] += 1
    return lanes
