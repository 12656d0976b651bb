"""Row-parallel linear layer: each rank of tp adds its part of every output (Megatron-LM).

    forward   Y = sum_r X_r W_r^T: reduce-scatter over tokens under sequence parallelism, else
              all-reduce; X_r is what a column-parallel layer left, so nothing comes before it
    backward  dY = all-gather(dY_r) (whole already without it), dX_r = dY W_r, dW_r = dY^T X_r

A block of a column-parallel and a row-parallel layer makes one all-reduce forward and one backward,
or a gather and a scatter instead of each, of the same volume, and one more gather backward for
the input that the column-parallel layer did not keep. For b = 1, s = 4, h = 8 and tp 2 the
scatter takes 32 elements. Where tokens travel over tatp both are passes of a stream, part by part.
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
