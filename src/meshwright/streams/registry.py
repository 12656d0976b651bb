"""What every form of a tensor stream offers: closed forms on numbers or columns, and the rounds.

N members stand on a path (or a cycle) of neighbouring devices; member i owns sub-tensor i of the
streamed tensor and needs each of the N once, one a round. A form may cut every sub-tensor into
parts; the things that travel are items, and item k is a part of sub-tensor k // parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol

from meshwright.base.arrays import N
from meshwright.base.registry import Registry


class Send(NamedTuple):
    """One item that one member hands to another during a round; usable there one round later."""

    round: int
    source: int
    destination: int
    item: int


class Buffers(NamedTuple, Generic[N]):
    """Most sub-tensors of others that a member holds at once, in whole sub-tensors."""

    resident: N
    """While it computes."""
    with_incoming: N
    """The same and what arrives during the round."""


class TensorStream(Protocol):
    """Closed forms and enumeration of one form."""

    @property
    def needs_cycle(self) -> bool:
        """Whether the last member must be a neighbour of the first one."""

    def num_parts(self, num_members: N) -> N:
        """Return into how many pieces a sub-tensor is cut, each taking its own direction."""

    def num_hops(self, num_members: N) -> N:
        """Return the links that the longest send of a round crosses."""

    def buffers(self, num_members: N) -> Buffers[N]:
        """Return what a member holds of the others' sub-tensors."""

    def transfers(self, num_members: N) -> N:
        """Return how many sub-tensors cross a link in one pass, each link of a send counted."""

    def num_shared_rounds(self, num_members: N) -> N:
        """Return in how many rounds of a backward pass an item and an accumulator meet on a link.

        Never in the first and the last round, so at most N - 2.
        """

    def num_exchange_rounds(self, num_members: N) -> N:
        """Return the rounds in which items go round and sums of partials formed from them return.

        As in backward attention: such a partial cannot be formed before its item is there.
        """

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Return ``uses[round][member]``: the items the member multiplies in that round."""

    def sends(self, num_members: int) -> list[Send]:
        """Return every send of one pass."""


streams: Registry[TensorStream] = Registry("tensor stream")
"""Keyed by the values of the strategy's stream form."""


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
