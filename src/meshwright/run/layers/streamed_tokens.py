"""Tokens that travel over tatp while weights stay: input streaming of TSPP and TATP.

Member i has the tokens X_i and rows W_i of the weight, or columns of it; [j] are the tokens of
member j:

    column    Y_i[j] = X_j W_i^T in the round of X_j
              dX_j = sum_i dY_i[j] W_i, in sums that move to member j; X travels once more for
              dW_i = sum_j dY_i[j]^T X_j
    row       Y_j = sum_i X_i[j] W_i^T, in sums that move to member j; backward dY_j travels, and
              serves both dX_i[j] = dY_j W_i and dW_i = sum_j dY_j^T X_i[j]

E = b s h: on a line of 4 that holds, a pass makes 12 sends of 16 elements.

With sequence parallelism an item is gathered over tp in its round, so it travels split over tp. A
sum over tp comes after the stream, so sums travel whole: tp times the elements of a gather. The
derivation has the same order, so this is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.streams import Stream
from meshwright.run.layers.tokens import DIM, Places, Tokens


@dataclass(frozen=True)
class StreamedTokens(Tokens):
    """The tokens of a micro-batch, which travel over tatp."""

    stream: Stream

    @property
    def degree(self) -> int:
        """Ranks over which the tokens of a layer rest split."""
        return super().degree * self.stream.axis.size

    def gather(self, x: Tensor, site: str, phase: Phase) -> Iterator[tuple[Tensor, Places]]:
        """Yield the tokens of all ranks, item by item, with their places."""
        local = x.shape[DIM]
        cut = self.stream.cuts(local * self.stream.axis.size)
        own = [x[:, start:stop] for start, stop in self.stream.own_cuts(cut)]
        shapes = [(x.shape[0], stop - start, x.shape[2]) for start, stop in cut]
        for item, part in self.stream.gather(own, shapes, site, phase):
            yield self.gathered(part, site, phase), self._places(item, local)

    def scatter_sum(
        self, partial: Callable[[Places], Tensor], x: Tensor, width: int, site: str, phase: Phase
    ) -> Tensor:
        """Return the tokens that rest here of the sum over all ranks of their partials."""
        index, size = self.stream.axis.index, self.stream.axis.size
        block, local = x.shape[DIM] // size, x.shape[DIM] // self.degree
        places = [self._places(item, local) for item in range(size * self.stream.num_parts)]
        shapes = [(x.shape[0], len(place), width) for place in places]
        sums = self.stream.scatter_sum(lambda item: partial(places[item]), x, shapes, site, phase)
        own = x.new_empty(x.shape[0], block, width)
        for item, total in zip(self.stream.own_items, sums, strict=True):
            own[:, places[item] - index * block] = total
        return self.reduced(own, site, phase)

    def _places(self, item: int, local: int) -> Tensor:
        """Return the places of an item among all tokens; ``local`` of them rest on each rank."""
        member, over_tp = self.stream.rounds.home(item), super().degree
        start, stop = self.stream.cuts(local * self.stream.axis.size)[item]
        first = torch.arange(start, stop) - member * local
        return torch.cat([(member * over_tp + rank) * local + first for rank in range(over_tp)])
