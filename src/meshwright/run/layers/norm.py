"""Norms on the tokens of a rank: nothing is sent in a pass, and the input alone is kept.

A norm needs whole tokens, which sequence parallelism leaves whole: each rank of tp, of tatp and of
cp takes its own.

    forward   y = w n + c, n = (x - m) r, r = 1 / sqrt(mean((x - m)^2) + e), m = mean(x) (rms: 0)
    backward  dx = r (g - mean(g) - n mean(g n)) with g = w dy (rms: without mean(g)), and
              dw = sum over the own tokens of dy n: a sum that is open over the axes that split
              tokens; an all-reduce of h elements closes it, once in a step

n and r are made again. A norm of b s h = 1 x 4 x 8 numbers keeps 32 of them, on each of two ranks
16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.run.model import NORM_EPSILON


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, is_rms: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.of = (is_rms, bias is not None)
        y, _ = _normalised(x, is_rms)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        is_rms, has_bias = ctx.of
        n, r = _normalised(x, is_rms)
        g = dy if weight is None else dy * weight
        dx = g - n * (g * n).mean(dim=-1, keepdim=True)
        dx = r * (dx if is_rms else dx - g.mean(dim=-1, keepdim=True))
        rows = tuple(range(x.ndim - 1))
        dw = None if weight is None else (dy * n).sum(dim=rows)
        return dx, dw, dy.sum(dim=rows) if has_bias else None, None


def _normalised(x: Tensor, is_rms: bool) -> tuple[Tensor, Tensor]:
    """Return the normalised tokens, and the factor of each."""
    centred = x if is_rms else x - x.mean(dim=-1, keepdim=True)
    factor = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
    return centred * factor, factor


class SplitNorm(nn.Module):
    """A norm on the tokens, or heads, of this rank; its weights are those of the dense norm."""

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        self.is_rms = isinstance(dense, nn.RMSNorm)
        self.weight, self.bias = dense.weight, None if self.is_rms else dense.bias

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(x, self.weight, self.bias, self.is_rms)
