"""Tensor streams: every member of a group uses every sub-tensor, and none ever holds all of them.

N members hold one sub-tensor each. A pass has rounds; in each, a member computes with a sub-tensor
while the sends of the round are under way (TSPP, arXiv 2512.14256). Algorithm 1 of that paper is
TATP, the pass on a line of neighbours. On member i, in the rounds t = 0 .. N - 1:

    lines 2-4   compute with X_j: j = (i + t) mod N on the first ceil(N / 2) members, the left half
                of the line, and j = (i - t) mod N on the right half
    lines 6-9   meanwhile relay X_(i+t) to member i - 1 and X_(i-t) to member i + 1, where they
                exist: X_i is the own one, the others came from the other neighbour in round t - 1

So each X_j leaves its owner in both directions at once and moves one hop a round. A copy that
passes a member before its round there is kept (*hold*), or dropped and sent again (*stream*).
Uses of members 0 to 3, and sends (source > destination: item), on a line that holds:

>>> from math import inf
>>> from meshwright.streams.forms import LineStream
>>> rounds = enumerate_rounds(LineStream(inf), 4)
>>> for t, uses in enumerate(rounds.uses):
...     used = " ".join(str(item) for (item,) in uses)
...     sends = sorted(send[1:] for send in rounds.sends if send.round == t)
...     print(t, "uses", used, "sends", *(f"{source}>{to}:{item}" for source, to, item in sends))
0 uses 0 1 2 3 sends 0>1:0 1>0:1 1>2:1 2>1:2 2>3:2 3>2:3
1 uses 1 2 1 2 sends 1>0:2 1>2:0 2>1:3 2>3:1
2 uses 2 3 0 1 sends 1>0:3 2>3:0
3 uses 3 0 3 0 sends

A pass sends N (N - 1) = 12 sub-tensors: one from members 0 and 3, five from members 1 and 2. Other
forms (a ring, folded, a cycle of a block) differ in this list alone, which ``streams.forms``
enumerates. Gradients take the list backwards: every send reversed, copies become parts of a sum.

    gather       yields each X_j once, in the round of its use
    scatter_sum  partial sums P_j move to member j; each member adds its own on their way
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
        self.rounds = enumerate_rounds(self.form, self.axis.size)
        self.reversed_rounds = reverse(self.rounds)
        self.num_parts = self.rounds.num_parts
        first = self.axis.index * self.num_parts
        self.own_items = range(first, first + self.num_parts)

    def cuts(self, length: int) -> Cuts:
        """Return start and stop of each item along a dim of the whole tensor."""
        return cuts(length, self.axis.size, self.num_parts)

    def own_cuts(self, cut: Cuts) -> Cuts:
        """Return the cuts of the items of this member, counted from the first of them."""
        start = cut[self.own_items.start][0]
        return [(cut[item][0] - start, cut[item][1] - start) for item in self.own_items]

    def gather(
        self, own: Sequence[Tensor], shapes: Shapes, site: str, phase: Phase
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every item once, in the round of its use; the caller computes with it."""
        held, most_held = dict(zip(self.own_items, own, strict=True)), 0
        relay = Relay(self.axis, self.rounds, shapes, own[0])
        for t, uses in enumerate(self.rounds.uses):
            arriving = relay.post(t, held)  # lines 6-9: start the sends of this round
            for item in uses[self.axis.index]:  # lines 2-4: one sub-output
                yield item, held[item]
            relay.wait()
            others = [item for item in held if item not in self.own_items]
            most_held = max(most_held, len(others) + len(arriving))
            held |= dict(arriving)
            held = {item: x for item, x in held.items() if self._is_needed(item, t)}
        relay.note(CollectiveKind.ALL_GATHER, site, phase, most_held)

    def scatter_sum(
        self, partial: Callable[[int], Tensor], like: Tensor, shapes: Shapes, site: str,
        phase: Phase,
    ) -> list[Tensor]:  # fmt: skip
        """Return the sums over all members of ``partial(item)``, for the items of this member.

        ``like`` is a tensor of their type.
        """
        sums: dict[int, Tensor] = {}
        relay = Relay(self.axis, self.reversed_rounds, shapes, like)
        for t, uses in enumerate(self.reversed_rounds.uses):
            num_sent = len(relay.log)
            arriving = relay.post(t, sums)
            for send, _ in relay.log[num_sent:]:
                sums.pop(send.item, None)
            partials = [(item, partial(item)) for item in uses[self.axis.index]]
            relay.wait()
            # On a line both neighbours may send parts of one sum in one round.
            for item, x in (*arriving, *partials):
                sums[item] = sums[item] + x if item in sums else x
        relay.note(CollectiveKind.REDUCE_SCATTER, site, phase)
        return [sums[item] for item in self.own_items]

    def _is_needed(self, item: int, t: int) -> bool:
        """Return whether this member uses or relays an item after a round, before its next copy."""
        me, sends = self.axis.index, [s for s in self.rounds.sends if s.item == item]
        copies = [s.round for s in sends if s.destination == me and s.round > t]
        uses = [later for later, used in enumerate(self.rounds.uses) if item in used[me]]
        relays = [s.round for s in sends if s.source == me]
        return any(t < later <= min(copies, default=later) for later in (*uses, *relays))
