"""Row-parallel linear layer: rank r holds columns of W, and Y is a sum over ranks (Megatron-LM).

    forward   Y_r = reduce-scatter(X_r W_r^T) over the tokens
    backward  dY = all-gather(dY_r), dX_r = dY W_r, dW_r = dY^T X_r

X_r are the columns that a column-parallel layer computed on rank r, so nothing is sent before the
product. Without sequence parallelism the sum is an all-reduce and dY is on every rank.

E = b s h for each: 64 elements are reduced forward and 64 gathered backward.

A block of a column-parallel and a row-parallel layer, by the elements that a rank sends:

    without SP   all-reduce forward, all-reduce backward                            96 +  96 = 192
    with SP      gather, scatter forward; gather, scatter, gather of X backward     96 + 144 = 240

A gather and a scatter together send what one all-reduce sends. The gather of X comes on top: it is
the price of keeping X_r alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.layers.products import Product
from meshwright.run.layers.tokens import Tokens


class Row(torch.autograd.Function):
    """Y = sum_r X_r W_r^T."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, tokens: Tokens, product: Product, site: str
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.of = (tokens, product, site)
        return tokens.scatter_sum(
            lambda places: product.forward(x[:, places], weight, site),
            x, product.outputs(weight), f"{site}: output", Phase.FORWARD,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        tokens, product, site = ctx.of
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        for part, places in tokens.gather(dy, f"{site}: output gradient", Phase.INPUT_GRADIENT):
            dx[:, places] = product.input_gradient(part, weight, site)
            dw += product.weight_gradient(part, x[:, places], site)
        return dx, dw, None, None, None
