"""Rings and lines: on one level, in stages over several levels, or on all grid dimensions at once.

Around a ring or a switch every member passes on the last part it got; a torus dimension sends in
both directions; on a line each member passes on the data from either side. (d - 1) messages of
S/d for a gather or a reduction, twice that for an all-reduce.
Each has a closed form (seconds, and seconds per byte) and an enumeration (moves, transfers). A
reduce-scatter is the all-gather in reverse, an all-reduce is one after the other: an algorithm
states how it gathers, the rest follows. A send to the next member is one step of a line.
Sources: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"; Chan et al. 2007,
section 3: a reduce-scatter is an all-gather run backwards.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

import numpy as np

from meshwright.base.arrays import FloatArray, Mask, Num, larger, where
from meshwright.collectives.group import (
    Group,
    Span,
    crossed_level,
    group_size,
    members_inside,
    message_s,
    moved,
    rank_of,
    shape_of,
)
from meshwright.collectives.registry import (
    Affine,
    Algorithm,
    Transfer,
    traffic_of,
    where_it_applies,
)
from meshwright.spec.collective import CollectiveKind

GATHER_KINDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)


def gather_steps(span: Span[Num]) -> Num:
    """Return the messages that follow one another: d - 1; floor(d / 2) on a ring of a torus."""
    if not span.is_grid:
        return span.size - 1.0
    return where(span.closes == 1.0, np.floor(span.size / 2.0), span.size - 1.0)


def gather_affine(span: Span[Num]) -> Affine:
    """Return (fixed_s, seconds_per_byte) of gathering a tensor with shards along one span.

    The busiest link carries (d - 1)/d of the gathered bytes, and half of it where a torus
    dimension sends in both directions.
    """
    share = (span.size - 1.0) / span.size
    if span.is_grid:
        share = share / where(span.closes == 1.0, 2.0, 1.0)
    return gather_steps(span) * message_s(span), share / span.bandwidth_bytes_per_s


@dataclass(frozen=True)
class SpanMessage:
    """One message inside a span: the block of ``origin``, or one half of it, goes one step."""

    step: int
    source: int
    destination: int
    origin: int
    half: int | None = None
    lane: int = 0


def gather_moves(size: int, *, is_grid: bool, closes: bool) -> Iterator[SpanMessage]:
    """Yield the moves that bring the block of every member of a span to all of them.

    In one direction on a switch, in both on a grid, where a ring gets the farthest block in
    halves, one from each side.
    """
    directions = (1, -1) if is_grid else (1,)
    is_ring = is_grid and closes
    for step in range(size // 2 if is_ring else size - 1):
        in_halves = is_ring and size % 2 == 0 and step == size // 2 - 1
        for rank, (lane, direction) in product(range(size), enumerate(directions)):
            origin, target = rank - direction * step, rank + direction
            if closes or not is_grid or (0 <= origin < size and 0 <= target < size):
                half = lane if in_halves else None
                yield SpanMessage(step, rank, target % size, origin % size, half, lane)


def _span_moves(group: Group[float]) -> list[list[SpanMessage]]:
    return [
        list(gather_moves(size, is_grid=span.is_grid, closes=bool(span.closes)))
        for size, span in zip(shape_of(group), group.spans, strict=True)
    ]


@dataclass(frozen=True)
class SpanOrder:
    """An equal part of the data that visits the spans in its own order."""

    order: tuple[int, ...]
    """Indices of the spans, first visited first."""
    channel: int = 0
    """Streams of one channel keep in step; streams of several channels overtake each other."""


def num_gather_chunks(group: Group[float], num_streams: int) -> int:
    """Return the chunks of a gather: two halves of each stream of each member's shard."""
    return prod(shape_of(group)) * num_streams * 2


def all_gather_transfers(
    num_bytes: float, group: Group[float], streams: Sequence[SpanOrder]
) -> Iterator[Transfer]:
    """Yield the messages of an all-gather of ``num_bytes``; each stream carries an equal part."""
    shape = shape_of(group)
    chunk_bytes = num_bytes / num_gather_chunks(group, len(streams))
    moves = _span_moves(group)
    phase_steps = max((move.step for listed in moves for move in listed), default=0) + 1
    for index, stream in enumerate(streams):
        for phase, level in enumerate(stream.order):
            lines = list(product(*[range(n if k != level else 1) for k, n in enumerate(shape)]))
            for move, place in product(moves[level], lines):
                # A member has the shards of the levels that its stream has visited.
                held = [
                    range(size) if k in stream.order[:phase] else (place[k],)
                    for k, size in enumerate(shape)
                ]
                held[level] = (move.origin,)
                owners = [rank_of(shape, owner) for owner in product(*held)]
                halves = (0, 1) if move.half is None else (move.half,)
                chunks = tuple(
                    (owner * len(streams) + index) * 2 + half for owner in owners for half in halves
                )
                step = (stream.channel + phase) * phase_steps + move.step
                source = rank_of(shape, moved(place, level, move.source))
                target = rank_of(shape, moved(place, level, move.destination))
                sent = (step, source, target, len(chunks) * chunk_bytes, chunks)
                yield Transfer(*sent, level, move.lane, channel=stream.channel)


