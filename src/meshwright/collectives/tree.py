"""Trees: double binary all-reduce, alone or over rings; broadcasts; switches that add.

Two binary trees carry half of the bytes each; a member that is inside one is a leaf of the other,
so it sends at most four streams (up, two down, up as a leaf), each at a quarter of its bandwidth.
Over several levels a tree in each domain feeds a tree over the domains; or rings reduce inside each
domain and trees join the domains. About 2 log2(n) latencies at full bandwidth.
Sources: Sanders, Speck and Traeff 2009, "Two-tree algorithms for full bandwidth broadcast,
reduction and scan", in use by NCCL since 2.4; Chan et al. 2007, sections 3 and 5 (binomial tree,
pipelined chain); Graham et al. 2016 (SHARP) and Klenk et al. 2020, "An in-network architecture for
accelerating shared-memory multiprocessor collectives" (NVLS).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from meshwright.base.arrays import Mask, Num, larger, where
from meshwright.collectives.group import (
    Group,
    coordinates_of,
    group_size,
    members_inside,
    moved,
    rank_of,
    shape_of,
    spans_only,
)
from meshwright.collectives.registry import Affine, Algorithm, Transfer, where_it_applies
from meshwright.collectives.ring import (
    SpanOrder,
    all_gather_transfers,
    gather_affine,
    num_gather_chunks,
    outermost_first,
    reversed_transfers,
)
from meshwright.spec.collective import CollectiveKind

TREE_STREAMS = 4
"""Streams that leave one member of two trees: up, two down, and up as a leaf of the other."""

Parents = Sequence[int | None]
"""The parent of each position; None at the root."""


def ceil_log2(size: Num) -> Num:
    """Return the least k with 2**k >= size, exactly: the bits of size - 1."""
    bits: Num = np.frexp(size - 1.0)[1] * 1.0
    return bits


def pipeline_affine(
    group: Group[Num], hops: Sequence[Num], num_pieces: int, share: float = 1.0, part: float = 1.0
) -> Affine:
    """Return (fixed_s, seconds_per_byte) of pieces that each pass ``hops[k]`` links of level k.

    T = sum over levels of hops (latency + u) + (pieces - 1) max u, where
    u = (piece bytes + m_half) / (share x bandwidth) is the time of one piece on one link.

    Parameters
    ----------
    hops
        Links of each level on the longest path [1].
    num_pieces
        Pieces that follow one another [1].
    share
        Part of a member's bandwidth that the link has [1].
    part
        Part of the bytes that takes this path [1].
    """
    fixed_s: Num = 0.0
    slope: Num = 0.0
    slowest_half_s: Num = 0.0
    slowest_slope: Num = 0.0
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
    """Return the second tree: its inner members are leaves of the first (mirrored or shifted)."""
    if size % 2 == 0:
        place = [size - 1 - number for number in range(size)]
    else:
        place = [(number - 1) % size for number in range(size)]
    parents: list[int | None] = [None] * size
    for number, parent in enumerate(binary_tree(size)):
        parents[place[number]] = None if parent is None else place[parent]
    return parents


def chain(size: int) -> list[int | None]:
    """Return the tree in which each position follows the one before it."""
    return [None, *range(size - 1)]


@dataclass(frozen=True)
class TreeEdge:
    """One edge of a nested tree: the level it crosses, and the child's distance to the root."""

    child: int
    parent: int
    level: int
    depth: int


def nested_tree(shape: tuple[int, ...], tree: Callable[[int], Parents]) -> list[TreeEdge]:
    """Return a tree over all members: a tree inside each domain, then one over their roots."""
    levels = [tree(size) for size in shape]
    edges = []
    for place in coordinates_of(shape):
        for level, at in enumerate(place):
            parent = levels[level][at]
            if parent is not None:
                depth = sum(_depth(levels[k], position) for k, position in enumerate(place))
                above = rank_of(shape, moved(place, level, parent))
                edges.append(TreeEdge(rank_of(shape, place), above, level, depth))
                break
    return edges


def _depth(parents: Parents, position: int) -> int:
    """Return the edges between a position and the root."""
    depth, above = 0, parents[position]
    while above is not None:
        depth, above = depth + 1, parents[above]
    return depth


