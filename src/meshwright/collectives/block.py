"""Collectives on a block of two grid dimensions: around a cycle, as waves, to the middle and back.

A wave is the data that one member sends along one dimension, both ways: it moves one member a phase
until it reaches both ends, and all data over one link in one phase are one message. Part of each
shard runs along the inner dimension first and then, from every member it came to, along the outer
one; the other part in the reverse order. A plan states how much enters in each phase.

The bytes on a link are the sum of the waves that pass it, so with g(p) pieces entering a dimension
of d members in phase p the last of its links carries g(p) + g(p - 1) + ... + g(p - d + 2).
Derived here; the bounds that the two plans reach are those of Chan et al. 2007 (the links of a
corner) and of Nash-Williams 1961 (spanning trees that share no edge).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from meshwright.base.arrays import Mask, Num, larger, smaller, where
from meshwright.collectives.group import (
    Group,
    coordinates_of,
    group_size,
    message_s,
    moved,
    rank_of,
    shape_of,
    spans_only,
)
from meshwright.collectives.registry import Affine, Algorithm, Transfer, where_it_applies
from meshwright.collectives.ring import GatherFamily, gather_moves
from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True)
class GridBlock:
    """The two grid dimensions of each group, and the slower of their links: (rows,) each."""

    applies: Mask
    """Whether the group spans two grid dimensions and nothing else."""
    inner: Num
    outer: Num
    message_s: Num
    """Seconds that each message takes on top of its bytes."""
    bandwidth_bytes_per_s: Num

    @property
    def size(self) -> Num:
        """Members."""
        return self.inner * self.outer


def block_of(group: Group[Num]) -> GridBlock:
    """Return the block of each group; ``applies`` is false where there is no block."""
    size = group_size(group)
    applies: Mask = False
    inner: Num = 2.0
    outer: Num = 2.0
    each_s: Num = 0.0
    rate: Num = 1.0
    for first, second in combinations([span for span in group.spans if span.is_grid], 2):
        both = (first.size > 1.0) & (second.size > 1.0)
        here = both & (first.size * second.size == size)
        slower = smaller(first.bandwidth_bytes_per_s, second.bandwidth_bytes_per_s)
        applies = applies | here
        inner, outer = where(here, first.size, inner), where(here, second.size, outer)
        each_s = where(here, larger(message_s(first), message_s(second)), each_s)
        rate = where(here, slower, rate)
    return GridBlock(applies, inner, outer, each_s, rate)


def sides_of(group: Group[float]) -> tuple[int, int]:
    """Return the columns (inner) and the rows (outer) of a block."""
    inner, outer = [size for size in shape_of(group) if size > 1]
    return inner, outer


def levels_of(group: Group[float]) -> list[int]:
    """Return the levels that are the inner and the outer dimension of a block."""
    return [level for level, size in enumerate(shape_of(group)) if size > 1]


Piece = tuple[int, int]
"""Owner of a shard, and number of the piece of it."""


@dataclass(frozen=True)
class BlockMessage:
    """A message over one link in one phase."""

    phase: int
    source: int
    destination: int
    dimension: int
    """0 along the inner dimension, 1 along the outer one."""
    pieces: tuple[Piece, ...]


class BlockGather(GatherFamily):
    """A gather for groups that span two grid dimensions and nothing else."""

    min_grid_dims = 2
    replay_slack = 0.5  # All messages of a phase are charged the busiest and the slowest link.

    @abstractmethod
    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces of each shard."""

    @abstractmethod
    def messages(self, inner: int, outer: int) -> Iterator[BlockMessage]:
        """Yield the messages of the all-gather on a block of these columns and rows."""

    def num_chunks(self, group: Group[float]) -> int:
        """Return the pieces of all shards."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * self.pieces_per_shard(*sides_of(group))

    def gather_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of the all-gather; none for a group of one."""
        if float(group_size(group)) == 1.0:
            return
        levels, num_pieces = levels_of(group), self.pieces_per_shard(*sides_of(group))
        chunk_bytes = num_bytes / self.num_chunks(group)
        for message in self.messages(*sides_of(group)):
            chunks = tuple(owner * num_pieces + piece for owner, piece in message.pieces)
            source, destination = message.source, message.destination
            sent = (message.phase, source, destination, chunk_bytes * len(chunks), chunks)
            yield Transfer(*sent, levels[message.dimension], 0 if destination > source else 1)


