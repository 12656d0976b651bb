"""Forms of a tensor stream: closed forms on numbers or columns, and the rounds, one by one.

N members are on a path (or a cycle) of neighbouring devices; member i owns sub-tensor i of the
streamed tensor and needs each of the N once, one a round. A form may cut every sub-tensor into
parts; the things that travel are items, and item k is a part of sub-tensor k // parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where
from meshwright.base.registry import Registry


class Send(NamedTuple):
    """One item that one member sends to another during a round; usable there one round later."""

    round: int
    source: int
    destination: int
    item: int


class Buffers(NamedTuple):
    """Most sub-tensors of others that a member holds at once, in whole sub-tensors."""

    resident: Num
    """While it computes."""
    with_incoming: Num
    """While it computes, with the sub-tensors that arrive during the round."""


class TensorStream(ABC):
    """Closed forms and enumeration of one form; N members, a number or a column (rows,)."""

    needs_cycle: ClassVar[bool] = False
    """Whether the last member must be a neighbour of the first one."""

    def num_parts(self, num_members: Num) -> Num:
        """Return the pieces of a sub-tensor that take different directions: one."""
        return 0 * num_members + 1

    def num_hops(self, num_members: Num) -> Num:
        """Return the links that the longest send of a round crosses: one between neighbours."""
        return 0 * num_members + 1

    @abstractmethod
    def buffers(self, num_members: Num) -> Buffers:
        """Return the most sub-tensors of others that a member holds at once."""

    @abstractmethod
    def transfers(self, num_members: Num) -> Num:
        """Return the sub-tensors that cross links in one pass, each link of a send counted."""

    @abstractmethod
    def num_shared_rounds(self, num_members: Num) -> Num:
        """Return the rounds of a backward pass in which an item and an accumulator share a link.

        Never in the first and the last round, so at most N - 2.
        """

    @abstractmethod
    def num_exchange_rounds(self, num_members: Num) -> Num:
        """Return the rounds in which items go round and sums of partials formed from them return.

        As in backward attention: such a partial cannot be formed before its item is there.
        """

    @abstractmethod
    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Return ``uses[round][member]``: the items the member multiplies in that round."""

    @abstractmethod
    def sends(self, num_members: int) -> list[Send]:
        """Return every send of one pass."""


streams: Registry[TensorStream] = Registry("tensor stream")
"""Keyed by the values of the strategy's stream form."""


@dataclass(frozen=True)
class RingStream(TensorStream):
    """TSPP: a one-way ring in a line; every sub-tensor moves one member down the ring each round.

    Neighbours of the ring are neighbours of the line, and the wrap crosses the whole line, in the
    direction that the other sends leave idle. Folded, 0 2 4 .. 5 3 1, it goes through the even
    positions and back through the odd ones, so none are more than two hops apart.

    Source: the naive ring that TEMP (arXiv 2512.14256) starts from; folded, the standard layout of
    a torus dimension without long wires (Dally and Towles 2004, Principles and Practices of
    Interconnection Networks, section 5.3); proven by replay.
    """

    is_folded: bool = False

    def num_hops(self, num_members: Num) -> Num:
        """Return N - 1 at the wrap, for which the round waits; folded two, and one in a pair."""
        return smaller(num_members - 1, 2.0) if self.is_folded else num_members - 1

    def buffers(self, num_members: Num) -> Buffers:
        """Return the buffers: one sub-tensor in use and one that arrives."""
        others = num_members - 1
        return Buffers(smaller(others, 1.0), smaller(others, 2.0))

    def transfers(self, num_members: Num) -> Num:
        """Return 2 (N - 1)^2: in each of N - 1 rounds N - 1 single hops and a wrap of N - 1.

        Folded it has the same total: N - 2 sends of two hops and two of one.
        """
        return 2 * (num_members - 1) * (num_members - 1)

    def num_shared_rounds(self, num_members: Num) -> Num:
        """Return all rounds but the first and the last: every link is in use in every round."""
        return positive_part(num_members - 2)

    def num_exchange_rounds(self, num_members: Num) -> Num:
        """Return N + 1: an accumulator walks one round behind its item."""
        return num_members + smaller(num_members - 1, 1.0)

    def _order(self, num_members: int) -> list[int]:
        """Return the positions of the line in the order of the ring."""
        if not self.is_folded:
            return list(range(num_members))
        return [*range(0, num_members, 2), *reversed(range(1, num_members, 2))]

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Return the item of each member by round: in round t that of the t-th one up the ring."""
        order, members = self._order(num_members), range(num_members)
        place = {member: position for position, member in enumerate(order)}
        return [
            [(order[(place[member] + turn) % num_members],) for member in members]
            for turn in members
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Return the sends: each member passes its item down the ring in the same round."""
        order = self._order(num_members)
        return [
            Send(turn, order[k], order[k - 1], order[(k + turn) % num_members])
            for turn in range(num_members - 1)
            for k in range(num_members)
        ]


