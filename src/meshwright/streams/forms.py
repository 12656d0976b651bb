"""A ring folded into a line, 0 2 4 .. 5 3 1: no neighbours more than two hops apart."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.arrays import N, ceil_div, larger, positive_part, smaller, where
from meshwright.streams.registry import Buffers, Send


class FoldedRing:
    """One-way ring through the even positions of the line and back through the odd ones.

    Source: the standard layout of a torus dimension without long wires (Dally and Towles 2004,
    Principles and Practices of Interconnection Networks, section 5.3); proven by replay.
    """

    needs_cycle = False

    def num_parts(self, num_members: N) -> N:
        """Sub-tensors travel whole."""
        return 0 * num_members + 1

    def num_hops(self, num_members: N) -> N:
        """Two, and one in a pair."""
        hops: N = smaller(num_members - 1, 2.0)
        return hops

    def buffers(self, num_members: N) -> Buffers[N]:
        """One sub-tensor in use and one that arrives."""
        others = num_members - 1
        return Buffers(smaller(others, 1.0), smaller(others, 2.0))

    def transfers(self, num_members: N) -> N:
        """2 (N - 1)^2: in each of N - 1 rounds N - 2 sends of two hops and two of one."""
        return 2 * (num_members - 1) * (num_members - 1)

    def num_shared_rounds(self, num_members: N) -> N:
        """All but the first and the last: every link is in use in every round."""
        rounds: N = positive_part(num_members - 2)
        return rounds

    def num_exchange_rounds(self, num_members: N) -> N:
        """N + 1: an accumulator walks one round behind its item."""
        rounds: N = num_members + smaller(num_members - 1, 1.0)
        return rounds

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """In round t a member uses what the t-th member up the ring owns."""
        ring = _ring_order(num_members)
        place = {member: position for position, member in enumerate(ring)}
        return [
            [(ring[(place[member] + turn) % num_members],) for member in range(num_members)]
            for turn in range(num_members)
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Pass what a member uses down the ring in the same round."""
        ring = _ring_order(num_members)
        return [
            Send(turn, ring[k], ring[(k - 1) % num_members], ring[(k + turn) % num_members])
            for turn in range(num_members - 1)
            for k in range(num_members)
        ]


def _ring_order(num_members: int) -> list[int]:
    """Return the positions of the line in the order of the ring: even ones up, odd ones down."""
    up = list(range(0, num_members, 2))
    return up + list(range(1, num_members, 2))[::-1]


class Ring:
    """TSPP: every sub-tensor moves one member down the ring each round.

    The wrap crosses the whole line, in the direction that the other sends leave idle.

    Source: the naive ring that TEMP (arXiv 2512.14256) starts from; proven by replay.
    """

    needs_cycle = False

    def num_parts(self, num_members: N) -> N:
        """Sub-tensors travel whole."""
        return 0 * num_members + 1

    def num_hops(self, num_members: N) -> N:
        """N - 1 at the wrap; the round waits for it."""
        return num_members - 1

    def buffers(self, num_members: N) -> Buffers[N]:
        """One sub-tensor in use and one that arrives."""
        others = num_members - 1
        return Buffers(smaller(others, 1.0), smaller(others, 2.0))

    def transfers(self, num_members: N) -> N:
        """2 (N - 1)^2: in each of N - 1 rounds N - 1 single hops and a wrap of N - 1."""
        return 2 * (num_members - 1) * (num_members - 1)

    def num_shared_rounds(self, num_members: N) -> N:
        """All but the first and the last: every link is in use in every round."""
        rounds: N = positive_part(num_members - 2)
        return rounds

    def num_exchange_rounds(self, num_members: N) -> N:
        """N + 1: an accumulator walks one round behind its item."""
        rounds: N = num_members + smaller(num_members - 1, 1.0)
        return rounds

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Member i uses (i + t) mod N in round t."""
        members = range(num_members)
        return [[((member + turn) % num_members,) for member in members] for turn in members]

    def sends(self, num_members: int) -> list[Send]:
        """Pass what a member uses down the ring in the same round."""
        return [
            Send(turn, member, (member - 1) % num_members, (member + turn) % num_members)
            for turn in range(num_members - 1)
            for member in range(num_members)
        ]


class Cycle:
    """Both directions of every link of a cycle carry half a sub-tensor each round.

    A link carries half the bytes of a line. A block of a mesh has such a cycle when one side is
    even and both are at least two.

    Source: derived; proven by replay.
    """

    needs_cycle = True

    def num_parts(self, num_members: N) -> N:
        """Two halves; two members share a single link, so a pair sends whole sub-tensors."""
        parts: N = where(num_members > 2, 2.0, 1.0)
        return parts

    def num_hops(self, num_members: N) -> N:
        """Neighbours only."""
        return 0 * num_members + 1

    def buffers(self, num_members: N) -> Buffers[N]:
        """Two halves in use and two that arrive."""
        others = num_members - 1
        return Buffers(smaller(others, 1.0), smaller(others, 2.0))

    def transfers(self, num_members: N) -> N:
        """N (N - 1): every sub-tensor crosses N - 1 links, half of it each way."""
        return num_members * (num_members - 1)

    def num_shared_rounds(self, num_members: N) -> N:
        """All but the first and the last: every link is in use in every round."""
        rounds: N = positive_part(num_members - 2)
        return rounds

    def num_exchange_rounds(self, num_members: N) -> N:
        """N + 1: an accumulator walks one round behind its item."""
        rounds: N = num_members + smaller(num_members - 1, 1.0)
        return rounds

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """First half of sub-tensor (i + t) mod N with the second half of (i - t) mod N."""
        members = range(num_members)
        if num_members <= 2:
            return [[((member + turn) % num_members,) for member in members] for turn in members]
        return [
            [
                (2 * ((member + turn) % num_members), 2 * ((member - turn) % num_members) + 1)
                for member in members
            ]
            for turn in members
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Both halves that a member uses go on in the same round, each in its direction."""
        uses = self.uses(num_members)
        return [
            Send(turn, member, (member + step) % num_members, item)
            for turn in range(num_members - 1)
            for member in range(num_members)
            for step, item in zip((-1, 1), uses[turn][member], strict=False)
        ]


