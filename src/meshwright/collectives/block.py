"""A Hamiltonian cycle over the members of a block, and the gather around it."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from meshwright.base.arrays import N, larger, smaller
from meshwright.collectives.group import Group, group_size
from meshwright.collectives.registry import (
    Algorithm,
    Transfer,
    where_it_applies,
)
from meshwright.collectives.ring import (
    Block,
    BlockGather,
    block_of,
    coordinates_of,
    levels_of,
    may_span_a_block,
    message_s,
    rank_of,
    shape_of,
    sides_of,
    two_way_ring_moves,
)
from meshwright.spec.collective import CollectiveKind


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


def cycle_gather(num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
    """Yield an all-gather in which whole shards go half way around the cycle from both sides.

    The shard of the member opposite comes half from each side.
    """
    inner, outer = levels_of(group)
    num_columns, num_rows = sides_of(group)
    cells = hamiltonian_cycle(num_rows, num_columns)
    ranks = [row * num_columns + column for row, column in cells]
    half_bytes = num_bytes / len(ranks) / 2
    for move in two_way_ring_moves(len(ranks)):
        (row, column), (next_row, next_column) = cells[move.source], cells[move.destination]
        owner = ranks[move.origin]
        halves = (0, 1) if move.half is None else (move.half,)
        yield Transfer(
            move.step,
            ranks[move.source],
            ranks[move.destination],
            half_bytes * len(halves),
            tuple(2 * owner + half for half in halves),
            inner if row == next_row else outer,
            0 if (next_row, next_column) > (row, column) else 1,
        )


class Cycle(BlockGather):
    """T = N/2 (latency + m_half/B) + (N - 1)/N S/(2 B) for a gather; one side is even."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the form on blocks with an even side."""
        block = block_of(group)
        half = block.size / 2.0
        slope = (block.size - 1.0) / block.size / 2.0 / block.bandwidth_bytes_per_s
        return block.applies & (half == np.floor(half)), half * block.message_s, slope

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return two halves."""
        return 2

    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield the messages of both directions."""
        return cycle_gather(num_bytes, group)


class CentralAllReduce(Algorithm):
    """T = sum over the grid dimensions of (d - 1)(latency + (S + m_half)/B)."""

    kind = CollectiveKind.ALL_REDUCE

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there is a grid dimension."""
        return any(span.is_grid for span in group.spans)

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the sum over the dimensions."""
        applies: Any = True
        fixed_s: Any = 0.0
        slope: Any = 0.0
        for span in group.spans:
            applies = applies & ((span.size == 1.0) | span.is_grid)
            fixed_s = fixed_s + (span.size - 1.0) * message_s(span)
            slope = slope + (span.size - 1.0) / span.bandwidth_bytes_per_s
        return where_it_applies(applies, group, fixed_s, slope)

    def num_chunks(self, group: Group[float]) -> int:
        """Return one: everything is sent at once."""
        return 1

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield both ways of every line, one dimension after the other."""
        shape, first_step = shape_of(group), 0
        for level, size in enumerate(shape):
            for place in coordinates_of(shape):
                for step, way, reduces in _sends(place[level], size):
                    there = (*place[:level], place[level] + way, *place[level + 1 :])
                    yield Transfer(
                        first_step + step,
                        rank_of(shape, place),
                        rank_of(shape, there),
                        num_bytes,
                        (0,),
                        level,
                        0 if way > 0 else 1,
                        reduces=reduces,
                    )
            first_step += size - 1


def _sends(at: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (step, way, reduces) of what one position of a line sends: to the middle, and back."""
    low, high = (size - 1) // 2, size // 2
    if at < high:
        yield at, 1, True
    if at > low:
        yield size - 1 - at, -1, True
    if 0 < at <= low:
        yield size - 1 - at, -1, False
    if high <= at < size - 1:
        yield at, 1, False


Piece = tuple[int, int]
"""Owner of a shard, and number of the piece of it."""


