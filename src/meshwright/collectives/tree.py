"""Trees over the members of a group: binary trees, and trees nested over the levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.base.arrays import N, where
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import Algorithm, Transfer, where_it_applies
from meshwright.collectives.ring import (
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
from meshwright.spec.collective import CollectiveKind

TREE_STREAMS = 4
"""Streams that leave one member of two trees: up, two down, and up as a leaf of the other."""

Parents = Sequence[int | None]
"""The parent of each position; None at the root."""


def ceil_log2(size: N) -> N:
    """Return the least k with 2**k >= size, exactly: the bits of size - 1."""
    bits: Any = np.frexp(size - 1.0)[1] * 1.0
    return bits  # type: ignore[no-any-return]


def binary_tree(size: int) -> list[int | None]:
    """Return a binary tree in order: 0 on top, odd positions are leaves, ceil(log2(size)) deep.

    The root of a range is its number that the highest power of two divides.
    """
    parents: list[int | None] = [None] * size
    ranges: list[tuple[int, int, int]] = [(1, size, 0)]
    while ranges:
        low, high, parent = ranges.pop()
        if low < high:
            root = max(range(low, high), key=lambda number: number & -number)
            parents[root] = parent
            ranges += [(low, root, root), (root + 1, high, root)]
    return parents


def second_tree(size: int) -> list[int | None]:
    """Return the tree whose inner members are leaves of the first: mirrored, or shifted by one."""
    first = binary_tree(size)
    if size % 2 == 0:
        place = [size - 1 - number for number in range(size)]
    else:
        place = [(number - 1) % size for number in range(size)]
    parents: list[int | None] = [None] * size
    for number, parent in enumerate(first):
        parents[place[number]] = None if parent is None else place[parent]
    return parents


def chain(size: int) -> list[int | None]:
    """Return the tree in which each position follows the one before it."""
    return [None, *range(size - 1)]


@dataclass(frozen=True)
class Edge:
    """One edge of a nested tree: the level it crosses, and the child's distance to the root."""

    child: int
    parent: int
    level: int
    depth: int


def nested_tree(
    shape: tuple[int, ...], coordinates: Sequence[Sequence[int]], tree: Callable[[int], Parents]
) -> list[Edge]:
    """Return a tree over all members: a tree inside each domain, then one over their roots."""
    levels = [tree(size) for size in shape]
    edges = []
    for place in coordinates:
        level = next((k for k, at in enumerate(place) if levels[k][at] is not None), None)
        if level is not None:
            above = list(place)
            above[level] = _known(levels[level][place[level]])
            depth = sum(_depth(levels[k], at) for k, at in enumerate(place))
            edges.append(Edge(rank_of(shape, place), rank_of(shape, above), level, depth))
    return edges


def _known(parent: int | None) -> int:
    assert parent is not None
    return parent


def _depth(parents: Parents, position: int) -> int:
    """Return the edges between a position and the root."""
    depth, above = 0, parents[position]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth


@dataclass(frozen=True)
class TreeMove:
    """One piece of one tree's half of the data goes one edge up (it reduces) or down."""

    step: int
    source: int
    destination: int
    tree: int
    piece: int
    level: int
    lane: int
    reduces: bool


def double_tree_moves(shape: tuple[int, ...], num_pieces: int) -> Iterator[TreeMove]:
    """Yield an all-reduce of two halves, each up and down a tree of its own, piece after piece."""
    places = list(coordinates_of(shape))
    for tree, parents_of in enumerate((binary_tree, second_tree)):
        edges = nested_tree(shape, places, parents_of)
        deepest = max((edge.depth for edge in edges), default=0)
        lanes = _down_lanes(edges, tree)
        for piece in range(num_pieces):
            for edge in edges:
                up, down = deepest - edge.depth + piece, deepest + edge.depth - 1 + piece
                yield TreeMove(
                    up, edge.child, edge.parent, tree, piece, edge.level, tree, reduces=True
                )
                yield TreeMove(
                    down, edge.parent, edge.child, tree, piece, edge.level, lanes[edge], False
                )


def _down_lanes(edges: list[Edge], tree: int) -> dict[Edge, int]:
    """Return the lane of each way down: lanes 0 and 1 go up, two for each tree go down."""
    used: dict[tuple[int, int], int] = defaultdict(int)
    lanes = {}
    for edge in edges:
        lanes[edge] = 2 + 2 * tree + used[edge.parent, edge.level]
        used[edge.parent, edge.level] += 1
    return lanes


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


class ChainBroadcast(Algorithm):
    """Each member passes the pieces on to the next: along the outer level, then inside."""

    kind = CollectiveKind.BROADCAST

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the pipeline of d - 1 hops per level."""
        hops = [span.size - 1.0 for span in group.spans]
        fixed_s, slope = pipeline_affine(group, hops, self.num_pieces, 1.0, 1.0)
        return where_it_applies(True, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces."""
        return self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece along every edge of the nested chains."""
        shape = shape_of(group)
        for edge in nested_tree(shape, list(coordinates_of(shape)), chain):
            for piece in range(self.num_pieces):
                size = num_bytes / self.num_pieces
                step = edge.depth - 1 + piece
                yield Transfer(step, edge.parent, edge.child, size, (piece,), edge.level)


class BinomialBroadcast(Algorithm):
    """In each round every member that has the message sends it to one that has not."""

    kind = CollectiveKind.BROADCAST
    replay_slack = 1.0

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return ceil(log2 d) rounds per level of one message each."""
        hops = [ceil_log2(span.size) for span in group.spans]
        fixed_s, slope = pipeline_affine(group, hops, 1, 1.0, 1.0)
        return where_it_applies(spans_switches_only(group), group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return 1: the message goes as a whole."""
        return 1

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the rounds of the outermost level, then those inside each domain."""
        members, first_step, stride = 1, 0, 1
        shape = shape_of(group)
        for size in shape:
            stride *= size
        for level in reversed(range(len(shape))):
            stride //= shape[level]
            reached = 1
            while reached < shape[level]:
                for position in range(min(reached, shape[level] - reached)):
                    for domain in range(members):
                        source = (domain * shape[level] + position) * stride
                        yield Transfer(first_step, source, source + reached * stride,
                                       num_bytes, (0,), level)  # fmt: skip
                first_step, reached = first_step + 1, reached * 2
            members *= shape[level]


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
