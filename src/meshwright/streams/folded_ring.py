"""A ring folded into a line, 0 2 4 .. 5 3 1: no neighbours more than two hops apart."""

from __future__ import annotations

from meshwright.base.arrays import N, positive_part, smaller
from meshwright.streams.registry import Buffers, Send, streams


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


streams.register("folded_ring")(FoldedRing())
