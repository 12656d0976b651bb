"""Norms under sequence parallelism: each rank normalises its own tokens, and passes send nothing.

A norm needs all features of a token. Sequence parallelism splits tokens, not features.

    forward   m = mean(x) (RMSNorm: 0), r = 1 / sqrt(mean((x - m)^2) + e), n = (x - m) r,
              y = w n + c
    backward  g = w dy, dx = r (g - mean(g) - n mean(g n)) (RMSNorm: without mean(g))
              dw = sum of dy n, dc = sum of dy over the tokens of this rank

dw and dc are partial sums: once per step an all-reduce of E = h adds them over the axes that split
tokens, and for norms of queries and keys over those that split heads. Only x is kept; n and r are
recomputed. Without sequence parallelism every rank of tp normalises all tokens, so dw is complete.
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