def hamiltonian_cycle(num_rows: int, num_columns: int) -> list[tuple[int, int]]:
    """Return the cells (row, column) of a block in the order of a cycle of neighbours.

    A snake right of the first column, and up that column again. Range: both sides at least 2, one
    of them even.
    """
    if num_rows % 2:
        return [(row, column) for column, row in hamiltonian_cycle(num_columns, num_rows)]
    snake = []
    for row in range(num_rows):
        columns = range(1, num_columns)
        snake += [(row, column) for column in (columns if row % 2 == 0 else reversed(columns))]
    return [(0, 0), *snake, *[(row, 0) for row in range(num_rows - 1, 0, -1)]]


class CycleGather(BlockGather):
    """T = N/2 (latency + m_half/B) + (N - 1)/N S/(2 B) for a gather; one side is even.

    Whole shards go half way around a Hamiltonian cycle from both sides.
    """

    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return the form on blocks with an even side."""
        block = block_of(group)
        half = block.size / 2.0
        slope = (block.size - 1.0) / block.size / 2.0 / block.bandwidth_bytes_per_s
        return block.applies & (half == np.floor(half)), half * block.message_s, slope

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return two halves."""
        return 2

    def messages(self, inner: int, outer: int) -> Iterator[BlockMessage]:
        """Yield both directions; the shard of the member opposite comes half from each side."""
        cells = hamiltonian_cycle(outer, inner)
        ranks = [row * inner + column for row, column in cells]
        for move in gather_moves(len(ranks), is_grid=True, closes=True):
            source, destination = ranks[move.source], ranks[move.destination]
            dimension = 0 if cells[move.source][0] == cells[move.destination][0] else 1
            halves = (0, 1) if move.half is None else (move.half,)
            pieces = tuple((ranks[move.origin], half) for half in halves)
            yield BlockMessage(move.step, source, destination, dimension, pieces)


@dataclass(frozen=True)
class WavePlan:
    """Cuts of shards, and the pieces that each member sends in each phase."""

    inner_first: int
    """Pieces of a shard that run along the inner dimension first."""
    outer_first: int
    inner_waves: tuple[int, ...]
    """Pieces that enter the inner dimension in each phase, at every member."""
    outer_waves: tuple[int, ...]

    @property
    def num_pieces(self) -> int:
        """Pieces of each shard."""
        return self.inner_first + self.outer_first


def even_plan(inner: int, outer: int) -> WavePlan:
    """Return equal waves of N - 1 pieces, which load all links alike over all phases.

    With E = 2 R C - R - C edges a shard has E pieces. Gather and reduction of one shard load each
    link, in both directions together, with (N - 1)/E of N shards: the trees along which the
    pieces travel use all edges alike.
    """
    others = inner * outer - 1
    return WavePlan(outer * (inner - 1), inner * (outer - 1), (others,) * outer, (others,) * inner)


def corner_plan(inner: int, outer: int) -> WavePlan:
    """Return waves that load both links of a corner alike in every phase.

    The waves into a dimension of d members are k(p) + k(p - 1) + ... over d' - 1 phases, d' members
    in the other one, so a last link of either carries the same convolution of k with d - 1 and
    d' - 1 ones. With u = 1/(long - 1), k = (x, 2 u - x, x - u) enters no piece before it is there,
    where x = (N - 2 short + 1)/(2 (short - 1)(long - 1)) of each shard runs along the longer
    dimension first. Range: sides that differ, at least 3.
    """
    short, long = sorted((inner, outer))
    first, unit = short * long - 2 * short + 1, 2 * (short - 1)
    last = short * long - 2 * long + 1

    def waves(others: int) -> tuple[int, ...]:
        full = [first + unit] * (others - 3)
        return (first, 2 * unit, *full, unit, first - unit)

    if inner > outer:
        return WavePlan(first, last, waves(outer), waves(inner))
    return WavePlan(last, first, waves(outer), waves(inner))


