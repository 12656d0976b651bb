"""Tokens that rest split and are needed whole: gathered over tp, or streamed over tatp.

Sequence parallelism gathers the tokens of all ranks of tp at once. Under input streaming of TSPP
the tokens travel over tatp instead, and member i has rows W_i of the weight, or columns of it:

    column    Y_i[j] = X_j W_i^T in the round of X_j
              dX_j = sum_i dY_i[j] W_i, in sums that move to member j; X travels once more for
              dW_i = sum_j dY_i[j]^T X_j
    row       Y_j = sum_i X_i[j] W_i^T, in sums that move to member j; backward dY_j travels, and
              serves both dX_i[j] = dY_j W_i and dW_i = sum_j dY_j^T X_i[j]

where [j] are the tokens of member j. E = b s h: on a line of 4 that holds, 12 sends of 16 elements.

With both, an item is gathered over tp in its round, so it travels split over tp. A sum over tp
comes after the stream, so sums travel whole: tp times the elements of a gather. The derivation has
the same order, so this is priced.
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
    """The stream in which they travel over tatp; None: they do not."""

    def count(self, x: Tensor) -> int:
        """Return the tokens that a layer works on, of which ``x`` rest here."""
        over_tp = self.tp.size if self.splits else 1
        return x.shape[DIM] * over_tp * (self.stream.axis.size if self.stream else 1)

    def gather(self, x: Tensor, site: str, phase: Phase) -> Iterator[tuple[Tensor, Places]]:
        """Yield the tokens of all ranks, item by item, with their places."""
        if self.stream is None:
            yield self._gathered(x, site, phase), ALL
            return
        local = x.shape[DIM]
        cut = self.stream.cuts(local * self.stream.axis.size)
        own = [x[:, start:stop] for start, stop in self.stream.own_cuts(cut)]
        shapes = [(x.shape[0], stop - start, x.shape[2]) for start, stop in cut]
        for item, part in self.stream.gather(own, shapes, site, phase):
            yield self._gathered(part, site, phase), self._places(item, local)

    def scatter_sum(
        self, partial: Callable[[Places], Tensor], x: Tensor, width: int, site: str, phase: Phase
    ) -> Tensor:
        """Return the tokens that rest here of the sum over all ranks of their partials.

        ``partial`` computes one of a width for some places among the whole tokens of ``x``.
        """
        if self.stream is None:
            return self._reduced(partial(ALL), site, phase)
        index, size = self.stream.axis.index, self.stream.axis.size
        block = x.shape[DIM] // size
        local = block // self.tp.size if self.splits else block
        places = [self._places(item, local) for item in range(size * self.stream.num_parts)]
        shapes = [(x.shape[0], len(place), width) for place in places]
        sums = self.stream.scatter_sum(lambda item: partial(places[item]), x, shapes, site, phase)
        own = x.new_empty(x.shape[0], block, width)
        for item, total in zip(self.stream.own_items, sums, strict=True):
            own[:, places[item] - index * block] = total
        return self._reduced(own, site, phase)

    def _gathered(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        return self.tp.gather(x, DIM, site, phase) if self.splits else x

    def _reduced(self, x: Tensor, site: str, phase: Phase) -> Tensor:
        return self.tp.scatter_sum(x, DIM, site, phase) if self.splits else self.tp.sum(
            x, site, phase)  # fmt: skip

    def _places(self, item: int, local: int) -> Tensor:
        """Return the places of an item among all tokens; ``local`` of them rest on each rank."""
        assert self.stream is not None
        member = self.stream.rounds.home(item)
        over_tp = self.tp.size if self.splits else 1
        start, stop = self.stream.cuts(local * self.stream.axis.size)[item]
        first = torch.arange(start, stop) - member * local
        return torch.cat([(member * over_tp + rank) * local + first for rank in range(over_tp)])
