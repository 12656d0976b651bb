"""Column-parallel linear layer: rank r holds rows of W and computes columns of Y (Megatron-LM).

    forward   X = all-gather(X_r) over the tokens, Y_r = X W_r^T
    backward  dX_r = reduce-scatter(dY_r W_r), dW_r = dY_r^T X

That is with sequence parallelism, where X_r are the tokens of rank r. The layer keeps X_r alone and
gathers X once more for dW_r. Without sequence parallelism X is on every rank: the forward pass
sends nothing, and the sum of dX is an all-reduce.

E = b s h for each: 64 elements are gathered forward; 64 are reduced and 64 gathered backward. A
rank sends 3 x 48. If tokens travel over tatp, the gathers and the scatter are passes of a stream.
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
        y = x.new_empty(x.shape[0], x.shape[1] * tokens.degree, product.outputs(weight))
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
