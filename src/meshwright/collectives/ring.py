"""What algorithms are made of: stages along a span, gathers over several spans, blocks of a grid.

Around a ring or a switch every member passes on what came last; a torus dimension sends both ways;
on a line each member passes on what comes from either side. Each has a closed form (seconds, and
seconds per byte) and an enumeration (moves, transfers). A reduce-scatter is the all-gather in
reverse, an all-reduce is one after the other: an algorithm states how it gathers, the rest follows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, N, larger, smaller, where
from meshwright.collectives.group import Group, Span, group_size
from meshwright.collectives.registry import (
    Algorithm,
    Transfer,
    where_it_applies,
)
from meshwright.spec.collective import CollectiveKind


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


@dataclass(frozen=True)
class Stream:
    """An equal part of the data that visits the spans in an order of its own."""

    order: tuple[int, ...]
    """Indices of the spans, first visited first."""
    channel: int = 0
    """Streams of one channel keep in step; streams of several channels overtake each other."""


def num_gather_chunks(group: Group[float], num_streams: int) -> int:
    """Return the chunks of a gather: two halves of each stream of each member's shard."""
    return prod(shape_of(group)) * num_streams * 2


def all_gather_transfers(
    num_bytes: float, group: Group[float], streams: Sequence[Stream]
) -> Iterator[Transfer]:
    """Yield the messages of an all-gather of ``num_bytes``; each stream carries an equal part."""
    shape = shape_of(group)
    chunk_bytes = num_bytes / num_gather_chunks(group, len(streams))
    moves = [list(gather_moves(span)) for span in group.spans]
    phase_steps = max((move.step for listed in moves for move in listed), default=0) + 1
    for index, stream in enumerate(streams):
        for phase, level in enumerate(stream.order):
            first_step = (stream.channel + phase) * phase_steps
            held = set(stream.order[:phase])
            for move in moves[level]:
                for fixed in _elsewhere(shape, level):
                    owners = _block(shape, level, fixed, move.origin, held)
                    chunks = _chunks(owners, index, len(streams), move.half)
                    yield Transfer(
                        first_step + move.step,
                        *_ends(shape, level, fixed, move),
                        len(chunks) * chunk_bytes,
                        chunks,
                        level,
                        move.lane,
                        channel=stream.channel,
                    )