@dataclass(frozen=True)
class Line:
    """The line form with its knob: how many passing copies each half keeps.

    With ``num_held`` = 0 it is ``stream``; from ceil(N / 2) on it is ``hold``.

    Source: order and waves reconstructed from TATP in TEMP (arXiv 2512.14256); proven by replay.
    """

    num_held: float

    needs_cycle = False

    def num_parts(self, num_members: N) -> N:
        """Sub-tensors travel whole."""
        return 0 * num_members + 1

    def num_hops(self, num_members: N) -> N:
        """Neighbours only."""
        return 0 * num_members + 1

    def buffers(self, num_members: N) -> Buffers[N]:
        """At most 2 + h resident, and 4 + h with what arrives.

        With n = ceil(N / 2) and the turn T = floor((2 n - 5) / 3), no less than 0:
        resident min(h + 2, max(T + 2, h + 1), n, N - 1), and with what arrives
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

    def transfers(self, num_members: N) -> N:
        """N (N - 1) + (n - 1 - h)^2 + (N - n - 1 - h)^2 with n = ceil(N / 2), no less than 0."""
        left = ceil_div(num_members, 2)
        again_left = positive_part(left - 1 - self.num_held)
        again_right = positive_part(num_members - left - 1 - self.num_held)
        count: N = (
            num_members * (num_members - 1) + again_left * again_left + again_right * again_right
        )
        return count

    def num_shared_rounds(self, num_members: N) -> N:
        """min(N - 2, 4 (n - 1 - h) - 2), no less than 0: only what is sent again meets anything.

        The express waves and their reversals never use one link in the same direction and round:
        in round t items go right beyond member t, accumulators before it.

        Source: derived from the waves; equal to the counted ones for every knob.
        """
        again = positive_part(ceil_div(num_members, 2) - 1 - self.num_held)
        rounds: N = positive_part(smaller(num_members - 2, 4 * again - 2))
        return rounds

    def num_exchange_rounds(self, num_members: N) -> N:
        """2 N - 1: the farthest partial exists in round N - 1 and has N - 1 hops to go."""
        return 2 * num_members - 1

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Member i uses (i + t) mod N in round t, on the right half (i - t) mod N."""
        left = (num_members + 1) // 2
        signs = [1 if member < left else -1 for member in range(num_members)]
        return [
            [((member + sign * turn) % num_members,) for member, sign in enumerate(signs)]
            for turn in range(num_members)
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Express waves, then on each side the waves that bring back what was not held."""
        left = (num_members + 1) // 2
        return [
            *_express_waves(num_members),
            *_repeated_waves(num_members, left, self.num_held, is_mirrored=False),
            *_repeated_waves(num_members, num_members - left, self.num_held, is_mirrored=True),
        ]


def _express_waves(num_members: int) -> list[Send]:
    """Return the two waves in which every sub-tensor leaves its home in round 0 at full speed."""
    waves: list[Send] = []
    for item in range(num_members):
        waves += [Send(turn, item - turn, item - turn - 1, item) for turn in range(item)]
        rightward = range(num_members - 1 - item)
        waves += [Send(turn, item + turn, item + turn + 1, item) for turn in rightward]
    return waves


def _repeated_waves(
    num_members: int, half: int, num_held: float, *, is_mirrored: bool
) -> list[Send]:
    """Return the second and the return wave of each sub-tensor that one half does not hold.

    Written for the left half of ``half`` members; the right half is its mirror image. The second
    wave leaves home s in round N - 2 n + 2 + 2 s and reaches the middle member as it needs it;
    the return wave walks back one member a round, each of which needs it on arrival.
    """

    def place(position: int) -> int:
        return num_members - 1 - position if is_mirrored else position

    waves: list[Send] = []
    first = half - 1 if num_held >= half - 1 else int(num_held)
    for s in range(first, half - 1):
        start = num_members - 2 * half + 2 + 2 * s
        outward = range(s, half - 1)
        waves += [Send(start + k - s, place(k), place(k + 1), place(s)) for k in outward]
        backward = range(half - 1, s + 1, -1)
        waves += [Send(num_members - k + s, place(k), place(k - 1), place(s)) for k in backward]
    return waves
