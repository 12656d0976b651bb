"""Linear layers whose inputs, or outputs, travel over tatp: input streaming of TSPP.

Weights are split as under tensor parallelism and stay. Tokens are split at rest and travel:

    column    Y[j] = X_j W_i^T in the round in which X_j is at member i
              dX_j = sum_i dY_i[j] W_i in accumulators that walk home; dW_i = sum_j dY_i[j]^T X_j,
              with X streamed once more
    row       Y_j = sum_i X_i[j] W_i^T in accumulators; backward dY_j travels, and serves both
              dX_i[j] = dY_j W_i and dW_i = sum_j dY_j^T X_i[j]

Under tensor parallelism beside it the tokens of an item are gathered over tp in the round of the
item, and reduced over tp at home. A pass moves every sub-input N - 1 times; for b = 1, s = 8,
h = 8 and tatp 4 an item has 16 elements, and a line that holds sends 12 items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.column import TOKENS, ColumnLinear
from meshwright.run.layers.products import weight_gradient
from meshwright.run.layers.row import RowLinear
from meshwright.run.layers.streams import Stream
from meshwright.run.mesh import Axis

F, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT


@dataclass(frozen=True)
class Travel:
    """Tokens split over tatp, and under sequence parallelism over tp: their way round, and back."""

    stream: Stream
    tp: Axis
    splits: bool

    def places(self, item: int, local: int) -> Tensor:
        """Return the places of an item's tokens in all of them; ``local`` rest on each rank."""
        member = item // self.stream.num_parts
        num_ranks = self.tp.size if self.splits else 1
        start, stop = self.stream.cuts(local * self.stream.axis.size)[item]
        first = torch.arange(start, stop) - member * local
        return torch.cat([(member * num_ranks + r) * local + first for r in range(num_ranks)])

    def gather(self, x: Tensor, site: str, phase: Phase) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens of each item, whole over tp, with their places."""
        local = x.shape[TOKENS]
        cut = self.stream.cuts(local * self.stream.axis.size)
        own = [x[:, start:stop] for start, stop in self.stream.own(cut)]
        shapes = [(x.shape[0], stop - start, x.shape[2]) for start, stop in cut]
        for item, part in self.stream.gather(own, shapes, site, phase):
            whole = self.tp.gather(part, TOKENS, site, phase) if self.splits else part
            yield whole, self.places(item, local)

    def scatter_sum(
        self, partial: Callable[[Tensor], Tensor], like: Tensor, num_tokens: int, width: int,
        site: str, phase: Phase,
    ) -> Tensor:  # fmt: skip
        """Return the own tokens of the sum of all ranks' partials, given for places of tokens."""
        size, num_ranks = self.stream.axis.size, self.tp.size if self.splits else 1
        local = num_tokens // (size * num_ranks)
        places = [self.places(item, local) for item in range(size * self.stream.num_parts)]
        shapes = [(like.shape[0], len(place), width) for place in places]
        own = self.stream.scatter_sum(lambda item: partial(places[item]), like, shapes, site, phase)
        block = like.new_empty(like.shape[0], local * num_ranks, width)
        first = self.stream.axis.index * self.stream.num_parts
        for k, tensor in enumerate(own):
            block[:, places[first + k] - self.stream.axis.index * local * num_ranks] = tensor
        if self.splits:
            return self.tp.scatter_sum(block, TOKENS, site, phase)
        return self.tp.sum(block, site, phase)


class _StreamedColumn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, travel: Travel, site: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.of = (travel, site)
        num_ranks = travel.tp.size if travel.splits else 1
        num_tokens = x.shape[TOKENS] * travel.stream.axis.size * num_ranks
        y = x.new_empty(x.shape[0], num_tokens, weight.shape[0])
        for part, places in travel.gather(x, f"{site}: input", F):
            y[:, places] = part @ weight.T
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        travel, site = ctx.of
        dx = travel.scatter_sum(
            lambda places: dy[:, places] @ weight, dy, dy.shape[TOKENS], weight.shape[1],
            f"{site}: input gradient", INPUT,
        )  # fmt: skip
        dw = torch.zeros_like(weight)
        for part, places in travel.gather(x, f"{site}: kept input", WEIGHT):
            dw += weight_gradient(dy[:, places], part)
        return dx, dw, None, None


class _StreamedRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, travel: Travel, site: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.of = (travel, site)
        return travel.scatter_sum(
            lambda places: x[:, places] @ weight.T, x, x.shape[TOKENS], weight.shape[0],
            f"{site}: output", F,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        travel, site = ctx.of
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        for part, places in travel.gather(dy, f"{site}: output gradient", INPUT):
            dx[:, places] = part @ weight
            dw += weight_gradient(part, x[:, places])
        return dx, dw, None, None


class StreamedColumn(ColumnLinear):
    """A column-parallel layer whose inputs travel over tatp."""

    def forward(self, x: Tensor) -> Tensor:
        made = _StreamedColumn.apply(x, self.weight, *self.of)
        return made if self.bias is None else made + self.bias


class StreamedRow(RowLinear):
    """A row-parallel layer whose outputs travel over tatp."""

    def forward(self, x: Tensor) -> Tensor:
        made = _StreamedRow.apply(x, self.weight, *self.of)
        return made if self.bias is None else made + self.bias
