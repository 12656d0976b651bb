"""Double binary tree all-reduce, on switches and over rings inside the domains.

Two trees carry half of the bytes each; a member that is inside one is a leaf of the other, so it
sends at most four streams (up, two down, up as a leaf), each at a quarter of its bandwidth. Over
several levels a tree in each domain feeds a tree over the domains; or rings reduce inside each
domain and trees join the domains. About 2 log2(n) latencies at full bandwidth.
Source: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan"; in use by NCCL since 2.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from meshwright.base.arrays import N, where
from meshwright.collectives.gathers import (
    Stream,
    all_gather_transfers,
    coordinates_of,
    gather_affine,
    members_inside,
    num_gather_chunks,
    outermost_first,
    pipeline_affine,
    rank_of,
    reversed_transfers,
    shape_of,
    spans_switches_only,
)
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import Algorithm, Transfer, collective, where_it_applies
from meshwright.collectives.trees import TREE_STREAMS, ceil_log2, double_tree_moves
from meshwright.spec.collective import CollectiveKind


@collective("tree_all_reduce", num_pieces=1)
@collective("pipelined_tree_all_reduce", num_pieces=32)
class TreeAllReduce(Algorithm):
    """Reduce up two complementary binary trees and broadcast down again, piece after piece."""

    kind = CollectiveKind.ALL_REDUCE

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[N]) -> tuple[N, N]:
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


@collective("tree_over_rings_all_reduce", num_pieces=1)
@collective("pipelined_tree_over_rings_all_reduce", num_pieces=16)
class TreeOverRingsAllReduce(Algorithm):
    """Reduce-scatter inside, trees across, all-gather inside: one after the other."""

    kind = CollectiveKind.ALL_REDUCE
    replay_slack = 0.1

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return twice the gathers inside, and the trees on their share of the bytes."""
        size = group_size(group)
        applies: Any = False
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span, inside in zip(group.spans, members_inside(group), strict=True):
            is_outermost = (inside * span.size == size) & (span.size > 1.0)
            ring_s, ring_slope = gather_affine(span)
            tree_s, tree_slope = self._tree(span)
            fixed_s = fixed_s + where(is_outermost, tree_s, 2.0 * ring_s)
            slope = slope + where(is_outermost, tree_slope, 2.0 * ring_slope) / inside
            applies = applies | (is_outermost & (inside > 1.0) & (not span.is_grid))
        return where_it_applies(applies, group, fixed_s, slope)

    def _tree(self, span: Span[Any]) -> tuple[Any, Any]:
        """Return (fixed_s, seconds_per_byte) of double trees in pieces over one span."""
        rate = span.bandwidth_bytes_per_s / TREE_STREAMS
        hops = 2.0 * ceil_log2(span.size)
        occupations = hops + self.num_pieces - 1.0
        half_s = span.message_half_bytes / rate
        return (
            hops * span.latency_s + occupations * half_s,
            occupations * 0.5 / self.num_pieces / rate,
        )

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of both halves of each member's shard."""
        return num_gather_chunks(group, 1) * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the reduction inside, the trees and the gather."""
        shape = shape_of(group)
        outermost = max((k for k, size in enumerate(shape) if size > 1), default=0)
        order = (Stream(outermost_first(group)),)
        gather = [
            replace(transfer, chunks=self._pieces(transfer.chunks))
            for transfer in all_gather_transfers(num_bytes, group, order)
            if transfer.level != outermost
        ]
        trees = list(self._tree_transfers(num_bytes, group, outermost))
        first_step = 0
        for part in (list(reversed_transfers(iter(gather))), trees, gather):
            for transfer in part:
                yield replace(transfer, step=first_step + transfer.step)
            first_step += max((transfer.step for transfer in part), default=0) + 1

    def _tree_transfers(
        self, num_bytes: float, group: Group[float], outermost: int
    ) -> Iterator[Transfer]:
        """Yield the trees over each line of members of equal position."""
        shape = shape_of(group)
        chunk_bytes = num_bytes / self.num_chunks(group)
        moves = list(double_tree_moves((shape[outermost],), self.num_pieces))
        for place in coordinates_of(tuple(1 if k == outermost else d for k, d in enumerate(shape))):
            line = [
                rank_of(shape, (*place[:outermost], at, *place[outermost + 1 :]))
                for at in range(shape[outermost])
            ]
            for move in moves:
                halves = [owner * 2 + move.tree for owner in line]
                chunks = tuple(half * self.num_pieces + move.piece for half in halves)
                yield Transfer(
                    move.step,
                    line[move.source],
                    line[move.destination],
                    chunk_bytes * len(chunks),
                    chunks,
                    outermost,
                    move.lane,
                    1.0 / TREE_STREAMS,
                    reduces=move.reduces,
                )

    def _pieces(self, halves: Iterable[int]) -> tuple[int, ...]:
        """Return the pieces of these halves of shards."""
        return tuple(half * self.num_pieces + k for half in halves for k in range(self.num_pieces))
