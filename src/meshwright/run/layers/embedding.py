"""Vocabulary-parallel embedding: each rank of tp and tatp holds some rows of the table.

    forward   x_r = reduce-scatter(E_r[t]) over the tokens; a row of another rank counts as 0
    backward  dx = all-gather(dx_r), each rank adds the rows of dx to its rows of the table

If tokens are not split, the sum is an all-reduce and the backward pass sends nothing.

E = b s h on one axis: 64 elements forward and 64 backward. On two axes, tp 2 inside of tatp 2, both
passes begin with tatp: sums of 64 and then 32 elements, gathers of 32 and then 64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.layers.tokens import DIM
from meshwright.run.mesh import Axis

Splits = tuple[tuple[Axis, bool], ...]
"""Axes that share the vocabulary, outermost first, and whether each splits tokens at rest."""


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, splits: Splits) -> Tensor:
        ctx.splits = splits
        for axis, splits_tokens in splits:
            if splits_tokens:
                x = axis.scatter_sum(x, DIM, "embedding.lookup: output", Phase.FORWARD)
            else:
                x = axis.sum(x, "embedding.lookup: output", Phase.FORWARD)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        for axis, splits_tokens in ctx.splits:
            if splits_tokens:
                site = "embedding.lookup: output gradient"
                dx = axis.gather(dx, DIM, site, Phase.WEIGHT_GRADIENT)
        return _in_token_order(dx, ctx.splits), None


def _in_token_order(x: Tensor, splits: Splits) -> Tensor:
    """Return gathered tokens in their order; gathering the outer axis first puts it inside."""
    sizes = [axis.size for axis, splits_tokens in splits if splits_tokens]
    if len(sizes) < 2:
        return x
    outer, inner = sizes
    return x.unflatten(DIM, (inner, outer, -1)).transpose(1, 2).flatten(1, 3)


class VocabularyEmbedding(nn.Module):
    """Rows ``first`` to ``first + len(weight)`` of the table."""

    def __init__(self, weight: Tensor, first: int, splits: Splits) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.first, self.splits = first, splits

    def forward(self, tokens: Tensor) -> Tensor:
        local = tokens - self.first
        is_mine = (local >= 0) & (local < len(self.weight))
        rows = nn.functional.embedding(local * is_mine, self.weight) * is_mine[..., None]
        return _SumRows.apply(rows, self.splits)
