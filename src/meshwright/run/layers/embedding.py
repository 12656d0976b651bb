"""Vocabulary-parallel embedding: each rank of tp and tatp holds some rows of the table.

    forward   x = sum_r E_r[t], rows of other ranks count as 0: reduce-scatter over tokens, else
              all-reduce
    backward  dx gathered again (whole already without split tokens), each rank keeps its rows

With b sequences of s tokens and width h, b s h elements forward, and as many backward where tokens
are split: 32 for b = 1, s = 4, h = 8.
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
        return _in_a_row(dx, ctx.splits), None


def _in_a_row(x: Tensor, splits: Splits) -> Tensor:
    """Return gathered tokens in their order: the outer axis was gathered first, inside."""
    inner = [axis.size for axis, splits_tokens in splits if splits_tokens]
    if len(inner) < 2:
        return x
    outer, last = inner
    return x.unflatten(DIM, (last, outer, -1)).transpose(1, 2).flatten(1, 3)


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