class CycleStream(RingStream):
    """A ring on a Hamiltonian cycle of neighbours, half of every sub-tensor in each direction.

    A link carries half the bytes of a line. A block of a mesh has such a cycle when one side is
    even and both are at least two. A member holds two halves in use and two that arrive.

    Source: derived; proven by replay.
    """

    needs_cycle = True

    def num_parts(self, num_members: Num) -> Num:
        """Return two halves; two members share a single link, so a pair sends whole sub-tensors."""
        return where(num_members > 2, 2.0, 1.0)

    def num_hops(self, num_members: Num) -> Num:
        """Return one hop: sends go to neighbours only."""
        return 0 * num_members + 1

    def transfers(self, num_members: Num) -> Num:
        """Return N (N - 1): every sub-tensor crosses N - 1 links, half of it in each direction."""
        return num_members * (num_members - 1)

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Return the halves in use: the first of (i + t) mod N with the second of (i - t) mod N."""
        if num_members <= 2:
            return super().uses(num_members)
        members = range(num_members)
        return [
            [
                (2 * ((member + turn) % num_members), 2 * ((member - turn) % num_members) + 1)
                for member in members
            ]
            for turn in members
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Return the sends: both halves in use go on in the same round, each in its direction."""
        uses = self.uses(num_members)
        return [
            Send(turn, member, (member + step) % num_members, item)
            for turn in range(num_members - 1)
            for member in range(num_members)
            for step, item in zip((-1, 1), uses[turn][member], strict=False)
        ]