@dataclass(frozen=True)
class WavePlan:
    """How shards are cut, and the pieces that each member sends in each phase."""

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
    """Return equal waves of N - 1 pieces: in all phases together every link carries the same.

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


@dataclass(frozen=True)
class WaveMessage:
    """What runs over one link in one phase."""

    phase: int
    source: int
    destination: int
    is_inner: bool
    pieces: tuple[Piece, ...]


def gather_messages(plan: WavePlan, inner: int, outer: int) -> Iterator[WaveMessage]:
    """Yield the messages of an all-gather, phases counted from 0."""
    shape = (inner, outer)
    for axis, line in [(0, row) for row in range(outer)] + [(1, column) for column in range(inner)]:
        places = [(at, line) if axis == 0 else (line, at) for at in range(shape[axis])]
        members = [rank_of(shape, place) for place in places]
        entering = [_entering(plan, shape, rank, axis) for rank in members]
        for phase in range(len(entering[0]) + len(members) - 2):
            for at, way in product(range(len(members)), (1, -1)):
                pieces = _passing(entering, phase, at, way)
                if 0 <= at + way < len(members) and pieces:
                    yield WaveMessage(phase, members[at], members[at + way], axis == 0, pieces)


def _passing(
    entering: list[list[tuple[Piece, ...]]], phase: int, at: int, way: int
) -> tuple[Piece, ...]:
    """Return what leaves position ``at`` one way: waves that entered there or further back."""
    pieces: list[Piece] = []
    origin, entered = at, phase
    while 0 <= origin < len(entering) and entered >= 0:
        waves = entering[origin]
        if entered < len(waves):
            pieces += waves[entered]
        origin, entered = origin - way, entered - 1
    return tuple(pieces)


def _entering(
    plan: WavePlan, shape: tuple[int, int], rank: int, axis: int
) -> list[tuple[Piece, ...]]:
    """Return the pieces that a member sends along one dimension in each phase.

    First its own that run along it first, then those of its line in the other dimension, the
    nearest first: in the order in which they arrive.
    """
    parts = (range(plan.inner_first), range(plan.inner_first, plan.num_pieces))
    waves = (plan.inner_waves, plan.outer_waves)[axis]
    place = [rank % shape[0], rank // shape[0]]
    here = place[1 - axis]
    pool = [(rank, piece) for piece in parts[axis]]
    for position in sorted(range(shape[1 - axis]), key=lambda other: abs(other - here)):
        place[1 - axis] = position
        owner = rank_of(shape, place)
        pool += [(owner, piece) for piece in parts[1 - axis]]
    ends = [sum(waves[: phase + 1]) for phase in range(len(waves))]
    return [tuple(pool[end - count : end]) for end, count in zip(ends, waves, strict=True)]


class Wave(BlockGather):
    """A gather of waves: as many messages as phases, each as long as the busiest link needs."""

    def gather(self, group: Group[N]) -> tuple[Any, N, N]:
        """Return the phases times the cost of a message, and the share of the busiest links."""
        block = block_of(group)
        applies, phases, share = self.phases_and_share(block)
        return applies, phases * block.message_s, share / block.bandwidth_bytes_per_s

    @abstractmethod
    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return where it applies, the phases, and the part of S that the busiest links carry."""

    @abstractmethod
    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return the waves on a block of these sides."""

    def pieces_per_shard(self, inner: int, outer: int) -> int:
        """Return the pieces that the plan cuts."""
        return self.plan(inner, outer).num_pieces

    def block_transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield one message for each link and phase."""
        inner, outer = levels_of(group)
        sides = sides_of(group)
        plan = self.plan(*sides)
        chunk_bytes = num_bytes / self.num_chunks(group)
        for message in gather_messages(plan, *sides):
            yield Transfer(
                message.phase,
                message.source,
                message.destination,
                chunk_bytes * len(message.pieces),
                tuple(owner * plan.num_pieces + piece for owner, piece in message.pieces),
                inner if message.is_inner else outer,
                0 if message.destination > message.source else 1,
            )


class EvenWave(Wave):
    """T = (R + C - 2)(latency + m_half/B) + short (long - 1)(N - 1)/(N E) S/B.

    The least messages; at the bound for squares, 97.6 % of it at 6x8 and 92.9 % at 4x8.
    """

    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return the form on blocks of any sides."""
        return block.applies, block.inner + block.outer - 2.0, even_share(block)

    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return equal waves."""
        return even_plan(inner, outer)


