"""Tokens that rest split and are needed whole: gathered over tp, or on a journey round tatp.

Sequence parallelism gathers all tokens of tp at once. Under input streaming of TSPP they travel
over tatp:

    column    Y[j] = X_j W_i^T in the round in which X_j is at member i
              dX_j = sum_i dY_i[j] W_i in accumulators that walk home; X travels once more for
              dW_i = sum_j dY_i[j]^T X_j
    row       Y_j = sum_i X_i[j] W_i^T in accumulators; backward dY_j travels, and serves both
              dX_i[j] = dY_j W_i and dW_i = sum_j dY_j^T X_i[j]

A pass moves every part N - 1 times: for b = 1, s = 8, h = 8 and tatp 4 a part has 16 elements, and
a line that holds sends 12 of them. Under both, a part is gathered over tp in its round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream
from meshwright.run.mesh import Axis

DIM = 1
"""Dim of the tokens of an activation: (batch, tokens, width)."""
Places: TypeAlias = Tensor | slice
ALL = slice(None)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch that the ranks of tp, and of tatp, share."""

    tp: Axis
    splits: bool
    """Whether they rest split over tp: sequence parallelism."""
    stream: Stream | None = None
    """The stream in which they travel over tatp; None: tatp does not split them, or weights do."""

    def number(self, x: Tensor) -> int:
        """Return the tokens that a layer works on, of which ``x`` rest here."""
        over_tp = self.tp.size if self.splits else 1
        return x.shape[DIM] * over_tp * (self.stream.axis.size if self.stream else 1)

    def gather(self, x: Tensor, site: str, phase: Phase) -> Iterator[tuple[Tensor, Places]]:
        """Yield the tokens of all ranks, part by part, with their places."""
        if self.stream is None:
            yield self._whole(x, site, phase), ALL
            return
        local = x.shape[DIM]
        cut = self.stream.cuts(local * self.stream.axis.size)
        own = [x[:, start:stop] for start, stop in self.stream.own(cut)]
        shapes = [(x.shape[0], stop - start, x.shape[2]) for start, stop in cut]
        for item, part in self.stream.gather(own, shapes, site, phase):
            yield self._whole(part, site, phase), self._places(item, local)

    def scatter_sum(
        self, partial: Callable[[Places], Tensor], x: Tensor, width: int, site: str, phase: Phase
    ) -> Tensor:
        """Return the tokens that rest here of the sum over all ranks of their partials.

        ``partial`` makes one for the places of ``x``, whole tokens, with a width.
        """
        if self.stream is None:
            return self._home(partial(ALL), site, phase)
        number, size = self.stream.axis.index, self.stream.axis.size
        block = x.shape[DIM] // size
        local = block // self.tp.size if self.splits else block
        places = [self._places(item, local) for item in range(size * self.stream.num_parts)]
        shapes = [(x.shape[0], len(place), width) for place in places]
        own = self.stream.scatter_sum(lambda item: partial(places[item]), x, shapes, site, phase)
        made = x.new_empty(x.shape[0], block, width)
        for k, tensor in enumerate(own):
            made[:, places[number * self.stream.num_parts + k] - number * block] = tensor
        return self._home(made, site, phase)

    def _whole(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        return self.tp.gather(x, DIM, site, phase) if self.splits else x

    def _home(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        return self.tp.scatter_sum(x, DIM, site, phase) if self.splits else self.tp.sum(
            x, site, phase)  # fmt: skip

    def _places(self, item: int, local: int) -> Tensor:
        """Return the places of an item among all tokens; ``local`` of them rest on each rank."""
        assert self.stream is not None
        member = item // self.stream.num_parts
        over_tp = self.tp.size if self.splits else 1
        start, stop = self.stream.cuts(local * self.stream.axis.size)[item]
        first = torch.arange(start, stop) - member * local
        return torch.cat([(member * over_tp + rank) * local + first for rank in range(over_tp)])
