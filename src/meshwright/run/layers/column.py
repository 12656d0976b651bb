"""Column-parallel linear layer: each rank of tp makes some columns of the output (Megatron-LM).

    forward   X = all-gather(X_r) over tokens (sequence parallelism), Y_r = X W_r^T
    backward  dX_r = reduce-scatter(dY_r W_r) (without it: all-reduce), dW_r = dY_r^T X, X gathered
              again, because only X_r was kept

With b sequences of s tokens and width h: b s h elements gathered forward, b s h reduced and b s h
gathered again backward. For b = 1, s = 4, h = 8 and tp 2 that is 32 elements each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.layers.products import Product
from meshwright.run.mesh import Axis

TOKENS = 1
"""Dim of the tokens of an activation: (batch, tokens, width)."""


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tp: Axis, splits: bool, product: Product,
                site: str) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.of = (tp, splits, product, site)
        whole = tp.gather(x, TOKENS, f"{site}: input", Phase.FORWARD) if splits else x
        return product.forward(whole, weight, site)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        tp, splits, product, site = ctx.of
        open_dx = product.input_gradient(dy, weight, site)
        name = f"{site}: input gradient"
        if splits:
            dx = tp.scatter_sum(open_dx, TOKENS, name, Phase.INPUT_GRADIENT)
            x = tp.gather(x, TOKENS, f"{site}: kept input", Phase.WEIGHT_GRADIENT)
        else:
            dx = tp.sum(open_dx, name, Phase.INPUT_GRADIENT)
        return dx, product.weight_gradient(dy, x, site), None, None, None, None


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are split over tp; its weight may travel over tatp."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *of: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        made = _Column.apply(x, self.weight, *self.of)
        return made if self.bias is None else made + self.bias
