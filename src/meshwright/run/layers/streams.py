"""Passes of a tensor stream between neighbours: the communication of TSPP and TATP.

N members hold one sub-tensor each. In a pass every member uses every sub-tensor once, one a round,
while the next ones arrive; nothing is ever held whole. Which item goes where in which round is the
form's (``streams.forms``): a ring, folded, a cycle of a block, or a line in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.answer import Call
from meshwright.run.mesh import Axis
from meshwright.run.recorder import StreamPass
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import Send, StreamRounds, TensorStream, enumerate_rounds, reverse

Cuts = list[tuple[int, int]]


def cuts(length: int, num_members: int, num_parts: int = 1) -> Cuts:
    """Return start and stop of each item of a dim: first ones longer where it does not divide.

    >>> cuts(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    members = _even(0, length, num_members)
    return [part for start, stop in members for part in _even(start, stop, num_parts)]


def _even(start: int, stop: int, number: int) -> Cuts:
    size, longer = divmod(stop - start, number)
    return list(pairwise(start + k * size + min(k, longer) for k in range(number + 1)))


@dataclass
class Stream:
    """The passes of one form over the group of an axis."""

    axis: Axis
    form: TensorStream

    def __post_init__(self) -> None:
        self.there = enumerate_rounds(self.form, self.axis.size)
        self.back = reverse(self.there)

    @property
    def num_parts(self) -> int:
        """Parts of each sub-tensor, which take different directions."""
        return self.there.num_parts

    def cuts(self, length: int) -> Cuts:
        """Return start and stop of each item along a dim of the whole tensor."""
        return cuts(length, self.axis.size, self.num_parts)

    def own(self, cut: Cuts) -> Cuts:
        """Return the cuts of the items of this member, counted from the first of them."""
        first = self.axis.index * self.num_parts
        mine = cut[first : first + self.num_parts]
        return [(start - mine[0][0], stop - mine[0][0]) for start, stop in mine]

    def gather(
        self, own: Sequence[Tensor], shapes: Sequence[Sequence[int]], site: str, phase: Phase
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield every item once, as the rounds bring them: Algorithm 1 of TEMP.

        The caller computes with an item while the sends of the same round are under way.
        """
        me = self.axis.index
        held = {me * self.num_parts + k: item for k, item in enumerate(own)}
        log: list[tuple[Send, int]] = []
        most_held = 0
        for now, uses in enumerate(self.there.uses):
            # Communication, lines 6-9: relay what neighbours need next.
            pending, arriving = self._post(self.there, now, held, own[0], shapes, log)
            # Computation, lines 2-4: one sub-output with the item of this round.
            for item in uses[me]:
                yield item, held[item]
            self._wait(pending)
            others = [item for item in held if item // self.num_parts != me]
            most_held = max(most_held, len(others) + len(arriving))
            held |= dict(arriving)
            held = {item: t for item, t in held.items() if self._is_needed(item, now)}
        self._note(CollectiveKind.ALL_GATHER, own[0], shapes, site, phase, log, most_held)

    def scatter_sum(
        self, partial: Callable[[int], Tensor], like: Tensor, shapes: Sequence[Sequence[int]],
        site: str, phase: Phase,
    ) -> list[Tensor]:  # fmt: skip
        """Return the sums of the partials of all members for the items of this one.

        The same pattern with time and sends reversed: accumulators walk to their homes, and each
        member adds its partial in the round in which it would have used the item. ``like`` is a
        tensor of their type.
        """
        me = self.axis.index
        sums: dict[int, Tensor] = {}
        log: list[tuple[Send, int]] = []
        for now, uses in enumerate(self.back.uses):
            pending, arriving = self._post(self.back, now, sums, like, shapes, log)
            leaving = {s.item for s in self._sends(self.back, now) if s.source == me}
            sums = {item: t for item, t in sums.items() if item not in leaving}
            made = {item: partial(item) for item in uses[me]}
            self._wait(pending)
            # Of a line both neighbours may send for one item in one round.
            for item, tensor in (*arriving, *made.items()):
                sums[item] = sums[item] + tensor if item in sums else tensor
        self._note(CollectiveKind.REDUCE_SCATTER, like, shapes, site, phase, log)
        return [sums[me * self.num_parts + k] for k in range(self.num_parts)]

    def _sends(self, rounds: StreamRounds, now: int) -> list[Send]:
        return [send for send in rounds.sends if send.round == now]

    def _is_needed(self, item: int, now: int) -> bool:
        """Return whether this member uses or relays an item after a round, before it comes anew."""
        me = self.axis.index
        uses = [t for t, used in enumerate(self.there.uses) if t > now and item in used[me]]
        sends = [s.round for s in self.there.sends if s.item == item and s.source == me]
        comes = [s.round for s in self.there.sends if s.item == item and s.destination == me]
        anew = min((t for t in comes if t > now), default=len(self.there.uses))
        return any(now < t <= anew for t in (*uses, *sends))

    def _post(
        self, rounds: StreamRounds, now: int, held: dict[int, Tensor], like: Tensor,
        shapes: Sequence[Sequence[int]], log: list[tuple[Send, int]],
    ) -> tuple[list[Any], list[tuple[int, Tensor]]]:  # fmt: skip
        """Start the sends of one round; return what to wait for, and what arrives."""
        axis = self.axis
        operations: list[Any] = []
        arriving: list[tuple[int, Tensor]] = []
        for send in self._sends(rounds, now):
            if axis.index == send.source:
                item = held[send.item].contiguous()
                peer = axis.ranks[send.destination]
                operations.append(dist.P2POp(dist.isend, item, peer, axis.group, send.item))
                log.append((send, item.nbytes))
            elif axis.index == send.destination:
                made = like.new_empty(shapes[send.item])
                arriving.append((send.item, made))
                peer = axis.ranks[send.source]
                operations.append(dist.P2POp(dist.irecv, made, peer, axis.group, send.item))
        if not operations:
            return [], []
        with axis.recorder.saying(axis.name, "", Phase.FORWARD, is_counted=False):
            return dist.batch_isend_irecv(operations), arriving

    def _note(
        self, kind: CollectiveKind, like: Tensor, shapes: Sequence[Sequence[int]], site: str,
        phase: Phase, log: list[tuple[Send, int]], most_held: int = 0,
    ) -> None:  # fmt: skip
        """Record a pass: one streamed collective, and its sends."""
        if self.axis.size == 1:
            return
        recorder, whole = self.axis.recorder, sum(torch.Size(shape).numel() for shape in shapes)
        recorder.add(Call(kind, self.axis.name, phase, site), whole * like.itemsize)
        is_reversed = kind is CollectiveKind.REDUCE_SCATTER
        recorder.passes.append(StreamPass(self.axis.name, is_reversed, tuple(log), most_held))

    def _wait(self, pending: list[Any]) -> None:
        with self.axis.recorder.waiting(self.axis.name):
            for request in pending:
                request.wait()