def all_gather_traffic(group: Group[float], streams: Sequence[Stream]) -> FloatArray:
    """Return what the messages of :func:`all_gather_transfers` carry in all: (messages, 4).

    Source, destination, share of the bytes, and level; in any order.
    """
    shape = shape_of(group)
    member, inside = np.arange(prod(shape)), np.cumprod((1, *shape))
    chunk_share = 1.0 / num_gather_chunks(group, len(streams))
    moves = [
        np.array([(m.source, m.destination, 2 - (m.half is not None)) for m in gather_moves(span)])
        for span in group.spans
    ]
    found = [np.zeros((0, 4))]
    for stream in streams:
        for phase, level in enumerate(stream.order):
            if not len(moves[level]):
                continue
            first = member[member // inside[level] % shape[level] == 0]
            source, destination, halves = moves[level].T
            num_owners = prod(shape[k] for k in stream.order[:phase])
            table = np.empty((len(halves), len(first), 4))
            table[..., 0] = first + source[:, None] * inside[level]
            table[..., 1] = first + destination[:, None] * inside[level]
            table[..., 2] = (halves * num_owners * chunk_share)[:, None]
            table[..., 3] = level
            found.append(table.reshape(-1, 4))
    return np.concatenate(found)


def reversed_transfers(transfers: Iterator[Transfer]) -> Iterator[Transfer]:
    """Yield a reduction: a gather in reverse, where each message is added to what is there."""
    listed = list(transfers)
    last = max((transfer.step for transfer in listed), default=0)
    for transfer in listed:
        yield replace(
            transfer,
            step=last - transfer.step,
            source=transfer.destination,
            destination=transfer.source,
            reduces=True,
        )


def reduce_then_gather(transfers: Iterator[Transfer]) -> Iterator[Transfer]:
    """Yield an all-reduce: the gather in reverse, then the gather."""
    gather = list(transfers)
    after = max((transfer.step for transfer in gather), default=0) + 1
    yield from reversed_transfers(iter(gather))
    for transfer in gather:
        yield replace(transfer, step=transfer.step + after)


def _elsewhere(shape: tuple[int, ...], level: int) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of one line of members along a level, that level's own at 0."""
    return product(*[range(1 if k == level else size) for k, size in enumerate(shape)])


def rank_of(shape: tuple[int, ...], coordinates: Sequence[int]) -> int:
    """Return the number of a member: the innermost span runs fastest."""
    rank, stride = 0, 1
    for size, coordinate in zip(shape, coordinates, strict=True):
        rank, stride = rank + coordinate * stride, stride * size
    return rank


def coordinates_of(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of every member, innermost first, in the order of their numbers."""
    for outer_first in product(*[range(size) for size in reversed(shape)]):
        yield tuple(reversed(outer_first))


def crossed_level(shape: tuple[int, ...], source: int, destination: int) -> int:
    """Return the outermost level at which two members differ."""
    crossed, inside = 0, 1
    for level, size in enumerate(shape):
        if (source // inside) % size != (destination // inside) % size:
            crossed = level
        inside *= size
    return crossed


def _ends(
    shape: tuple[int, ...], level: int, fixed: tuple[int, ...], move: Move
) -> tuple[int, int]:
    """Return the source and the destination of a move along one level."""
    before, after = fixed[:level], fixed[level + 1 :]
    return (
        rank_of(shape, (*before, move.source, *after)),
        rank_of(shape, (*before, move.destination, *after)),
    )


def _block(
    shape: tuple[int, ...], level: int, fixed: tuple[int, ...], origin: int, held: set[int]
) -> list[int]:
    """Return whose shards a member at ``origin`` holds when it has gathered the ``held`` levels."""
    ranges = [range(size) if k in held else (fixed[k],) for k, size in enumerate(shape)]
    ranges[level] = (origin,)
    return [rank_of(shape, coordinates) for coordinates in product(*ranges)]


def _chunks(owners: list[int], stream: int, num_streams: int, half: int | None) -> tuple[int, ...]:
    """Return the chunks of one stream of the owners' shards: both halves, or one."""
    halves = (0, 1) if half is None else (half,)
    return tuple((owner * num_streams + stream) * 2 + part for owner in owners for part in halves)


GATHER_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
)


class GatherFamily(Algorithm):
    """An all-gather, its reverse (a reduce-scatter), or one after the other (an all-reduce).

    Source: Chan et al. 2007, section 3: a reduce-scatter is an all-gather run backwards.
    """

    def __init__(self, kind: CollectiveKind) -> None:
        self.kind = kind

    @abstractmethod
    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return where the all-gather applies, its fixed_s and its seconds_per_byte."""

    @abstractmethod
    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather."""

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return (fixed_s, seconds_per_byte); an all-reduce costs the all-gather twice."""
        applies, fixed_s, seconds_per_byte = self.gather(group)
        passes = 2.0 if self.kind is CollectiveKind.ALL_REDUCE else 1.0
        return where_it_applies(applies, group, fixed_s * passes, seconds_per_byte * passes)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the gather, of its reverse, or of both."""
        gather = self.gather_transfers(num_bytes, group)
        if self.kind is CollectiveKind.ALL_GATHER:
            return gather
        if self.kind is CollectiveKind.REDUCE_SCATTER:
            return reversed_transfers(gather)
        return reduce_then_gather(gather)

    def gather_traffic(self, group: Group[float]) -> FloatArray:
        """Return what the messages of the all-gather carry, as in :meth:`traffic`."""
        listed = self.gather_transfers(1.0, group)
        return np.array([(t.source, t.destination, t.num_bytes, t.level) for t in listed])

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of the gather, of its reverse, or of both."""
        gather = self.gather_traffic(group).reshape(-1, 4)
        if self.kind is CollectiveKind.ALL_GATHER:
            return gather
        back = gather[:, [1, 0, 2, 3]]
        return back if self.kind is CollectiveKind.REDUCE_SCATTER else np.vstack([back, gather])


class StreamGather(GatherFamily):
    """A gather whose parts visit the spans one after the other."""

    @abstractmethod
    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return the parts of the data and the order in which each visits the spans."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return two halves of each stream of each member's shard."""
        return num_gather_chunks(group, len(self.streams(group)))

    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the stages of every stream."""
        return all_gather_transfers(num_bytes, group, self.streams(group))

    def gather_traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of all stages, without listing chunks."""
        return all_gather_traffic(group, self.streams(group))


def outermost_first(group: Group[float]) -> tuple[int, ...]:
    """Return the order that moves each byte over an outer level once: outermost span first."""
    return tuple(reversed(range(len(group.spans))))


class OneSpanGather(StreamGather):
    """A gather pattern for groups that lie in one span of a fitting kind."""

    @abstractmethod
    def fits(self, span: Any) -> Any:
        """Return whether the pattern is made for this kind of span."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the stage of the one span that holds the whole group."""
        size = group_size(group)
        applies: Any = False
        fixed_s: Any = 0.0
        seconds_per_byte: Any = 0.0
        for span in group.spans:
            here = (span.size == size) & self.fits(span)
            stage_s, stage_slope = gather_affine(span)
            applies = applies | here
            fixed_s = where(here, stage_s, fixed_s)
            seconds_per_byte = where(here, stage_slope, seconds_per_byte)
        return applies, fixed_s, seconds_per_byte

    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return one stream: only one span has anybody to talk to."""
        return (Stream(outermost_first(group)),)


@dataclass(frozen=True)
class Block:
    """The two grid dimensions of each group of a column, and the slower of their links."""

    applies: Any
    """Whether the group spans two grid dimensions and nothing else."""
    inner: Any
    outer: Any
    message_s: Any
    """What each message costs on top of its bytes [s]."""
    bandwidth_bytes_per_s: Any

    @property
    def size(self) -> Any:
        """Members."""
        return self.inner * self.outer


def may_span_a_block(group: Group[Any]) -> bool:
    """Return whether the network has two grid dimensions at all."""
    return sum(span.is_grid for span in group.spans) >= 2


def block_of(group: Group[Any]) -> Block:
    """Return the block of each group; where it is none, ``applies`` is false."""
    size = group_size(group)
    applies: Any = False
    inner: Any = 2.0
    outer: Any = 2.0
    each_s: Any = 0.0
    rate: Any = 1.0
    for first, second in combinations([span for span in group.spans if span.is_grid], 2):
        both = (first.size > 1.0) & (second.size > 1.0)
        here = both & (first.size * second.size == size)
        slower = smaller(first.bandwidth_bytes_per_s, second.bandwidth_bytes_per_s)
        applies = applies | here
        inner, outer = where(here, first.size, inner), where(here, second.size, outer)
        each_s = where(here, larger(message_s(first), message_s(second)), each_s)
        rate = where(here, slower, rate)
    return Block(applies, inner, outer, each_s, rate)


def levels_of(group: Group[float]) -> tuple[int, int]:
    """Return the levels that are the inner and the outer dimension of a block."""
    inner, outer = [level for level, size in enumerate(shape_of(group)) if size > 1]
    return inner, outer


def sides_of(group: Group[float]) -> tuple[int, int]:
    """Return the columns (inner) and the rows (outer) of a block."""
    shape = shape_of(group)
    inner, outer = levels_of(group)
    return shape[inner], shape[outer]


class BlockGather(GatherFamily):
    """A gather for groups that span two grid dimensions and nothing else."""

    def __init__(self, kind: CollectiveKind) -> None:
        super().__init__(kind)
        self.replay_slack = 0.5
        """All messages of a phase are charged the busiest and the slowest link."""

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there are two grid dimensions."""
        return may_span_a_block(group)

    @abstractmethod
    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces of each shard."""

    @abstractmethod
    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather on a block."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of all shards."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * self.pieces_per_shard(*sides_of(group))

    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather; none for a group of one."""
        if float(group_size(group)) > 1.0:
            yield from self.block_transfers(num_bytes, group)


class Ring(OneSpanGather):
    """A one-way ring over the members of one switch."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a switch."""
        return not span.is_grid


class TwoWayRing(OneSpanGather):
    """A ring in both directions of a closed grid dimension."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension with its wrap link."""
        return (span.closes == 1.0) & span.is_grid


class Line(OneSpanGather):
    """A line of neighbours that pass on what comes from either side."""

    def fits(self, span: Any) -> Any:
        """Return whether the span is a grid dimension without a wrap link."""
        return (span.closes == 0.0) & span.is_grid


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


class Bucket(StreamGather):
    """Every part of the data visits the grid dimensions in a rotated order."""

    def __init__(self, kind: CollectiveKind) -> None:
        super().__init__(kind)
        self.replay_slack = 0.5
        """Where dimensions differ, a part need not wait for the slowest one of a phase."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the form for the grid dimensions that each row spans, two or more."""
        size = group_size(group)
        grids = [span for span in group.spans if span.is_grid]
        applies: Any = False
        fixed_s: Any = 0.0
        seconds_per_byte: Any = 0.0
        for count in range(2, len(grids) + 1):
            for chosen in combinations(grids, count):
                here, members = _spans_exactly(chosen, size)
                rotated_s, rotated_slope = _rotated(chosen, members)
                applies = applies | here
                fixed_s = where(here, rotated_s, fixed_s)
                seconds_per_byte = where(here, rotated_slope, seconds_per_byte)
        return applies, fixed_s, seconds_per_byte

    def streams(self, group: Group[float]) -> Sequence[Stream]:
        """Return one stream for each dimension to begin with."""
        shape = shape_of(group)
        spanned = [level for level, size in enumerate(shape) if size > 1]
        alone = [level for level, size in enumerate(shape) if size == 1]
        count = max(len(spanned), 1)
        return [Stream((*spanned[first:], *spanned[:first], *alone)) for first in range(count)]


def _spans_exactly(chosen: Sequence[Span[Any]], size: Any) -> tuple[Any, Any]:
    """Return whether a group spans these dimensions and no other, and their members."""
    members: Any = 1.0
    each: Any = True
    for span in chosen:
        members = members * span.size
        each = each & (span.size > 1.0)
    return each & (members == size), members


def _rotated(chosen: Sequence[Span[Any]], members: Any) -> tuple[Any, Any]:
    """Return (fixed_s, seconds_per_byte): the sum over the phases of their slowest part.

    In phase j part i works on dimension (i + j) mod k and ends with its share of the bytes times
    the sizes of the dimensions visited so far, over the members.
    """
    count = len(chosen)
    fixed_s: Any = 0.0
    slope: Any = 0.0
    gathered: list[Any] = [1.0 / (members * count)] * count
    for phase in range(count):
        phase_s: Any = 0.0
        phase_slope: Any = 0.0
        for part in range(count):
            span = chosen[(part + phase) % count]
            gathered[part] = gathered[part] * span.size
            stage_s, stage_slope = gather_affine(span)
            phase_s = larger(phase_s, stage_s)
            phase_slope = larger(phase_slope, stage_slope * gathered[part])
        fixed_s, slope = fixed_s + phase_s, slope + phase_slope
    return fixed_s, slope