@dataclass(frozen=True)
class LineStream(TensorStream):
    """A line of devices, one hop a round in both directions: ``hold``, ``stream`` and between.

    Express waves carry every sub-tensor once to each member. The members of the left half use them
    in the order i, i + 1, ..., N - 1, 0, 1, ..., those of the right half in the mirrored order, so
    the sub-tensors behind them pass too early. ``hold`` keeps those copies until their round;
    ``stream`` lets them go and sends them again just in time (a second wave outwards, a return
    wave back), so that the buffers do not grow with N.

    Source: order and waves reconstructed from TATP in TEMP (arXiv 2512.14256); proven by replay.
    """

    num_held: Num
    """Passing copies that each half keeps, h: 0 is ``stream``, from ceil(N / 2) on ``hold``."""

    @classmethod
    def filling(cls, num_members: Num, num_fitting: Num) -> LineStream:
        """Return the line of the most copies with buffers for at most this many sub-tensors.

        Where even those of ``stream`` hold more, it is ``stream``.

        Source: the buffers solved for h; equal to trying every h for N = 1 .. 64.
        """
        half = ceil_div(num_members, 2)
        turn = positive_part(ceil_div(2 * half - 7, 3))
        held = where(num_fitting >= larger(turn + 3, 4), num_fitting - 2, num_fitting - 4)
        all_fit = num_fitting >= smaller(half + 1, num_members - 1)
        return cls(where(all_fit, half, smaller(positive_part(held), half)))

    def buffers(self, num_members: Num) -> Buffers:
        """Return the buffers: at most 2 + h resident, and 4 + h with those that arrive.

        With n = ceil(N / 2) and the turn T = floor((2 n - 5) / 3), no less than 0:
        resident min(h + 2, max(T + 2, h + 1), n, N - 1), and with arriving ones
        min(h + 4, max(4, T + 3, h + 2), n + 1, N - 1 + r), r = 1 where anything is sent again.

        Source: derived from the waves; equal to the counted ones for every knob and N = 1 .. 64.
        """
        held, half = self.num_held, ceil_div(num_members, 2)
        others = num_members - 1
        turn = positive_part(ceil_div(2 * half - 7, 3))
        resident = smaller(larger(turn + 2, held + 1), held + 2)
        incoming = smaller(larger(turn + 3, larger(held + 2, 4)), held + 4)
        repeated = smaller(positive_part(half - 1 - held), 1)
        return Buffers(
            resident=smaller(resident, smaller(half, others)),
            with_incoming=smaller(incoming, smaller(half + 1, others + repeated)),
        )

    def transfers(self, num_members: Num) -> Num:
        """Return N (N - 1) + (n - 1 - h)^2 + (N - n - 1 - h)^2, n = ceil(N / 2), no less than 0."""
        left = ceil_div(num_members, 2)
        again_left = positive_part(left - 1 - self.num_held)
        again_right = positive_part(num_members - left - 1 - self.num_held)
        once = num_members * (num_members - 1)
        return once + again_left * again_left + again_right * again_right

    def num_shared_rounds(self, num_members: Num) -> Num:
        """Return min(N - 2, 4 (n - 1 - h) - 2), no less than 0: only repeated waves share a link.

        The express waves and their reversals never use one link in the same direction and round:
        in round t items go right beyond member t, accumulators before it.

        Source: derived from the waves; equal to the counted ones for every knob.
        """
        again = positive_part(ceil_div(num_members, 2) - 1 - self.num_held)
        return positive_part(smaller(num_members - 2, 4 * again - 2))

    def num_exchange_rounds(self, num_members: Num) -> Num:
        """Return 2 N - 1: the farthest partial exists in round N - 1 and has N - 1 hops to go."""
        return 2 * num_members - 1

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Return the items in use: (i + t) mod N in round t, on the right half (i - t) mod N."""
        left = (num_members + 1) // 2
        signs = [1 if member < left else -1 for member in range(num_members)]
        return [
            [((member + sign * turn) % num_members,) for member, sign in enumerate(signs)]
            for turn in range(num_members)
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Return express waves, then on each side the waves that bring back released copies."""
        waves: list[Send] = []
        # Every sub-tensor leaves its home in round 0 at full speed, in both directions.
        for item in range(num_members):
            waves += [Send(turn, item - turn, item - turn - 1, item) for turn in range(item)]
            rightward = range(num_members - 1 - item)
            waves += [Send(turn, item + turn, item + turn + 1, item) for turn in rightward]
        left = (num_members + 1) // 2
        waves += self._repeated(num_members, left, range(num_members))
        waves += self._repeated(num_members, num_members - left, range(num_members)[::-1])
        return waves

    def _repeated(self, num_members: int, half: int, place: range) -> list[Send]:
        """Return the second and the return wave of each sub-tensor that one half does not hold.

        Written for the left half of ``half`` members at these places; the right half is its mirror
        image. The second wave leaves home s in round N - 2 n + 2 + 2 s and reaches the middle
        member as it needs it; the return wave walks back one member a round, and each needs it on
        arrival.
        """
        waves: list[Send] = []
        first = int(min(float(self.num_held), half - 1))
        for s in range(first, half - 1):
            start = num_members - 2 * half + 2 + 2 * s
            outward = range(s, half - 1)
            waves += [Send(start + k - s, place[k], place[k + 1], place[s]) for k in outward]
            backward = range(half - 1, s + 1, -1)
            waves += [Send(num_members - k + s, place[k], place[k - 1], place[s]) for k in backward]
        return waves


@dataclass(frozen=True)
class StreamRounds:
    """One pass of a stream, enumerated; sends copy items, or add accumulators when reversed."""

    num_members: int
    num_parts: int
    num_hops: int
    is_cycle: bool
    uses: list[list[tuple[int, ...]]]
    sends: list[Send]

    @property
    def num_items(self) -> int:
        """Items that travel: sub-tensors times their parts."""
        return self.num_members * self.num_parts

    def home(self, item: int) -> int:
        """Return the member that owns an item."""
        return item // self.num_parts


def enumerate_rounds(stream: TensorStream, num_members: int) -> StreamRounds:
    """Return the rounds of a form on this many members."""
    return StreamRounds(
        num_members=num_members,
        num_parts=int(stream.num_parts(float(num_members))),
        num_hops=int(stream.num_hops(float(num_members))),
        is_cycle=stream.needs_cycle,
        uses=stream.uses(num_members),
        sends=stream.sends(num_members),
    )


def reverse(rounds: StreamRounds) -> StreamRounds:
    """Return the stream of the gradient accumulators: time and every send reversed.

    A copy tree of an item becomes a reduction tree to its home: in the reversed round in which a
    member used the item it forms its partial and adds it to the accumulator that has arrived.
    """
    last = len(rounds.uses) - 1
    sends = [Send(last - s.round, s.destination, s.source, s.item) for s in rounds.sends]
    return replace(rounds, uses=rounds.uses[::-1], sends=sorted(sends))
