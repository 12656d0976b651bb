"""Gates and rotations on the tokens of a rank: they send nothing and keep their inputs alone.

    gate      y = silu(a) b, with p = sigmoid(a):
              da = dy b p (1 + a (1 - p)), db = dy a p
    rotation  y = R(position) x; dx = R(-position) dy, which needs no x

A gate of b s f = 1 x 8 x 6 keeps 48 elements of a and 48 of b, and recomputes p.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from meshwright.run.model import rotate


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
