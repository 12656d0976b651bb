"""A ring on a Hamiltonian cycle of neighbours, half of every sub-tensor in each direction."""

from __future__ import annotations

from meshwright.base.arrays import N, positive_part, smaller, where
from meshwright.streams.registry import Buffers, Send, streams


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


streams.register("cycle")(Cycle())
