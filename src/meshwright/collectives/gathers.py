"""All-gather, reduce-scatter and all-reduce of one pattern: transfers over several spans.

A reduce-scatter is the all-gather in reverse, an all-reduce is one after the other; so an algorithm
states how it gathers, and the other two follow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray, N, where
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import Algorithm, Transfer, where_it_applies
from meshwright.collectives.stages import Move, gather_affine, gather_moves, shape_of
from meshwright.spec.collective import CollectiveKind


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
