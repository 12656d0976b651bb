"""All-gathers on a block as waves that run along rows and columns at once.

A wave is what one member sends along one dimension, both ways: it moves one member a phase until
it reaches both ends, and what runs over one link in one phase is one message. Part of each shard
runs along the inner dimension first and then, from every member it came to, along the outer one;
the other part the other way round. How much enters in which phase is what a plan says.

The bytes on a link are the sum of the waves that pass it, so with g(p) pieces entering a dimension
of d members in phase p the last of its links carries g(p) + g(p - 1) + ... + g(p - d + 2).
Derived here; the bounds that the two plans reach are those of Chan et al. 2007 (the links of a
corner) and of Nash-Williams 1961 (spanning trees that share no edge).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from meshwright.collectives.gathers import rank_of

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