def gather_messages(plan: WavePlan, inner: int, outer: int) -> Iterator[BlockMessage]:
    """Yield the messages of an all-gather, phases counted from 0."""
    shape = (inner, outer)
    for axis, line in [(0, row) for row in range(outer)] + [(1, column) for column in range(inner)]:
        places = [(at, line) if axis == 0 else (line, at) for at in range(shape[axis])]
        members = [rank_of(shape, place) for place in places]
        entering = [_entering(plan, shape, place, axis) for place in places]
        for phase in range(len(entering[0]) + len(members) - 2):
            for at, direction in product(range(len(members)), (1, -1)):
                # Waves that leave in one direction: those that entered here or further back.
                pieces: list[Piece] = []
                for back in range(phase + 1):
                    origin, entered = at - direction * back, phase - back
                    if 0 <= origin < len(members) and entered < len(entering[origin]):
                        pieces += entering[origin][entered]
                if 0 <= at + direction < len(members) and pieces:
                    ends = (members[at], members[at + direction])
                    yield BlockMessage(phase, *ends, axis, tuple(pieces))


def _entering(
    plan: WavePlan, shape: tuple[int, int], place: tuple[int, int], axis: int
) -> list[list[Piece]]:
    """Return the pieces that a member sends along one dimension in each phase.

    First its own that run along it first, then those of its line in the other dimension, the
    nearest first: in the order in which they arrive.
    """
    parts = (range(plan.inner_first), range(plan.inner_first, plan.num_pieces))
    waves = (plan.inner_waves, plan.outer_waves)[axis]
    pool = [(rank_of(shape, place), piece) for piece in parts[axis]]
    here = place[1 - axis]
    for position in sorted(range(shape[1 - axis]), key=lambda other: abs(other - here)):
        owner = rank_of(shape, moved(place, 1 - axis, position))
        pool += [(owner, piece) for piece in parts[1 - axis]]
    ends = np.cumsum(waves).tolist()
    return [pool[end - count : end] for end, count in zip(ends, waves, strict=True)]


def tree_share(block: GridBlock) -> Num:
    """Return (N - 1)/E: the part of each byte's path down all trees that one link carries [1]."""
    edges = 2.0 * block.size - block.inner - block.outer
    return (block.size - 1.0) / edges


def even_share(block: GridBlock) -> Num:
    """Return the part of S that the busiest link of an even wave carries in all phases [1]."""
    short, long = smaller(block.inner, block.outer), larger(block.inner, block.outer)
    return short * (long - 1.0) / block.size * tree_share(block)


