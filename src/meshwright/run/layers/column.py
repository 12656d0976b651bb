"""Column-parallel linear layer: each rank of tp makes some columns of the output (Megatron-LM).

    forward   X = all-gather(X_r) over tokens (sequence parallelism), Y_r = X W_r^T
    backward  dX_r = reduce-scatter(dY_r W_r) (without it: all-reduce), dW_r = dY_r^T X, X gathered
              again, because only X_r was kept

With b sequences of s tokens and width h: b s h elements gathered forward, b s h reduced and b s h
gathered again backward. For b = 1, s = 4, h = 8 and tp 2 that is 32 elements each. Where tokens
travel over tatp the gather and the scatter are passes of a stream, part by part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.products import Product
from meshwright.run.layers.tokens import Tokens


class Column(torch.autograd.Function):
    """Y_r = X W_r^T."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, tokens: Tokens, product: Product, site: str
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.of = (tokens, product, site)
        y = x.new_empty(x.shape[0], tokens.number(x), product.outputs(weight))
        for part, places in tokens.gather(x, f"{site}: input", Phase.FORWARD):
            y[:, places] = product.forward(part, weight, site)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        tokens, product, site = ctx.of
        dx = tokens.scatter_sum(
            lambda places: product.input_gradient(dy[:, places], weight, site),
            dy, x.shape[-1], f"{site}: input gradient", Phase.INPUT_GRADIENT,
        )  # fmt: skip
        dw = torch.zeros_like(weight)
        for part, places in tokens.gather(x, f"{site}: kept input", Phase.WEIGHT_GRADIENT):
            dw += product.weight_gradient(dy[:, places], part, site)
        return dx, dw, None, None, None
