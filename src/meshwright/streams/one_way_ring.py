"""A one-way logical ring embedded in a line: neighbours one hop apart, and a wrap of N - 1 hops."""

from __future__ import annotations

from meshwright.base.arrays import N, positive_part, smaller
from meshwright.streams.registry import Buffers, Send, streams


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


streams.register("ring")(Ring())
