"""One pass of a stream, written out round by round, and its reversal in time."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.streams.registry import Send, TensorStream


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
    """Return the rounds of a form on so many members."""
    return StreamRounds(
        num_members=num_members,
        num_parts=int(stream.num_parts(float(num_members))),
        num_hops=int(stream.num_hops(float(num_members))),
        is_cycle=stream.needs_cycle,
        uses=stream.uses(num_members),
        sends=stream.sends(num_members),
    )


def reverse(rounds: StreamRounds) -> StreamRounds:
    """Return the stream of the gradient accumulators: time and every send turned round.

    A copy tree of an item becomes a reduction tree to its home: in the reversed round in which a
    member used the item it forms its partial and adds it to the accumulator that has arrived.
    """
    last = len(rounds.uses) - 1
    sends = [Send(last - s.round, s.destination, s.source, s.item) for s in rounds.sends]
    return StreamRounds(
        num_members=rounds.num_members,
        num_parts=rounds.num_parts,
        num_hops=rounds.num_hops,
        is_cycle=rounds.is_cycle,
        uses=rounds.uses[::-1],
        sends=sorted(sends),
    )


def links_of(rounds: StreamRounds, send: Send) -> list[tuple[int, int]]:
    """Return the directed links of a send: along the line, or the closing link of a cycle."""
    source, destination = send.source, send.destination
    if abs(source - destination) == 1:
        return [(source, destination)]
    if rounds.is_cycle and abs(source - destination) == rounds.num_members - 1:
        return [(source, destination)]
    step = 1 if destination > source else -1
    return [(member, member + step) for member in range(source, destination, step)]


def counted_transfers(rounds: StreamRounds) -> float:
    """Return how many sub-tensors cross a link in one pass, each link of a send counted."""
    return sum(len(links_of(rounds, send)) for send in rounds.sends) / rounds.num_parts
