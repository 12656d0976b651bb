"""Row-parallel linear layer: each rank of tp adds its part of every output (Megatron-LM).

    forward   Y = sum_r X_r W_r^T: reduce-scatter over tokens under sequence parallelism, else
              all-reduce; X_r is what a column-parallel layer left, so nothing comes before it
    backward  dY = all-gather(dY_r) (whole already without it), dX_r = dY W_r, dW_r = dY^T X_r

A block of a column-parallel and a row-parallel layer makes one all-reduce forward and one backward,
or a gather and a scatter instead of each, of the same volume. For b = 1, s = 4, h = 8 and tp 2 the
scatter takes 32 elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.graph.op import Phase
from meshwright.run.layers.column import TOKENS
from meshwright.run.layers.products import Product
from meshwright.run.mesh import Axis


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tp: Axis, splits: bool, product: Product,
                site: str) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.of = (tp, splits, product, site)
        open_y = product.forward(x, weight, site)
        if splits:
            return tp.scatter_sum(open_y, TOKENS, f"{site}: output", Phase.FORWARD)
        return tp.sum(open_y, f"{site}: output", Phase.FORWARD)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        tp, splits, product, site = ctx.of
        if splits:
            dy = tp.gather(dy, TOKENS, f"{site}: output gradient", Phase.INPUT_GRADIENT)
        dx = product.input_gradient(dy, weight, site)
        return dx, product.weight_gradient(dy, x, site), None, None, None, None


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over tp; the bias is added once, after the sum."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *of: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        made = _Row.apply(x, self.weight, *self.of)
        return made if self.bias is None else made + self.bias