class CornerWave(Wave):
    """T = (R + C - 1)(latency + m_half/B) + (N - 1)/N S/(2 B): the bytes of the lower bound."""

    def phases_and_share(self, block: Block) -> tuple[Any, Any, Any]:
        """Return the form on blocks of at least three rows and columns that differ."""
        short = smaller(block.inner, block.outer)
        applies = block.applies & (short >= 3.0) & (block.inner != block.outer)
        share = (block.size - 1.0) / block.size / 2.0
        return applies, block.inner + block.outer - 1.0, share

    def plan(self, inner: int, outer: int) -> WavePlan:
        """Return waves that load both links of a corner alike."""
        return corner_plan(inner, outer)


def tree_share(block: Block) -> Any:
    """Return (N - 1)/E: the part of each byte's way down all trees that one link carries [1]."""
    edges = 2.0 * block.size - block.inner - block.outer
    return (block.size - 1.0) / edges


def even_share(block: Block) -> Any:
    """Return the part of S that the busiest link of an even wave carries in all phases [1]."""
    short, long = smaller(block.inner, block.outer), larger(block.inner, block.outer)
    return short * (long - 1.0) / block.size * tree_share(block)


class PipelinedWaveAllReduce(Algorithm):
    """T = M (latency + m_half/B) + [2 w + (P - 1)(N - 1)/E] S/(P B).

    P pieces make M = 2 (R + C - 2) + (P - 1)(R + C - 1) messages on each link; w is what the
    busiest links carry of the first reduction and of the last gather, which run alone.
    """

    kind = CollectiveKind.ALL_REDUCE
    replay_slack = 0.5

    def __init__(self, num_pieces: int) -> None:
        self.num_pieces = num_pieces

    def may_apply(self, group: Group[Any]) -> bool:
        """Return whether there are two grid dimensions."""
        return may_span_a_block(group)

    def affine(self, group: Group[N]) -> tuple[N, N]:
        """Return the form on blocks of any sides."""
        block = block_of(group)
        both, further = block.inner + block.outer, self.num_pieces - 1.0
        messages = 2.0 * (both - 2.0) + further * (both - 1.0)
        share = (2.0 * even_share(block) + further * tree_share(block)) / self.num_pieces
        return where_it_applies(
            block.applies, group, messages * block.message_s, share / block.bandwidth_bytes_per_s
        )

    def num_chunks(self, group: Group[float]) -> int:
        """Return as many chunks for each piece as an even wave has."""
        size = round(float(group_size(group)))
        return 1 if size == 1 else size * even_plan(*sides_of(group)).num_pieces * self.num_pieces

    def transfers(self, num_bytes: float, group: Group[float]) -> Iterator[Transfer]:
        """Yield one message for each link and phase: what it reduces, then what is final."""
        if float(group_size(group)) == 1.0:
            return
        levels, chunk_bytes = levels_of(group), num_bytes / self.num_chunks(group)
        added, kept = self._chunks(*sides_of(group))
        for place in sorted(added.keys() | kept.keys()):
            step, source, destination, dimension = place
            final = tuple(kept.get(place, ()))
            chunks = tuple(added.get(place, ())) + final
            yield Transfer(
                step,
                source,
                destination,
                chunk_bytes * len(chunks),
                chunks,
                levels[dimension],
                0 if destination > source else 1,
                reduces=place in added,
                kept=final,
            )

    def _chunks(self, inner: int, outer: int) -> tuple[_Chunks, _Chunks]:
        """Return what is added and what is kept, by (step, source, destination, dimension)."""
        plan, period = even_plan(inner, outer), inner + outer
        per_piece = inner * outer * plan.num_pieces
        added: _Chunks = defaultdict(list)
        kept: _Chunks = defaultdict(list)
        for message in gather_messages(plan, inner, outer):
            source, destination = message.source, message.destination
            dimension = 0 if message.is_inner else 1
            ways = np.array(message.pieces) @ (plan.num_pieces, 1)
            for piece in range(self.num_pieces):
                chunks = (ways + piece * per_piece).tolist()
                start = piece * period
                up, down = start + period - 3 - message.phase, start + period - 1 + message.phase
                added[up, destination, source, dimension] += chunks
                kept[down, source, destination, dimension] += chunks
        return added, kept


_Chunks = dict[tuple[int, int, int, int], list[int]]
"""Chunks by step, source, destination and dimension."""
