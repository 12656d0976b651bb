"""Sends of one member in one pass of a stream, started round by round and logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.answer import Call
from meshwright.run.mesh import Axis
from meshwright.run.recorder import RecordedPass
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import Send, StreamRounds


class Relay:
    """Sends and receives of a member, in the rounds of a pass.

    ``shapes`` are those of all items, ``like`` is a tensor of their type.
    """

    def __init__(
        self, axis: Axis, rounds: StreamRounds, shapes: Sequence[Sequence[int]], like: Tensor
    ) -> None:
        self.axis, self.rounds, self.shapes, self.like = axis, rounds, shapes, like
        self.log: list[tuple[Send, int]] = []
        self.pending: list[Any] = []

    def post(self, t: int, held: Mapping[int, Tensor]) -> list[tuple[int, Tensor]]:
        """Start the sends of a round; return the items that arrive, complete after ``wait``."""
        axis, operations, arriving = self.axis, [], []
        for send in (send for send in self.rounds.sends if send.round == t):
            if axis.index == send.source:
                item, peer = held[send.item].contiguous(), axis.ranks[send.destination]
                operations.append(dist.P2POp(dist.isend, item, peer, axis.group, send.item))
                self.log.append((send, item.nbytes))
            elif axis.index == send.destination:
                item, peer = self.like.new_empty(self.shapes[send.item]), axis.ranks[send.source]
                operations.append(dist.P2POp(dist.irecv, item, peer, axis.group, send.item))
                arriving.append((send.item, item))
        if operations:
            with axis.recorder.saying(axis.name, "", Phase.FORWARD, is_counted=False):
                self.pending = dist.batch_isend_irecv(operations)
        return arriving

    def wait(self) -> None:
        """Wait until the sends of the round have ended."""
        with self.axis.recorder.waiting(self.axis.name):
            for request in self.pending:
                request.wait()
        self.pending = []

    def note(self, kind: CollectiveKind, site: str, phase: Phase, most_held: int = 0) -> None:
        """Record the pass: one streamed collective, and its sends."""
        if self.axis.size == 1:
            return
        axis, recorder = self.axis.name, self.axis.recorder
        whole = sum(torch.Size(shape).numel() for shape in self.shapes)
        recorder.add(Call(kind, axis, phase, site), whole * self.like.itemsize)
        is_reversed = kind is CollectiveKind.REDUCE_SCATTER
        recorder.passes.append(RecordedPass(axis, is_reversed, tuple(self.log), most_held))