def all_gather_traffic(group: Group[float], streams: Sequence[SpanOrder]) -> FloatArray:
    """Return the traffic of :func:`all_gather_transfers`, all messages together: (messages, 4).

    Source, destination, share of the bytes, and level; in any order, without listing chunks.
    """
    shape = shape_of(group)
    member, inside = np.arange(prod(shape)), np.cumprod((1, *shape))
    chunk_share = 1.0 / num_gather_chunks(group, len(streams))
    moves = [
        np.array([(m.source, m.destination, 2 - (m.half is not None)) for m in listed])
        for listed in _span_moves(group)
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


def reversed_transfers(gather: Sequence[Transfer]) -> Iterator[Transfer]:
    """Yield a reduction: a gather in reverse, where each message is added to the data there."""
    last = max((transfer.step for transfer in gather), default=0)
    for transfer in gather:
        yield replace(
            transfer,
            step=last - transfer.step,
            source=transfer.destination,
            destination=transfer.source,
            reduces=True,
        )


@dataclass(frozen=True)
class GatherFamily(Algorithm):
    """An all-gather, its reverse (a reduce-scatter), or one after the other (an all-reduce)."""

    kind: CollectiveKind

    @abstractmethod
    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return a mask of the rows that allow the all-gather, its fixed_s and seconds_per_byte."""

    @abstractmethod
    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather."""

    def affine(self, group: Group[Num]) -> Affine:
        """Return (fixed_s, seconds_per_byte); an all-reduce costs the all-gather twice."""
        applies, fixed_s, seconds_per_byte = self.gather(group)
        passes = 2.0 if self.kind is CollectiveKind.ALL_REDUCE else 1.0
        return where_it_applies(applies, group, fixed_s * passes, seconds_per_byte * passes)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the gather, of its reverse, or of both."""
        gather = list(self.gather_transfers(num_bytes, group))
        after = 0
        if self.kind is not CollectiveKind.ALL_GATHER:
            yield from reversed_transfers(gather)
            after = max((transfer.step for transfer in gather), default=0) + 1
        if self.kind is not CollectiveKind.REDUCE_SCATTER:
            for transfer in gather:
                yield replace(transfer, step=transfer.step + after) if after else transfer

    def gather_traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of the all-gather, as in :meth:`traffic`."""
        return traffic_of(self.gather_transfers(1.0, group))

    def traffic(self, group: Group[float]) -> FloatArray:
        """Return the traffic of the gather, of its reverse, or of both."""
        gather = self.gather_traffic(group).reshape(-1, 4)
        if self.kind is CollectiveKind.ALL_GATHER:
            return gather
        back = gather[:, [1, 0, 2, 3]]
        return back if self.kind is CollectiveKind.REDUCE_SCATTER else np.vstack([back, gather])


class StreamGather(GatherFamily):
    """A gather with parts that visit the spans one after the other."""

    def streams(self, group: Group[float]) -> Sequence[SpanOrder]:
        """Return the parts of the data and the order in which each visits the spans."""
        return (SpanOrder(outermost_first(group)),)

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


@dataclass(frozen=True)
class Ring(StreamGather):
    """A ring or a line over the members of one span that holds the whole group.

    All-gather on a switch: T = (d - 1)(latency + m_half/B) + (d - 1)/d S/B; an all-reduce twice
    that. A ring of a torus takes floor(d/2) messages and half of the bytes on a link.
    Source: Patarasuk and Yuan 2009.
    """

    is_grid: bool = False
    """A grid dimension instead of a switch."""
    closes: bool = True
    """The dimension has its wrap link: a ring in both directions; otherwise a line."""

    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return the stage of the one span that holds the whole group."""
        size = group_size(group)
        applies: Mask = False
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for span in group.spans:
            if span.is_grid == self.is_grid:
                here = span.size == size
                if span.is_grid:
                    here = here & (span.closes == float(self.closes))
                stage_s, stage_slope = gather_affine(span)
                applies = applies | here
                fixed_s = where(here, stage_s, fixed_s)
                slope = where(here, stage_slope, slope)
        return applies, fixed_s, slope


@dataclass(frozen=True)
class Hierarchical(StreamGather):
    """One stage for each level that the group spans, one after the other for each piece.

    A gather goes outermost level first: each member gathers along its own position (with its own
    NIC), so level k carries S (d_k - 1)/d_k over the members inside. Cut into pieces, the levels
    work at the same time and the slowest one decides; one piece has the least messages.
    Source: Cho et al. 2019, "BlueConnect", section 3.
    """

    num_pieces: int = 1

    @property
    def replay_slack(self) -> float:
        """Larger slack with pieces: the messages of one level overlap those of the others."""
        if self.num_pieces == 1:
            return 0.0
        return 1.0 if self.kind is CollectiveKind.ALL_REDUCE else 0.25

    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return the sum of the stages for one piece, and the slowest level for each further one.

        Each further piece repeats the messages of every level; the slowest one pays for m_half.
        """
        size = group_size(group)
        applies: Mask = True
        fixed_s: Num = 0.0
        slope: Num = 0.0
        occupied_s: Num = 0.0
        worst_slope: Num = 0.0
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

    def streams(self, group: Group[float]) -> Sequence[SpanOrder]:
        """Return the pieces, each in its own channel and a phase behind the one before."""
        order = outermost_first(group)
        return [SpanOrder(order, channel=piece) for piece in range(self.num_pieces)]


class Bucket(StreamGather):
    """Several grid dimensions at once: every part of the data visits them in a rotated order.

    With k dimensions the data is cut into k parts; part i gathers along dimension i first, then
    along the next one, so that every link works in every phase. On an R x C mesh this is the pair
    of halves, row first and column first.
    Source: Sack and Gropp 2015, "Collective algorithms for multiported torus networks", section 4.
    """

    replay_slack = 0.5  # Where dimensions differ, a part need not wait for the slowest of a phase.

    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return the form for the grid dimensions that each row spans, two or more."""
        size = group_size(group)
        grids = [span for span in group.spans if span.is_grid]
        applies: Mask = False
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for count in range(2, len(grids) + 1):
            for chosen in combinations(grids, count):
                members: Num = 1.0
                here: Mask = True
                for span in chosen:
                    members = members * span.size
                    here = here & (span.size > 1.0)
                here = here & (members == size)
                rotated_s, rotated_slope = self._rotated(chosen, members)
                applies = applies | here
                fixed_s = where(here, rotated_s, fixed_s)
                slope = where(here, rotated_slope, slope)
        return applies, fixed_s, slope

    def _rotated(self, chosen: Sequence[Span[Num]], members: Num) -> Affine:
        """Return (fixed_s, seconds_per_byte): the sum over the phases of their slowest part.

        In phase j part i works on dimension (i + j) mod k and ends with its share of the bytes
        times the sizes of the dimensions visited so far, over the members.
        """
        count = len(chosen)
        fixed_s: Num = 0.0
        slope: Num = 0.0
        gathered: list[Num] = [1.0 / (members * count)] * count
        for phase in range(count):
            phase_s: Num = 0.0
            phase_slope: Num = 0.0
            for part in range(count):
                span = chosen[(part + phase) % count]
                gathered[part] = gathered[part] * span.size
                stage_s, stage_slope = gather_affine(span)
                phase_s = larger(phase_s, stage_s)
                phase_slope = larger(phase_slope, stage_slope * gathered[part])
            fixed_s, slope = fixed_s + phase_s, slope + phase_slope
        return fixed_s, slope

    def streams(self, group: Group[float]) -> Sequence[SpanOrder]:
        """Return one stream for each dimension to begin with."""
        shape = shape_of(group)
        spanned = [level for level, size in enumerate(shape) if size > 1]
        alone = [level for level, size in enumerate(shape) if size == 1]
        count = max(len(spanned), 1)
        return [SpanOrder((*spanned[first:], *spanned[:first], *alone)) for first in range(count)]


class NeighbourSend(Algorithm):
    """Every member but the last sends its message to the next one, as between pipeline stages.

    The slowest pair decides: the one that crosses the slowest spanned level.
    Assumes: on grids the members follow each other in a snake, so that one hop suffices.
    """

    kind = CollectiveKind.SEND

    def affine(self, group: Group[Num]) -> Affine:
        """Return one message through the slowest spanned level."""
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for span in group.spans:
            spanned = span.size > 1.0
            fixed_s = larger(fixed_s, where(spanned, message_s(span), 0.0))
            slope = larger(slope, where(spanned, 1.0 / span.bandwidth_bytes_per_s, 0.0))
        return where_it_applies(True, group, fixed_s, slope)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the message of each member to the next one."""
        shape = shape_of(group)
        for rank in range(prod(shape) - 1):
            level = crossed_level(shape, rank, rank + 1)
            yield Transfer(0, rank, rank + 1, num_bytes, (rank,), level)
