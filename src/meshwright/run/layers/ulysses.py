"""Ulysses: around attention an all-to-all over cp turns split tokens into split heads, and back.

    x_r (all heads, tokens of r)  ->  x_r (heads of r, all tokens);  backward the other way

Each rank sends (N - 1) / N of its b s / N x heads x size elements (Jacobs et al. 2023, arXiv
2309.14509): 32 held, 16 sent for b = 1, s = 4, two heads of size 8 and cp 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.graph.op import Phase
from meshwright.run.mesh import Axis


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cp: Axis, split: int, join: int, site: str) -> Tensor:
        ctx.of = (cp, split, join, site)
        return turned(x, cp, split, join, f"{site}: input", Phase.FORWARD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cp, split, join, site = ctx.of
        name = f"{site}: input gradient"
        return turned(gradient, cp, join, split, name, Phase.INPUT_GRADIENT), None, None, None, None


def turned(x: Tensor, cp: Axis, split: int, join: int, site: str, phase: Phase) -> Tensor:
    """Return x with one dim split over the ranks and another one joined."""
    parts = torch.stack([part.contiguous() for part in x.chunk(cp.size, dim=split)])
    ones = [1] * cp.size
    return torch.cat(list(cp.exchange(parts, ones, ones, site, phase)), dim=join)


def tokens_to_heads(x: Tensor, cp: Axis, site: str) -> Tensor:
    """Return all tokens of the heads of this rank; x is (batch, tokens, heads, size)."""
    return x if cp.size == 1 else _Turn.apply(x, cp, 2, 1, site)


def heads_to_tokens(x: Tensor, cp: Axis, site: str) -> Tensor:
    """Return all heads of the tokens of this rank."""
    return x if cp.size == 1 else _Turn.apply(x, cp, 1, 2, site)