@dataclass(frozen=True)
class Wave(BlockGather):
    """A gather of waves: as many messages as phases, each as long as the busiest link needs.

    Even waves: T = (R + C - 2)(latency + m_half/B) + short (long - 1)(N - 1)/(N E) S/B, the least
    messages; at the bound for squares, 97.6 % of it at 6x8 and 92.9 % at 4x8. Corner waves:
    T = (R + C - 1)(latency + m_half/B) + (N - 1)/N S/(2 B), the bytes of the lower bound.
    """

    loads_corners: bool = False
    """Corner waves, on blocks of at least three rows and columns that differ."""

    def gather(self, group: Group[Num]) -> tuple[Mask, Num, Num]:
        """Return the form of even waves, or of corner waves."""
        block = block_of(group)
        hops = block.inner + block.outer
        if not self.loads_corners:
            slope = even_share(block) / block.bandwidth_bytes_per_s
            return block.applies, (hops - 2.0) * block.message_s, slope
        short = smaller(block.inner, block.outer)
        applies = block.applies & (short >= 3.0) & (block.inner != block.outer)
        slope = (block.size - 1.0) / block.size / 2.0 / block.bandwidth_bytes_per_s
        return applies, (hops - 1.0) * block.message_s, slope

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces that the plan cuts."""
        return self._plan(inner, outer).num_pieces

    def messages(self, inner: int, outer: int) -> Iterator[BlockMessage]:
        """Yield one message for each link and phase."""
        return gather_messages(self._plan(inner, outer), inner, outer)

    def _plan(self, inner: int, outer: int) -> WavePlan:
        return corner_plan(inner, outer) if self.loads_corners else even_plan(inner, outer)


@dataclass(frozen=True)
class PipelinedWaveAllReduce(Algorithm):
    """T = M (latency + m_half/B) + [2 w + (P - 1)(N - 1)/E] S/(P B).

    P pieces make M = 2 (R + C - 2) + (P - 1)(R + C - 1) messages on each link; w is the load of the
    busiest links in the first reduction and in the last gather, which run alone.
    """

    num_pieces: int
    kind = CollectiveKind.ALL_REDUCE
    min_grid_dims = 2
    replay_slack = 0.5

    def affine(self, group: Group[Num]) -> Affine:
        """Return the form on blocks of any sides."""
        block = block_of(group)
        both, further = block.inner + block.outer, self.num_pieces - 1.0
        messages = 2.0 * (both - 2.0) + further * (both - 1.0)
        share = (2.0 * even_share(block) + further * tree_share(block)) / self.num_pieces
        return where_it_applies(
            block.applies, group, messages * block.message_s, share / block.bandwidth_bytes_per_s
        )

    def num_chunks(self, group: Group[float]) -> int:
        """Return the chunks of an all-reduce: for each piece those of an even wave."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * even_plan(*sides_of(group)).num_pieces * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield one message for each link and phase: its chunks to add, then its final chunks."""
        size = round(float(group_size(group)))
        if size == 1:
            return
        levels, sides = levels_of(group), sides_of(group)
        chunk_bytes = num_bytes / self.num_chunks(group)
        plan, period = even_plan(*sides), sum(sides)
        # Chunks that are added and that are kept, by (step, source, destination, dimension).
        added: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        kept: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        for message in gather_messages(plan, *sides):
            source, destination = message.source, message.destination
            numbers = np.array(message.pieces) @ (plan.num_pieces, 1)
            for piece in range(self.num_pieces):
                numbered = (numbers + piece * size * plan.num_pieces).tolist()
                start = piece * period
                up, down = start + period - 3 - message.phase, start + period - 1 + message.phase
                added[up, destination, source, message.dimension] += numbered
                kept[down, source, destination, message.dimension] += numbered
        for place in sorted(added.keys() | kept.keys()):
            step, source, destination, dimension = place
            final = tuple(kept.get(place, ()))
            chunks = tuple(added.get(place, ())) + final
            sent = (step, source, destination, chunk_bytes * len(chunks), chunks)
            link = (levels[dimension], 0 if destination > source else 1)
            yield Transfer(*sent, *link, reduces=place in added, kept=final)


class CentralAllReduce(Algorithm):
    """T = sum over the grid dimensions of (d - 1)(latency + (S + m_half)/B).

    Whole vectors meet in the middle. Along each dimension in turn the partial sums run from both
    ends to the middle and the sum runs back, d - 1 messages in all: over an even number of members
    the two in the middle exchange their sums. For few bytes nothing can be faster, because no
    member may wait for fewer hops than there are to the farthest one.
    Source: Luczynski et al. 2024, "Near-optimal wafer-scale reduce" (chains to a root); the
    exchange in the middle is that of recursive doubling (Thakur, Rabenseifner and Gropp 2005).
    """

    kind = CollectiveKind.ALL_REDUCE
    min_grid_dims = 1

    def affine(self, group: Group[Num]) -> Affine:
        """Return the sum over the dimensions."""
        fixed_s: Num = 0.0
        slope: Num = 0.0
        for span in group.spans:
            fixed_s = fixed_s + (span.size - 1.0) * message_s(span)
            slope = slope + (span.size - 1.0) / span.bandwidth_bytes_per_s
        return where_it_applies(spans_only(group, grids=True), group, fixed_s, slope)

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield both directions of every line, one dimension after the other."""
        shape, first_step = shape_of(group), 0
        for level, size in enumerate(shape):
            low, high = (size - 1) // 2, size // 2
            for place in coordinates_of(shape):
                at = place[level]
                # (step, direction, reduces): to the middle from both ends, and back.
                sends = [(at, 1, True)] if at < high else []
                sends += [(size - 1 - at, -1, True)] if at > low else []
                sends += [(size - 1 - at, -1, False)] if 0 < at <= low else []
                sends += [(at, 1, False)] if high <= at < size - 1 else []
                for step, direction, reduces in sends:
                    target = rank_of(shape, moved(place, level, at + direction))
                    sent = (first_step + step, rank_of(shape, place), target, num_bytes, (0,))
                    yield Transfer(*sent, level, 0 if direction > 0 else 1, reduces=reduces)
            first_step += size - 1