def double_tree_transfers(
    shape: tuple[int, ...], num_pieces: int, piece_bytes: float
) -> Iterator[Transfer]:
    """Yield an all-reduce of two halves, each up and down its own tree, piece after piece.

    Chunks are the pieces of the first half, then those of the second.
    """
    share = 1.0 / TREE_STREAMS
    for tree, parents_of in enumerate((binary_tree, second_tree)):
        edges = nested_tree(shape, parents_of)
        deepest = max((edge.depth for edge in edges), default=0)
        # Lanes 0 and 1 of a member go up; two for each tree go down.
        children: dict[tuple[int, int], int] = defaultdict(int)
        lanes = {}
        for edge in edges:
            lanes[edge] = 2 + 2 * tree + children[edge.parent, edge.level]
            children[edge.parent, edge.level] += 1
        for piece in range(num_pieces):
            carried = (piece_bytes, (tree * num_pieces + piece,))
            for edge in edges:
                up, down = deepest - edge.depth + piece, deepest + edge.depth - 1 + piece
                yield Transfer(
                    up, edge.child, edge.parent, *carried, edge.level, tree, share, reduces=True
                )
                yield Transfer(
                    down, edge.parent, edge.child, *carried, edge.level, lanes[edge], share
                )


@dataclass(frozen=True)
class TreeAllReduce(Algorithm):
    """Reduce up two complementary binary trees and broadcast down again, piece after piece."""

    num_pieces: int
    kind = CollectiveKind.ALL_REDUCE

    def affine(self, group: Group[Num]) -> Affine:
        """Return the pipeline of 2 ceil(log2 d) hops per level at a quarter of the bandwidth."""
        hops = [2.0 * ceil_log2(span.size) for span in group.spans]
        form = pipeline_affine(group, hops, self.num_pieces, share=1.0 / TREE_STREAMS, part=0.5)
        return where_it_applies(spans_only(group, grids=False), group, *form)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of both trees."""
        return 2 * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece up and down its tree."""
        piece_bytes = num_bytes / self.num_chunks(group)
        return double_tree_transfers(shape_of(group), self.num_pieces, piece_bytes)


