"""Passes of a tensor stream between neighbours: the communication of TSPP and TATP.

N members hold one sub-tensor each. In a pass every member uses every sub-tensor once, one a round,
while the next ones arrive; nothing is ever held whole. Which item goes where in which round is the
form's (``streams.forms``): a ring, folded, a cycle of a block, or a line in both directions.

    gather       member i has X_i at first; in round t it computes with X_j for j in uses[t][i],
                 relays what its neighbours need next, and lets go what it needs no more
    scatter_sum  time and sends reversed: sums of partials P_j walk to member j, and each member
                 adds its own in the round in which it would have used X_j

A pass sends N (N - 1) sub-tensors in all on a line that holds: 12 for N = 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.cuts import Cuts, cuts
from meshwright.run.layers.relay import Relay
from meshwright.run.mesh import Axis
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import TensorStream, enumerate_rounds, reverse

Shapes = Sequence[Sequence[int]]


@dataclass
class Stream:
    """The passes of one form over the group of an axis."""

    axis: Axis
    form: TensorStream

    def __post_init__(self) -> None:
        self.there = enumerate_rounds(self.form, self.axis.size)
        self.back = reverse(self.there)
        self.num_parts = self.there.num_parts
        """Parts of each sub-tensor, which take different directions."""
        first = self.axis.index * self.num_parts
        self.mine = range(first, first + self.num_parts)
        """Items of this member."""

    def cuts(self, length: int) -> Cuts:
        """Return start and stop of each item along a dim of the whole tensor."""
        return cuts(length, self.axis.size, self.num_parts)

    def own(self, cut: Cuts) -> Cuts:
        """Return the cuts of the items of this member, counted from the first of them."""
        start = cut[self.mine.start][0]
        return [(cut[item][0] - start, cut[item][1] - start) for item in self.mine]

    def gather(
        self, own: Sequence[Tensor], shapes: Shapes, site: str, phase: Phase
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every item once, as the rounds bring them: Algorithm 1 of TEMP.

        The caller computes with an item while the sends of the same round are under way.
        """
        held, most_held = dict(zip(self.mine, own, strict=True)), 0
        relay = Relay(self.axis, self.there, shapes, own[0])
        for now, uses in enumerate(self.there.uses):
            # Communication, lines 6-9: relay what neighbours need next.
            arriving = relay.post(now, held)
            # Computation, lines 2-4: one sub-output with the item of this round.
            for item in uses[self.axis.index]:
                yield item, held[item]
            relay.wait()
            others = [item for item in held if item not in self.mine]
            most_held = max(most_held, len(others) + len(arriving))
            held |= dict(arriving)
            held = {item: t for item, t in held.items() if self._is_needed(item, now)}
        relay.note(CollectiveKind.ALL_GATHER, site, phase, most_held)

    def scatter_sum(
        self,
        partial: Callable[[int], Tensor],
        like: Tensor,
        shapes: Shapes,
        site: str,
        phase: Phase,
    ) -> list[Tensor]:
        """Return the sums of the partials of all members for the items of this one.

        ``like`` is a tensor of their type.
        """
        sums: dict[int, Tensor] = {}
        relay = Relay(self.axis, self.back, shapes, like)
        for now, uses in enumerate(self.back.uses):
            num_sent = len(relay.log)
            arriving = relay.post(now, sums)
            for send, _ in relay.log[num_sent:]:
                sums.pop(send.item, None)
            made = [(item, partial(item)) for item in uses[self.axis.index]]
            relay.wait()
            # Of a line both neighbours may send for one item in one round.
            for item, tensor in (*arriving, *made):
                sums[item] = sums[item] + tensor if item in sums else tensor
        relay.note(CollectiveKind.REDUCE_SCATTER, site, phase)
        return [sums[item] for item in self.mine]

    def _is_needed(self, item: int, now: int) -> bool:
        """Return whether this member uses or relays an item after a round, before it comes anew."""
        me = self.axis.index
        uses = [t for t, used in enumerate(self.there.uses) if t > now and item in used[me]]
        sends = [s.round for s in self.there.sends if s.item == item and s.source == me]
        comes = [s.round for s in self.there.sends if s.item == item and s.destination == me]
        anew = min((t for t in comes if t > now), default=len(self.there.uses))
        return any(now < t <= anew for t in (*uses, *sends))
