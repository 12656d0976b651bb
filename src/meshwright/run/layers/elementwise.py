"""Norms, gates and rotations on the tokens of a rank: nothing is sent, little is kept.

A norm needs whole tokens, which sequence parallelism leaves whole: each rank of tp, of tatp and of
cp takes its own.

    norm      y = w n + c, n = (x - m) r, r = 1 / sqrt(mean((x - m)^2) + e), m = mean(x) (rms: 0)
              dx = r (g - mean(g) - n mean(g n)) with g = w dy (rms: without mean(g)), and
              dw = sum over the own tokens of dy n: a sum that is open over the axes that split
              tokens, and is closed once in a step
    gate      y = silu(a) b;  da = dy b s (1 + a (1 - s)) with s = sigmoid(a), db = dy silu(a)
    rotation  backward turns the other way

Only x, and a with b, are kept: everything else is made again. A norm of b s h = 1 x 4 x 8 numbers
keeps 32 of them, on each of two ranks 16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.run.model import NORM_EPSILON, rotate


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


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return dy * b * s * (1 + a * (1 - s)), dy * a * s


def gate(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Return silu(a) b, or gelu of a network without a gate."""
    return nn.functional.gelu(a) if b is None else _Gate.apply(a, b)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor) -> Tensor:
        ctx.positions = positions
        return rotate(x, positions)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return rotate(dy, -ctx.positions), None


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Return heads turned by their positions."""
    return _Rotation.apply(x, positions)