@dataclass(frozen=True)
class TreeOverRingsAllReduce(Algorithm):
    """Reduce-scatter inside, trees across, all-gather inside: one after the other."""

    num_pieces: int
    kind = CollectiveKind.ALL_REDUCE
    replay_slack = 0.1

    def affine(self, group: Group[Num]) -> Affine:
        """Return twice the gathers inside, and the trees on their share of the bytes."""
        size = group_size(group)
        applies: Mask = False
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for span, inside in zip(group.spans, members_inside(group), strict=True):
            is_outermost = (inside * span.size == size) & (span.size > 1.0)
            ring_s, ring_slope = gather_affine(span)
            # Double trees in pieces over one span: hops of latency, and the time on each link.
            rate = span.bandwidth_bytes_per_s / TREE_STREAMS
            hops = 2.0 * ceil_log2(span.size)
            occupations = hops + self.num_pieces - 1.0
            tree_s = hops * span.latency_s + occupations * (span.message_half_bytes / rate)
            tree_slope = occupations * 0.5 / self.num_pieces / rate
            fixed_s = fixed_s + where(is_outermost, tree_s, 2.0 * ring_s)
            slope = slope + where(is_outermost, tree_slope, 2.0 * ring_slope) / inside
            applies = applies | (is_outermost & (inside > 1.0) & (not span.is_grid))
        return where_it_applies(applies, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of both halves of each member's shard."""
        return num_gather_chunks(group, 1) * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the reduction inside, the trees and the gather."""
        shape = shape_of(group)
        outermost = max((k for k, size in enumerate(shape) if size > 1), default=0)
        pieces, gather = range(self.num_pieces), []
        for transfer in all_gather_transfers(num_bytes, group, [SpanOrder(outermost_first(group))]):
            if transfer.level != outermost:
                halves = [half * self.num_pieces for half in transfer.chunks]
                chunks = tuple(half + piece for half in halves for piece in pieces)
                gather.append(replace(transfer, chunks=chunks))
        chunk_bytes = num_bytes / self.num_chunks(group)
        trees = []
        # Trees over each line of members of equal position, on the shards of all of them.
        for place in coordinates_of(moved(shape, outermost, 1)):
            line = [rank_of(shape, moved(place, outermost, at)) for at in range(shape[outermost])]
            line_bytes = chunk_bytes * len(line)
            for move in double_tree_transfers((shape[outermost],), self.num_pieces, line_bytes):
                (piece,) = move.chunks
                source, destination = line[move.source], line[move.destination]
                shards = tuple(owner * 2 * self.num_pieces + piece for owner in line)
                ends = replace(move, source=source, destination=destination)
                trees.append(replace(ends, chunks=shards, level=outermost))
        first_step = 0
        for part in (list(reversed_transfers(gather)), trees, gather):
            for transfer in part:
                yield replace(transfer, step=first_step + transfer.step)
            first_step += max((transfer.step for transfer in part), default=0) + 1


@dataclass(frozen=True)
class InNetworkAllReduce(Algorithm):
    """Every member sends up, the switch adds and sends the sum down to all.

    T = 2 (latency + u) + (pieces - 1) u with u = (piece bytes + m_half) / bandwidth: up and down
    one switch; its two directions work at the same time. Each member sends its bytes about once.
    """

    num_pieces: int
    kind = CollectiveKind.ALL_REDUCE

    def affine(self, group: Group[Num]) -> Affine:
        """Return the pipeline of two hops, where one switch that adds joins the whole group."""
        size = group_size(group)
        applies: Mask = False
        for span in group.spans:
            applies = applies | (span.size == size) & span.in_network_reduction
        hops = [(span.size > 1.0) * 2.0 for span in group.spans]
        return where_it_applies(applies, group, *pipeline_affine(group, hops, self.num_pieces))

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece up to the switch, numbered by the group size, and down to all."""
        shape = shape_of(group)
        switch = prod(shape)
        level = max((k for k, size in enumerate(shape) if size > 1), default=0)
        for piece in range(self.num_pieces):
            for rank in range(switch if switch > 1 else 0):
                size = num_bytes / self.num_pieces
                yield Transfer(piece, rank, switch, size, (piece,), level, reduces=True)
                yield Transfer(piece + 1, switch, rank, size, (piece,), level, lane=rank)


@dataclass(frozen=True)
class ChainBroadcast(Algorithm):
    """From the first member each passes the pieces on: along the outer level, then inside."""

    num_pieces: int
    kind = CollectiveKind.BROADCAST

    def affine(self, group: Group[Num]) -> Affine:
        """Return the pipeline of d - 1 hops per level."""
        hops = [span.size - 1.0 for span in group.spans]
        return where_it_applies(True, group, *pipeline_affine(group, hops, self.num_pieces))

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield each piece along every edge of the nested chains."""
        for edge in nested_tree(shape_of(group), chain):
            for piece in range(self.num_pieces):
                size = num_bytes / self.num_pieces
                step = edge.depth - 1 + piece
                yield Transfer(step, edge.parent, edge.child, size, (piece,), edge.level)


class BinomialBroadcast(Algorithm):
    """For short messages: in each round every member that has it sends it to one that has not."""

    kind = CollectiveKind.BROADCAST
    replay_slack = 1.0

    def affine(self, group: Group[Num]) -> Affine:
        """Return ceil(log2 d) rounds per level of one message each."""
        form = pipeline_affine(group, [ceil_log2(span.size) for span in group.spans], 1)
        return where_it_applies(spans_only(group, grids=False), group, *form)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the rounds of the outermost level, then those inside each domain."""
        shape = shape_of(group)
        members, step, stride = 1, 0, prod(shape)
        for level in reversed(range(len(shape))):
            stride //= shape[level]
            reached = 1
            while reached < shape[level]:
                for position in range(min(reached, shape[level] - reached)):
                    for domain in range(members):
                        source = (domain * shape[level] + position) * stride
                        target = source + reached * stride
                        yield Transfer(step, source, target, num_bytes, (0,), level)
                step, reached = step + 1, reached * 2
            members *= shape[level]
